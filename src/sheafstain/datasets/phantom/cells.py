"""Epithelial cells: the plane divided among their centres, and the membranes between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.architecture import Map
from sheafstain.datasets.phantom.nuclei import Nuclei

_REACH = 0.92  # cell diameters: beyond this no centre is among the two nearest


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
    index = index[np.argsort(nuclei.key[index], kind="stable")]
    half = int(np.ceil(_REACH * nuclei.cell[index].max(initial=0) / step)) + 1
    pad, side = 2 * half + 1, 2 * half + 1
    tall, wide = wave.shape[0] + 2 * pad, wave.shape[1] + 2 * pad
    row, column = (nuclei.y[index] - frame_y) / step + pad, (nuclei.x[index] - frame_x) / step + pad
    inside = (row > half) & (row < tall - half - 1) & (column > half) & (column < wide - half - 1)
    index, row, column = index[inside], row[inside], column[inside]
    bend = np.pad(np.stack([np.float32(0.8) * sway, np.float32(0.6) * (wave + sway)]), ((0, 0), (pad, pad), (pad, pad)))
    first, second = np.full((2, tall, wide), 1e3, np.float32)
    owner, rival = np.zeros((2, tall, wide), np.int32)
    top, left = row.astype(int) - half, column.astype(int) - half
    for start in range(0, len(index), 64):  # batches that stay in the cache
        batch = slice(start, start + 64)
        distances = _distances(
            nuclei, index[batch], row[batch], column[batch], top[batch], left[batch], side, step, bend
        )
        for i, r, c, distance in zip(index[batch], top[batch], left[batch], distances, strict=True):
            part = (slice(r, r + side), slice(c, c + side))
            f1, f2, o1, o2 = first[part], second[part], owner[part], rival[part]
            np.copyto(o2, i + 1, where=distance < f2)
            nearer = distance < f1
            np.copyto(o2, o1, where=nearer)
            np.copyto(o1, i + 1, where=nearer)
            np.minimum(f2, np.maximum(f1, distance), out=f2)
            np.minimum(f1, distance, out=f1)
    inner = (slice(pad, pad + wave.shape[0]), slice(pad, pad + wave.shape[1]))
    return Cells(owner[inner], rival[inner], (second[inner] - first[inner]) / 2)


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
