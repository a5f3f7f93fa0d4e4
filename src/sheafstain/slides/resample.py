"""A level at another pixel size, made while its rows stream by.

Which pixels come out does not depend on where reading starts or how high the bands are: every output pixel belongs to
one block of a lattice that is fixed for the level, and a block is a function of the stored pixels alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from sheafstain.slides.level import Level, Part, Rows, made_ahead
from sheafstain.window import Size, Window

_BLOCK = 512  # px of the finer level along a block, roughly


class Reduced:
    """A level with pixels ``times`` as large: means of times × times pixels (of those there are, at the far border).

    This is how scanners make the lower levels of their pyramids.
    """

    def __init__(self, level: Level, times: int) -> None:
        self._level, self._times = level, times

    @property
    def size(self) -> Size:
        return Size(-(-self._level.size.h // self._times), -(-self._level.size.w // self._times))

    @property
    def damaged(self) -> Sequence[Window]:
        return [window.scale(1 / self._times) for window in self._level.damaged]

    def pieces(self, window: Window) -> Iterator[Rows]:
        from PIL import Image

        finer = window.pixels(self._times).overlap(Window.of(self._level.size))
        for rows in _multiples(self._level.pieces(finer), self._times):
            yield np.asarray(Image.fromarray(rows).reduce(self._times))


class Resampled:
    """A level with pixels ``times`` as large (smaller, when below 1), antialiased bicubic.

    Pixel i lies over times·i … times·(i + 1) of the finer level: places keep their micrometres exactly, whatever the
    rounding of ``size``. Where the size claims up to a pixel more than the level has, its border is repeated.
    """

    def __init__(self, level: Level, times: float, size: Size) -> None:
        self._level, self._times, self.size = level, times, size
        self._reach = math.ceil(2 * max(times, 1)) + 1  # px of the finer level that a pixel looks at on each side
        self._block = max(16, int(_BLOCK / times) // 16 * 16)

    @property
    def damaged(self) -> Sequence[Window]:
        touched = (window.scale(1 / self._times).grow(2) for window in self._level.damaged)
        return [window.overlap(Window.of(self.size)) for window in touched]

    def pieces(self, window: Window) -> Iterator[Rows]:
        """Whole blocks are made, and of them the rows of ``window`` handed on."""
        y = window.y
        for rows in made_ahead(self._bands(window)):
            skip = y % self._block
            rows = rows[skip : skip + window.bottom - y]
            y += len(rows)
            yield rows

    def _bands(self, window: Window) -> Iterator[tuple[Size, list[Part]]]:
        top = window.y // self._block * self._block
        columns = self._spans(window.x, window.right, self.size.w)
        left, right = self._under(columns[0], self._level.size.w)[0], self._under(columns[-1], self._level.size.w)[1]
        first = self._under((top, top), self._level.size.h)[0]
        finer = Window(first, left, self._level.size.h - first, right - left)
        held = _Held(self._level.pieces(finer), first)
        for rows in self._spans(top, window.bottom, self.size.h):
            source = held.rows(*self._under(rows, self._level.size.h))
            parts: list[Part] = []
            for across in columns:
                begin, end = self._under(across, self._level.size.w)
                block = Window(rows[0], across[0], rows[1] - rows[0], across[1] - across[0])
                kept = block.overlap(Window(block.y, window.x, block.h, window.w))
                under = Window(held.first, begin, len(source), end - begin)
                fill = partial(self._fill, source[:, begin - left : end - left], under, block, kept)
                parts.append((Window(0, kept.x - window.x, kept.h, kept.w), fill))
            yield Size(rows[1] - rows[0], window.w), parts

    def _spans(self, start: int, stop: int, end: int) -> list[tuple[int, int]]:
        """The blocks of the lattice that meet start … stop, as spans of output pixels; the last stops at ``end``."""
        first = start // self._block * self._block
        return [(at, min(at + self._block, end)) for at in range(first, stop, self._block)]

    def _under(self, span: tuple[int, int], end: int) -> tuple[int, int]:
        """The span of the finer level that a span of output pixels looks at."""
        start, stop = math.floor(span[0] * self._times), math.ceil(span[1] * self._times)
        return max(0, min(start - self._reach, end - 1)), min(stop + self._reach, end)

    def _fill(self, pixels: Rows, under: Window, block: Window, kept: Window, out: Rows) -> None:
        """Make ``block`` from ``pixels``, the window ``under`` of the finer level; ``out`` takes columns ``kept``."""
        from PIL import Image

        x, y = block.x * self._times - under.x, block.y * self._times - under.y
        right, bottom = block.right * self._times - under.x, block.bottom * self._times - under.y
        beyond = (max(0, math.ceil(bottom) - under.h), max(0, math.ceil(right) - under.w))
        if any(beyond):
            pixels = np.pad(pixels, ((0, beyond[0]), (0, beyond[1]), (0, 0)), "edge")
        image = Image.fromarray(np.ascontiguousarray(pixels))
        made = image.resize((block.w, block.h), Image.Resampling.BICUBIC, box=(x, y, right, bottom))
        out[:] = np.asarray(made)[:, kept.x - block.x : kept.right - block.x]


class _Held:
    """Rows of a stream that are still needed: overlapping spans, asked for from the top down."""

    def __init__(self, pieces: Iterator[Rows], first: int) -> None:
        self._pieces, self.first, self._rows = pieces, first, []

    def rows(self, start: int, stop: int) -> Rows:
        """Rows start … stop; those above ``start`` are forgotten."""
        have = self.first + sum(map(len, self._rows))
        while have < stop:
            self._rows.append(next(self._pieces))
            have += len(self._rows[-1])
        joined = self._rows[0] if len(self._rows) == 1 else np.concatenate(self._rows)
        self._rows = [joined[start - self.first :]]
        self.first = start
        return self._rows[0][: stop - start]


def _multiples(pieces: Iterator[Rows], times: int) -> Iterator[Rows]:
    """The same rows, in arrays of a multiple of ``times`` of them; the last holds what is left."""
    held: list[Rows] = []
    for piece in pieces:
        whole = (sum(map(len, held)) + len(piece)) // times * times - sum(map(len, held))
        if whole <= 0:
            held.append(piece)
            continue
        yield np.concatenate([*held, piece[:whole]]) if held else piece[:whole]
        held = [piece[whole:]] if whole < len(piece) else []
    if held:
        yield np.concatenate(held)
