"""JPEG tiles, decoded only if they are whole: libjpeg shows the grey and shifted blocks of a damaged one as tissue.

Whether a tile is whole is seen in one more row of blocks than it has: there the decoder runs out of bits in the first
block and leaves all that follow uniformly grey. A decoder that lost its place in a damaged tile runs out earlier, or
still has bits when it should not. A few flipped bits may shift it by less than a block; they go unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

_BASELINE = (0xC0, 0xC1)  # Huffman-coded, in one scan
_GREY = 128  # what libjpeg makes of blocks for which there are no bits


def decode_jpeg(data: bytes, *, tables: bytes | None, colours: str | None, output: str | None) -> NDArray[np.uint8]:
    """uint8 [h, w, samples]; a ``ValueError`` or an error of the codec where the data is damaged.

    ``tables``: those that a TIFF keeps apart from its tiles. ``colours``: how the data is stored, where it does not say
    so itself; ``output``: the colours wanted.
    """
    import imagecodecs

    def decode(data: bytes, output: str | None) -> NDArray[np.uint8]:
        pixels = imagecodecs.jpeg_decode(data, tables=tables, colorspace=colours, outcolorspace=output)
        return pixels.reshape(*pixels.shape[:2], -1)

    frame = _Frame.of(data)
    if frame is None:
        return decode(data, output)
    longer = data[: frame.at] + frame.longer.to_bytes(2, "big") + data[frame.at + 2 :]
    if frame.block_h == 8:
        pixels = decode(longer, output)
        frame.check(pixels)
        return pixels[: frame.h]
    # The colours of the last row are interpolated with those of the next: the longer tile would tint it.
    frame.check(decode(longer, "GRAYSCALE"))
    return decode(data, output)


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the header of a JPEG stream says, where an extra row of blocks tells whether it is whole."""

    h: int
    w: int
    block_h: int  # px, of a block of all colours together
    block_w: int
    at: int  # where ``h`` stands in the data

    @classmethod
    def of(cls, data: bytes) -> Self | None:
        """None for what is not coded in one scan, and with restart markers: each puts the decoder back in its place."""
        at, frame = 2, None
        while at + 4 <= len(data) and data[at] == 0xFF and (marker := data[at + 1]) != 0xDA:  # up to the pixels
            if marker == 0xFF:  # filling
                at += 1
                continue
            if marker in _BASELINE:
                h, w = (int.from_bytes(data[at + k : at + k + 2], "big") for k in (5, 7))
                factors = [data[at + 11 + 3 * k] for k in range(data[at + 9])] if data[at + 9] > 1 else [0x11]
                frame = cls(h, w, 8 * max(f & 15 for f in factors), 8 * max(f >> 4 for f in factors), at + 5)
            if marker == 0xDD and any(data[at + 4 : at + 6]):
                return None
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        return frame if frame and frame.longer <= 0xFFFF else None

    @property
    def blocks_h(self) -> int:
        return -(-self.h // self.block_h) * self.block_h

    @property
    def longer(self) -> int:
        return self.blocks_h + self.block_h

    def check(self, pixels: NDArray[np.uint8]) -> None:
        """``pixels`` were decoded with a row of blocks too many."""
        extra = pixels[self.blocks_h :]
        margin = self.block_w // 8  # colours are interpolated across the edge of a block
        in_time = np.any(extra[:, : self.block_w - margin] != _GREY) or np.all(pixels == _GREY)
        if not in_time or np.any(extra[:, self.block_w + margin :] != _GREY):
            raise ValueError("its JPEG data does not fill it exactly")
