"""Where a slide has tissue: a mask from a thumbnail, asked by window, so that bare glass costs no computation.

The rule looks for what glass does not do: absorb. Glass is measured on the slide itself (its brightest even colour), so
grey or pinkish glass is glass. A cell of about 8 µm is tissue where it clearly absorbs, or where it absorbs a little in
colour and touches such a place. Losing tissue would falsify a result and keeping glass only costs time, so every doubt
is tissue: dust, folds of the cover slip, black, red and blue pen. Strongly absorbing green or cyan is no dye of H&E nor
DAB: it is ink and dropped, unless tissue is around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from sheafstain.slides.level import Rows
from sheafstain.slides.read import View
from sheafstain.window import Resolution, Size, Window

_CELL = 8.0  # µm
_MOST = 4_000_000  # cells
_ASSUMED = Resolution(0.5)  # of a slide that does not say

_SURE, _FAINT = 0.12, 0.045  # optical density (natural logarithm) over that of the glass
_TINT = 0.02  # difference between colours that shadows on glass do not reach
_EVEN, _GREY, _DIMMEST, _NEARLY_WHITE = 6, 26, 150, 240.0  # grey levels of glass: between neighbours, colours, at all
_DUST = 1000.0  # µm²: smaller specks are not tissue
_HOLE = 40_000.0  # µm²: smaller gaps in tissue (lumina, fat cells) belong to it
_GAP = 24.0  # µm: closer pieces are one


@dataclass(frozen=True)
class TissueMask:
    """Which cells of a slide hold tissue; asked with windows in pixels of the view that it was made for.

    It is the mask of the whole slide also where the view is a region: glass is known from all of it, and a region has
    the tissue that the whole has there.
    """

    mask: NDArray[np.bool_]  # [h, w] cells, of the whole slide
    scale: float  # pixels of the view along a cell
    margin: int  # px around a window that is looked at as well
    _view: Window  # the view, in its pixels of the whole slide

    @classmethod
    def of(cls, view: View, *, margin: int | None = None) -> Self:
        """``margin`` in pixels of the view; by default the length of eight cells, about 64 µm."""
        whole = view.whole
        finest = view.resolution.mpp / view.downsample if view.resolution else _ASSUMED.mpp
        # A power of two over the finest level, which is where most slides have a level already.
        downsample = max(2.0 ** round(math.log2(_CELL / finest)), view.downsample)
        while whole.size.area * (view.downsample / downsample) ** 2 > _MOST:
            downsample *= 2
        scale = downsample / view.downsample
        coarse = whole.coarser(scale)
        mask = _tissue(coarse.read(), finest * downsample)
        for window in coarse.damaged:  # nobody knows: it is treated as tissue
            mask[window.slices] = True
        return cls(mask, scale, round(8 * scale) if margin is None else margin, view.window)

    def __call__(self, window: Window) -> bool:
        """Whether there is any tissue in the window or within ``margin`` of it."""
        cells = self._cells(window.shift(self._view.y, self._view.x).grow(self.margin))
        if window.empty or cells.empty:
            return False
        s = self._sums
        below, above = s[cells.bottom], s[cells.y]
        return bool(below[cells.right] - above[cells.right] - below[cells.x] + above[cells.x])

    @property
    def share(self) -> float:
        """Of the view that is tissue, 0 … 1."""
        return float(self.mask[self._cells(self._view).slices].mean())

    def _cells(self, window: Window) -> Window:
        """The cells that a window of the whole slide touches."""
        return window.scale(1 / self.scale).overlap(Window.of(Size(*self.mask.shape)))

    @cached_property
    def _sums(self) -> NDArray[np.int64]:
        """[h + 1, w + 1]: tissue cells above and left, so that any window is four look-ups."""
        return np.pad(self.mask.cumsum(0, np.int64).cumsum(1), ((1, 0), (1, 0)))


def _tissue(picture: Rows, cell: float) -> NDArray[np.bool_]:
    """The rule, on a picture uint8 [h, w, 3] with cells of ``cell`` µm."""
    glass = glass_of(picture)
    table = np.log(np.maximum(glass, 1)[:, None] / np.maximum(np.arange(256), 1)).astype(np.float32)  # [3, 256]
    red, green, blue = (ndimage.uniform_filter(table[c][picture[..., c]], 3, mode="nearest") for c in range(3))
    most = np.maximum(np.maximum(red, green), blue)
    tint = most - np.minimum(np.minimum(red, green), blue)
    ink = (red > 0.35) & (red > 1.7 * green)
    ink = np.asarray(ndimage.maximum_filter(ink, 5), bool)  # with its thin rim
    sure = (most > _SURE) & ((tint > _TINT) | (most > 3 * _SURE)) & ~ink
    faint = (most > _FAINT) & (tint > _TINT) & ~ink
    mask = _touching(sure | faint, sure)
    reach = max(1, round(_GAP / 2 / cell))
    disc = np.hypot(*np.mgrid[-reach : reach + 1, -reach : reach + 1]) <= reach + 0.5
    padded = np.pad(mask, reach, "edge")  # closing would eat at the border
    mask = np.asarray(ndimage.binary_closing(padded, disc), bool)[reach:-reach, reach:-reach]
    mask = _without_small(mask, _DUST / cell**2)
    return ~_without_small(~mask, _HOLE / cell**2)


def glass_of(picture: Rows) -> NDArray[np.float64]:
    """The colour of bare glass, [3]: the brightest that is even, nearly grey and common in uint8 [h, w, 3].

    Pure white is what scanners fill in where they did not look. A field that is all tissue has no such colour: what is
    even and pale in it comes in many shades, and its glass is taken to be nearly white.
    """
    darkest = picture.min(axis=2)
    even = ndimage.maximum_filter(darkest, 3) - ndimage.minimum_filter(darkest, 3) <= _EVEN
    glassy = even & (picture.max(axis=2) - darkest <= _GREY) & (darkest >= _DIMMEST) & (darkest < 254)
    counts = np.bincount(darkest[glassy], minlength=256)
    near = np.convolve(counts, np.ones(5, int), "same")
    common = np.flatnonzero(near >= max(0.005 * darkest.size, 9))
    if not len(common):
        return np.full(3, _NEARLY_WHITE)
    peak = common[-1]
    while near[peak - 1] > near[peak]:  # from the edge of its brightest heap up to the top
        peak -= 1
    if near[peak] < 0.6 * counts.sum():
        return np.full(3, _NEARLY_WHITE)
    return np.median(picture[glassy & (abs(darkest.astype(int) - peak) <= 2)], axis=0)


def _touching(where: NDArray[np.bool_], seeds: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The connected pieces of ``where`` that hold a seed."""
    pieces = _pieces(where)
    kept = np.zeros(pieces.max() + 1, bool)
    kept[pieces[seeds]] = True
    return kept[pieces] & where


def _without_small(mask: NDArray[np.bool_], least: float) -> NDArray[np.bool_]:
    """Without connected pieces of fewer than ``least`` cells."""
    pieces = _pieces(mask)
    return (np.bincount(pieces.ravel()) >= least)[pieces] & mask


def _pieces(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The number, from 1, of the connected piece that each cell of the mask belongs to; 0 outside."""
    numbers = np.empty(mask.shape, np.int32)
    ndimage.label(mask, output=numbers)
    return numbers
