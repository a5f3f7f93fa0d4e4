"""Energy-extreme refinement of a cover: extra windows where mid-band detail is strongest and weakest (D7).

The paper ranks positions by Fourier energy in [1/16, 1/4] cycles/px, takes the extremes (priority 2·|rank − ½|) and
keeps 112 px between windows (appendix Inference-Time Sheafification, "Open cover"). Here the energy of a candidate is
the power of the band-passed image integrated over the candidate. The band-pass is a cosine transform, which is the
Fourier transform of the mirrored image: no false detail at the borders.

A slide is refined block by block. Blocks are fixed by the lattice (at most 5×5 windows each, so a 1024² image is one
block), and each is computed from its own pixels alone: memory grows with the width of the slide and not with its
height, and the windows do not depend on how the rows arrived. At strides up to 192 px the candidates of two blocks lie
at least 128 px apart, so that a block is also chosen alone as it is in the whole slide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.fft import dctn, idctn

from sheafstain.sheaf.cover import Lattice, cut
from sheafstain.window import CELL, Window

BAND = (1 / 16, 1 / 4)  # cycles/px
APART = 112  # px, Euclidean, between the corners (hence the centres) of any two windows
BLOCK = 5  # lattice windows along each axis: the 1024² image of the paper
DENSITY = 9 / 25  # extra windows per lattice window


@dataclass(frozen=True, slots=True)
class _Group:
    """Lattice starts along one axis that share a block, and the last candidate start that belongs to it."""

    lattice: tuple[int, ...]
    stop: int

    def reaches(self, start: int, end: int, side: int) -> bool:
        """Whether a window of this group can meet the pixels start … end − 1."""
        return self.lattice[0] < end and self.stop + side > start


def mid_band_energy(grey: np.ndarray) -> np.ndarray:
    """Band-passed power of a grey image ``[h, w]`` in [0, 1], summed over cells: ``[h / 16, w / 16]`` float64."""
    h, w = grey.shape
    spectrum = np.asarray(dctn(grey, norm="ortho")) * _band(h, w)
    band = np.asarray(idctn(spectrum, norm="ortho", overwrite_x=True))
    band *= band
    rows = np.add.reduceat(band, np.arange(0, h, CELL), axis=0)
    return rows.reshape(h // CELL, w // CELL, CELL).sum(2, dtype=np.float64)


@lru_cache(maxsize=4)
def _band(h: int, w: int) -> np.ndarray:
    """1 for the coefficients of a cosine transform [h, w] whose frequency lies in the band, else 0."""
    frequency = np.hypot(np.arange(h)[:, None] / (2 * h), np.arange(w) / (2 * w))
    return ((frequency >= BAND[0]) & (frequency <= BAND[1])).astype(np.float32)


def refine(image: np.ndarray, lattice: Lattice, tissue: Callable[[Window], bool] | None = None) -> list[Window]:
    """The extra windows of an image ``[h, w, 3]`` uint8: 9 on 1024² at stride 192."""
    return Refinement(lattice, tissue).add(image)


class Refinement:
    """Chooses extra windows while the rows of an image or slide arrive from the top.

    With ``tissue`` only windows for which it is true are ranked, placed and counted. With ``within`` only the blocks
    are refined whose windows can reach into it; rows are then those of ``view``.
    """

    def __init__(
        self, lattice: Lattice, tissue: Callable[[Window], bool] | None = None, within: Window | None = None
    ) -> None:
        self.lattice = lattice
        self._tissue = tissue
        image = Window.of(lattice.size)
        within = image if within is None else within
        self._bands = [g for g in _groups(lattice.ys) if g.reaches(within.y, within.bottom, lattice.side)]
        self._columns = [g for g in _groups(lattice.xs) if g.reaches(within.x, within.right, lattice.side)]
        self.begins = tuple(band.lattice[0] for band in self._bands)  # the first row of each band of blocks
        y, x = self.begins[0], self._columns[0].lattice[0]
        bottom, right = self._bands[-1].stop + lattice.side, self._columns[-1].stop + lattice.side
        self.view = image.overlap(Window(y, x, bottom - y, right - x))  # the pixels that it wants
        most = max(band.stop + lattice.side - band.lattice[0] for band in self._bands)
        # R+G+B of the rows from _top on, as many as a block has: exact, whatever the bands.
        self._grey = np.empty((min(most, self.view.h), self.view.w), np.uint16)
        self._top = y
        self.held = 0  # rows in memory
        self._placed: list[Window] = []  # extras near enough to matter to the next block

    def add(self, rows: np.ndarray) -> list[Window]:
        """The next rows ``[n, w, 3]`` uint8; returns the windows of the blocks that they complete."""
        if rows.ndim != 3 or rows.dtype != np.uint8 or rows.shape[1] != self.view.w:
            raise ValueError(f"rows must be uint8 [n, {self.view.w}, 3], not {rows.dtype} {rows.shape}")
        chosen: list[Window] = []
        while len(rows) and self._bands:
            taken = rows[: len(self._grey) - self.held]
            rows = rows[len(taken) :]
            grey = self._grey[self.held : self.held + len(taken)]
            np.add(taken[..., 0], taken[..., 1], out=grey, dtype=np.uint16)
            grey += taken[..., 2]
            self.held += len(taken)
            self._choose(chosen)
        return chosen

    def _choose(self, chosen: list[Window]) -> None:
        """The windows of all blocks whose rows are there, and room for the next rows."""
        while self._bands:
            band = self._bands[0]
            if self._top + self.held < min(band.stop + self.lattice.side, self.lattice.size.h):
                break
            self._bands.pop(0)
            for column in self._columns:
                chosen += self._block(self._grey[: self.held], band, column)
            keep = self._bands[0].lattice[0] - self._top if self._bands else self.held
            self._grey[: self.held - keep] = self._grey[keep : self.held]
            self._top, self.held = self._top + keep, self.held - keep
            self._placed = [w for w in self._placed if w.bottom > self._top]

    @property
    def decided(self) -> int:
        """Windows that start above this row are chosen; the bottom of the lattice when all are."""
        return self._bands[0].lattice[0] if self._bands else self.lattice.frame.bottom

    def _block(self, grey: np.ndarray, band: _Group, column: _Group) -> list[Window]:
        side = self.lattice.side
        ys, xs = np.arange(band.lattice[0], band.stop + 1, CELL), np.arange(column.lattice[0], column.stop + 1, CELL)
        allowed = np.hypot(*np.ix_(_gap(ys, self.lattice.ys), _gap(xs, self.lattice.xs))) >= APART
        if not allowed.any():
            return []
        region = Window(int(ys[0]), int(xs[0]), len(ys) * CELL - CELL + side, len(xs) * CELL - CELL + side)
        covered = [Window(y, x, side, side) for y in band.lattice for x in column.lattice]
        if self._tissue is not None:
            covered = [w for w in covered if self._tissue(w)]
            for i, j in np.argwhere(allowed):
                allowed[i, j] = self._tissue(Window(int(ys[i]), int(xs[j]), side, side))
        quota = int(DENSITY * len(covered) + 0.5)
        if not quota or not allowed.any():
            return []
        pixels = cut(grey, region.shift(-self._top, -self.view.x)).astype(np.float32) / np.float32(3 * 255)
        energy = _box(mid_band_energy(pixels), side // CELL)
        picks = _greedy(energy, allowed, ys, xs, quota, self._placed)
        chosen = [Window(y, x, side, side) for y, x in picks]
        self._placed += chosen
        return chosen


def _groups(starts: tuple[int, ...]) -> list[_Group]:
    """Nearly equal groups of at most five lattice starts; candidates between two groups belong to the first."""
    parts = [tuple(int(s) for s in p) for p in np.array_split(starts, -(-len(starts) // BLOCK))]
    ends = [after[0] - CELL for after in parts[1:]] + [starts[-1]]
    return [_Group(part, stop) for part, stop in zip(parts, ends, strict=True)]


def _gap(candidates: np.ndarray, starts: tuple[int, ...]) -> np.ndarray:
    """Distance of each candidate start to the nearest lattice start along one axis."""
    lattice = np.asarray(starts)
    after = np.clip(np.searchsorted(lattice, candidates), 0, len(lattice) - 1)
    return np.minimum(abs(candidates - lattice[after]), abs(candidates - lattice[np.maximum(after - 1, 0)]))


def _box(cells: np.ndarray, side: int) -> np.ndarray:
    """Sum over every side×side square of cells."""
    total = np.pad(cells.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]


def _greedy(
    energy: np.ndarray, allowed: np.ndarray, ys: np.ndarray, xs: np.ndarray, quota: int, placed: list[Window]
) -> list[tuple[int, int]]:
    """Starts (y, x) by falling priority 2·|rank − ½|, each ≥ 112 px from the others; ties: stronger, then raster."""
    i, j = np.nonzero(allowed)
    y, x, power = ys[i], xs[j], energy[i, j]
    _, tied, count = np.unique(power, return_inverse=True, return_counts=True)
    extreme = np.abs(2 * count.cumsum() - count - len(power))[tied]  # 2·|rank − ½| in whole numbers: ties share a rank
    order = np.lexsort((-power, -extreme))
    y, x = y[order], x[order]
    free = np.ones(len(y), bool)
    for window in placed:
        free &= np.hypot(y - window.y, x - window.x) >= APART
    chosen: list[tuple[int, int]] = []
    while len(chosen) < quota and free.any():
        best = int(free.argmax())
        chosen.append((int(y[best]), int(x[best])))
        free &= np.hypot(y - y[best], x - x[best]) >= APART
    return chosen
