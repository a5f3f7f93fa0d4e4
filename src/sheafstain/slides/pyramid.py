"""The levels of a pyramid, all made in one pass as rows arrive from the top.

Each level gathers rows until a row of tiles is full, has these tiles encoded side by side, hands them to its store in
order and the halved rows to the level below. So memory is two rows of tiles a level, whatever the height.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sheafstain.window import Size

Rows = NDArray[np.uint8]  # [n, w, 3] RGB, or [n, w] for a map
Encoded = bytes | bytearray

TOGETHER = 8  # tiles that a thread encodes in a go: small ones would keep the threads waiting for each other


class Store(Protocol):
    """Keeps the encoded tiles of one level, in the order in which they come."""

    def append(self, tile: Encoded) -> None: ...

    def sync(self) -> int:
        """Have all that came so far survive even a power cut; returns the position to reopen the store at."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Making:
    """How the tiles of every level are made."""

    tile: Size
    encode: Callable[[Rows], Encoded]  # of [≤ tile.h, ≤ tile.w, …], less at the right and lower border
    halve: Callable[[Rows], Rows]
    pool: Executor


class Level:
    """One level and, through ``below``, all smaller ones; ``band`` is the part of a row of tiles that came so far."""

    def __init__(self, size: Size, band: Rows, store: Store, making: Making, below: Level | None) -> None:
        self.size, self.store, self.below = size, store, below
        self._making = making
        self._band = np.empty((making.tile.h, *band.shape[1:]), np.uint8)
        self._band[: len(band)] = band
        self._filled = len(band)
        self._encoding: list[Future[list[Encoded]]] = []

    @property
    def band(self) -> Rows:
        return self._band[: self._filled]

    def add(self, rows: Rows) -> None:
        while len(rows):
            taken = rows[: len(self._band) - self._filled]
            rows = rows[len(taken) :]
            if len(taken) == len(self._band):  # a whole row of tiles needs no copy
                self._emit(taken)
                continue
            self._band[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            if self._filled == len(self._band):
                self._emit_band()

    def finish(self) -> None:
        """The last row of tiles, as high as it came, here and below."""
        if self._filled:
            self._emit_band()
        self.settle()
        if self.below:
            self.below.finish()

    def settle(self) -> None:
        """Wait for the tiles that are being encoded and store them."""
        for encoding in self._encoding:
            for tile in encoding.result():
                self.store.append(tile)
        self._encoding = []

    def and_below(self) -> Iterator[Level]:
        yield self
        if self.below:
            yield from self.below.and_below()

    def _encoded(self, tiles: list[Rows]) -> list[Encoded]:
        return [self._making.encode(tile) for tile in tiles]

    def _emit_band(self) -> None:
        band, self._band, self._filled = self.band, np.empty_like(self._band), 0
        self._emit(band)

    def _emit(self, band: Rows) -> None:
        self.settle()  # one row of tiles is encoded while the next one is gathered, never more
        side = self._making.tile.w
        tiles = [band[:, x : x + side] for x in range(0, self.size.w, side)]
        some = (tiles[k : k + TOGETHER] for k in range(0, len(tiles), TOGETHER))
        self._encoding = [self._making.pool.submit(self._encoded, each) for each in some]
        if self.below:
            self.below.add(self._making.halve(band))


def sizes_down_to(tile: int, size: Size) -> tuple[Size, ...]:
    """Halves, until one tile holds the level."""
    sizes = [size]
    while max(size.h, size.w) > tile:
        size = Size(-(-size.h // 2), -(-size.w // 2))
        sizes.append(size)
    return tuple(sizes)


def mean(rows: Rows) -> Rows:
    """Means of 2×2 pixels, half rounded up; at an odd border, of the pixels there are."""
    rows = _even(rows, "edge")
    h, w, *channels = rows.shape
    flat, c = rows.reshape(h, -1), math.prod(channels)
    total = np.add(flat[0::2], flat[1::2], dtype=np.uint16)
    halved = np.empty((h // 2, w // 2 * c), np.uint8)
    for k in range(c):  # by channel: NumPy is slow along a short last axis
        four = total[:, k :: 2 * c] + total[:, k + c :: 2 * c]
        four += 2
        halved[:, k::c] = np.right_shift(four, 2, out=four)
    return halved.reshape(h // 2, w // 2, *channels)


def mean_of_defined(rows: Rows) -> Rows:
    """The same for a map [n, w], in which 0 means "not defined": means of the defined pixels, 0 where there are none.

    A plain mean would pull a lone value towards zero, and a smaller level would show less defect than there is.
    """
    rows = _even(rows, "constant")
    total, count = _sums(rows.astype(np.uint16)), _sums((rows > 0).astype(np.uint16))
    return ((2 * total + count) // np.maximum(2 * count, 1)).astype(np.uint8)


def _even(rows: Rows, mode: Literal["edge", "constant"]) -> Rows:
    """With one more row or column where their number is odd: copies of the last, or zeros."""
    missing = [(0, side % 2) for side in rows.shape[:2]] + [(0, 0)] * (rows.ndim - 2)
    return np.pad(rows, missing, mode) if any(after for _, after in missing) else rows


def _sums(values: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Of 2×2 pixels."""
    values = values[0::2] + values[1::2]
    return values[:, 0::2] + values[:, 1::2]
