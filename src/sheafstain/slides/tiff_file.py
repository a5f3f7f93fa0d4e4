"""A pyramid as a TIFF: flat, one page a level, or an OME-TIFF, whose smaller levels are SubIFDs of its one page.

RGB tiles are JPEG 4:4:4 at quality 90 (halved chroma would smear the brown of DAB) or, lossless, deflate with the
horizontal predictor. Tiles wait in spools and are copied into the file when its size is known, which decides whether
it needs 64-bit offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sheafstain.slides.ome import ome_xml
from sheafstain.slides.pyramid import Encoded, Rows, sizes_down_to
from sheafstain.slides.spool import Spool
from sheafstain.window import Resolution, Size

_QUALITY = 90
_DEFLATE_LEVEL = 1
_CLASSIC_LIMIT = 2**32 - 2**26  # bytes a TIFF with 32-bit offsets can hold, less its directories


class TiffPyramid:
    folder = False

    def __init__(
        self,
        size: Size,
        resolution: Resolution,
        channels: int,
        description: Mapping[str, Any],
        *,
        tile: int,
        lossless: bool,
        ome: bool,
    ) -> None:
        if tile % 16 or tile <= 0:
            raise ValueError(f"TIFF tiles are a multiple of 16 px, not {tile}")
        self.kind = f"{'OME-TIFF' if ome else 'TIFF'}, {'deflate' if lossless else 'JPEG'}"
        self.levels, self.tile = sizes_down_to(tile, size), Size(tile, tile)
        self._resolution, self._channels, self._description = resolution, channels, description
        self._lossless, self._ome = lossless, ome

    def encode(self, pixels: Rows) -> Encoded:
        import imagecodecs

        # A border tile is filled up with its last pixels: a black filling would ring into the picture.
        missing = [(0, self.tile.h - pixels.shape[0]), (0, self.tile.w - pixels.shape[1]), (0, 0)][: pixels.ndim]
        pixels = np.pad(pixels, missing, "edge") if pixels.shape[:2] != (self.tile.h, self.tile.w) else pixels
        if self._lossless:
            return imagecodecs.deflate_encode(imagecodecs.delta_encode(pixels, axis=1).tobytes(), _DEFLATE_LEVEL)
        pixels = np.ascontiguousarray(pixels)
        return imagecodecs.jpeg8_encode(pixels, _QUALITY, colorspace="RGB", outcolorspace="YCBCR", subsampling=(1, 1))

    def store(self, part: Path, level: int, spooled: Path | None, position: int) -> Spool:
        return Spool.reopened(spooled, position) if spooled else Spool.unnamed(part.parent)

    def finish(self, part: Path, stores: Sequence[Spool]) -> None:
        import tifffile

        with tifffile.TiffWriter(part, bigtiff=sum(map(len, stores)) > _CLASSIC_LIMIT) as tif:
            for k, (size, spool) in enumerate(zip(self.levels, stores, strict=True)):
                per_cm = 1e4 / (self._resolution.mpp * 2**k)
                tif.write(
                    iter(spool),
                    shape=(size.h, size.w, 3) if self._channels == 3 else (size.h, size.w),
                    dtype=np.uint8,
                    tile=(self.tile.h, self.tile.w),
                    photometric="rgb" if self._channels == 3 else "minisblack",
                    planarconfig="contig" if self._channels == 3 else None,
                    subfiletype=1 if k else 0,  # 1: a reduced picture of the same field
                    subifds=len(self.levels) - 1 if self._ome and k == 0 else None,
                    resolution=(per_cm, per_cm),
                    resolutionunit="CENTIMETER",
                    description=self._text() if k == 0 else None,
                    software=self._description["software"] if k == 0 else None,
                    metadata=None,
                    **({"compression": "adobe_deflate", "predictor": 2} if self._lossless else _JPEG),
                )

    def _text(self) -> str | bytes:
        if self._ome:
            return ome_xml(self.levels[0], self._resolution, self._channels, self._description).encode()
        return json.dumps(self._description)


_JPEG = {"compression": "jpeg", "subsampling": (1, 1)}
