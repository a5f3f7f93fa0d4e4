"""A pyramid as OME-Zarr 0.4: a folder of Zarr version 2 arrays, one a level, axes c, y, x. Lossless.

What such a folder holds is some JSON and one Blosc buffer a chunk, here all channels of a tile. It is written directly,
by the encoders that are there anyway, so that writing needs no zarr package and takes the same one pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sheafstain.errors import SheafStainError
from sheafstain.slides.journal import sync
from sheafstain.slides.pyramid import Encoded, Rows, Store, sizes_down_to
from sheafstain.window import Resolution, Size

_CODEC = {"cname": "zstd", "clevel": 1, "shuffle": 0}
_SYNCS = 16  # at once: one after the other, a disk takes ten times as long
_COLOURS = {3: {"Red": "FF0000", "Green": "00FF00", "Blue": "0000FF"}, 1: {"map": "FFFFFF"}}


class Chunks:
    """The chunks of one level, row by row; a position is how many there are. Chunks beyond it are written again."""

    def __init__(self, array: Path, columns: int, position: int) -> None:
        self._folder, self._columns, self._position = array / "0", columns, position
        if position and not self._path(position - 1).is_file():
            raise SheafStainError(f"{self._folder}: chunks of the unfinished file are gone; delete its state")
        self._unsynced: set[Path] = set()

    def append(self, tile: Encoded) -> None:
        path = self._path(self._position)
        if self._position % self._columns == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._unsynced.update(path.parents[:5])  # up to the folder in which the whole will be renamed
        path.write_bytes(tile)
        self._unsynced.add(path)
        self._position += 1

    def sync(self) -> int:
        with ThreadPoolExecutor(_SYNCS) as pool:
            list(pool.map(sync, self._unsynced))
        self._unsynced.clear()
        return self._position

    def close(self) -> None:
        """Nothing is open."""

    def _path(self, position: int) -> Path:
        y, x = divmod(position, self._columns)
        return self._folder / str(y) / str(x)


class OmeZarr:
    kind = "OME-Zarr 0.4"
    folder = True

    def __init__(
        self, size: Size, resolution: Resolution, channels: int, description: Mapping[str, Any], *, tile: int
    ) -> None:
        self.levels, self.tile = sizes_down_to(tile, size), Size(tile, tile)
        self._resolution, self._channels, self._description = resolution, channels, description

    def encode(self, pixels: Rows) -> Encoded:
        import imagecodecs

        chunk = np.zeros((self._channels, self.tile.h, self.tile.w), np.uint8)  # chunks are whole, also at the border
        chunk[:, : pixels.shape[0], : pixels.shape[1]] = np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels
        return imagecodecs.blosc_encode(
            chunk.tobytes(),
            _CODEC["clevel"],
            compressor=_CODEC["cname"],
            shuffle=_CODEC["shuffle"],
            typesize=1,
            numthreads=1,
        )

    def store(self, part: Path, level: int, spooled: Path | None, position: int) -> Chunks:
        return Chunks(part / str(level), -(-self.levels[level].w // self.tile.w), position)

    def finish(self, part: Path, stores: Sequence[Store]) -> None:
        for k, size in enumerate(self.levels):
            _write_json(part / str(k) / ".zarray", self._array(size))
        _write_json(part / ".zattrs", self._attributes())
        _write_json(part / ".zgroup", {"zarr_format": 2})

    def _array(self, size: Size) -> dict[str, Any]:
        return {
            "zarr_format": 2,
            "shape": [self._channels, size.h, size.w],
            "chunks": [self._channels, self.tile.h, self.tile.w],
            "dtype": "|u1",
            "compressor": {"id": "blosc", **_CODEC, "blocksize": 0},
            "fill_value": 0,
            "order": "C",
            "filters": None,
            "dimension_separator": "/",
        }

    def _attributes(self) -> dict[str, Any]:
        channels = [
            {"label": label, "color": colour, "active": True, "coefficient": 1, "family": "linear", "inverted": False}
            | {"window": {"min": 0, "max": 255, "start": 0, "end": 255}}
            for label, colour in _COLOURS[self._channels].items()
        ]
        multiscale = {
            "version": "0.4",
            "name": str(self._description.get("stain", "map")),
            "type": "mean",
            "axes": [{"name": "c", "type": "channel"}]
            + [{"name": axis, "type": "space", "unit": "micrometer"} for axis in "yx"],
            "datasets": [
                {"path": str(k), "coordinateTransformations": self._transformations(k)} for k in range(len(self.levels))
            ],
        }
        model = "color" if self._channels == 3 else "greyscale"
        return {
            "multiscales": [multiscale],
            "omero": {"version": "0.4", "channels": channels, "rdefs": {"defaultT": 0, "defaultZ": 0, "model": model}},
            "sheafstain": dict(self._description),
        }

    def _transformations(self, level: int) -> list[dict[str, Any]]:
        """Coordinates are those of pixel centres, and a mean of pixels lies in the middle of them."""
        mpp, pixels = self._resolution.mpp, 2**level
        scale = {"type": "scale", "scale": [1.0, mpp * pixels, mpp * pixels]}
        offset = mpp * (pixels - 1) / 2
        return [scale, {"type": "translation", "translation": [0.0, offset, offset]}]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
