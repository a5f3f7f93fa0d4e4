"""Epithelial cells: the plane divided among their centres, and the membranes between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.architecture import Map
from sheafstain.datasets.phantom.nuclei import Nuclei

_REACH = 0.92  # cell diameters: beyond this no centre is among the two nearest
_FINENESS = 1 << 14  # steps of distance per µm
_OWNER_BITS = 32
_NOWHERE = np.int64(1 << 62)  # farther than anything, and owned by none


@dataclass(frozen=True)
class Cells:
    """On a raster, each [h, w]."""

    owner: NDArray[np.int32]  # 1 + index of the nearest cell's nucleus, 0 where no cell reaches
    rival: NDArray[np.int32]  # the same of the second nearest: the other side of the membrane
    border: Map  # µm to the membrane between the two


def divide(nuclei: Nuclei, frame_y: float, frame_x: float, step: float, wave: Map, sway: Map) -> Cells:
    """A Voronoi division of the raster with elongated cells and wavy borders.

    ``wave`` and ``sway`` [h, w]: smooth noise of variance 1 that bends the borders.
    """
    index = np.flatnonzero(nuclei.cell > 0)
    half = int(np.ceil(_REACH * nuclei.cell[index].max(initial=0) / step)) + 1
    pad, side = 2 * half + 1, 2 * half + 1
    tall, wide = wave.shape[0] + 2 * pad, wave.shape[1] + 2 * pad
    row, column = (nuclei.y[index] - frame_y) / step + pad, (nuclei.x[index] - frame_x) / step + pad
    inside = (row > half) & (row < tall - half - 1) & (column > half) & (column < wide - half - 1)
    index, row, column = index[inside], row[inside], column[inside]
    bend = np.pad(np.stack([np.float32(0.8) * sway, np.float32(0.6) * (wave + sway)]), ((0, 0), (pad, pad), (pad, pad)))
    top, left = row.astype(int) - half, column.astype(int) - half
    # Distance and owner travel in one integer, so that the nearer of two is their minimum.
    first, second = np.full((2, tall, wide), _NOWHERE)
    for start in range(0, len(index), 64):  # batches that stay in the cache
        batch = slice(start, start + 64)
        distances = _distances(
            nuclei, index[batch], row[batch], column[batch], top[batch], left[batch], side, step, bend
        )
        keys = (distances * np.float32(_FINENESS)).astype(np.int64) << _OWNER_BITS
        keys |= index[batch, None, None] + 1
        for r, c, key in zip(top[batch], left[batch], keys, strict=True):
            part = (slice(r, r + side), slice(c, c + side))
            f1, f2 = first[part], second[part]
            np.minimum(f2, np.maximum(f1, key), out=f2)
            np.minimum(f1, key, out=f1)
    first, second = (a[pad : pad + wave.shape[0], pad : pad + wave.shape[1]] for a in (first, second))
    owners = (1 << _OWNER_BITS) - 1
    border = ((second >> _OWNER_BITS) - (first >> _OWNER_BITS)).astype(np.float32) * np.float32(0.5 / _FINENESS)
    border[second == _NOWHERE] = _REACH * 100  # one cell alone has no border
    return Cells((first & owners).astype(np.int32), (second & owners).astype(np.int32), border)


def _distances(n: Nuclei, index, row, column, top, left, side: int, step: float, bend) -> NDArray[np.float32]:
    """From each centre to the pixels of its patch, in µm, shorter along the long axis: [len(index), side, side]."""

    def each(values) -> NDArray[np.float32]:
        return np.asarray(values, np.float32)[:, None, None]

    offset = np.arange(side, dtype=np.float32) * np.float32(step)
    bends = np.lib.stride_tricks.sliding_window_view(bend, (side, side), axis=(1, 2))[:, top, left]
    v = bends[0] + (each((top - row) * step) + offset[None, :, None])
    u = bends[1] + (each((left - column) * step) + offset[None, None, :])
    stretch = np.clip(n.long[index] / np.maximum(n.short[index], 0.1), 1, 1.5) ** 0.5
    cos, sin = np.cos(n.turn[index]), np.sin(n.turn[index])
    # Larger cells push their borders outwards.
    scale = n.size[index] ** -0.5
    along = u * each(cos * scale / stretch)
    along += v * each(sin * scale / stretch)
    v *= each(cos * scale * stretch)
    v -= u * each(sin * scale * stretch)
    along *= along
    v *= v
    along += v
    return np.sqrt(along, out=along)
