"""Which windows are translated, in which order, and which pixels that takes.

All coordinates are those of the whole slide at the resolution of the model. A region, and what is left of a run that
was stopped, is a ``target`` inside it: the windows of the whole that meet the target are translated, neither shifted
nor clipped, so that their pixels are those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sheafstain.sheaf import crops
from sheafstain.sheaf.cover import Lattice
from sheafstain.sheaf.glue import Kind
from sheafstain.sheaf.refine import Refinement
from sheafstain.translate.protocol import StainProtocol
from sheafstain.window import CELL, Size, Window

PIECE, MARGIN = 1280, 128  # px: of the cover ``whole``; 1024² is one piece, and 128 px is more than a ResNet looks

Tissue = Callable[[Window], bool]


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """What goes through the model at once: it sees ``read``, and ``keep`` of what it makes is glued."""

    read: Window
    keep: Window
    kind: Kind = "lattice"

    @classmethod
    def window(cls, window: Window, kind: Kind = "lattice") -> Piece:
        return cls(window, window, kind)

    def kept(self, made: np.ndarray) -> np.ndarray:
        """Of the pixels [h, w, 3] that were made those that count."""
        return made if self.keep == self.read else made[self.keep.within(self.read).slices]


@dataclass(frozen=True, slots=True)
class Group:
    """Lattice rows whose extra windows are chosen together: they start at ``top`` or below, and above ``until``."""

    top: int
    until: int
    lattice: tuple[Piece, ...]  # in raster order

    @property
    def bottom(self) -> int:
        return max((piece.read.bottom for piece in self.lattice), default=self.top)


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """``size`` of the whole, ``target`` what is to be made of it; windows without ``tissue`` are left out."""

    protocol: StainProtocol
    size: Size
    target: Window
    tissue: Tissue | None = None

    def __post_init__(self) -> None:
        if self.target.empty or not Window.of(self.size).contains(self.target):
            raise ValueError(f"the target {self.target} is no part of {self.size} pixels")

    @property
    def lattice(self) -> Lattice:
        return Lattice.over(self.size, self.protocol.side, self.protocol.stride)

    def refinement(self) -> Refinement | None:
        """What chooses the extra windows that meet the target."""
        if self.protocol.cover != "refined":
            return None
        return Refinement(self.lattice, self.tissue, self.target)

    @property
    def canvas(self) -> Window:
        """The image, mirrored as far as windows and crops reach beyond it."""
        whole = self._axes() if self.protocol.cover == "whole" else None
        frames = [Lattice.over(self.size, crops.CROP, crops.CROP).frame] if self._conditioned else []
        if whole is None:
            frames.append(self.lattice.frame)
        else:
            frames.append(Window(0, 0, *(axis[-1].start + axis[-1].length for axis in whole)))
        return Window(0, 0, max(f.bottom for f in frames), max(f.right for f in frames))

    @property
    def frame(self) -> Window:
        """The part of the canvas that has to be read, on the 16-px lattice."""
        if self.protocol.cover == "whole":
            rows, columns = (
                list(self._chosen(axis, *span)) for axis, span in zip(self._axes(), self._spans, strict=True)
            )
            y, x = rows[0].start, columns[0].start
            read = Window(y, x, rows[-1].start + rows[-1].length - y, columns[-1].start + columns[-1].length - x)
        else:
            read = self.target.snap().grow(self.reach)
        # Crops of the lattice that meet a window; crops of a neighbourhood, 80 px from its centre.
        reach = {"none": 0, "lattice": crops.CROP - CELL, "neighborhood": crops.STRIDE}[self.protocol.conditioning]
        read = read.grow(reach)
        if (refinement := self.refinement()) is not None:
            view = refinement.view.snap()
            y, x = min(read.y, view.y), min(read.x, view.x)
            read = Window(y, x, max(read.bottom, view.bottom) - y, max(read.right, view.right) - x)
        return read.overlap(self.canvas)

    def groups(self) -> Iterator[Group]:
        """The pieces that meet the target, from the top, without the extra windows."""
        if self.protocol.cover == "whole":
            yield from self._whole()
            return
        lattice = self.lattice
        refinement = self.refinement()
        begins = list(refinement.begins if refinement is not None else lattice.ys)
        for top, until in zip(begins, [*begins[1:], lattice.frame.bottom], strict=True):
            ys = [y for y in lattice.ys if top <= y < until]
            windows = (Window(y, x, lattice.side, lattice.side) for y in ys for x in lattice.xs)
            chosen = tuple(Piece.window(w) for w in windows if self.wants(w))
            if chosen or refinement is not None:
                yield Group(top, until, chosen)

    def wants(self, window: Window) -> bool:
        """Whether a window of the cover is translated."""
        return window.meets(self.target) and (self.tissue is None or self.tissue(window))

    @property
    def reach(self) -> int:
        """How far the pixels of a piece can lie from what it is translated for."""
        return (PIECE if self.protocol.cover == "whole" else self.protocol.side) - CELL

    def crops(self) -> Lattice:
        """Where the encoder looks, for the conditioning ``lattice``."""
        return crops.lattice(self.size, self.protocol.crop_stride)

    @property
    def _conditioned(self) -> bool:
        return self.protocol.conditioning != "none"

    @property
    def _spans(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.target.y, self.target.bottom), (self.target.x, self.target.right)

    def _axes(self) -> tuple[list[_Stretch], list[_Stretch]]:
        return _stretches(self.size.h, self.protocol.multiple), _stretches(self.size.w, self.protocol.multiple)

    def _chosen(self, axis: list[_Stretch], start: int, stop: int) -> Iterator[_Stretch]:
        return (s for s in axis if s.keep < stop and s.keep + s.kept > start)

    def _whole(self) -> Iterator[Group]:
        rows, columns = (list(self._chosen(axis, *span)) for axis, span in zip(self._axes(), self._spans, strict=True))
        for k, row in enumerate(rows):
            pieces = (
                Piece(
                    Window(row.start, column.start, row.length, column.length),
                    Window(row.keep, column.keep, row.kept, column.kept),
                )
                for column in columns
            )
            until = rows[k + 1].start if k + 1 < len(rows) else row.start + row.length
            kept = tuple(p for p in pieces if self.tissue is None or self.tissue(p.keep))
            if kept:
                yield Group(row.start, until, kept)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """One axis of a piece of the cover ``whole``: what it reads and what of it is kept."""

    start: int
    length: int
    keep: int
    kept: int


def _stretches(length: int, multiple: int) -> list[_Stretch]:
    full = -(-length // multiple) * multiple
    if full <= PIECE:
        return [_Stretch(0, full, 0, full)]
    core = PIECE - 2 * MARGIN
    return [
        _Stretch(min(max(keep - MARGIN, 0), full - PIECE), PIECE, keep, min(core, full - keep))
        for keep in range(0, full, core)
    ]
