"""Writing a slide of any height as rows arrive: a flat pyramidal TIFF, every level made in the same pass (design D19).

A flat pyramid (one page a level, JPEG tiles) is what every slide reader sees all levels of. The JPEG keeps full chroma
(4:4:4): brown against blue is what a stain is read by. Encoded tiles wait in unnamed spool files beside the output and
become one TIFF when the last row has come: memory is two rows of tiles a level whatever the height, the disk holds the
encoded slide twice for a moment, and nothing has the final name before it is whole.
"""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from sheafstain import __version__
from sheafstain.whole import whole
from sheafstain.window import Resolution, Size

NOTICE = "research use only: not a medical device, not for diagnosis"
_QUALITY = 90
_CLASSIC_LIMIT = 2**32 - 2**26  # bytes a TIFF with 32-bit offsets can hold, less its directories

Rows = NDArray[np.uint8]


class PyramidWriter:
    """A pyramidal TIFF filled from the top; a context manager, and the file appears when it ends well.

    ``size`` and ``resolution`` are those of the full picture; level k is 2^k times smaller, by the mean of 2×2 pixels
    (of those there are, at an odd border). ``levels`` defaults to as many as it takes to fit one tile. ``description``
    is written as JSON into the file, with the software, its version, µm/px and that it is for research only::

        with PyramidWriter(path, Size(30_000, 40_000), Resolution(0.5), description={"stain": "HER2"}) as slide:
            for band in bands:  # uint8 [n, 40_000, 3], any n
                slide.rows(band)
    """

    def __init__(
        self,
        path: Path,
        size: Size,
        resolution: Resolution,
        *,
        description: Mapping[str, Any],
        tile: int = 512,
        levels: int | None = None,
        workers: int | None = None,
    ) -> None:
        if size.area == 0:
            raise ValueError(f"{path}: a slide of {size} has no pixels")
        if tile % 16 or tile <= 0:
            raise ValueError(f"{path}: TIFF tiles are a multiple of 16 px, not {tile}")
        self.path, self.size, self.resolution, self.tile = Path(path), size, resolution, tile
        self.levels = tuple(_level_sizes(size, tile, levels))
        self._description = {
            "software": f"SheafStain {__version__}",
            "notice": NOTICE,
            "mpp": resolution.mpp,
            **description,
        }
        self._workers = workers
        self._open = ExitStack()
        self._level: _Level | None = None
        self._done = 0

    def __enter__(self) -> Self:
        if not self.path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(self.path.parent))
        if self.path.is_dir():  # found out now, not after hours of rows
            raise IsADirectoryError(errno.EISDIR, "is a folder", str(self.path))
        with self._named():
            pool = self._open.enter_context(ThreadPoolExecutor(self._workers, "jpeg"))
            below = None
            for size in reversed(self.levels):
                spool = self._open.enter_context(tempfile.TemporaryFile(dir=self.path.parent))
                below = _Level(size, self.tile, spool, pool, below)
            self._level = below
        return self

    def rows(self, rows: Rows) -> None:
        """Append the next rows, uint8 [n, w, 3]; they are copied."""
        if rows.dtype != np.uint8 or rows.ndim != 3 or rows.shape[1:] != (self.size.w, 3):
            raise ValueError(f"{self.path}: rows are uint8 [n, {self.size.w}, 3], not {rows.dtype} {list(rows.shape)}")
        if self._done + len(rows) > self.size.h:
            raise ValueError(f"{self.path}: row {self._done + len(rows)} of a slide with {self.size.h}")
        assert self._level is not None, "rows are written inside the with block"
        with self._named():
            self._level.add(rows)
        self._done += len(rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._named(), self._open:  # closes, and thereby removes, the spool files in any case
            if kind is not None:
                return
            if self._done != self.size.h:
                raise ValueError(f"{self.path}: only {self._done} of {self.size.h} rows were written")
            assert self._level is not None
            with whole(self.path) as part:
                self._level.finish()
                self._assemble(part)

    def _assemble(self, part: Path) -> None:
        import tifffile

        levels = list(self._level.and_below() if self._level else ())
        big = sum(sum(level.lengths) for level in levels) > _CLASSIC_LIMIT
        with tifffile.TiffWriter(part, bigtiff=big) as tif:
            for k, level in enumerate(levels):
                per_cm = 1e4 / (self.resolution.mpp * 2**k)
                tif.write(
                    level.encoded(),
                    shape=(level.size.h, level.size.w, 3),
                    dtype=np.uint8,
                    tile=(self.tile, self.tile),
                    photometric="rgb",
                    planarconfig="contig",
                    compression="jpeg",
                    subsampling=(1, 1),
                    subfiletype=1 if k else 0,  # 1: a reduced picture of the same field
                    resolution=(per_cm, per_cm),
                    resolutionunit="CENTIMETER",
                    description=json.dumps(self._description) if k == 0 else None,
                    software=self._description["software"] if k == 0 else None,
                    metadata=None,
                )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A full disk names no file and a read-only folder a temporary one: name the file that was asked for."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(self.path)) from error


class _Level:
    """One level: gathers a row of tiles, has them encoded, spools them and hands the halved rows to the level below."""

    def __init__(self, size: Size, tile: int, spool: IO[bytes], pool: ThreadPoolExecutor, below: _Level | None) -> None:
        self.size, self.below = size, below
        self.lengths: list[int] = []
        self._tile, self._spool, self._pool = tile, spool, pool
        self._band = np.empty((tile, size.w, 3), np.uint8)
        self._filled = 0
        self._encoding: list[Future[bytes | bytearray]] = []

    def add(self, rows: Rows) -> None:
        while len(rows):
            taken = rows[: self._tile - self._filled]
            self._band[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            rows = rows[len(taken) :]
            if self._filled == self._tile:
                self._emit()

    def finish(self) -> None:
        if self._filled:
            self._emit()
        self._spool_encoded()
        if self.below:
            self.below.finish()

    def and_below(self) -> Iterator[_Level]:
        yield self
        if self.below:
            yield from self.below.and_below()

    def encoded(self) -> Iterator[bytes]:
        self._spool.seek(0)
        for length in self.lengths:
            yield self._spool.read(length)

    def _emit(self) -> None:
        self._spool_encoded()  # one row of tiles is encoded while the next one is gathered, never more
        band, self._band = self._band[: self._filled], np.empty_like(self._band)
        self._filled = 0
        self._encoding = [
            self._pool.submit(_jpeg, band[:, x : x + self._tile], self._tile) for x in range(0, self.size.w, self._tile)
        ]
        if self.below:
            self.below.add(_half(band))

    def _spool_encoded(self) -> None:
        for encoding in self._encoding:
            self.lengths.append(self._spool.write(encoding.result()))
        self._encoding = []


def _level_sizes(size: Size, tile: int, levels: int | None) -> Iterator[Size]:
    """Halves, until one tile holds the level or there are ``levels`` of them."""
    for _ in range(levels or ((max(size.h, size.w) - 1) // tile).bit_length() + 1):
        yield size
        size = Size(-(-size.h // 2), -(-size.w // 2))


def _half(rows: Rows) -> Rows:
    """Means of 2×2 pixels; at an odd border, of the pixels there are."""
    from PIL import Image

    return np.asarray(Image.fromarray(rows).reduce(2))


def _jpeg(pixels: Rows, tile: int) -> bytes | bytearray:
    import imagecodecs

    # A border tile is filled up with its last pixels: a black filling would ring into the picture.
    missing = (0, tile - pixels.shape[0]), (0, tile - pixels.shape[1]), (0, 0)
    pixels = np.ascontiguousarray(np.pad(pixels, missing, "edge") if any(map(sum, missing)) else pixels)
    return imagecodecs.jpeg8_encode(pixels, _QUALITY, colorspace="RGB", outcolorspace="YCBCR", subsampling=(1, 1))
