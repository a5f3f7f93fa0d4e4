"""One image as PNG: no levels, gathered as raw rows, encoded when the last has come. It has to fit into memory."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sheafstain.slides.pyramid import Encoded, Rows
from sheafstain.slides.spool import Spool
from sheafstain.window import Resolution, Size

_BAND = 256


class PngFile:
    kind = "PNG"
    folder = False

    def __init__(self, size: Size, resolution: Resolution, channels: int, description: Mapping[str, Any]) -> None:
        self.levels, self.tile = (size,), Size(_BAND, size.w)
        self._resolution, self._channels, self._description = resolution, channels, description

    def encode(self, pixels: Rows) -> Encoded:
        return pixels.tobytes()

    def store(self, part: Path, level: int, spooled: Path | None, position: int) -> Spool:
        return Spool.reopened(spooled, position) if spooled else Spool.unnamed(part.parent)

    def finish(self, part: Path, stores: Sequence[Spool]) -> None:
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        [size], [spool] = self.levels, stores
        pixels = np.frombuffer(b"".join(spool), np.uint8)
        image = Image.fromarray(pixels.reshape((size.h, size.w, 3) if self._channels == 3 else (size.h, size.w)))
        said = PngInfo()
        said.add_text("Software", self._description["software"])
        said.add_itxt("Description", json.dumps(self._description, ensure_ascii=False))
        per_inch = 25_400 / self._resolution.mpp
        # Encoded in memory first: Pillow reports a full disk as "encoder error -2" and loses the reason.
        encoded = io.BytesIO()
        image.save(encoded, "PNG", pnginfo=said, dpi=(per_inch, per_inch), compress_level=2)
        part.write_bytes(encoded.getbuffer())
