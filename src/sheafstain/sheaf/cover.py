"""Open covers: the lattice of windows, what overlaps with what, and the windows of one training step.

Every window of a cover lies on the 16-px lattice, because only there does a restriction of a token canvas exist. An
image whose sides are no multiples of 16 is therefore covered as if it were mirrored up to the next multiple: its last
windows reach at most 15 px beyond the border, and so does the one window of an image that is smaller than a window.
``cut`` reads such windows; the gluer drops what lies outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from sheafstain.window import CELL, Size, Window

WINDOW = 256  # px: side of a reference window
STRIDE = 192  # px: the cover of the paper, 64-px overlap between neighbours
DENSE = 128  # px: every interior pixel lies in four windows, so that the defect is defined everywhere inside
NEAREST, FARTHEST = 64, 192  # px: offsets of the adjacent windows in training (D5)


@dataclass(frozen=True, slots=True)
class Lattice:
    """Squares of one side on a regular lattice, the last row and column snapped to the border.

    Only the two axes are stored, so that a slide of any height costs nothing.
    """

    size: Size
    side: int
    ys: tuple[int, ...]
    xs: tuple[int, ...]

    @classmethod
    def over(cls, size: Size, side: int = WINDOW, stride: int = STRIDE) -> Lattice:
        """The lattice over an image (paper, appendix Inference-Time Sheafification, "Open cover")."""
        if size.area == 0:
            raise ValueError(f"an image of {size} pixels has no cover")
        if side % CELL or stride % CELL or not 0 < stride <= side:
            raise ValueError(f"side {side} and stride {stride} must be multiples of {CELL} with 0 < stride ≤ side")
        return cls(size, side, _starts(size.h, side, stride), _starts(size.w, side, stride))

    def rows(self) -> Iterator[tuple[Window, ...]]:
        """The squares, one lattice row at a time."""
        for y in self.ys:
            yield tuple(Window(y, x, self.side, self.side) for x in self.xs)

    def __iter__(self) -> Iterator[Window]:
        for row in self.rows():
            yield from row

    def __len__(self) -> int:
        return len(self.ys) * len(self.xs)

    @property
    def frame(self) -> Window:
        """What the squares cover together: the image, mirrored where a square reaches beyond it."""
        return Window(0, 0, self.ys[-1] + self.side, self.xs[-1] + self.side)


def _starts(length: int, side: int, stride: int) -> tuple[int, ...]:
    last = max(-(-length // CELL) * CELL - side, 0)
    return (*range(0, last, stride), last)


def cut(image: np.ndarray, window: Window) -> np.ndarray:
    """The pixels of a window of an image ``[h, w, …]``, mirrored beyond its borders however far the window reaches.

    A view where the window lies inside, a new array otherwise.
    """
    h, w = image.shape[:2]
    if Window(0, 0, h, w).contains(window):
        return image[window.slices]
    return image[np.ix_(_mirrored(window.y, window.bottom, h), _mirrored(window.x, window.right, w))]


def _mirrored(start: int, stop: int, length: int) -> np.ndarray:
    index = np.arange(start, stop) % (2 * length)
    return np.minimum(index, 2 * length - 1 - index)


def pairs(windows: Sequence[Window]) -> list[tuple[int, int]]:
    """The edges of the cover graph: indices i < j of windows that overlap, sorted; 72 for 5×5 windows at stride 192."""
    reach = max((max(w.h, w.w) for w in windows), default=0)
    if not reach:
        return []
    # Windows are filed by corner in squares as large as the largest of them: partners lie at most one square away.
    filed: dict[tuple[int, int], list[int]] = {}
    for i, window in enumerate(windows):
        filed.setdefault((window.y // reach, window.x // reach), []).append(i)
    found = []
    for (row, column), here in filed.items():
        around = [j for dy, dx in product((-1, 0, 1), repeat=2) for j in filed.get((row + dy, column + dx), ())]
        found += [(i, j) for i in here for j in around if i < j and windows[i].meets(windows[j])]
    return sorted(found)


def triples(windows: Sequence[Window]) -> list[tuple[int, int, int]]:
    """Indices i < j < k of windows with a common pixel, sorted.

    Rectangles that overlap pairwise have a common pixel (Helly), so these are the triangles of the cover graph.
    """
    later: dict[int, set[int]] = {}
    edges = pairs(windows)
    for i, j in edges:
        later.setdefault(i, set()).add(j)
    return [(i, j, k) for i, j in edges for k in sorted(later[i] & later.get(j, set()))]


@dataclass(frozen=True, slots=True)
class Triple:
    """The windows of one training sample: the reference and two perpendicular neighbours (D5)."""

    ref: Window
    adj1: Window  # above or below
    adj2: Window  # left or right

    @property
    def common(self) -> Window:
        """The triple overlap O₃, never empty."""
        return self.ref.overlap(self.adj1).overlap(self.adj2)


def draw_triple(size: Size, rng: np.random.Generator, side: int = WINDOW) -> Triple:
    """A training triple inside an image: offsets on the 16-px lattice in [64, 192] px, both signs, then its place.

    Smaller offsets are drawn where the image leaves no room for 192; without room for 64 there is no triple.
    """
    room_y, room_x = ((length // CELL) * CELL - side for length in (size.h, size.w))
    if min(room_y, room_x) < NEAREST:
        raise ValueError(f"an image of {size} has no room for {side}-px windows and neighbours {NEAREST} px away")
    (y, dy), (x, dx) = (_place(room, rng) for room in (room_y, room_x))
    ref = Window(y, x, side, side)
    return Triple(ref, ref.shift(dy, 0), ref.shift(0, dx))


def _place(room: int, rng: np.random.Generator) -> tuple[int, int]:
    """Start of the reference along one axis and signed offset of its neighbour, both within [0, room]."""
    offset = CELL * int(rng.integers(NEAREST // CELL, min(FARTHEST, room) // CELL + 1))
    start = CELL * int(rng.integers(0, (room - offset) // CELL + 1))
    return (start, offset) if rng.integers(2) else (start + offset, -offset)
