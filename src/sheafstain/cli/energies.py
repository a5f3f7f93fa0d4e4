"""The Dirichlet energy of windows that were kept before gluing, for ``sheafstain score --windows``.

One file ``STEM.npz`` an image, with the cover in it:

    size    int [2]            height and width of the image
    cover   int [n, 4]         y, x, height and width of each window
    pixels  [n, h, w, 3]       the translated windows: uint8, or floats on the [0, 1] scale
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from sheafstain.errors import SheafStainError
from sheafstain.metrics.sources import hash_of_file
from sheafstain.sheaf.defect import DirichletEnergy
from sheafstain.window import Size, Window


class Energies:
    """E(G) of each image (design D9), from a folder of windows."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise SheafStainError(f"{folder}: no such folder")
        self._folder = folder

    def file(self, name: str) -> Path:
        return self._folder / f"{name}.npz"

    def hash(self, name: str) -> str:
        return hash_of_file(self.file(name))

    def value(self, name: str) -> float:
        """NaN where no two windows overlap."""
        size, cover, pixels = read_windows(self.file(name))
        energy = DirichletEnergy(size)
        for window, part in zip(cover, pixels, strict=True):
            energy.add(window, part)
        return energy.energy


def read_windows(file: Path) -> tuple[Size, list[Window], np.ndarray]:
    """The image's size, the cover and the pixels [n, h, w, 3] of one file."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            size, cover, pixels = (arrays[key] for key in ("size", "cover", "pixels"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise SheafStainError(f"{file}: not windows with size, cover and pixels ({error}); write it again") from error
    n = len(pixels)
    if size.shape != (2,) or cover.shape != (n, 4) or pixels.ndim != 4 or pixels.shape[3] != 3 or not n:
        raise SheafStainError(
            f"{file}: size {list(size.shape)}, cover {list(cover.shape)}, pixels {list(pixels.shape)}; "
            "they have to be [2], [n, 4] and [n, h, w, 3]"
        )
    if any(np.dtype(array.dtype).kind not in "iu" for array in (size, cover)):
        raise SheafStainError(f"{file}: size and cover have to be whole numbers")
    if (cover[:, 2:] != pixels.shape[1:3]).any():
        raise SheafStainError(f"{file}: its cover says other sizes than its windows have, {list(pixels.shape[1:3])}")
    if pixels.dtype != np.uint8 and not (pixels.dtype.kind == "f" and pixels.min() >= 0 and pixels.max() <= 1):
        raise SheafStainError(f"{file}: pixels have to be uint8, or floats from 0 to 1")
    h, w = (int(side) for side in size)
    return Size(h, w), [Window(*map(int, row)) for row in cover], pixels
