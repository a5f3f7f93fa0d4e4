"""Writing a slide of any height as rows arrive: every level in the same pass, in bounded memory (design D19).

The name says as what: ``.tif`` a flat pyramidal TIFF, which every slide reader sees all levels of, ``.ome.tif`` an
OME-TIFF, ``.zarr`` an OME-Zarr, ``.png`` one image. What each reader sees of them: docs/slides.md.

Nothing has the final name before it is whole. With a ``state`` folder a writer can be killed at any moment and opened
again: it goes on from its last checkpoint and ends with the same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np

from sheafstain import __version__
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.image import MAX_PIXELS
from sheafstain.slides.journal import Checkpoint, Journal, sync
from sheafstain.slides.ome_zarr import OmeZarr
from sheafstain.slides.png_file import PngFile
from sheafstain.slides.pyramid import Encoded, Level, Making, Rows, Store, mean, mean_of_defined
from sheafstain.slides.tiff_file import TiffPyramid
from sheafstain.window import Resolution, Size

NOTICE = "research use only: not a medical device, not for diagnosis"
TIFF_TILE = 256  # two rows of tiles wait at every level: in a wide slide twice the size is a hundred megabytes more
ZARR_TILE = 512  # each is a file


def open_writer(
    path: Path | str,
    size: Size,
    resolution: Resolution,
    *,
    description: Mapping[str, Any],
    channels: Literal[1, 3] = 3,
    lossless: bool = False,
    state: Path | str | None = None,
    workers: int | None = None,
    tile: int | None = None,
) -> Writer:
    """A writer of what the name of ``path`` says; a context manager, and the file appears when it ends well::

        with open_writer(path, Size(30_000, 40_000), Resolution(0.5), description={"stain": "HER2"}) as slide:
            for band in bands:  # uint8 [n, 40_000, 3], any n
                slide.rows(band)

    ``size`` and ``resolution`` are those of the full picture; level k is 2^k times smaller, by the mean of 2×2 pixels
    (of those there are, at an odd border), down to one tile. ``description`` is written into the file, with the
    software, its version, µm/px and that it is for research only.

    A file of one channel is a map, uint8 [n, w] in which 0 means "not defined": its smaller levels are means of what is
    defined, and it is lossless whatever ``lossless`` says. JPEG is used for RGB in TIFF only.
    """
    path = Path(path)
    if size.area == 0:
        raise ValueError(f"{path}: a slide of {size} has no pixels")
    about = {"software": f"SheafStain {__version__}", "notice": NOTICE, "mpp": resolution.mpp, **description}
    container = _container(path, size, resolution, about, channels, lossless, tile)
    return Writer(path, container, channels, about, Path(state) if state is not None else None, workers)


class Container(Protocol):
    """A kind of file: how its tiles are encoded, where they wait, and how they become one file."""

    kind: str
    folder: bool  # what it makes
    levels: tuple[Size, ...]
    tile: Size

    def encode(self, pixels: Rows) -> Encoded: ...

    def store(self, part: Path, level: int, spooled: Path | None, position: int) -> Store:
        """``part`` will be renamed to the final name; ``spooled`` is a file that outlives the process, if one may."""
        ...

    def finish(self, part: Path, stores: Sequence[Any]) -> None: ...


class Writer:
    """A slide filled from the top, made by ``open_writer``; ``done`` rows have come.

    With a ``state`` folder ``checkpoint()`` makes these rows survive the process. A writer that is opened with the
    state of an unfinished file continues it: ``done`` says from which row. When the file is whole its state is gone.
    """

    def __init__(
        self,
        path: Path,
        container: Container,
        channels: Literal[1, 3],
        description: Mapping[str, Any],
        state: Path | None,
        workers: int | None,
    ) -> None:
        self.path, self.state, self.levels, self.done = path, state, container.levels, 0
        self._container, self._channels, self._workers = container, channels, workers
        self._identity = {
            "file": path.name,
            "kind": container.kind,
            "size": str(self.size),
            "channels": channels,
            "tile": str(container.tile),
            **description,
        }
        self._target = path.resolve() if path.is_symlink() else path
        # A state always has the same part, so that what a killed process left of it is found again or overwritten.
        token = hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:12] if state else secrets.token_hex(6)
        self._part = self._target.with_name(f".{self._target.name[:40]}.{token}.part")
        self._older = self._part.with_suffix(".older")  # where a folder waits that another takes the place of
        self._journal: Journal | None = None
        self._level: Level | None = None
        self._open = ExitStack()

    @property
    def size(self) -> Size:
        return self.levels[0]

    def __enter__(self) -> Self:
        self._check_target()
        with self._named(), ExitStack() as opening:
            checkpoint = None
            if self.state:
                self._journal = opening.enter_context(Journal(self.state, self._identity))
                checkpoint = self._journal.load()
            if self._older.exists() and not self._target.exists():  # killed between two renames
                self._older.rename(self._target)
            _remove(self._older)
            if checkpoint is None:
                _remove(self._part)
                empty = np.empty((0, self.size.w, 3) if self._channels == 3 else (0, self.size.w), np.uint8)
                bands = [empty[:, : size.w] for size in self.levels]
                checkpoint = Checkpoint(0, [0] * len(bands), bands)
            elif self._container.folder and not self._part.exists() and checkpoint.done == self.size.h:
                self._target.rename(self._part)  # killed after it was renamed, before its state was gone
            pool = opening.enter_context(ThreadPoolExecutor(self._workers, "tiles"))
            halve = mean if self._channels == 3 else mean_of_defined
            making = Making(self._container.tile, self._container.encode, halve, pool)
            for k in reversed(range(len(self.levels))):
                spooled = self._journal.spool(k) if self._journal else None
                store = self._container.store(self._part, k, spooled, checkpoint.positions[k])
                opening.callback(store.close)
                self._level = Level(self.levels[k], checkpoint.bands[k], store, making, self._level)
            self.done = checkpoint.done
            self._open = opening.pop_all()
        return self

    def rows(self, rows: Rows) -> None:
        """Append the next rows, uint8 [n, w, 3] (of a map [n, w]), to be kept for a while: do not change them."""
        shape = (self.size.w, 3) if self._channels == 3 else (self.size.w,)
        if rows.dtype != np.uint8 or rows.shape[1:] != shape:
            said = ", ".join(map(str, ("n", *shape)))
            raise ValueError(f"{self.path}: rows are uint8 [{said}], not {rows.dtype} {list(rows.shape)}")
        if self.done + len(rows) > self.size.h:
            raise ValueError(f"{self.path}: row {self.done + len(rows)} of a slide with {self.size.h}")
        assert self._level is not None, "rows are written inside the with block"
        with self._named():
            self._level.add(rows)
        self.done += len(rows)

    def checkpoint(self) -> None:
        """Make the rows so far survive whatever happens to this process."""
        if self._journal is None or self._level is None:
            raise ValueError(f"{self.path}: without a state folder, or outside the with block, nothing can be kept")
        with self._named():
            levels = list(self._level.and_below())
            for level in levels:
                level.settle()
            positions = [level.store.sync() for level in levels]
            self._journal.save(Checkpoint(self.done, positions, [level.band for level in levels]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with self._named():
                    self._complete()
        finally:
            with suppress(OSError):  # on a full disk even closing fails, and what led here is the error to tell
                self._open.close()
            if not (self._container.folder and self._journal and self._journal.resumable):
                _remove(self._part)

    def _complete(self) -> None:
        if self.done != self.size.h:
            raise ValueError(f"{self.path}: only {self.done} of {self.size.h} rows were written")
        assert self._level is not None
        if self._journal:
            self.checkpoint()  # a full disk from here on costs no rows
        self._level.finish()
        stores = [level.store for level in self._level.and_below()]
        self._container.finish(self._part, stores)
        if self._journal:
            for store in stores:
                store.sync()
            sync(self._part)
        if self._container.folder and self._target.exists():
            self._target.rename(self._older)
            self._part.rename(self._target)
            _remove(self._older)
        else:
            self._part.replace(self._target)
        if self._journal:
            sync(self._target.parent)
            self._journal.remove()

    def _check_target(self) -> None:
        """Found out now, not after hours of rows."""
        if not self._target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(self.path.parent))
        if not self._target.exists():
            return
        if self._container.folder:
            if not (self._target / ".zgroup").is_file():
                raise SheafStainError(f"{self.path}: is there and is no OME-Zarr; choose another name for the output")
        elif not self._target.is_file():
            what = "a folder" if self._target.is_dir() else "not a regular file"
            raise SheafStainError(f"{self.path}: is {what}; choose another name for the output")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A full disk names no file and a read-only folder a temporary one: name the file that was asked for."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(self.path)) from error


def _container(
    path: Path,
    size: Size,
    resolution: Resolution,
    about: Mapping[str, Any],
    channels: Literal[1, 3],
    lossless: bool,
    tile: int | None,
) -> Container:
    name = path.name.lower()
    if name.endswith((".tif", ".tiff")):
        ome = name.endswith((".ome.tif", ".ome.tiff"))
        lossless = lossless or channels == 1
        return TiffPyramid(size, resolution, channels, about, tile=tile or TIFF_TILE, lossless=lossless, ome=ome)
    if name.endswith(".zarr"):
        return OmeZarr(size, resolution, channels, about, tile=tile or ZARR_TILE)
    if name.endswith(".png"):
        if size.area > MAX_PIXELS:
            raise UsageError(f"{path}: {size} px are more than a PNG is written with ({MAX_PIXELS:,}); write a .tif")
        return PngFile(size, resolution, channels, about)
    raise UsageError(f"{path}: cannot write a slide of this kind; end its name in .tif, .ome.tif, .zarr or .png")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
