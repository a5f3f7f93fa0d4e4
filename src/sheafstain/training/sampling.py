"""Which windows a step sees: a pure function of the seed and of how many samples came before (D5, D12, D25).

Every image is visited four times an epoch, in an order drawn anew for each epoch. The reference lies where there is
tissue, its two perpendicular neighbours 64 to 192 px away on the 16-px lattice; flips and quarter turns apply to image,
section and noise alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch import Tensor

from sheafstain.errors import SheafStainError
from sheafstain.sheaf.cover import FARTHEST, NEAREST, WINDOW
from sheafstain.training.turns import TURNS
from sheafstain.window import CELL, Size, Window

VISITS = 4  # windows of an image in one epoch
ENOUGH = 0.5  # share of tissue from which a window is taken at once
TRIES = 8
DARK = 0.85  # mean green of a cell with tissue is below this


@dataclass(frozen=True, slots=True)
class Place:
    """Where one window is cut: image, window in it, turn, and the seed that names its canvas."""

    image: int
    window: Window
    turn: int
    canvas: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The places of one training sample; ``offsets`` of the two neighbours from the reference, (dy, 0) and (0, dx)."""

    ref: Place
    dy: int
    dx: int
    second: Place

    @property
    def neighbours(self) -> tuple[Window, Window]:
        return self.ref.window.shift(self.dy, 0), self.ref.window.shift(0, self.dx)


class Sampler:
    """Samples by their number, counted over all processes and epochs.

    Parameters
    ----------
    tissue
        Of each image which of its 16-px cells hold tissue, bool [h // 16, w // 16] (``tissue_cells``).
    sizes
        Of the images.
    seed
        Of the run.
    side
        Of a window.
    neighbours
        Whether a sample has neighbours, which need room.
    """

    def __init__(
        self,
        tissue: Sequence[np.ndarray],
        sizes: Sequence[Size],
        seed: int,
        side: int = WINDOW,
        neighbours: bool = True,
    ) -> None:
        if not sizes:
            raise SheafStainError("the data set has no image to train on; sheafstain data check says what it holds")
        self.seed, self.side = seed, side
        self._shares = [_shares(cells, side // CELL) for cells in tissue]  # by place: the last cells have none
        self._rooms = [(size.h // CELL - side // CELL, size.w // CELL - side // CELL) for size in sizes]
        smallest = min(min(room) for room in self._rooms)
        if smallest < (NEAREST // CELL if neighbours else 0):
            needed = side + (NEAREST if neighbours else 0)
            size = sizes[min(range(len(sizes)), key=lambda k: min(self._rooms[k]))]
            raise SheafStainError(
                f"an image of {size} px is too small for windows of {side} px"
                f"{f' with neighbours {NEAREST} px away' if neighbours else ''}: {needed} px are needed; leave such "
                "images out or train on smaller windows"
            )
        reach = max(side // CELL - 1, NEAREST // CELL)  # farther away they would not overlap
        self._farthest = min(FARTHEST // CELL, reach, smallest) if neighbours else 0

    @property
    def epoch(self) -> int:
        """Samples in one epoch."""
        return VISITS * len(self._rooms)

    def samples(self, seen: int, first: int, count: int) -> list[Sample]:
        """Samples ``first`` … ``first + count − 1`` of the step before which ``seen`` samples were drawn."""
        dy, dx = self._offsets(seen)
        return [self._sample(seen + first + k, dy, dx) for k in range(count)]

    def _offsets(self, seen: int) -> tuple[int, int]:
        """Of the two neighbours, in cells: once a step, so that all overlaps of a batch have one shape."""
        if not self._farthest:
            return 0, 0
        random = np.random.default_rng([self.seed, 0, seen])
        dy, dx = random.integers(NEAREST // CELL, self._farthest, 2, endpoint=True) * random.choice((-1, 1), 2)
        return int(dy), int(dx)

    def _sample(self, number: int, dy: int, dx: int) -> Sample:
        epoch, position = divmod(number, self.epoch)
        image = int(_order(self.seed, epoch, self.epoch)[position]) % len(self._rooms)
        random = np.random.default_rng([self.seed, 1, number])
        ref = self._place(image, random, dy, dx)
        second = self._place(int(random.integers(len(self._rooms))), random, 0, 0)
        return Sample(ref, dy * CELL, dx * CELL, second)

    def _place(self, image: int, random: np.random.Generator, dy: int, dx: int) -> Place:
        """The first of a few places with enough tissue, else the one with most; room is left for the neighbours."""
        room_y, room_x = self._rooms[image]
        ys = random.integers(max(-dy, 0), room_y - max(dy, 0), TRIES, endpoint=True)
        xs = random.integers(max(-dx, 0), room_x - max(dx, 0), TRIES, endpoint=True)
        shares = self._shares[image][ys, xs]
        at = int(np.argmax(shares >= ENOUGH)) if (shares >= ENOUGH).any() else int(np.argmax(shares))
        window = Window(int(ys[at]) * CELL, int(xs[at]) * CELL, self.side, self.side)
        return Place(image, window, int(random.integers(TURNS)), int(random.integers(2**63)))


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, length: int) -> np.ndarray:
    return np.random.default_rng([seed, 2, epoch]).permutation(length)


def tissue_cells(image: Tensor) -> np.ndarray:
    """Which 16-px cells of an H&E image [h, w, 3] uint8, on any device, hold tissue: bool [h // 16, w // 16]."""
    h, w = (side // CELL for side in image.shape[:2])
    green = image[: h * CELL, : w * CELL, 1].float().reshape(h, CELL, w, CELL)
    return (green.mean((1, 3)) < 255 * DARK).cpu().numpy()


def _shares(cells: np.ndarray, side: int) -> np.ndarray:
    """Share of tissue in every window of side × side cells, by its first cell."""
    total = np.pad(cells.astype(np.float64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    if min(cells.shape) < side:
        return np.zeros((1, 1))
    return (total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]) / side**2
