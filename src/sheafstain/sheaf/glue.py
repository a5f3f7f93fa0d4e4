"""Gluing translated windows into one image, with the defect: how much the windows disagree.

    Ŷ = Σ φᵢ sᵢ,   φᵢ = wᵢ / Σⱼ wⱼ          partition of unity (paper, appendix Inference-Time Sheafification)
    defect = Σ φᵢ ‖sᵢ − Ŷ‖² / channels       weighted variance between windows, on the [0, 1] scale (D8)

Both come from one pass of the update for weighted means (West 1979), with r = w / (W + w):

    d = s − mean;   mean += r·d;   M₂ += W·r·d²;   W += w

Windows that agree give d = 0 and nothing is added: identical windows come out bit for bit, with a defect of exactly 0.
Accumulation is in float32.

Pixels wait until their rows are complete and are then glued in a fixed order: the result does not depend on the order
of the windows or on the height of the bands. Where one window alone covers, as on 44 % of a stride-192 cover, pixels
are copied; the gains r of the few geometries that a lattice repeats everywhere are computed once. It runs in one
thread: with tiles of this size two threads spend what they gain on waiting for the interpreter lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from sheafstain.window import Size, Window

Kind = Literal["lattice", "extra"]
RAMP = 32  # px: border over which a lattice window fades in
BAND = 256  # rows handed out at once
BLOCK = 1008  # columns worked on at once; rows a power of two apart would fight for the same lines of the cache


@lru_cache(maxsize=16)
def kernel(kind: Kind, side: int) -> np.ndarray:
    """Weights [side] of a window along one axis; the weight of a pixel is the product of both axes.

    ``lattice``: a linear ramp (k + ½) / 32 and a plateau of 1. ``extra``: a raised cosine, which vanishes at the
    border of the window. Both are taken at pixel centres, so neither is ever 0 and a pixel with one window is never
    0/0.
    """
    k = np.arange(side) + 0.5
    weights = np.minimum(np.minimum(k, side - k) / RAMP, 1) if kind == "lattice" else np.sin(np.pi * k / side) ** 2
    return weights.astype(np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Glued:
    """Finished rows: ``pixels`` [h, w, c] and ``defect`` [h, w] float32, NaN where fewer than two windows cover."""

    window: Window
    pixels: np.ndarray
    defect: np.ndarray | None


@dataclass(frozen=True, eq=False, slots=True)
class _Piece:
    """A window waiting for its rows: pixels as [h, w·c], so that arithmetic runs along whole rows."""

    window: Window
    kind: Kind
    pixels: np.ndarray
    in_range: bool  # no value to clip


class Gluer:
    """Glues windows of an image while they come: any order, rows out as soon as no window can change them.

    Parameters
    ----------
    size
        Size of the image; what windows show beyond it is dropped.
    channels
        Of the windows.
    dtype
        Of the glued rows: ``uint8`` (0 … 255, rounded to nearest, halves to even) or ``float32`` on the
        scale of [0, 1].
    defect
        Whether to measure the disagreement of the windows.
    background
        Grey level in [0, 1] for pixels that no window covers, such as glass; without one they are an error.
    """

    def __init__(
        self,
        size: Size,
        channels: int = 3,
        dtype: Any = np.uint8,
        *,
        defect: bool = True,
        background: float | None = None,
    ) -> None:
        self.size, self.channels, self.dtype = size, channels, np.dtype(dtype)
        self.defect, self.background = defect, background
        if self.dtype not in (np.uint8, np.float32):
            raise ValueError(f"rows are uint8 or float32, not {self.dtype}")
        self._pieces: list[_Piece] = []
        self._done = 0
        self.bytes_in: bool | None = None  # whether windows are uint8; the first one tells
        self.scratch = _Scratch()

    def add(self, window: Window, pixels: np.ndarray, kind: Kind = "lattice") -> None:
        """A translated window ``[h, w, c]``: uint8, or float16 or float32 on the scale of [0, 1].

        The array is kept until its rows are done, and copied only if it is not contiguous: do not write to it.
        """
        if pixels.shape != (window.h, window.w, self.channels):
            raise ValueError(
                f"window {window} needs pixels [{window.h}, {window.w}, {self.channels}], not {pixels.shape}"
            )
        if max(window.y, 0) < self._done:
            raise ValueError(f"window {window} starts above row {self._done}, which is already done")
        is_bytes = pixels.dtype == np.uint8
        if not is_bytes and pixels.dtype not in (np.float16, np.float32):
            raise ValueError(f"window {window}: pixels are uint8, float16 or float32, not {pixels.dtype}")
        if self.bytes_in not in (None, is_bytes):
            raise ValueError("windows must be all uint8 or all floating point")
        self.bytes_in = is_bytes
        flat = np.ascontiguousarray(pixels).reshape(window.h, -1)
        low, high = (0, 0) if is_bytes or not flat.size else (flat.min(), flat.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ValueError(f"window {window} holds values that are not finite")
        if window.meets(Window.of(self.size)):
            self._pieces.append(_Piece(window, kind, flat, bool(low >= 0 and high <= 1)))

    def rows_done(self, y: int) -> Iterator[Glued]:
        """Promise that no further window starts above row ``y``; yields the rows that this completes, in order.

        The promise counts when the rows are taken from the iterator.
        """
        end = min(y, self.size.h)
        while self._done < end:
            band = Window(self._done, 0, min(BAND, end - self._done), self.size.w)
            glued = self._glue(band)
            self._done = band.bottom
            self._pieces = [p for p in self._pieces if p.window.bottom > self._done]
            yield glued

    @property
    def held(self) -> int:
        """Windows that wait for their rows."""
        return len(self._pieces)

    def finish(self) -> Iterator[Glued]:
        """The remaining rows: every window has been added."""
        return self.rows_done(self.size.h)

    def _glue(self, band: Window) -> Glued:
        out = np.empty((band.h, band.w * self.channels), self.dtype)
        defect = np.empty((band.h, band.w), np.float32) if self.defect else None
        pieces = sorted(self._pieces, key=lambda p: (p.window.x, p.window))
        lattice, extras = (_Row([p for p in pieces if p.kind == kind]) for kind in ("lattice", "extra"))
        for x in range(0, band.right, BLOCK):
            block = Window(band.y, x, band.h, min(BLOCK, band.right - x))
            over = [p for p in extras.near(x, block.right) if p.window.meets(block)]
            work = _Block(self, block, out[:, _across(block, self.channels)], _columns(defect, block))
            later = [
                (tile, len(cover))
                for tile, cover in _tiles(block, lattice.near(x, block.right))
                if not work.lay(tile, cover, last=not any(p.window.meets(tile) for p in over))
            ]
            for piece in over:
                work.merge(piece)
            for tile, covering in later:
                work.close(tile, covering)
        return Glued(band, out.reshape(band.h, band.w, self.channels), defect)


class _Block:
    """Part of a band, small enough for the processor's cache. All arrays are [h, w·c] or [h, w] of the block."""

    def __init__(self, gluer: Gluer, window: Window, out: np.ndarray, defect: np.ndarray | None) -> None:
        self.window, self.out, self.defect = window, out, defect  # ``defect`` holds M₂ until its tile is finished
        self.channels, self.background = gluer.channels, gluer.background
        self.scratch = gluer.scratch
        self.white = 255 if gluer.bytes_in else 1
        self.mean = self.scratch.array("mean", window.size, self.channels)
        self.total = self.scratch.array("total", window.size)
        self.bare = False  # whether there are tiles without a lattice window

    def lay(self, tile: Window, cover: list[_Piece], last: bool) -> bool:
        """The lattice windows that contain all of a tile, on nothing; finishes the tile if they are the last."""
        rows, columns, wide = at = self._at(tile)
        variance = None if self.defect is None else self.defect[rows, columns]
        if variance is not None and len(cover) < 2:
            variance[...] = np.nan
        if last and not cover and self.background is not None:  # glass: most of many slides
            self.out[rows, wide] = round(self.background * 255) if self.out.dtype == np.uint8 else self.background
            return True
        if last and len(cover) == 1 and cover[0].pixels.dtype == self.out.dtype == np.uint8:
            self.out[rows, wide] = self._pixels(cover[0], tile.within(cover[0].window))
            return True
        # A tile that is finished at once is worked on in contiguous memory.
        mean = self.scratch.array("tile", tile.size, self.channels) if last else self.mean[rows, wide]
        if cover:
            places = [tile.within(p.window) for p in cover]
            gains = _gains(
                tuple((p.kind, p.window.size, place) for p, place in zip(cover, places, strict=True)), self.channels
            )
            total = gains.total
            np.copyto(mean, self._pixels(cover[0], places[0]))
            for k, (gain, spread) in enumerate(gains.steps, start=1):
                difference = self._difference(cover[k], places[k], mean)
                mean += np.multiply(gain, difference, out=self.scratch.array("step", tile.size, self.channels))
                if variance is not None:
                    difference *= difference
                    if k == 1:
                        self._over_channels(difference, spread, out=variance)
                    else:
                        variance += self._over_channels(difference, spread)
        else:
            mean[...] = 0
            total = np.zeros((tile.h, tile.w), np.float32)
            self.bare = True
        if last:
            self._finish(at, mean, total, len(cover), clip=not all(p.in_range for p in cover))
        else:
            self.total[rows, columns] = total
        return last

    def merge(self, piece: _Piece) -> None:
        """A window over what is there, of which it may meet only a part."""
        part = self.window.overlap(piece.window)
        rows, columns, wide = self._at(part)
        mean, total = self.mean[rows, wide], self.total[rows, columns]
        place = part.within(piece.window)
        weight = _weight(piece.kind, piece.window.size, place)
        gain = weight / (total + weight)
        difference = self._difference(piece, place, mean)
        if self.defect is not None:
            variance = self.defect[rows, columns]
            # The second window of a pixel defines its defect: fmax takes the 0 where there is NaN.
            np.fmax(variance, np.float32(0), out=variance, where=total > 0 if self.bare else np.True_)
            square = np.multiply(difference, difference, out=self.scratch.array("step", part.size, self.channels))
            variance += self._over_channels(square, gain * total)
        for k in range(self.channels):  # by channel: NumPy is slow at repeating the gain over a short last axis
            difference[:, k :: self.channels] *= gain
        mean += difference
        total += weight

    def close(self, tile: Window, covering: int) -> None:
        """Finish a tile of so many lattice windows after its extras."""
        rows, columns, wide = at = self._at(tile)
        self._finish(at, self.mean[rows, wide], self.total[rows, columns], covering, clip=True)

    def _finish(
        self, at: tuple[slice, slice, slice], mean: np.ndarray, total: np.ndarray, covering: int, clip: bool
    ) -> None:
        """Mean and M₂ of a tile become its pixels and its defect."""
        rows, columns, wide = at
        if not covering and (bare := total == 0).any():
            if self.background is None:
                y, x = (int(k) for k in np.argwhere(bare)[0])
                y, x = self.window.y + rows.start + y, self.window.x + columns.start + x
                raise ValueError(
                    f"no window covers the pixel at row {y}, column {x}, and there is no background for it"
                )
            mean[np.repeat(bare, self.channels, axis=1)] = self.background * self.white
            total = np.maximum(total, np.float32(1e-30))
        if self.defect is not None:
            variance = self.defect[rows, columns]
            variance /= total
            variance *= np.float32(1 / (self.channels * self.white**2))
        if self.out.dtype == np.float32:
            np.multiply(mean, np.float32(1 / self.white), out=self.out[rows, wide])
            return
        if self.white != 255:
            mean *= np.float32(255)
            if clip:
                np.clip(mean, 0, 255, out=mean)
        np.rint(mean, out=mean)
        np.copyto(self.out[rows, wide], mean, casting="unsafe")

    def _at(self, tile: Window) -> tuple[slice, slice, slice]:
        """Rows, columns and columns·channels of a tile in the arrays of this block."""
        within = tile.within(self.window)
        return *within.slices, _across(within, self.channels)

    def _pixels(self, piece: _Piece, place: Window) -> np.ndarray:
        return piece.pixels[place.y : place.bottom, _across(place, self.channels)]

    def _difference(self, piece: _Piece, place: Window, mean: np.ndarray) -> np.ndarray:
        """s − mean on a place in the coordinates of its window."""
        difference = self.scratch.array("difference", place.size, self.channels)
        np.copyto(difference, self._pixels(piece, place))
        difference -= mean
        return difference

    def _over_channels(self, square: np.ndarray, spread: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """W·r times the sum of d² over the channels: [h, w·c] to [h, w]."""
        total = self.scratch.array("sum", Size(*spread.shape))
        first, *others = (square[:, k :: self.channels] for k in range(self.channels))
        for other in others:
            first = np.add(first, other, out=total)
        return np.multiply(first, spread, out=total if out is None else out)


class _Scratch:
    """Working memory that all blocks share: fresh memory for each would cost more than the arithmetic."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def array(self, name: str, size: Size, channels: int = 1) -> np.ndarray:
        """Uninitialised float32 [h, w·channels], overwritten by the next call with that name."""
        held = self._arrays.get(name)
        if held is None or held.size < size.area * channels:
            held = self._arrays[name] = np.empty(size.area * channels, np.float32)
        return held[: size.area * channels].reshape(size.h, -1)


def _across(window: Window, channels: int) -> slice:
    return slice(window.x * channels, window.right * channels)


def _columns(defect: np.ndarray | None, block: Window) -> np.ndarray | None:
    return None if defect is None else defect[:, block.x : block.right]


def glue(
    windows: Iterable[tuple[Window, np.ndarray, Kind]], size: Size, channels: int = 3, dtype: Any = np.uint8
) -> Glued:
    """A whole image at once from its windows."""
    gluer = Gluer(size, channels, dtype)
    for window, pixels, kind in windows:
        gluer.add(window, pixels, kind)
    bands = list(gluer.finish())
    defects = [band.defect for band in bands if band.defect is not None]
    return Glued(Window.of(size), np.concatenate([band.pixels for band in bands]), np.concatenate(defects))


class _Row:
    """Pieces sorted by x, so that those near some columns are found without looking at all."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces
        self._starts = [p.window.x for p in pieces]
        self._reach = max((p.window.w for p in pieces), default=0)

    def near(self, x: int, right: int) -> list[_Piece]:
        """All pieces that meet columns x … right − 1, and perhaps a few that do not."""
        return self._pieces[bisect_left(self._starts, x - self._reach) : bisect_left(self._starts, right)]


def _tiles(frame: Window, pieces: list[_Piece]) -> Iterator[tuple[Window, list[_Piece]]]:
    """Cut a frame along the edges of pieces sorted by x: rectangles, each with the pieces that contain all of it."""
    for y, bottom in _spans(frame.y, frame.bottom, [edge for p in pieces for edge in (p.window.y, p.window.bottom)]):
        row = _Row([p for p in pieces if p.window.y <= y and p.window.bottom >= bottom])
        for x, right in _spans(
            frame.x, frame.right, [e for p in row.near(frame.x, frame.right) for e in (p.window.x, p.window.right)]
        ):
            cover = [p for p in row.near(x, right) if p.window.x <= x and p.window.right >= right]
            yield Window(y, x, bottom - y, right - x), cover


def _spans(start: int, stop: int, edges: list[int]) -> Iterator[tuple[int, int]]:
    inner = sorted({edge for edge in edges if start < edge < stop})
    yield from zip([start, *inner], [*inner, stop], strict=True)


@dataclass(frozen=True, eq=False, slots=True)
class _Gains:
    steps: list[tuple[np.ndarray, np.ndarray]]  # for each window after the first: r as [h, w·c] and W·r as [h, w]
    total: np.ndarray  # Σ w, [h, w]


@lru_cache(maxsize=64)
def _gains(cover: tuple[tuple[Kind, Size, Window], ...], channels: int) -> _Gains:
    """Gains for a tile by its place in windows of a kind and size: a lattice has a handful of such tiles."""
    weights = [_weight(*where) for where in cover]
    total, steps = weights[0], []
    for weight in weights[1:]:
        gain = weight / (total + weight)
        steps.append((np.repeat(gain, channels, axis=1), gain * total))
        total = total + weight
    return _Gains(steps, total)


def _weight(kind: Kind, size: Size, tile: Window) -> np.ndarray:
    """Weights [h, w] of a tile given in the coordinates of its window."""
    rows, columns = tile.slices
    return np.multiply.outer(kernel(kind, size.h)[rows], kernel(kind, size.w)[columns])
