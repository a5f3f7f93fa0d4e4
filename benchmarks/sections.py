"""What does the cache of sections save? Windows per second from the cache against encoding them live.

    python benchmarks/sections.py [--encoder random-small] [--images 4]

A window here is what a training step needs of it: M [d, 16, 16] and c_n [d] at a random place of a random 1024² image.

live neighbourhood   up to 16 crops around the window, encoded for it
live lattice         whole images encoded once; after how many windows that pays is printed
cache                opened and cut from the memory-mapped file, hash checked once
cache, width 1536    the same for tokens as wide as those of a ViT-g (their values do not matter)

A file that was just written is in the memory of the operating system: the figures are of the cache, not of the disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from machine import record

from sheafstain.sheaf.cache import CacheKey, SectionCache
from sheafstain.sheaf.cover import cut
from sheafstain.sheaf.crops import STRIDE, neighborhood
from sheafstain.sheaf.encoders import Encoder, load_encoder
from sheafstain.sheaf.section import Section, encode_sections
from sheafstain.window import CELL, Size, Window

SIZE = Size(1024, 1024)


def places(count: int) -> list[Window]:
    """The same random places whoever asks."""
    drawn = np.random.default_rng(1).integers(0, (SIZE.h - 256) // CELL + 1, (count, 2)) * CELL
    return [Window(y, x, 256, 256) for y, x in drawn.tolist()]


def live(encoder: Encoder, images: list[np.ndarray], count: int) -> float:
    begin = time.perf_counter()
    for k, window in enumerate(places(count)):
        crops = neighborhood(window, SIZE, seed=k)
        pixels = np.stack([cut(images[k % len(images)], c) for c in crops])
        (tokens,) = encoder.encode([pixels])
        section = Section.of(crops, tokens.patch, tokens.cls, encoder.pitch).restrict(window)
        _ = section.M, section.c_n
    return count / (time.perf_counter() - begin)


def cached(cache: SectionCache, images: int, count: int) -> float:
    for k in range(images):
        cache.open(str(k))  # checks the hash, once per file and process
    begin = time.perf_counter()
    for k, window in enumerate(places(count)):
        section = cache.open(str(k % images)).restrict(window)
        _ = section.M, section.c_n
    return count / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="random-small")
    parser.add_argument("--images", type=int, default=4)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (SIZE.h, SIZE.w, 3), dtype=np.uint8) for _ in range(arguments.images)]
    encoder = load_encoder(arguments.encoder)
    rows = []

    def add(way: str, width: int, per_second: float, size: int) -> None:
        rows.append(
            {"way": way, "encoder": encoder.id, "width": width, "per_s": per_second, "mb_per_image": size / 1e6}
        )

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        live(encoder, images, 2)  # warm-up
        add("live neighbourhood, windows", encoder.width, live(encoder, images, 20), 0)
        key = CacheKey.of(encoder, STRIDE)
        cache = SectionCache.create(Path(folder), key)
        begin = time.perf_counter()
        sections = dict(encode_sections(((str(k), image) for k, image in enumerate(images)), encoder))
        add("live lattice, images", encoder.width, len(images) / (time.perf_counter() - begin), 0)
        size = max(cache.write(name, "-", section).stat().st_size for name, section in sections.items())
        add("cache, windows", encoder.width, cached(cache, len(images), 2000), size)
        wide = SectionCache.create(Path(folder), replace(key, encoder="as wide as ViT-g", width=1536))
        for name, section in sections.items():
            repeat = -(-1536 // encoder.width)
            tokens = {part: getattr(section, part).repeat_interleave(repeat, -1)[..., :1536] for part in ("sum", "cls")}
            size = wide.write(name, "-", replace(section, **tokens)).stat().st_size
        add("cache, windows", 1536, cached(wide, len(images), 1000), size)
    record("sections", rows)
    speed = {(row["way"], row["width"]): row["per_s"] for row in rows}
    slow = speed["live neighbourhood, windows", encoder.width]
    print(f"from the cache come {speed['cache, windows', encoder.width] / slow:.0f} × the windows of live encoding")
    print(f"and it pays after {slow / speed['live lattice, images', encoder.width]:.0f} windows of each image")


if __name__ == "__main__":
    main()
