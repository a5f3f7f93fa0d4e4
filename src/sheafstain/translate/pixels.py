"""The rows of the image that windows and crops are still to be cut from, on the device that computes.

Rows come from the decoding stage in bands, uint8, and are uploaded once; what no window needs any more is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sheafstain.device import upload
from sheafstain.sheaf.cover import cut
from sheafstain.translate.plan import Plan
from sheafstain.translate.stages import Channel
from sheafstain.window import Size, Window

BAND = 2**23  # bytes: about as much is decoded at a time, in at most 256 rows


class Source(Protocol):
    """The pixels of one image or slide at one resolution."""

    @property
    def size(self) -> Size: ...

    def rows(self, window: Window, band: int) -> Iterator[np.ndarray]:
        """The pixels of a window from the top, uint8 [n ≤ ``band``, w, 3]."""
        ...


@dataclass(frozen=True, slots=True)
class ArraySource:
    """An image in memory, uint8 [h, w, 3]."""

    pixels: np.ndarray

    @property
    def size(self) -> Size:
        return Size(*self.pixels.shape[:2])

    def rows(self, window: Window, band: int) -> Iterator[np.ndarray]:
        for y in range(window.y, window.bottom, band):
            yield self.pixels[y : min(y + band, window.bottom), window.x : window.right]


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Decoded rows; the next ones in order."""

    pixels: np.ndarray


@dataclass(frozen=True, eq=False, slots=True)
class Chosen:
    """Extra windows, and the row above which no further one will start."""

    extras: list[Window]
    until: int


def decode(source: Source, plan: Plan, out: Channel[Rows | Chosen], band: int | None = None) -> None:
    """The decoding stage: rows of the plan's frame, and the extra windows that they decide."""
    frame = plan.frame.overlap(Window.of(plan.size))
    refinement = plan.refinement()
    y = frame.y
    for rows in source.rows(frame, band or min(max(BAND // (3 * frame.w), 16), 256)):
        out.put(Rows(rows))
        if refinement is not None:
            here = refinement.view.overlap(Window(y, frame.x, len(rows), frame.w)).within(Window(y, frame.x, 0, 0))
            if not here.empty:
                before = refinement.decided
                extras = [w for w in refinement.add(rows[here.slices]) if plan.wants(w)]
                if refinement.decided > before:
                    out.put(Chosen(extras, refinement.decided))
        y += len(rows)
    out.end()


class Pixels:
    """What the computing stage holds of the image; it waits for the decoding stage when it needs more."""

    def __init__(self, plan: Plan, bands: Channel[Rows | Chosen], device: torch.device) -> None:
        self.plan, self.device = plan, device
        self._frame = plan.frame
        self._image = Window.of(plan.size)
        self._coming = iter(bands)
        # First row, and pixels [n, w, 3] over the width of the frame. On a CPU they stay NumPy arrays, which are copied
        # in this thread: torch would call all cores together for each of them, which other stages keep busy.
        self._bands: deque[tuple[int, Any]] = deque()
        self._on_cpu = device.type == "cpu"
        self._bottom = self._frame.y
        self._floor = self._frame.y
        self._hole = (0, 0)
        self._extras: list[Window] = []
        self._decided = self._frame.y

    def need(self, bottom: int) -> None:
        """Wait until the rows above ``bottom`` are here."""
        while self._bottom < bottom:
            self._take()

    def extras(self, until: int) -> list[Window]:
        """Wait for the extra windows that start above ``until``, and hand them out."""
        while self._decided < until:
            self._take()
        found = [w for w in self._extras if w.y < until]
        self._extras = [w for w in self._extras if w.y >= until]
        return found

    def cut(self, windows: Sequence[Window], size: Size) -> Tensor:
        """Pixels of windows of one size, if any, on the device: uint8 [n, h, w, 3]."""
        out = torch.empty((len(windows), size.h, size.w, 3), dtype=torch.uint8, device=self.device)
        return self.cut_into(out, windows)

    def cut_into(self, out: Tensor, windows: Sequence[Window]) -> Tensor:
        """The same in ``out``."""
        self.need(max((window.bottom for window in windows), default=0))
        for pixels, window in zip(out.numpy() if self._on_cpu else out, windows, strict=True):
            columns = slice(window.x - self._frame.x, window.right - self._frame.x)
            missing = window.h
            for y, band in self._bands:
                top, bottom = max(y, window.y), min(y + len(band), window.bottom)
                if top < bottom:
                    pixels[top - window.y : bottom - window.y] = band[top - y : bottom - y, columns]
                    missing -= bottom - top
            if missing:
                raise ValueError(f"{window} reaches {missing} rows that were released")
        return out

    def release(self, y: int) -> None:
        """Nobody will ask for rows above ``y`` again, those to come included."""
        self._floor = max(self._floor, y)
        while self._bands and self._bands[0][0] + len(self._bands[0][1]) <= self._floor:
            self._bands.popleft()

    def skip(self, start: int, stop: int) -> None:
        """Nobody will ask for the rows ``start`` … ``stop`` − 1, if there are any."""
        self._hole = (start, stop)
        self._bands = deque(band for band in self._bands if not self._skipped(*band))

    def _skipped(self, top: int, rows: Any) -> bool:
        bottom = top + len(rows)
        return bottom <= self._floor or (self._hole[0] <= top and bottom <= self._hole[1])

    @property
    def held(self) -> int:
        """Rows in memory."""
        return sum(len(band) for _, band in self._bands)

    def _take(self) -> None:
        thing = next(self._coming, None)
        if isinstance(thing, Chosen):
            self._extras += thing.extras
            self._decided = thing.until
        elif thing is not None:
            self._hold(thing.pixels)
        elif self._bottom < self._frame.bottom:
            self._mirror()
        else:
            raise ValueError(f"the image ended at row {self._bottom}: the source has too few rows")

    def _hold(self, rows: np.ndarray) -> None:
        top, self._bottom = self._bottom, self._bottom + len(rows)
        if self._skipped(top, rows):
            return
        beyond = self._frame.right - self._image.right
        if beyond > 0:
            # As ``cover.cut`` mirrors the whole: the frame is wider than what lies beyond the border.
            rows = cut(rows, Window(0, 0, len(rows), rows.shape[1] + beyond))
        self._bands.append((top, rows if self._on_cpu else self._uploaded(rows)))

    def _uploaded(self, rows: np.ndarray) -> Tensor:
        if not rows.flags.writeable or not rows.flags.c_contiguous:
            rows = rows.copy()  # torch has no read-only tensors
        return upload(torch.from_numpy(rows), self.device)

    def _mirror(self) -> None:
        """Rows beyond the lower border, as ``cover.cut`` mirrors them."""
        h = self._image.h
        index = np.arange(self._bottom, self._frame.bottom) % (2 * h)
        wanted = np.minimum(index, 2 * h - 1 - index).tolist()
        rows = [next(band[y - first] for first, band in self._bands if first <= y < first + len(band)) for y in wanted]
        self._bands.append((self._bottom, np.stack(rows) if self._on_cpu else torch.stack(rows)))
        self._bottom = self._frame.bottom
