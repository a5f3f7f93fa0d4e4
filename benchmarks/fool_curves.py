"""What the curves of docs/metrics.md show: blur against displacement, distances by the number of images, Dice by its
threshold, and the energy of windows before gluing.

    python benchmarks/fool_curves.py [--weights FOLDER] [--count 40]

writes docs/metrics_curves.csv. Without the weights of AlexNet there are no distances.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from fool import DOCS, Alexnet, Network, Row, collected, features, tensor
from outputs import OUTPUTS, SIDE, Field, blurred, specimens
from torch import Tensor

from sheafstain.metrics import chromogen, fidelity
from sheafstain.metrics.distribution import fid, kid
from sheafstain.metrics.texts import csv_text
from sheafstain.sheaf.cover import Lattice
from sheafstain.sheaf.defect import DirichletEnergy
from sheafstain.whole import write_whole
from sheafstain.window import Size

SIGMAS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
MOVES = {"same place, 1 px off": (1, 0), "2 px": (1, 2), "4 px": (3, -3), "8 px": (-5, 6), "16 px": (11, 12)}
THRESHOLDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


def by_blur(fields: Sequence[Field]) -> Iterator[Row]:
    """The truth, ever more blurred, against references that are ever less registered."""
    measures: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "psnr": fidelity.psnr,
        "ssim": fidelity.ssim,
        "dab-r": chromogen.dab_r,
    }
    references = {name: [field.moved(*by) for field in fields] for name, by in MOVES.items()}
    references["next section"] = [field.ihc for field in fields]
    for sigma in SIGMAS:
        outputs = [tensor(blurred(sigma)(field.truth) if sigma else field.truth) for field in fields]
        for (name, images), (key, measure) in product(references.items(), measures.items()):
            values = [float(measure(pred, tensor(real))) for pred, real in zip(outputs, images, strict=True)]
            yield [f"{key} by blur", name, sigma, float(np.mean(values))]


def by_count(fields: Sequence[Field], network: Network, side: int = 128, draws: int = 40) -> Iterator[Row]:
    """Distances between two halves of one pile of crops: nothing differs but the chance of the draw."""
    crops = [
        field.ihc[y : y + side, x : x + side]
        for field in fields
        for y, x in product(range(0, SIDE, side), range(0, SIDE, side))
    ]
    softer = features(network, (blurred(1)(crop) for crop in crops))
    pile = features(network, crops)
    rng = np.random.default_rng(0)
    for n in (count for count in (4, 8, 16, 32, 64, 128, 256) if 2 * count <= len(crops)):
        for name, others in (("two draws of the same images", pile), ("the second draw blurred, σ 1", softer)):
            found = []
            for _ in range(draws):
                order = rng.permutation(len(crops))
                a, b = collected(pile[order[:n]]), collected(others[order[n : 2 * n]])
                found.append((fid(a, b), kid(a, b) * 1000))
            for key, values in zip(("fd by count", "kd by count"), np.transpose(found), strict=True):
                yield [key, name, n, float(values.mean())]
                yield [f"{key}, std", name, n, float(values.std(ddof=1))]


def by_threshold(fields: Sequence[Field]) -> Iterator[Row]:
    """What counts as positive decides what Dice can tell apart."""
    keys = ("truth", "dab-elsewhere", "he", "brown")
    outputs = [output for output in OUTPUTS if output.key in keys]
    maps = [chromogen.dab(tensor(field.ihc)) for field in fields]
    others = {o.title: [chromogen.dab(tensor(o.make(fields, i))) for i in range(len(fields))] for o in outputs}
    for threshold in THRESHOLDS:
        for title, preds in others.items():
            dice = [float(chromogen.dab_dice(p, r, threshold)) for p, r in zip(preds, maps, strict=True)]
            yield ["dice by threshold", title, threshold, float(np.nanmean(dice))]
        for grade in sorted({field.grade for field in fields}):
            shares = [
                float(chromogen.fod(m, threshold))
                for m, field in zip(maps, fields, strict=True)
                if field.grade == grade
            ]
            yield ["fod by threshold", grade, threshold, float(np.mean(shares))]


def by_windows(fields: Sequence[Field]) -> Iterator[Row]:
    """The Dirichlet energy of windows that were drawn each by itself, and of ways to have less of it."""

    def tone(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return 255 - (255 - pixels) * rng.uniform(0.8, 1.2, 3)

    def noise(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return pixels + rng.normal(0, 12, pixels.shape)

    def keep(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return pixels

    def pale(pixels: np.ndarray) -> np.ndarray:
        return 255 - (255 - pixels) / 2

    def white(pixels: np.ndarray) -> np.ndarray:
        return np.full_like(pixels, 255)

    soft = blurred(4)
    ways: tuple[tuple[str, Callable, Callable], ...] = (
        ("cut from the aligned truth", keep, lambda pixels: pixels),
        ("white", keep, white),
        ("a tone of its own in each window", tone, lambda pixels: pixels),
        ("the same, blurred σ 4", tone, soft),
        ("the same, at half the contrast", tone, pale),
        ("noise of its own in each window", noise, lambda pixels: pixels),
        ("the same noise, blurred σ 4", noise, soft),
    )
    cover = list(Lattice.over(Size(SIDE, SIDE)))
    for name, own, then in ways:
        energies = []
        for i, field in enumerate(fields):
            rng = np.random.default_rng(i)
            energy = DirichletEnergy(Size(SIDE, SIDE))
            for window in cover:
                made = then(own(field.truth[window.slices].astype(np.float64), rng)).clip(0, 255) / 255
                energy.add(window, made.astype(np.float32))
            energies.append(energy.energy)
        yield ["dirichlet of windows", name, 0, float(np.mean(energies))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="folder with the published weights of AlexNet")
    parser.add_argument("--count", type=int, default=40, help="phantom fields, as many of each HER2 grade")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fields = [Field.draw(specimen) for specimen in specimens(arguments.count)]
    moved = float(np.median([field.displacement for field in fields]))
    rows: list[Row] = [["displacement of the next section, px", "median", 0, moved]]
    if arguments.weights is not None:
        rows += by_count(fields, Alexnet(arguments.weights))
    rows += [*by_threshold(fields), *by_windows(fields), *by_blur(fields)]
    write_whole(DOCS / "metrics_curves.csv", csv_text(("curve", "series", "x", "value"), rows).encode())


if __name__ == "__main__":
    main()
