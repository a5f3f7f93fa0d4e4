"""The pieces of a plan in the order in which they are translated, each with its cut of the section (D1).

``lattice``: the encoder walks over the slide once, in bands, just ahead of the windows. ``neighborhood``: each window
has crops of its own. The encoder reads ahead as far as it takes to fill its batches. Crops that no window sees, over
glass, are not encoded, and rows that nobody sees are not held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sheafstain.sheaf import crops as crops_of
from sheafstain.sheaf.section import Section, SectionStream, TokenEncoder
from sheafstain.translate.pixels import Pixels
from sheafstain.translate.plan import Group, Piece, Plan
from sheafstain.window import CELL, Window


class StainEncoder(TokenEncoder, Protocol):
    """What is needed of an encoder; ``sheaf.encoders.Encoder`` is one."""

    @property
    def id(self) -> str: ...
    @property
    def weights_hash(self) -> str: ...
    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True, eq=False, slots=True)
class Ready:
    """A piece that can be translated; no later one starts above ``floor``."""

    piece: Piece
    section: Section | None
    floor: int


def conditioned(plan: Plan, pixels: Pixels, encoder: StainEncoder | None) -> Iterator[Ready]:
    """All pieces of the plan, from the top; each must be cut before the next is asked for, which may release it."""
    if plan.protocol.conditioning == "none":
        return _plain(plan, pixels)
    if encoder is None:
        raise ValueError(f"the conditioning {plan.protocol.conditioning} needs an encoder")
    return (_lattice if plan.protocol.conditioning == "lattice" else _neighborhood)(plan, pixels, encoder)


def _plain(plan: Plan, pixels: Pixels) -> Iterator[Ready]:
    for group in plan.groups():
        pixels.release(group.top)
        for piece in _from_the_top(group, pixels, plan):
            pixels.release(piece.read.y)
            yield Ready(piece, None, piece.read.y)


def _from_the_top(group: Group, pixels: Pixels, plan: Plan) -> list[Piece]:
    """The windows of a group by row: rows can leave while the rest of the group is still translated."""
    return sorted((*group.lattice, *_extras(group, pixels, plan)))


def _extras(group: Group, pixels: Pixels, plan: Plan) -> list[Piece]:
    if plan.protocol.cover != "refined":
        return []
    return [Piece.window(window, "extra") for window in pixels.extras(group.until)]


def _lattice_first(group: Group, pixels: Pixels, plan: Plan) -> Iterator[Piece]:
    """The windows of a group that are known before its extra windows are chosen come first."""
    yield from group.lattice
    yield from _extras(group, pixels, plan)


def _lattice(plan: Plan, pixels: Pixels, encoder: StainEncoder) -> Iterator[Ready]:
    walk = _Walk(plan, pixels, encoder)
    for group in plan.groups():
        pixels.release(group.top - encoder.crop - plan.reach)
        if group.lattice:
            # The encoder gets its work before the extra windows are known: on a GPU both are found at once.
            walk.reach(Window(group.top, group.lattice[0].read.x, group.bottom - group.top, CELL))
        for piece in _from_the_top(group, pixels, plan):
            walk.reach(piece.read)
            pixels.release(piece.read.y)  # the crops still to come start below the bottom of this piece
            yield Ready(piece, walk.restrict(piece.read), piece.read.y)


class _Walk:
    """The encoder on its way down the lattice of crops, and the section it leaves behind."""

    def __init__(self, plan: Plan, pixels: Pixels, encoder: StainEncoder) -> None:
        self._plan, self._pixels, self._frame = plan, pixels, plan.frame
        self._stream = SectionStream(self._frame.size, encoder.width, encoder.pitch, encoder.crop, encoder.device)
        self._tokens = encoder.encode(self._crops())
        self._sent: deque[tuple[tuple[Window, ...], int]] = deque()  # rows at the encoder, with where the next begins

    def reach(self, window: Window) -> None:
        """Go on until every crop that meets the window is in the section."""
        here = window.within(self._frame)
        while not self._stream.ready(here):
            tokens = next(self._tokens, None)
            if tokens is None:
                self._stream.rows_done(self._stream.frame.bottom)
                return
            row, following = self._sent.popleft()
            self._stream.release(min(row[0].y, here.y))
            self._stream.add(row, tokens.patch, tokens.cls)
            self._stream.rows_done(following)

    def restrict(self, window: Window) -> Section:
        return self._stream.restrict(window.within(self._frame))

    def _crops(self) -> Iterator[Tensor]:
        """Rows of crops, those that some window of the plan may see."""
        lattice = self._plan.crops()
        seen = 0
        for row, following in zip(lattice.rows(), [*lattice.ys[1:], lattice.frame.bottom], strict=True):
            chosen = [c for c in row if self._wanted(c)]
            if not chosen:
                continue
            self._pixels.skip(seen, chosen[0].y)
            seen = chosen[0].bottom
            self._sent.append((tuple(c.within(self._frame) for c in chosen), following - self._frame.y))
            yield self._pixels.cut(chosen)

    def _wanted(self, crop: Window) -> bool:
        """Every crop that meets a window, and a few more: whatever lies in a window that meets the crop, counts."""
        around = crop.grow(self._plan.reach)
        tissue = self._plan.tissue
        return self._frame.contains(crop) and around.meets(self._plan.target) and (tissue is None or tissue(around))


def _neighborhood(plan: Plan, pixels: Pixels, encoder: StainEncoder) -> Iterator[Ready]:
    sent: deque[tuple[Ready, list[Window]]] = deque()

    def around() -> Iterator[Tensor]:
        seen = 0
        for group in plan.groups():
            pixels.skip(seen, group.top - crops_of.STRIDE)
            for piece in _lattice_first(group, pixels, plan):
                crops = crops_of.neighborhood(piece.read, plan.size, plan.protocol.seed, crop=encoder.crop)
                seen = max(seen, piece.read.bottom, *(c.bottom for c in crops))
                sent.append((Ready(piece, None, group.top), crops))
                yield pixels.cut(crops)

    for tokens in encoder.encode(around()):
        ready, crops = sent.popleft()
        pixels.release(ready.floor - crops_of.STRIDE)
        section = Section.of(crops, tokens.patch, tokens.cls, encoder.pitch).restrict(ready.piece.read)
        yield Ready(ready.piece, section, ready.floor)
