"""The pieces of a plan in the order in which they are translated, each with its cut of the section (D1).

``lattice``: the encoder walks over the slide once, in bands, just ahead of the windows. ``neighborhood``: each window
has crops around it; those of several windows are encoded once. The encoder reads ahead as far as it takes to fill its
batches. Crops that no window sees, over glass, are not encoded, and rows that nobody sees are not held.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sheafstain.sheaf import crops as crops_of
from sheafstain.sheaf.section import Section, SectionStream, TokenEncoder
from sheafstain.translate.pixels import Pixels
from sheafstain.translate.plan import Group, Piece, Plan
from sheafstain.window import CELL, Size, Window

HEAD = 8  # windows of a group whose crops are sent to the encoder at once


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
            yield self._pixels.cut(chosen, chosen[0].size)

    def _wanted(self, crop: Window) -> bool:
        """Every crop that meets a window, and a few more: whatever lies in a window that meets the crop, counts."""
        around = crop.grow(self._plan.reach)
        tissue = self._plan.tissue
        return self._frame.contains(crop) and around.meets(self._plan.target) and (tissue is None or tissue(around))


def _neighborhood(plan: Plan, pixels: Pixels, encoder: StainEncoder) -> Iterator[Ready]:
    sent: deque[tuple[Ready, list[Window], list[Window]]] = deque()  # with its crops, and those of them at the encoder
    shared = _Shared()

    def around() -> Iterator[Tensor]:
        seen = 0
        for group in plan.groups():
            pixels.skip(seen, group.top - crops_of.STRIDE)
            for complete in (False, True):
                # The encoder gets work before the extra windows are known: on a GPU both are found at once.
                head, tail = group.lattice[:HEAD], group.lattice[HEAD:]
                pieces = [*tail, *_extras(group, pixels, plan)] if complete else head
                found = [
                    crops_of.neighborhood(p.read, plan.size, plan.protocol.seed, crop=encoder.crop) for p in pieces
                ]
                shared.expect(found, complete)
                for piece, crops in zip(pieces, found, strict=True):
                    seen = max(seen, piece.read.bottom, *(c.bottom for c in crops))
                    new = shared.new(crops)
                    sent.append((Ready(piece, None, group.top), crops, new))
                    yield pixels.cut(new, Size(encoder.crop, encoder.crop))

    for tokens in encoder.encode(around()):
        ready, crops, new = sent.popleft()
        pixels.release(ready.floor - crops_of.STRIDE)
        patch, cls = shared.tokens(crops, new, tokens.patch, tokens.cls)
        section = Section.of(crops, patch, cls, encoder.pitch).restrict(ready.piece.read)
        yield Ready(ready.piece, section, ready.floor)


class _Shared:
    """Crops that windows have in common are encoded once; their tokens are kept for the others."""

    def __init__(self) -> None:
        self._wanted: Counter[Window] = Counter()  # how often, by windows that do not have its tokens yet
        self._complete = True  # whether all windows of the group are known
        self._sent: set[Window] = set()
        self._kept: dict[Window, tuple[Tensor, Tensor]] = {}

    def expect(self, crops: Iterable[list[Window]], complete: bool) -> None:
        """These windows are the next ones; ``complete``: those of the next group are not known, and far away."""
        for some in crops:
            self._wanted.update(some)
        self._complete = complete
        if complete:
            self._forget([c for c in self._sent if not self._wanted[c]])

    def new(self, crops: list[Window]) -> list[Window]:
        """Those that have to be encoded, each once."""
        new = [c for c in dict.fromkeys(crops) if c not in self._sent]
        self._sent.update(new)
        return new

    def tokens(self, crops: list[Window], new: list[Window], patch: Tensor, cls: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of all ``crops`` of a window, whose ``new`` ones have ``patch`` [n, t, d] and ``cls`` [n, d]."""
        known = self._kept | {c: (patch[k], cls[k]) for k, c in enumerate(new)}
        self._wanted.subtract(crops)
        for c in new:
            if self._wanted[c] or not self._complete:
                self._kept[c] = patch[new.index(c)].clone(), cls[new.index(c)].clone()  # not all of its batch
        if self._complete:
            self._forget([c for c in crops if not self._wanted[c]])
        if new == crops:
            return patch, cls
        return torch.stack([known[c][0] for c in crops]), torch.stack([known[c][1] for c in crops])

    def _forget(self, crops: Iterable[Window]) -> None:
        for c in crops:
            self._sent.discard(c)
            self._kept.pop(c, None)
            del self._wanted[c]
