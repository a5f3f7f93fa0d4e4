"""Levels of a TIFF straight from its stored tiles: SVS, OME-TIFF with SubIFDs, flat pyramids, plain striped files.

Each tile is read and decoded once, in order, a row of tiles at a time. What OpenSlide does for these formats by random
access costs several times as much, and it does not see the lower levels of an OME-TIFF at all.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sheafstain.errors import SheafStainError
from sheafstain.slides.image import MAX_PIXELS
from sheafstain.slides.jpeg import decode_jpeg
from sheafstain.slides.level import Level, Part, Rows, made_ahead, workers
from sheafstain.window import Size, Window

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage, TiffPageSeries

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # else it prints where nobody has set up logging

_AGAIN = "copy or download it again"
_PIECE = 128  # rows at least in a piece: strips of one row would be lost in bookkeeping
_JPEG, _NONE = 7, 1  # TIFF compressions
_APERIO_YCC = 33003  # JPEG 2000 of YCbCr in SVS, which tifffile hands on unconverted; of RGB elsewhere
_MINISWHITE, _GREY, _RGB, _PALETTE, _YCBCR = 0, 1, 2, 3, 6  # TIFF photometrics
_CODECS_GIVE_RGB = frozenset({_JPEG, 50001, 34927})  # JPEG and WebP, which store YCbCr
_COARSEST = 20.0  # µm: a resolution tag that says more is a print size (1200 dpi is 21 µm)


class UnusualTiffError(Exception):
    """A TIFF that is not read tile by tile; another reader may know it."""


class TiffLevel:
    """One page of a TIFF."""

    def __init__(self, path: Path, file: IO[bytes], page: TiffPage, number: int, strict: bool) -> None:
        self._path, self._file, self._page, self._number, self._strict = path, file, page, number, strict
        self.size = Size(page.imagelength, page.imagewidth)
        self.damaged: list[Window] = []
        tile = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, page.imagewidth)
        self._tile = Size(min(tile[0], self.size.h) if not page.is_tiled else tile[0], tile[1])
        self._offsets, self._counts = page.dataoffsets, page.databytecounts
        if page.is_contiguous and not page.is_tiled:  # nothing to decode: cut into strips of our own
            step = self.size.w * page.samplesperpixel
            tops = range(0, self.size.h, _PIECE)
            self._tile = Size(_PIECE, self.size.w)
            self._offsets = [page.dataoffsets[0] + top * step for top in tops]
            self._counts = [min(_PIECE, self.size.h - top) * step for top in tops]
        self._check()
        self._codec = page.decode  # made here, before the threads: its first use is not safe among them

    def pieces(self, window: Window) -> Iterator[Rows]:
        return made_ahead(self._bands(window))

    def _bands(self, window: Window) -> Iterator[tuple[Size, list[Part]]]:
        step = -(-_PIECE // self._tile.h) * self._tile.h
        left, right = window.x // self._tile.w, -(-window.right // self._tile.w)
        share = max(1, (right - left) // (2 * workers()))  # tiles that one thread takes at a time
        for top in range(window.y // step * step, window.bottom, step):
            band = Window(top, window.x, step, window.w).overlap(window)
            parts: list[Part] = []
            for y in range(band.y // self._tile.h * self._tile.h, band.bottom, self._tile.h):
                for column in range(left, right, share):
                    width = (min(column + share, right) - column) * self._tile.w
                    part = Window(y, column * self._tile.w, self._tile.h, width).overlap(band)
                    parts.append((part.within(band), partial(self._fill, part)))
            yield band.size, parts

    def _fill(self, part: Window, out: Rows) -> None:
        """The tiles of one row of tiles that meet ``part``."""
        y = part.y // self._tile.h * self._tile.h
        for x in range(part.x // self._tile.w * self._tile.w, part.right, self._tile.w):
            tile = Window(y, x, self._tile.h, self._tile.w)
            shared = tile.overlap(part)
            out[shared.within(part).slices] = self._decoded(tile)[shared.within(tile).slices]

    def _decoded(self, tile: Window) -> Rows:
        """uint8 [h, w, 3], of which the part inside the level counts; white where nothing can be decoded."""
        index = tile.y // tile.h * -(-self.size.w // tile.w) + tile.x // tile.w
        offset, count = self._offsets[index], self._counts[index]
        inside = tile.overlap(Window.of(self.size))
        try:
            if count:
                pixels = self._to_rgb(self._decode(os.pread(self._file.fileno(), count, offset), index))
                if pixels.shape[0] < inside.h or pixels.shape[1] < inside.w:
                    raise ValueError(f"{pixels.shape[1]}×{pixels.shape[0]} pixels instead of {inside.size}")
                return pixels
            if not self._page.parent.is_svs:  # left out on purpose: there is nothing (Aperio leaves none out)
                return np.full((1, 1, 3), 255, np.uint8).repeat(tile.h, 0).repeat(tile.w, 1)
            reason: object = "it has no data"
        except OSError:  # the disk, not the tile
            raise
        except Exception as error:  # codecs raise what they like
            reason = str(error) or type(error).__name__
        if self._strict:
            raise SheafStainError(
                f"{self._path}: the tile at ({tile.x}, {tile.y}) of level {self._number} cannot be decoded ({reason}); "
                "copy the file again, or read it without strictness"
            )
        if inside not in self.damaged:
            self.damaged.append(inside)
        return np.full((tile.h, tile.w, 3), 255, np.uint8)

    def _decode(self, data: bytes, index: int) -> NDArray[np.uint8]:
        """uint8 [h, w, samples] as stored."""
        page = self._page
        if page.is_contiguous and not page.is_tiled:
            return np.frombuffer(data, np.uint8).reshape(-1, self.size.w, page.samplesperpixel)
        if page.compression == _JPEG:
            # Aperio stores RGB as it is, where a JPEG with a JFIF header always holds YCbCr.
            colours = "RGB" if page.photometric == _RGB and not page.is_jfif else None
            output = "RGB" if page.photometric in (_RGB, _YCBCR) else None
            return decode_jpeg(data, tables=page.jpegtables, colours=colours, output=output)
        pixels = self._codec(data, index)[0]
        assert pixels is not None, "it was given data"
        return pixels[0]

    def _to_rgb(self, pixels: NDArray[np.uint8]) -> Rows:
        if pixels.shape[2] == 3:
            return pixels
        if self._page.photometric == _PALETTE:
            return self._palette[pixels[..., 0]]
        colour, alpha = (
            (pixels[..., :3], pixels[..., 3:]) if pixels.shape[2] > 2 else (pixels[..., :1], pixels[..., 1:])
        )
        if self._page.photometric == _MINISWHITE:
            colour = 255 - colour
        if alpha.shape[2] and (kind := tuple(self._page.extrasamples)[:1]) in ((1,), (2,)):
            colour = _on_white(colour, alpha[..., :1], premultiplied=kind == (1,))
        return np.broadcast_to(colour, (*colour.shape[:2], 3))

    @cached_property
    def _palette(self) -> NDArray[np.uint8]:
        """[256, 3]"""
        return (np.asarray(self._page.colormap) >> 8).astype(np.uint8).T

    def _check(self) -> None:
        page, path = self._page, self._path
        if page.dtype != np.uint8:
            raise SheafStainError(
                f"{path}: holds {page.dtype} values, SheafStain reads 8-bit RGB (H&E in bright field); convert it"
            )
        known = page.photometric in (_RGB, _GREY, _MINISWHITE, _PALETTE) or (
            page.photometric == _YCBCR and page.compression in _CODECS_GIVE_RGB
        )
        samples = page.samplesperpixel <= (4 if page.photometric in (_RGB, _YCBCR) else 2)
        if not known or not samples or page.bitspersample != 8 or (page.planarconfig == 2 and page.samplesperpixel > 1):
            raise UnusualTiffError
        unconverted = page.compression == _APERIO_YCC and page.parent.is_svs
        turned = page.tags.valueof(274, 1) != 1
        if unconverted or turned or page.imagedepth > 1:
            raise UnusualTiffError
        if self._tile.area > MAX_PIXELS:
            raise SheafStainError(
                f"{path}: is stored in pieces of {self._tile} pixels, too large to hold; save it as a tiled TIFF"
            )
        expected = -(-self.size.h // self._tile.h) * -(-self.size.w // self._tile.w)
        if len(self._offsets) < expected or len(self._counts) < expected:
            raise SheafStainError(f"{path}: lists {len(self._offsets)} of {expected} tiles; {_AGAIN}")
        if (end := _end(self._offsets, self._counts)) > (have := os.fstat(self._file.fileno()).st_size):
            raise SheafStainError(f"{path}: is truncated ({have} of at least {end} bytes); {_AGAIN}")


def check_whole(path: Path, tiff: TiffFile) -> None:
    """Refuse a file that ends before its pages do; tifffile would leave the lost ones out."""
    have, layout = tiff.filehandle.size, tiff.tiff
    needed = [end for page in tiff.pages if (end := _end(page.dataoffsets, page.databytecounts)) > have]
    with path.open("rb") as file:
        file.seek(tiff.pages[-1].offset)
        (tags,) = struct.unpack(layout.tagnoformat, file.read(layout.tagnosize))
        file.seek(tags * layout.tagsize, os.SEEK_CUR)
        (following,) = struct.unpack(layout.offsetformat, file.read(layout.offsetsize))
    if following:  # tifffile found no page there
        needed.append(max(following, have) + 1)
    if needed:
        raise SheafStainError(f"{path}: is truncated ({have} of at least {max(needed)} bytes); {_AGAIN}")


def main_series(path: Path, tiff: TiffFile) -> TiffPageSeries:
    """The largest picture in the file, with the smaller ones of the same field as its levels."""
    series = max(tiff.series, key=lambda s: s.keyframe.imagelength * s.keyframe.imagewidth, default=None)
    if series is None:
        raise SheafStainError(f"{path}: is a TIFF without a picture; {_AGAIN}")
    count = len(series.levels[0].pages)
    if count > 1 and first_page(series).samplesperpixel < 3:
        raise SheafStainError(
            f"{path}: holds {count} grey pictures of one size (channels, planes or frames), SheafStain reads one RGB "
            "picture; export it as RGB (raw2ometiff has --rgb)"
        )
    return series


def first_page(series: TiffPageSeries) -> TiffPage:
    page = series.pages[0]
    if page is None:
        raise ValueError("a level without a page")
    return page.aspage()


def tiff_levels(path: Path, file: IO[bytes], series: TiffPageSeries, strict: bool) -> list[Level]:
    """Finest first."""
    levels: list[TiffLevel] = []
    for number, level in enumerate(series.levels):
        page = first_page(level)
        size = Size(page.imagelength, page.imagewidth)
        if number and not _same_field(levels[0].size, size):
            continue
        levels.append(TiffLevel(path, file, page, number, strict))
    return sorted(levels, key=lambda level: -level.size.area)


def _end(offsets: Sequence[int], counts: Sequence[int]) -> int:
    return max((offset + count for offset, count in zip(offsets, counts, strict=False)), default=0)


def _same_field(full: Size, lower: Size) -> bool:
    """Whether sides shrink alike, to the pixel that rounding takes."""
    return abs(full.w * lower.h - full.h * lower.w) <= full.w + full.h + lower.w + lower.h


def tiff_pixel(tiff: TiffFile, page: TiffPage) -> tuple[float, float] | None:
    """µm per pixel of ``page`` along x and y, where the file says so in one of the ways that slides do."""
    description = page.description or ""
    if description.lstrip().startswith("{"):
        try:
            mpp = float(json.loads(description)["mpp"])
            return mpp, mpp
        except (ValueError, KeyError, TypeError):
            pass
    if found := re.search(r"\bMPP\s*=\s*([0-9.eE+-]+)", description):  # Aperio
        mpp = _positive(found[1])
        return (mpp, mpp) if mpp else None
    if tiff.is_ome:
        return _ome_pixel(tiff.ome_metadata or "")
    return _tagged_pixel(page)


def _ome_pixel(xml: str) -> tuple[float, float] | None:
    """Of the largest image in the OME-XML."""
    from xml.etree import ElementTree

    units = {"µm": 1, "μm": 1, "um": 1, "nm": 1e-3, "mm": 1e3, "cm": 1e4, "m": 1e6, "Å": 1e-4}
    try:
        images = [element.attrib for element in ElementTree.fromstring(xml).iter() if element.tag.endswith("}Pixels")]
        of = max(images, key=lambda image: int(image["SizeX"]) * int(image["SizeY"]))
        pixel = [float(of[f"PhysicalSize{a}"]) * units[of.get(f"PhysicalSize{a}Unit", "µm")] for a in "XY"]
    except (ElementTree.ParseError, ValueError, KeyError):
        return None
    return (pixel[0], pixel[1]) if min(pixel) > 0 else None


def _tagged_pixel(page: TiffPage) -> tuple[float, float] | None:
    per_unit = {2: 25_400.0, 3: 10_000.0, 4: 1000.0, 5: 1.0}.get(int(page.tags.valueof(296, 2)))  # µm
    if per_unit is None or 282 not in page.tags or 283 not in page.tags:
        return None
    density = [value[0] / value[1] if value[1] else 0 for value in (page.tags[282].value, page.tags[283].value)]
    if min(density) <= 0:
        return None
    x, y = (per_unit / value for value in density)
    return (x, y) if max(x, y) < _COARSEST else None


def _positive(text: str) -> float | None:
    try:
        return value if (value := float(text)) > 0 else None
    except ValueError:
        return None


def _on_white(colour: NDArray[np.uint8], alpha: NDArray[np.uint8], *, premultiplied: bool) -> Rows:
    share = alpha.astype(np.uint16)
    own = colour.astype(np.uint16) * (255 if premultiplied else share)
    return np.minimum((own + 255 * (255 - share) + 127) // 255, 255).astype(np.uint8)
