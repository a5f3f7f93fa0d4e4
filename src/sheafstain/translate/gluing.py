"""Gluing: translated windows become rows of the output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sheafstain.sheaf.glue import Glued, Gluer
from sheafstain.translate.plan import Plan
from sheafstain.translate.windows import Translated
from sheafstain.window import Window

BACKGROUND = 0.96  # grey level of glass, which is not translated
BAND = 2**21  # px handed on at a time, in at least 16 rows


@dataclass(frozen=True, eq=False, slots=True)
class Finished:
    """Rows that nothing will change any more, ``window`` in the coordinates of the plan's target.

    ``pixels`` uint8 [h, w, 3] and ``defect`` float32 [h, w], NaN where undefined; with more than one sample these are
    means over them, and ``spread`` float32 [h, w] is the variance between them, on the [0, 1] scale as the defect is.
    """

    window: Window
    pixels: np.ndarray
    defect: np.ndarray
    spread: np.ndarray | None


def glue(plan: Plan, translated: Iterable[Translated]) -> Iterator[Translated | Finished]:
    """Every batch of windows, and after it the rows that it completes."""
    target = plan.target
    gluers = [Gluer(target.size, background=BACKGROUND) for _ in plan.protocol.seeds]
    band = max(BAND // target.w, 16)
    done = 0

    def finish(row: int) -> Iterator[Finished]:
        nonlocal done
        while done < row:
            done = min(done + band, row)
            for glued in zip(*(gluer.rows_done(done) for gluer in gluers), strict=True):
                yield merged(glued)

    for item in translated:
        for gluer, pixels in zip(gluers, item.pixels(), strict=True):
            for piece, made in zip(item.pieces, pixels, strict=True):
                gluer.add(piece.keep.within(target), piece.kept(made), piece.kind)
        yield item
        yield from finish(item.floor - target.y)
    yield from finish(target.h)


def merged(samples: tuple[Glued, ...]) -> Finished:
    """One band of all samples as one."""
    first, n = samples[0], len(samples)
    assert first.defect is not None
    if n == 1:
        return Finished(first.window, first.pixels, first.defect, None)
    mean = np.zeros(first.pixels.shape, np.float32)
    square = np.zeros_like(mean)
    defect = np.zeros_like(first.defect)
    for sample in samples:  # sums of at most 256 bytes and of their squares: exact in float32
        values = sample.pixels.astype(np.float32)
        mean += values
        square += values * values
        defect += sample.defect if sample.defect is not None else np.nan
    variance = (square - mean * mean / n) / (n * 255**2)
    mean /= n
    defect /= n
    return Finished(first.window, np.rint(mean).astype(np.uint8), defect, variance.mean(2).clip(0))
