"""Maps of disagreement as one byte a pixel: 0 where it is undefined, else 1 + 508 × RMS.

Root-mean-square differences of values in [0, 1] lie in [0, ½], so a map uses 1 … 255, and a step is half a grey level
of an 8-bit image: the windows at a pixel of value v deviate from their mean by (v − 1) / 2 grey levels of 255.
"""

from __future__ import annotations

import math

import numpy as np

from sheafstain.sheaf.defect import blocks
from sheafstain.window import Size, Window

STEPS = 508  # of the RMS on the [0, 1] scale
CELL = 256  # px: side of the squares in which bad places are looked for


def encode(variance: np.ndarray) -> np.ndarray:
    """A variance [h, w] on the [0, 1] scale, NaN where undefined, as uint8 [h, w]."""
    coded = np.empty(variance.shape, np.uint8)
    for rows in blocks(variance.shape):
        rms = np.sqrt(variance[rows])
        rms *= STEPS
        rms += 1.5
        np.minimum(np.fmax(rms, 0, out=rms), 255, out=rms)  # fmax: NaN becomes 0
        np.copyto(coded[rows], rms, casting="unsafe")
    return coded


def decode(coded: np.ndarray) -> np.ndarray:
    """The RMS [h, w] float32 of a map uint8 [h, w], NaN where undefined."""
    rms = (coded.astype(np.float32) - 1) / STEPS
    return np.where(coded == 0, np.float32(np.nan), rms)


class Areas:
    """Mean RMS of every 256-px square of a map that comes in rows: where on a slide to look first."""

    def __init__(self, size: Size) -> None:
        self.size = size
        shape = -(-size.h // CELL), -(-size.w // CELL)
        self.sums, self.defined = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)

    def add(self, top: int, coded: np.ndarray) -> None:
        """Rows ``top`` … of the map, uint8 [h, w]; every row once."""
        starts = np.arange(0, self.size.w, CELL)
        for row in range(top // CELL, (top + len(coded) - 1) // CELL + 1):
            rows = coded[max(row * CELL - top, 0) : (row + 1) * CELL - top]
            for counts, values in ((self.sums, rows), (self.defined, (rows != 0).view(np.uint8))):
                columns = np.add.reduce(values, axis=0, dtype=np.uint16)  # at most 256 rows of 255
                counts[row] += np.add.reduceat(columns, starts, dtype=np.uint32)

    def worst(self, share: float = 0.01) -> list[tuple[Window, float]]:
        """The worst squares, ``share`` of those that are defined, with their mean RMS; none where all agree."""
        means = (self.sums - self.defined.astype(np.float64)) / (np.maximum(self.defined, 1) * STEPS)
        count = math.ceil(np.count_nonzero(self.defined) * share)
        order = np.argsort(-means, axis=None, kind="stable")[:count]
        image = Window.of(self.size)
        places = [(int(k) // means.shape[1], int(k) % means.shape[1]) for k in order if means.flat[k] > 0]
        return [(Window(i * CELL, j * CELL, CELL, CELL).overlap(image), float(means[i, j])) for i, j in places]
