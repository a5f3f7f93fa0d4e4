"""What lies under a block in the specimen's own frame, before it is cut: architecture and collagen.

Both sections of a block are cut from one bed, so they share their bundles of collagen as they share their nests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from sheafstain.datasets.phantom.architecture import FAR, PITCH, Architecture, Extent, Map, architecture
from sheafstain.datasets.phantom.cut import FARTHEST
from sheafstain.datasets.phantom.field import Field, Floats
from sheafstain.datasets.phantom.specimen import Specimen

REACH = 16.0  # µm beyond a raster from which something may still touch it: a nucleus, a cell, a fibre

_FIBRE, _BUNDLE = 402, 403  # lattice channels
_FINE = 1.25  # µm: pitch of the fibres' raster
_STEPS = (0.6, 1.2, 2.4, 4.8)  # pixels of that raster: sixteen samples over 22 µm


@dataclass(frozen=True)
class Frame:
    """A raster: pixel (r, c) lies at (y + r·step, x + c·step) µm of the section."""

    y: float
    x: float
    step: float
    h: int
    w: int

    @property
    def ys(self) -> Floats:
        return self.y + np.arange(self.h) * self.step

    @property
    def xs(self) -> Floats:
        return self.x + np.arange(self.w) * self.step

    def margin(self, microns: float, step: float) -> Frame:
        """A raster on the lattice of another pitch that holds this one and ``microns`` more on every side."""
        y, x = np.floor((self.y - microns) / step) * step, np.floor((self.x - microns) / step) * step
        h = int(np.ceil((self.ys[-1] + microns - y) / step)) + 1
        w = int(np.ceil((self.xs[-1] + microns - x) / step)) + 1
        return Frame(float(y), float(x), step, h, w)


@dataclass(frozen=True)
class Bed:
    """Room around a raster for everything that may be displaced onto it."""

    architecture: Architecture
    fibres: Map  # [n, m] on ``raster``: mean 0, variance about 1, streaked along the collagen
    raster: Frame

    @classmethod
    def under(cls, specimen: Specimen, frame: Frame, extent: Extent | None = None) -> Bed | None:
        """None where there is nothing but glass, which is a large part of a slide."""
        wide = frame.margin(REACH + FARTHEST + 4 * PITCH, PITCH)
        here = architecture(specimen, wide.ys, wide.xs, extent)
        if here.tissue.max() < -FAR:
            return None
        raster = frame.margin(FARTHEST + 2 * _FINE, _FINE)
        return cls(here, _fibres(specimen.seed, raster, here), raster)


def _fibres(seed: int, raster: Frame, here: Architecture) -> Map:
    """Line-integral convolution of noise along the collagen direction, by doubling the averaged length."""
    wide = raster.margin(sum(_STEPS) * _FINE + 2 * _FINE, _FINE)
    noise = 1.5 * Field(seed, _FIBRE, 0.9).grid(wide.ys, wide.xs)
    noise += 0.42 * Field(seed, _BUNDLE, 3.0).grid(wide.ys, wide.xs)
    along = [enlarge(m, here.ys, here.xs, wide) for m in (here.along_y, here.along_x)]
    grid = np.indices((wide.h, wide.w), np.float32)
    at = np.empty_like(grid)
    for step in _STEPS:
        halves = []
        for sign in (step, -step):
            for axis in (0, 1):
                np.multiply(along[axis], np.float32(sign), out=at[axis])
            at += grid
            halves.append(map_coordinates(noise, at, order=1, mode="nearest", output=np.float32))
        noise = 0.5 * (halves[0] + halves[1])
    r, c = round((raster.y - wide.y) / _FINE), round((raster.x - wide.x) / _FINE)
    return noise[r : r + raster.h, c : c + raster.w] * np.float32(2.0)


def enlarge(coarse: Map, ys: Floats, xs: Floats, frame: Frame) -> Map:
    """Bilinear interpolation of a map on the grid ys × xs to a finer raster inside it: [h, w]."""

    def ends(positions: Floats, grid: Floats) -> tuple[NDArray[np.intp], Map]:
        at = (positions - grid[0]) / (grid[1] - grid[0])
        low = np.minimum(at.astype(np.intp), len(grid) - 2)
        return low, (at - low).astype(np.float32)

    row, v = ends(frame.ys, ys)
    column, u = ends(frame.xs, xs)
    tall = coarse[row] * (1 - v)[:, None]
    tall += coarse[row + 1] * v[:, None]
    wide = np.take(tall, column, axis=1)
    wide *= 1 - u
    rest = np.take(tall, column + 1, axis=1)
    rest *= u
    wide += rest
    return wide
