"""Draw the phantoms that the embedded models are made from, with every core.

    python embedded/draw.py blocks STORE --count 8192 --seed 21      # for the encoder and its probe
    python embedded/draw.py pairs SET --train 400 --seed 31          # for the generators: four markers, layout of MIST
    python embedded/draw.py pairs SET --val 50 --seed 32 --truth     # to measure them on: with the aligned truth

``blocks`` writes a store: one section of tissue per block, stained twice, and what it is, pixel by pixel::

    images.npy    uint8 [n, 2, 512, 512, 3]   H&E, and the IHC of the very same section (HER2, ER, PR, Ki-67 in turn)
    labels.npy    uint8 [n, 2, 256, 256]      tissue and nucleus class of every second pixel
    traits.npy    float32 [n, t]              what a pathologist reads from H&E: size of nuclei, glands, mitoses …
    store.json    seed and names

A seed draws the same store with any number of cores. Sets of different seeds share no specimen.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import as_completed
from functools import partial
from pathlib import Path

import numpy as np

from sheafstain.datasets.phantom.dataset import cores, pool, write_dataset
from sheafstain.datasets.phantom.field import uniform
from sheafstain.datasets.phantom.phantom import BLOCK, Phantom
from sheafstain.datasets.phantom.plan import DRAWING, ONE_LABORATORY, Plan, choose_fields
from sheafstain.datasets.phantom.specimen import MARKERS, Marker, Specimen
from sheafstain.window import Resolution, Size, Window

FIELDS = 4  # blocks of a specimen: three where there is tissue and mostly tumour, one anywhere
PAIRS = 1  # fields of a specimen: a pair more is another patient and another laboratory's H&E
FINE, COARSE = 0.42, 0.6  # µm/px: the models are for 0.5, and slides are not exact
# Of a specimen's traits those that the picture shows. What the markers do with them is not among them.
TRAITS = ("nucleus", "pleomorphism", "vesicular", "crowding", "mitotic", "amphophilic", "gland", "cords", "loose")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    blocks = what.add_parser("blocks", help="a store for the encoder")
    blocks.add_argument("store", type=Path)
    blocks.add_argument("--count", type=int, default=8192)
    pairs = what.add_parser("pairs", help="a data set for the generators")
    pairs.add_argument("set", type=Path)
    pairs.add_argument("--train", type=int, default=0, help="pairs of each marker")
    pairs.add_argument("--val", type=int, default=0, help="pairs of each marker")
    pairs.add_argument("--marker", choices=MARKERS, nargs="+", default=MARKERS)
    pairs.add_argument("--side", type=int, default=1024, help="px")
    pairs.add_argument("--truth", action="store_true", help="also the aligned IHC, masks, DAB and displacement")
    for each in (blocks, pairs):
        each.add_argument("--seed", type=int, required=True)
        each.add_argument("--workers", type=int, default=None)
    chosen = parser.parse_args()
    os.nice(10)  # it takes every core, and trainings beside it wait for one
    began = time.perf_counter()
    if chosen.what == "blocks":
        drawn = draw_store(chosen.store, chosen.count, chosen.seed, chosen.workers)
    else:
        size, markers = Size(chosen.side, chosen.side), tuple(chosen.marker)
        counts = (chosen.train, chosen.val)
        # What an H&E cannot tell is how the IHC will be dyed: as in BCI and MIST all of it is of one laboratory.
        plan = Plan("mist", chosen.seed, *counts, markers, size, Resolution(0.5), PAIRS, chosen.truth, ONE_LABORATORY)
        drawn = write_dataset(chosen.set, plan, workers=chosen.workers)
    seconds = time.perf_counter() - began
    print(f"{drawn} {chosen.what} in {seconds:.0f} s, {drawn / seconds:.1f} a second, {cores()} cores", flush=True)


def draw_store(store: Path, count: int, seed: int, workers: int | None = None) -> int:
    """Draw ``count`` blocks into ``store``; returns how many that is."""
    store.mkdir(parents=True, exist_ok=True)
    for name, (shape, dtype) in _arrays(count).items():
        np.lib.format.open_memmap(store / f"{name}.npy", "w+", dtype, shape)
    with pool(workers, -(-count // FIELDS)) as submit:
        for done in as_completed([submit(partial(_specimen, store, count, seed, i)) for i in range(0, count, FIELDS)]):
            done.result()
    said = {"seed": seed, "blocks": count, "fields": FIELDS, "traits": TRAITS, "drawing": DRAWING}
    (store / "store.json").write_text(json.dumps(said))  # last: a store that has it is whole
    return count


def _arrays(count: int) -> dict[str, tuple[tuple[int, ...], type]]:
    return {
        "images": ((count, 2, BLOCK, BLOCK, 3), np.uint8),
        "labels": ((count, 2, BLOCK // 2, BLOCK // 2), np.uint8),
        "traits": ((count, len(TRAITS)), np.float32),
    }


def _specimen(store: Path, count: int, seed: int, first: int) -> None:
    """The blocks of one specimen, written to where they belong."""
    number = first // FIELDS
    specimen = Specimen.draw((seed << 24) | number)
    marker: Marker = MARKERS[number % len(MARKERS)]
    fine, along = uniform(specimen.seed, 800, np.arange(2))
    resolution = Resolution(FINE * (COARSE / FINE) ** float(fine))
    windows = choose_fields(specimen, Size(BLOCK, BLOCK), resolution, FIELDS - 1)
    windows.append(Window(-BLOCK, int(along * 1000) * BLOCK, BLOCK, BLOCK))  # above all that are chosen from
    arrays = {name: np.load(store / f"{name}.npy", mmap_mode="r+") for name in _arrays(count)}
    phantom = Phantom(specimen, marker, resolution)
    for i, window in zip(range(first, min(first + FIELDS, count)), windows, strict=False):
        layers = phantom.draw(window, ("he", "truth", "tissue", "classes"))
        arrays["images"][i] = layers["he"], layers["truth"]
        arrays["labels"][i] = layers["tissue"][::2, ::2], layers["classes"][::2, ::2]
        arrays["traits"][i] = [getattr(specimen, trait) for trait in TRAITS]


if __name__ == "__main__":
    main()
