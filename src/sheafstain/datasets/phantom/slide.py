"""A whole phantom slide to a pyramidal TIFF, in memory that does not depend on its height."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.dataset import pool
from sheafstain.datasets.phantom.phantom import BLOCK, Phantom
from sheafstain.datasets.phantom.plan import DRAWING
from sheafstain.datasets.phantom.specimen import GRADES, Marker, Specimen
from sheafstain.device import cores
from sheafstain.errors import UsageError
from sheafstain.slides.write import open_writer
from sheafstain.window import Resolution, Size, Window

SlideLayer = Literal["he", "ihc", "truth"]
_AHEAD = 3  # block columns in flight per worker: enough to keep it busy, few enough to hold


def write_slide(
    path: Path,
    seed: int,
    size: Size,
    resolution: Resolution,
    *,
    marker: Marker = "HER2",
    layer: SlideLayer = "he",
    workers: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> None:
    """Draw one stain of a slide. The three layers of one seed are three slides of the same tissue."""
    if min(size.h, size.w) < BLOCK:
        raise UsageError(f"a slide of {size} px is too small; its sides start at {BLOCK} px (or draw pairs)")
    specimen = Specimen.draw(seed)
    description = {
        "stain": "H&E" if layer == "he" else marker,
        "what": "phantom: procedural tissue, no patient",
        "section": "consecutive" if layer == "ihc" else "same",
        "seed": seed,
        "drawing": DRAWING,
        "her2": GRADES[specimen.her2],
    }
    rows = [(y, min(BLOCK, size.h - y)) for y in range(0, size.h, BLOCK)]
    columns = [(x, min(BLOCK, size.w - x)) for x in range(0, size.w, BLOCK)]
    windows = [Window(y, x, h, w) for y, h in rows for x, w in columns]
    with open_writer(path, size, resolution, description=description) as slide, pool(workers, len(windows)) as submit:
        draw = partial(_draw, specimen, marker, resolution, size, layer)
        blocks = _in_order(submit, (partial(draw, window) for window in windows))
        for _, height in rows:
            band = np.empty((height, size.w, 3), np.uint8)
            for x, width in columns:
                band[:, x : x + width] = next(blocks)
                if advance:
                    advance(1)
            slide.rows(band)


def blocks_of(size: Size) -> int:
    """How many times ``write_slide`` calls ``advance``."""
    return -(-size.h // BLOCK) * -(-size.w // BLOCK)


def _draw(specimen: Specimen, marker: Marker, resolution: Resolution, size: Size, layer: SlideLayer, window: Window):
    return Phantom(specimen, marker, resolution, size).draw(window, (layer,))[layer]


def _in_order(submit: Callable[..., Future], tasks: Iterator[Callable]) -> Iterator[NDArray[np.uint8]]:
    """Results in the order of the tasks, a bounded number of them in flight."""
    waiting: deque[Future] = deque()
    for task in tasks:
        waiting.append(submit(task))
        if len(waiting) > _AHEAD * cores():
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
