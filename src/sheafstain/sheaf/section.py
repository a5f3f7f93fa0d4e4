"""Sections: tokens glued on a canvas of 16-px cells, and their restriction to windows.

A token belongs to the cell that contains its centre, ⌊(offset + pitch·k + pitch/2) / 16⌋ (D3; for pitch 16 this is the
paper's "nearest-integer grid cell", appendix Implementation Details). Tokens of one cell are averaged; a cell without a
token is zero and the coverage mask says so.

    M(window)   = Σ tokens / number of tokens, per cell      [d, h/16, w/16]
    c_n(window) = mean CLS of the crops that overlap it      [d]

The sums of a cell are folded in raster order of the crops, one token after the other, on every device. Therefore a
restriction is the same to the last bit whichever wider section it is cut from: all of an image, a band of a slide, or a
cut of a cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from sheafstain.device import upload
from sheafstain.sheaf import crops as crops_of
from sheafstain.sheaf.cover import Lattice, cut
from sheafstain.window import CELL, Size, Window

Key = TypeVar("Key")
FOLD = 8  # crops folded at once: few enough for the processor's cache, the result does not depend on it


@dataclass(frozen=True, eq=False, slots=True)
class Section:
    """Tokens over a window: sums and counts per cell, and the CLS tokens with the corners of their crops.

    ``sum`` [h, w, d] (float32; half when memory-mapped from a cache), ``count`` [h, w], ``corners`` [n, 2] (y, x in
    pixels, raster order), ``cls`` [n, d]. Cells beyond the canvas count as cells without tokens.
    """

    window: Window
    sum: Tensor
    count: Tensor
    corners: Tensor
    cls: Tensor
    crop: int = crops_of.CROP

    @classmethod
    def of(cls, crops: Sequence[Window], patch: Tensor, cls_tokens: Tensor, pitch: int) -> Section:
        """Glue the tokens of crops in any order: ``patch`` [n, grid², d], ``cls_tokens`` [n, d].

        The canvas is as wide as the crops reach, so that adjacent windows can take their own cut of it (D4).
        """
        if not crops:
            raise ValueError("a section needs at least one crop")
        order = sorted(range(len(crops)), key=lambda i: (crops[i].y, crops[i].x))
        corners = _corners([crops[i] for i in order])
        y, x = min(c.y for c in crops), min(c.x for c in crops)
        bottom, right = max(c.bottom for c in crops), max(c.right for c in crops)
        window = Window(y, x, bottom - y, right - x).snap()
        h, w = window.h // CELL, window.w // CELL
        total, count = _canvas(h * w, patch.shape[-1], patch.device)
        rows, columns = token_cells(corners, patch.shape[1], pitch)
        cells = (rows - window.y // CELL)[:, :, None] * w + (columns - window.x // CELL)[:, None, :]
        at = upload(torch.tensor(order), patch.device)
        for part, where in zip(at.split(FOLD), cells.split(FOLD), strict=True):
            _fold(total, count, where.flatten(), patch[part].flatten(0, 1))
        return cls(window, total.view(h, w, -1), count.view(h, w), corners, cls_tokens[at].float(), crops[0].h)

    def restrict(self, window: Window) -> Section:
        """ρ: the part of this section over a window on the 16-px lattice; zeros, with count 0, beyond the canvas."""
        cells = window.cells()
        total = self.sum.new_zeros((cells.h, cells.w, self.sum.shape[-1]), dtype=torch.float32)
        count = self.count.new_zeros((cells.h, cells.w), dtype=torch.int32)
        inside = window.overlap(self.window)
        if not inside.empty:
            here, there = inside.within(self.window).cells().slices, inside.within(window).cells().slices
            total[there], count[there] = self.sum[here].float(), self.count[here].int()
        near = _overlapping(self.corners, self.crop, window)
        return Section(
            window, total, count, self.corners[near], self.cls[upload(near, self.cls.device)].float(), self.crop
        )

    @property
    def M(self) -> Tensor:  # noqa: N802 (the paper's symbol)
        """Spatial map [d, h, w], float32: the mean token of each cell, zero where there is none (paper, Eq. 2)."""
        return (self.sum.float() / self.count.clamp(min=1).unsqueeze(-1)).permute(2, 0, 1)

    @property
    def c_n(self) -> Tensor:
        """Neighbourhood class token [d]: the mean CLS of the crops, zero where there is none."""
        return self.cls.float().sum(0) / max(len(self.cls), 1)

    @property
    def covered(self) -> Tensor:
        """Coverage mask [h, w]: cells that hold at least one token."""
        return self.count > 0

    @property
    def crops(self) -> list[Window]:
        """Where the CLS tokens come from, in raster order."""
        return [Window(y, x, self.crop, self.crop) for y, x in self.corners.tolist()]


def token_cells(corners: Tensor, tokens: int, pitch: int) -> tuple[Tensor, Tensor]:
    """Row and column of the cell of each token of crops at ``corners`` [n, 2]: two [n, grid] of grid² tokens (D3)."""
    grid = round(tokens**0.5)
    if grid * grid != tokens:
        raise ValueError(f"{tokens} patch tokens are no square grid: prefix tokens must be removed first")
    centres = torch.arange(grid) * pitch + pitch // 2
    cells = (corners.cpu()[:, :, None] + centres).div(CELL, rounding_mode="floor")
    return cells[:, 0], cells[:, 1]


class SectionStream:
    """The section of an image that arrives crop row by crop row, as bands of a slide do.

    ``add`` crops in raster order, ``restrict`` to windows when ``ready``, and ``release`` rows that no window needs any
    more: memory grows with the width of the image and with the rows held, never with its height. Rows live in a ring.
    """

    def __init__(self, size: Size, width: int, pitch: int, crop: int = crops_of.CROP, device: Any = None) -> None:
        frame = Lattice.over(size, crop, crop).frame
        self.frame = frame
        self.pitch, self.crop = pitch, crop
        self._columns = frame.w // CELL
        self._rows = 2 * crop // CELL  # of the ring; grows when more are held
        self._top = 0  # first cell row held
        self._filled = 0  # cell rows below this one are untouched
        self._done = 0  # px: no crop starts above this row any more
        self._last = (0, -1)
        self._sum, self._count = _canvas(self._rows * self._columns, width, device)
        self._corners: list[Tensor] = []
        self._cls: list[Tensor] = []

    def add(self, crops: Sequence[Window], patch: Tensor, cls: Tensor) -> None:
        """Crops that follow those already added in raster order, with ``patch`` [n, grid², d] and ``cls`` [n, d]."""
        for c in crops:
            if (c.y, c.x) <= self._last or c.y < self._done or c.size != Size(self.crop, self.crop):
                raise ValueError(f"crop {c} must be {self.crop}-px and follow {self._last} in raster order")
            if not self.frame.contains(c):
                raise ValueError(f"crop {c} leaves the frame {self.frame}")
            self._last = (c.y, c.x)
        if not crops:
            return
        corners = _corners(crops)
        rows, columns = token_cells(corners, patch.shape[1], self.pitch)
        self._hold(int(rows.max()) + 1)
        if int(rows.min()) < self._top:
            raise ValueError(f"crop {crops[0]} reaches rows that were released")
        cells = (rows % self._rows)[:, :, None] * self._columns + columns[:, None, :]
        _fold(self._sum, self._count, cells.flatten(), patch.flatten(0, 1))
        self._corners.append(corners)
        self._cls.append(cls.float())
        self._done = crops[-1].y

    def rows_done(self, y: int) -> None:
        """Promise that no crop will start above row ``y``; the height of the frame ends the section."""
        self._done = max(self._done, y)

    def ready(self, window: Window) -> bool:
        """Whether every crop that overlaps the window has been added."""
        return self._done >= min(window.bottom, self.frame.bottom)

    def restrict(self, window: Window) -> Section:
        """The section over a window that is ``ready`` and not released; the same as from the whole image."""
        inside = window.overlap(self.frame)
        if not self.ready(window):
            raise ValueError(f"{window} is not ready: crops below row {self._done} are still to come")
        if not inside.empty and inside.y < self._top * CELL:
            raise ValueError(f"{window} begins above row {self._top * CELL}, which was released")
        corners = torch.cat(self._corners) if self._corners else torch.zeros((0, 2), dtype=torch.int64)
        cls = torch.cat(self._cls) if self._cls else self._sum.new_zeros((0, self._sum.shape[1]))
        near = _overlapping(corners, self.crop, window)
        cells = inside.snap().cells()
        kept = (
            torch.arange(cells.y, max(cells.y, min(cells.bottom, self._filled)), device=self._sum.device) % self._rows
        )
        span = slice(cells.x, cells.right)
        total = self._sum.view(self._rows, self._columns, -1)[:, span].index_select(0, kept)
        count = self._count.view(self._rows, self._columns)[:, span].index_select(0, kept)
        held = Window(cells.y, cells.x, len(kept), total.shape[1]).pixels()
        near_cls = cls[upload(near, cls.device)]
        return Section(held, total, count, corners[near], near_cls, self.crop).restrict(window)

    def release(self, y: int) -> None:
        """Forget the rows above ``y``: every window still to be cut begins at or below it."""
        top = min(y // CELL, self.frame.h // CELL)
        if top <= self._top:
            return
        gone = torch.arange(self._top, min(top, self._filled), device=self._sum.device) % self._rows
        self._sum.view(self._rows, self._columns, -1)[gone] = 0
        self._count.view(self._rows, self._columns)[gone] = 0
        self._top, self._filled = top, max(self._filled, top)
        if self._corners:
            corners, cls = torch.cat(self._corners), torch.cat(self._cls)
            near = corners[:, 0] + self.crop > top * CELL
            self._corners, self._cls = [corners[near]], [cls[upload(near, cls.device)]]

    @property
    def held(self) -> int:
        """Cells in memory, used or not."""
        return len(self._count)

    def section(self) -> Section:
        """Everything held, once all crops are there."""
        held = Window(self._top * CELL, 0, self.frame.h - self._top * CELL, self.frame.w)
        return self.restrict(held)

    def _hold(self, filled: int) -> None:
        """Make room for cell rows up to ``filled``."""
        if filled - self._top > self._rows:
            rows = max(filled - self._top, min(2 * self._rows, self.frame.h // CELL - self._top))
            total, count = _canvas(rows * self._columns, self._sum.shape[1], self._sum.device)
            old = torch.arange(self._top, self._filled, device=self._sum.device)
            shape = (self._columns, -1)
            total.view(rows, *shape)[old % rows] = self._sum.view(self._rows, *shape)[old % self._rows]
            count.view(rows, -1)[old % rows] = self._count.view(self._rows, -1)[old % self._rows]
            self._sum, self._count, self._rows = total, count, rows
        self._filled = max(self._filled, filled)


def _corners(crops: Sequence[Window]) -> Tensor:
    return torch.tensor([(c.y, c.x) for c in crops], dtype=torch.int64).reshape(-1, 2)


def _canvas(cells: int, width: int, device: Any) -> tuple[Tensor, Tensor]:
    return torch.zeros((cells, width), device=device), torch.zeros(cells, dtype=torch.int32, device=device)


def _overlapping(corners: Tensor, crop: int, window: Window) -> Tensor:
    """Indices of the crops that share a pixel with the window (none do with an empty one)."""
    y, x = corners[:, 0], corners[:, 1]
    near = (y < window.bottom) & (y + crop > window.y) & (x < window.right) & (x + crop > window.x)
    return torch.nonzero(near & (not window.empty)).flatten()


def _fold(total: Tensor, count: Tensor, cells: Tensor, tokens: Tensor) -> None:
    """Add tokens [m, d] to their cells [m] of ``total`` [cells, d] and ``count`` [cells], in order within each cell.

    One pass per token of the fullest cell, no two tokens of a pass in the same cell: the order of additions, and with
    it the last bit, is the order of the tokens on any device, where one scatter of all would leave it to the
    scheduler.
    """
    where = cells.numpy()
    order = np.argsort(where, kind="stable")
    begins = np.flatnonzero(np.diff(where[order], prepend=-1))
    turn = np.arange(len(where)) - np.repeat(begins, np.diff(begins, append=len(where)))
    chosen = order[np.argsort(turn, kind="stable")]  # pass after pass, sent at once
    at, rows = upload(torch.from_numpy(np.stack([where[chosen], chosen])), total.device)
    start = 0
    for length in np.bincount(turn).tolist():
        part = slice(start, start + length)
        total.index_add_(0, at[part], tokens[rows[part]].to(total.dtype))
        start += length
    count.index_add_(0, at, torch.ones_like(at, dtype=count.dtype))


class TokenEncoder(Protocol):
    """What a section needs of an encoder; ``sheafstain.sheaf.encoders`` has them."""

    @property
    def width(self) -> int: ...
    @property
    def pitch(self) -> int: ...
    @property
    def crop(self) -> int: ...

    def encode(self, crops: Iterable[Any]) -> Iterator[Any]:
        """For each group of crops uint8 [n, crop, crop, 3] its ``patch`` [n, grid², d] and ``cls`` [n, d], in order."""
        ...


def encode_sections(
    images: Iterable[tuple[Key, np.ndarray]], encoder: TokenEncoder, stride: int = crops_of.STRIDE
) -> Iterator[tuple[Key, Section]]:
    """The ``lattice`` section of each image ``[h, w, 3]`` uint8 under its key.

    The crops of all images reach the encoder as one stream, so that its batches are full whatever the size of an image,
    and images are read only as far ahead as that takes.
    """
    waiting: deque[tuple[Key, Lattice]] = deque()

    def crops() -> Iterator[np.ndarray]:
        for key, image in images:
            lattice = crops_of.lattice(Size(*image.shape[:2]), stride, encoder.crop)
            waiting.append((key, lattice))
            for row in lattice.rows():
                yield np.stack([cut(image, c) for c in row])

    rows: Iterator[tuple[Window, ...]] = iter(())
    section: SectionStream | None = None
    for tokens in encoder.encode(crops()):
        key, lattice = waiting[0]
        if section is None:
            rows = lattice.rows()
            section = SectionStream(lattice.size, encoder.width, encoder.pitch, encoder.crop, tokens.patch.device)
        row = next(rows)
        section.add(row, tokens.patch, tokens.cls)
        if row[0].y == lattice.ys[-1]:
            section.rows_done(section.frame.bottom)
            waiting.popleft()
            yield key, section.section()
            section = None
