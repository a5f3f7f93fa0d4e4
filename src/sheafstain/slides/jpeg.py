"""Is a JPEG tile whole? libjpeg decodes a damaged one without a word, and shows grey and shifted blocks as tissue.

The question is answered by one more row of blocks than the tile has: where a whole tile ends, its decoder runs out of
bits in the first block too many and leaves all that follow uniformly grey. A decoder that lost its place in a damaged
tile runs out earlier, or still has bits when it should not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BASELINE = (0xC0, 0xC1)  # Huffman-coded, all in one scan; the others are not checked
_GREY = 128  # what libjpeg makes of blocks for which there are no bits


class Lengthened:
    """A JPEG stream told to be a row of blocks higher; None from ``of`` where that would say nothing."""

    def __init__(self, data: bytes, height: int, width: int, block: tuple[int, int]) -> None:
        self.data, self._height, self._width, self._block = data, height, width, block

    @classmethod
    def of(cls, data: bytes) -> Lengthened | None:
        frame, restarts = _frame(data)
        if frame is None or restarts:  # every restart marker puts the decoder back in its place
            return None
        at, marker = frame
        if marker not in _BASELINE:
            return None
        height, width = int.from_bytes(data[at + 5 : at + 7]), int.from_bytes(data[at + 7 : at + 9])
        factors = [data[at + 11 + 3 * k] for k in range(data[at + 9])]
        block = (8, 8) if len(factors) == 1 else (8 * max(f & 15 for f in factors), 8 * max(f >> 4 for f in factors))
        higher = (-(-height // block[0]) + 1) * block[0]
        if higher > 0xFFFF:
            return None
        return cls(data[: at + 5] + higher.to_bytes(2) + data[at + 7 :], height, width, block)

    def picture(self, decoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The tile itself, cut from what the lengthened stream decoded to; ValueError where it is damaged."""
        tile = decoded[: self._height]
        # Chroma is interpolated between blocks: two rows and one block from those with content.
        extra = decoded[-(-self._height // self._block[0]) * self._block[0] + 2 :]
        ran_out = np.any(extra[:, : self._block[1] - 2] != _GREY)
        if np.any(extra[:, self._block[1] + 2 :] != _GREY) or not (ran_out or np.all(tile == _GREY)):
            raise ValueError("its JPEG data does not fill it exactly")
        return tile


def _frame(data: bytes) -> tuple[tuple[int, int] | None, bool]:
    """Where the frame header is and its kind, and whether the stream has restart markers."""
    at, frame, restarts = 2, None, False
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # filling
            at += 1
            continue
        if marker == 0xDA:  # the pixels begin
            break
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            frame = (at, marker)
        if marker == 0xDD:
            restarts = int.from_bytes(data[at + 4 : at + 6]) > 0
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return frame, restarts
