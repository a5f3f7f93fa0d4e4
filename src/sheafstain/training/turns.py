"""Flips and quarter turns of square windows, applied alike to pixels, section cells and places (the group D₄).

Turn g = 0 … 7 mirrors left and right where g ≥ 4 and then makes g mod 4 quarter turns anticlockwise. A turned window
still lies on its canvas: if a neighbour is displaced by o on the image, it is displaced by ``displaced(g, o)`` on the
turned canvas, so that overlaps of turned windows are turned overlaps and see the same noise.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

TURNS = 8


@lru_cache(maxsize=8)
def grids(side: int, device: torch.device) -> Tensor:
    """Which pixel of a window each pixel of the turned window is: rows and columns [2, 8, side, side], int64."""
    return torch.from_numpy(np.stack([_turned(_places(side), g) for g in range(TURNS)], axis=1)).to(device)


def turn(images: Tensor, g: int) -> Tensor:
    """One turn of all images [..., h, w]."""
    return torch.rot90(images.flip(-1) if g >= 4 else images, g % 4, (-2, -1))


def displaced(g: int, dy: int, dx: int) -> tuple[int, int]:
    """Where a neighbour displaced by (dy, dx) on the image lies on the turned canvas."""
    (a, b), (c, d) = _MATRICES[g]
    return a * dy + b * dx, c * dy + d * dx


def _places(side: int) -> np.ndarray:
    return np.indices((side, side))


def _turned(places: np.ndarray, g: int) -> np.ndarray:
    return np.rot90(places[..., ::-1] if g >= 4 else places, g % 4, (-2, -1)).copy()


def _matrix(g: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Image displacements to canvas ones: the inverse, hence the transpose, of how the grid walks the image."""
    rows, columns = _turned(_places(2), g)
    down = int(rows[1, 0] - rows[0, 0]), int(columns[1, 0] - columns[0, 0])
    right = int(rows[0, 1] - rows[0, 0]), int(columns[0, 1] - columns[0, 0])
    return down, right


_MATRICES = tuple(_matrix(g) for g in range(TURNS))
