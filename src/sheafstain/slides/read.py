"""Reading a slide of any format and size: rows from the top, at the µm/px that is asked for, in bounded memory.

::

    with open_slide("slide.svs") as slide:
        view = slide.view(Resolution(0.5))
        for rows in view.rows():  # uint8 [256, view.size.w, 3]
            ...

A TIFF (SVS, OME-TIFF, flat pyramids) is decoded tile by tile straight from the file; what only OpenSlide understands is
read through it; a PNG or JPEG is an image in memory. What is damaged comes out white and is listed (``View.damaged``),
unless ``strict``. Colours are those stored: ICC profiles of slides are not applied, as nobody's training data had them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Self

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.image import read_header, read_image
from sheafstain.slides.level import ArrayLevel, Level, Rows, in_bands
from sheafstain.slides.resample import Reduced, Resampled
from sheafstain.window import Resolution, Size, Window

SAME = 0.02  # pixel sizes that differ by less are the same: resampling would cost more sharpness than it corrects
_SQUARE = 0.05  # pixels whose sides differ by more are refused
_ENLARGED = 4  # times: an asked pixel that many times finer than the stored ones is refused
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_OWN_TIFF = (None, "generic-tiff", "aperio")  # what OpenSlide calls the TIFFs that are read without it
_SAMPLE = 1 << 16  # bytes of head, middle and tail in a fingerprint


def open_slide(path: Path | str, *, mpp: float | None = None, strict: bool = False) -> Slide:
    """Open a slide or image; ``mpp`` overrides what the file says its µm/px to be. Close it, or use ``with``."""
    path = Path(path)
    try:
        if path.is_dir():
            raise SheafStainError(f"{path}: is a folder; name a slide in it (of DICOM, any of its .dcm files)")
        with path.open("rb") as file:
            head = file.read(16)
    except FileNotFoundError as error:
        raise SheafStainError(f"{path}: no such file") from error
    except PermissionError as error:
        raise SheafStainError(f"{path}: no permission to read it; change its rights") from error
    if not head:
        raise SheafStainError(f"{path}: is empty (0 bytes); copy or download it again")
    stored = _stored(path, head, strict)
    try:
        resolution = Resolution(mpp) if mpp is not None else _resolution(path, stored.pixel)
        return Slide(path, stored, resolution)
    except BaseException:
        stored.close()
        raise


class Slide:
    """An open slide: what it is, and views of it."""

    def __init__(self, path: Path, stored: _Stored, resolution: Resolution | None) -> None:
        self.path, self.format = path, stored.format
        self._stored = stored
        self._pyramid = Pyramid.of(stored.levels, resolution)

    @property
    def size(self) -> Size:
        """Of level 0."""
        return self._pyramid.size

    @property
    def resolution(self) -> Resolution | None:
        """Of level 0; None where the file does not say and nobody else did."""
        return self._pyramid.resolution

    @property
    def levels(self) -> tuple[Size, ...]:
        return tuple(level.size for level in self._pyramid.levels)

    @cached_property
    def fingerprint(self) -> str:
        """Names the bytes of the file: its length, time of change, head, middle and tail (what resuming relies on)."""
        status = self.path.stat()
        digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} {self._stored.identity}".encode())
        with self.path.open("rb") as file:
            for start in (0, status.st_size // 2, max(0, status.st_size - _SAMPLE)):
                file.seek(start)
                digest.update(file.read(_SAMPLE))
        return digest.hexdigest()[:32]

    def view(
        self, resolution: Resolution | None = None, *, level: int | None = None, region: Window | None = None
    ) -> View:
        """The slide at a resolution (within 2 %), at a stored level, or as it is; ``region`` in pixels of level 0.

        A region's pixels are those that the whole has there: it is the smallest window of the whole view that holds it.
        """
        if resolution is not None and level is not None:
            raise ValueError("a view has a resolution or is a level, not both")
        downsample = 1.0
        if level is not None:
            if not 0 <= level < len(self.levels):
                raise UsageError(f"{self.path}: has the levels 0 to {len(self.levels) - 1}, not {level}")
            downsample = self._pyramid.downsamples[level]
        elif resolution is not None:
            downsample = self._downsample(resolution)
        window = Window.of(self.size)
        if region is not None:
            window = window.overlap(region)
            if window.empty:
                raise UsageError(f"{self.path}: the region {region} lies outside the slide of {self.size} px")
        return self._pyramid.view(downsample, window)

    def _downsample(self, resolution: Resolution) -> float:
        if self.resolution is None:
            raise SheafStainError(f"{self.path}: does not say its µm/px; give it with --mpp (0.25 at 40×, 0.5 at 20×)")
        asked = resolution.mpp / self.resolution.mpp
        if asked * _ENLARGED < 1:
            raise SheafStainError(
                f"{self.path}: is scanned at {self.resolution}, too coarse for the {resolution} that are asked for"
            )
        return self._pyramid.settled(asked)

    def close(self) -> None:
        self._stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class View:
    """Pixels at one resolution. Made by ``Slide.view`` and ``view_of``."""

    window: Window  # these pixels of the whole slide at this resolution
    resolution: Resolution | None
    downsample: float  # pixels of level 0 along a pixel of this view
    _level: Level
    _pyramid: Pyramid

    @property
    def size(self) -> Size:
        return self.window.size

    @property
    def damaged(self) -> list[Window]:
        """What could not be decoded so far and came out white, in pixels of this view."""
        shared = (window.overlap(self.window) for window in self._level.damaged)
        return [window.within(self.window) for window in shared if not window.empty]

    def rows(self, start: int = 0, band: int = 256) -> Iterator[Rows]:
        """uint8 [n, w, 3] from row ``start`` down, ``band`` rows at a time; stored tiles are decoded once, in order."""
        window = self.window
        if not 0 <= start <= window.h or band < 1:
            raise ValueError(f"rows start within 0 … {window.h} in bands of 1 or more, not at {start} in {band}")
        if start < window.h:
            yield from in_bands(
                self._level.pieces(Window(window.y + start, window.x, window.h - start, window.w)), band
            )

    def read(self) -> Rows:
        """All of it, uint8 [h, w, 3]."""
        return next(self.rows(band=self.size.h))

    @property
    def whole(self) -> View:
        """The whole slide at this resolution."""
        return self._pyramid.view(self.downsample, Window.of(self._pyramid.size))

    def coarser(self, times: float) -> View:
        """The same region with pixels ``times`` as large, from the stored level nearest above."""
        whole = self.window.scale(self.downsample if self.downsample % 1 else Fraction(int(self.downsample)))
        return self._pyramid.view(self.downsample * times, whole.overlap(Window.of(self._pyramid.size)))

    def thumbnail(self, longest: int) -> Rows:
        """uint8 [h, w, 3] with sides up to ``longest``, never enlarged, from the smallest level that suffices."""
        times = max(self.size.h, self.size.w) / longest
        if times <= 1:
            return self.read()
        size = self.size.scale(1 / times)
        return self.coarser(times).read()[: size.h, : size.w]


@dataclass(frozen=True)
class Pyramid:
    """The stored levels of one field, finest first, and every other pixel size made from them."""

    levels: tuple[Level, ...]
    downsamples: tuple[float, ...]
    resolution: Resolution | None  # of level 0

    @classmethod
    def of(cls, levels: Sequence[Level], resolution: Resolution | None) -> Self:
        return cls(tuple(levels), tuple(_shrunk(levels[0].size, level.size) for level in levels), resolution)

    @property
    def size(self) -> Size:
        """Of level 0."""
        return self.levels[0].size

    def settled(self, downsample: float) -> float:
        """The same, or what is within ``SAME`` of it: a stored level or a whole number of its pixels."""
        finer = self._finer(downsample * (1 + SAME))[1]
        whole = max(1, round(downsample / finer)) * finer
        return whole if abs(downsample / whole - 1) <= SAME else downsample

    def at(self, downsample: float) -> Level:
        """The whole field with pixels ``downsample`` as large as those of level 0."""
        level, stored = self._finer(downsample * (1 + 1e-9))
        times = downsample / stored
        if abs(times - round(times)) < 1e-9:
            return level if round(times) == 1 else Reduced(level, round(times))
        if times >= 4:  # means first: the filter would look at every pixel many times
            half = int(times // 2)
            level, times = Reduced(level, half), times / half
        return Resampled(level, times, self.size.scale(1 / downsample))

    def view(self, downsample: float, region: Window) -> View:
        """``region`` in pixels of level 0."""
        level = self.at(downsample)
        factor = 1 / downsample if downsample % 1 else Fraction(1, int(downsample))
        window = region.scale(factor).overlap(Window.of(level.size))
        resolution = Resolution(self.resolution.mpp * downsample) if self.resolution else None
        return View(window, resolution, downsample, level, self)

    def _finer(self, downsample: float) -> tuple[Level, float]:
        """The coarsest level that is not coarser, or level 0."""
        fits = [pair for pair in zip(self.levels, self.downsamples, strict=True) if pair[1] <= downsample]
        return fits[-1] if fits else (self.levels[0], 1.0)


def view_of(array: Rows, resolution: Resolution | None = None) -> View:
    """An image in memory, uint8 [h, w, 3], as a view."""
    level = ArrayLevel(array)
    return Pyramid((level,), (1.0,), resolution).view(1.0, Window.of(level.size))


@dataclass(frozen=True)
class _Stored:
    """What a kind of file gives: its levels, finest first, its µm per pixel along x and y, and how to let go of it."""

    format: str
    levels: Sequence[Level]
    pixel: tuple[float, float] | None
    close: Callable[[], object] = lambda: None
    identity: str = ""  # of the files beside this one, where there are some


def _stored(path: Path, head: bytes, strict: bool) -> _Stored:
    import openslide

    vendor = openslide.OpenSlide.detect_format(path)  # asked first: the .mrxs of a MIRAX slide is a JPEG image
    if vendor is None and head.startswith((b"\x89PNG", b"\xff\xd8\xff")):
        return _Stored(read_header(path).format, [ArrayLevel(read_image(path))], None)
    if head.startswith(_TIFF) and vendor in _OWN_TIFF:
        return _stored_tiff(path, strict, vendor)
    if vendor is None:
        raise SheafStainError(
            f"{path}: is not a slide or image that SheafStain reads (SVS, NDPI, MRXS, TIFF, DICOM, …)"
        )
    return _stored_openslide(path, strict)


def _stored_tiff(path: Path, strict: bool, vendor: str | None) -> _Stored:
    import tifffile

    from sheafstain.slides.tiff import UnusualTiffError, check_whole, first_page, main_series, tiff_levels, tiff_pixel

    with ExitStack() as opened:
        file = opened.enter_context(path.open("rb"))
        try:
            tiff = opened.enter_context(tifffile.TiffFile(path))
            check_whole(path, tiff)
            name = "OME-TIFF" if tiff.is_ome else "SVS" if tiff.is_svs else "TIFF"
            series = main_series(path, tiff)
            stored = _Stored(name, tiff_levels(path, file, series, strict), tiff_pixel(tiff, first_page(series)))
        except SheafStainError:
            raise
        except UnusualTiffError:
            if vendor is not None:
                return _stored_openslide(path, strict)
            return _Stored("TIFF", [ArrayLevel(read_image(path))], None)
        except Exception as error:  # whatever its parser stumbles upon
            raise SheafStainError(f"{path}: is truncated or damaged ({error}); copy or download it again") from error
        return _Stored(stored.format, stored.levels, stored.pixel, opened.pop_all().close)


def _stored_openslide(path: Path, strict: bool) -> _Stored:
    from sheafstain.slides.openslide import OpenSlideFile, OpenSlideLevel

    file = OpenSlideFile(path)
    try:
        levels = [OpenSlideLevel(file, number, strict) for number in range(file.handle.level_count)]
    except ValueError as error:  # a level of no or negative size
        file.close()
        raise SheafStainError(f"{path}: is truncated or damaged ({error}); copy or download it again") from error
    return _Stored(file.vendor, levels, file.pixel, file.close, file.quickhash)


def _resolution(path: Path, pixel: tuple[float, float] | None) -> Resolution | None:
    if pixel is None:
        return None
    x, y = pixel
    if abs(x - y) > _SQUARE * min(x, y):
        raise SheafStainError(f"{path}: says its pixels are {x:g}×{y:g} µm, not square; give their side with --mpp")
    return Resolution((x + y) / 2)


def _shrunk(full: Size, lower: Size) -> float:
    """How many pixels of ``full`` lie along one of ``lower``; a whole number where rounding explains the rest."""
    ratio = (full.w / lower.w + full.h / lower.h) / 2
    whole = round(ratio)
    near = all(abs(side / whole - small) <= 1 for side, small in ((full.w, lower.w), (full.h, lower.h)))
    return float(whole) if near else ratio
