"""One level of a slide, read in order: what every kind of file must offer, and the threads that work ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sheafstain.window import Size, Window

Rows = NDArray[np.uint8]  # [n, w, 3]
Part = tuple[Window, Callable[[Rows], None]]  # a place in a band, and what fills it

_HELD = 48e6  # bytes of finished bands that may wait for the consumer; one band waits however large it is


class Level(Protocol):
    """The pixels of one field at one pixel size."""

    @property
    def size(self) -> Size: ...

    @property
    def damaged(self) -> Sequence[Window]:
        """What could not be decoded so far and was filled with white, in pixels of this level."""
        ...

    def pieces(self, window: Window) -> Iterator[Rows]:
        """The rows of ``window`` from the top, uint8 [n, w, 3] with n as it suits the level.

        Every stored tile is decoded once. The arrays are the caller's to keep.
        """
        ...


class ArrayLevel:
    """An image in memory, uint8 [h, w, 3]."""

    damaged: Sequence[Window] = ()

    def __init__(self, array: Rows) -> None:
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
            raise ValueError(f"an image is uint8 [h, w, 3] with pixels, not {array.dtype} {list(array.shape)}")
        self._array = array

    @property
    def size(self) -> Size:
        return Size(*self._array.shape[:2])

    def pieces(self, window: Window) -> Iterator[Rows]:
        yield self._array[window.slices]


def made_ahead(bands: Iterable[tuple[Size, Sequence[Part]]]) -> Iterator[Rows]:
    """Bands in order; threads fill the next ones while the consumer is busy with the one it has.

    A band is its size and the parts that fill it, each on its own; windows of parts are in the band's pixels.
    """
    with ThreadPoolExecutor(workers(), "slide") as pool:
        waiting: deque[tuple[Rows, list[Future[None]]]] = deque()
        try:
            for size, parts in bands:
                rows = np.empty((size.h, size.w, 3), np.uint8)
                waiting.append((rows, [pool.submit(fill, rows[place.slices]) for place, fill in parts]))
                if len(waiting) > max(1, min(3, _HELD // rows.nbytes)):
                    yield _finished(*waiting.popleft())
            while waiting:
                yield _finished(*waiting.popleft())
        finally:  # also when the consumer leaves early
            pool.shutdown(cancel_futures=True)


def workers() -> int:
    """Threads worth having: the cores this process may use, up to where reading stops gaining."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)


def in_bands(pieces: Iterable[Rows], band: int) -> Iterator[Rows]:
    """The same rows in arrays of ``band`` rows, the last one with what is left; copied only where pieces meet."""
    held: list[Rows] = []
    count = 0
    for piece in pieces:
        while count + len(piece) >= band:
            cut = band - count
            held.append(piece[:cut])
            yield held[0] if len(held) == 1 else np.concatenate(held)
            held, count, piece = [], 0, piece[cut:]
        if len(piece):
            held.append(piece)
            count += len(piece)
    if held:
        yield held[0] if len(held) == 1 else np.concatenate(held)


def _finished(rows: Rows, filling: list[Future[None]]) -> Rows:
    for part in filling:
        part.result()
    return rows
