"""Levels read through OpenSlide: NDPI, MRXS, SCN, BIF, DICOM and the other formats whose tiles only it understands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import openslide
from openslide.lowlevel import OpenSlideError, OpenSlideUnsupportedFormatError

from sheafstain.errors import SheafStainError
from sheafstain.slides.level import Part, Rows, made_ahead
from sheafstain.window import Size, Window

_BAND = 256  # rows at least in a band
_CACHE = 128 << 20  # bytes: a row of tiles that lie across two bands (MIRAX) is decoded once
_ACROSS = 2048  # columns at least in a part of it


class OpenSlideFile:
    """A slide behind OpenSlide. One error spoils a handle for good, so a spoilt one is replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.handle = openslide.OpenSlide(path)
        except (OpenSlideError, OpenSlideUnsupportedFormatError) as error:
            raise SheafStainError(
                f"{path}: cannot be opened as a slide ({error}); copy or download it again"
            ) from error
        self.handle.set_cache(openslide.OpenSlideCache(_CACHE))
        self._lock = threading.Lock()
        self._downsamples = self.handle.level_downsamples  # a spoilt handle would not even say these
        colour = self.handle.properties.get("openslide.background-color", "FFFFFF")
        self._background = np.array([int(colour[k : k + 2], 16) for k in (0, 2, 4)], np.uint16)

    @property
    def vendor(self) -> str:
        return self.handle.properties.get("openslide.vendor", "OpenSlide")

    @property
    def quickhash(self) -> str:
        return self.handle.properties.get("openslide.quickhash-1", "")

    @property
    def pixel(self) -> tuple[float, float] | None:
        """µm per pixel along x and y."""
        try:
            x, y = (float(self.handle.properties[f"openslide.mpp-{axis}"]) for axis in "xy")
        except (KeyError, ValueError):
            return None
        return (x, y) if min(x, y) > 0 else None

    def close(self) -> None:
        self.handle.close()

    def read(self, level: int, window: Window) -> Rows:
        """A window of a level on the background; OpenSlideError when it holds damage."""
        place = (round(window.x * self._downsamples[level]), round(window.y * self._downsamples[level]))
        used = self.handle
        try:
            image = used.read_region(place, level, (window.w, window.h))
        except OpenSlideError:  # perhaps not here, but in another thread that used the handle
            with self._lock:
                if self.handle is used:
                    self.handle = openslide.OpenSlide(self.path)
                    self.handle.set_cache(openslide.OpenSlideCache(_CACHE))
            with openslide.OpenSlide(self.path) as fresh:
                image = fresh.read_region(place, level, (window.w, window.h))
        rgba = np.asarray(image)
        alpha = rgba[..., 3:]
        if alpha.min() == 255:
            return rgba[..., :3]
        share = alpha.astype(np.uint16)
        return ((rgba[..., :3] * share + self._background * (255 - share) + 127) // 255).astype(np.uint8)


class OpenSlideLevel:
    """One level of it, read in bands that lie on its rows of tiles."""

    def __init__(self, file: OpenSlideFile, number: int, strict: bool) -> None:
        self._file, self._number, self._strict = file, number, strict
        width, height = file.handle.level_dimensions[number]
        self.size = Size(height, width)
        self.damaged: list[Window] = []
        sides = (file.handle.properties.get(f"openslide.level[{number}].tile-{side}") for side in ("height", "width"))
        self._tile = Size(*(int(side) if side and 16 <= int(side) <= 4096 else _BAND for side in sides))
        self._band = -(-_BAND // self._tile.h) * self._tile.h
        self._across = -(-_ACROSS // self._tile.w) * self._tile.w

    def pieces(self, window: Window) -> Iterator[Rows]:
        return made_ahead(self._bands(window))

    def _bands(self, window: Window) -> Iterator[tuple[Size, list[Part]]]:
        for y in range(window.y // self._band * self._band, window.bottom, self._band):
            band = Window(y, window.x, self._band, window.w).overlap(window)
            starts = range(window.x // self._across * self._across, window.right, self._across)
            parts = [Window(band.y, x, band.h, self._across).overlap(band) for x in starts]
            yield band.size, [(part.within(band), partial(self._fill, part)) for part in parts]

    def _fill(self, part: Window, out: Rows) -> None:
        try:
            out[:] = self._file.read(self._number, part)
        except OpenSlideError as error:
            if self._strict:
                raise SheafStainError(
                    f"{self._file.path}: cannot be decoded at ({part.x}, {part.y}) of level {self._number} ({error}); "
                    "copy the file again, or read it without strictness"
                ) from error
            tiles = self._tiles(part)
            if len(tiles) > 1:
                for tile in tiles:
                    self._fill(tile, out[tile.within(part).slices])
                return
            out[:] = 255
            if part not in self.damaged:
                self.damaged.append(part)

    def _tiles(self, part: Window) -> list[Window]:
        """The stored tiles that meet ``part``, cut to it."""
        h, w = self._tile.h, self._tile.w
        rows, columns = range(part.y // h * h, part.bottom, h), range(part.x // w * w, part.right, w)
        return [Window(y, x, h, w).overlap(part) for y in rows for x in columns]
