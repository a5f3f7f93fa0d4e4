"""Two sections of one block: the H&E one, and the consecutive one that was stained for IHC.

The consecutive section lies a few µm deeper, so some nuclei are cut again, some are missed and some are new; and it was
mounted anew, so it is stretched and shifted against the first. Section 0 is the H&E section and the specimen's frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.field import Field, Floats
from sheafstain.datasets.phantom.specimen import Draws

STEP = 5.0  # µm between the mid-planes of consecutive sections: 4 µm thick, a little lost to the knife
_BOUND = 28.0  # µm: neither component of a displacement is larger
FARTHEST = 40.0  # µm: no point moves farther between the sections


@dataclass(frozen=True)
class Cut:
    """A section: its depth, how it was displaced, whether it tore."""

    seed: int
    index: int
    sway: float  # µm, standard deviation of each component of the smooth displacement
    shift_y: float  # µm, of the whole section
    shift_x: float
    torn: bool

    @classmethod
    def first(cls, seed: int) -> Cut:
        return cls(seed, 0, 0.0, 0.0, 0.0, False)

    @classmethod
    def next(cls, seed: int) -> Cut:
        """The consecutive section: 5–15 µm (10–30 px at 0.5 µm) of residual, more where a registration failed."""
        d = Draws(seed)
        slipped = d.chance("slipped", 0.15)
        return cls(
            seed=seed,
            index=1,
            sway=d.between("sway", 3.5, 8.0),
            shift_y=d.gauss("shift_y", 10.0) if slipped else d.gauss("shift_y", 2.5),
            shift_x=d.gauss("shift_x", 10.0) if slipped else d.gauss("shift_x", 2.5),
            torn=d.chance("torn", 0.2),
        )

    @property
    def depth(self) -> float:
        return self.index * STEP

    def displacement(self, ys: Floats, xs: Floats) -> NDArray[np.float32]:
        """On the grid ys × xs (µm), [2, n, m]: what lies at p of this section lies at p + displacement of section 0."""
        if self.index == 0:
            return np.zeros((2, len(ys), len(xs)), np.float32)
        moved = []
        for axis, shift in enumerate((self.shift_y, self.shift_x)):
            wide = Field(self.seed, 200 + 2 * axis, 320.0).grid(ys, xs)
            local = Field(self.seed, 201 + 2 * axis, 90.0).grid(ys, xs)
            # tanh bounds the reach, so that a window's margin is known.
            moved.append(_BOUND * np.tanh((shift + self.sway * (0.92 * wide + 0.39 * local)) / _BOUND))
        return np.stack(moved).astype(np.float32)


@dataclass(frozen=True)
class Section:
    """A cut with its displacement [2, n, m] known on a grid: what turns places of section 0 into places of this one."""

    cut: Cut
    ys: Floats
    xs: Floats
    moved: NDArray[np.float32]

    @classmethod
    def over(cls, cut: Cut, ys: Floats, xs: Floats) -> Section:
        return cls(cut, ys, xs, cut.displacement(ys, xs))

    def place(self, y: Floats, x: Floats) -> tuple[Floats, Floats]:
        """Where points of section 0 lie in this section: the fixed point of p = q − d(p), reached in a few steps."""
        if self.cut.index == 0:
            return y, x
        py, px = y, x
        for _ in range(4):  # the displacement's slope is below 0.2, so the error shrinks by that each time
            dy, dx = bilinear(self.moved, self.ys, self.xs, py, px)
            py, px = y - dy, x - dx
        return py, px


def bilinear(maps: NDArray[np.float32], ys: Floats, xs: Floats, y: Floats, x: Floats) -> Floats:
    """Values of maps [..., n, m] on the grid ys × xs at points [k]: [..., k]; points off the grid take its edge."""
    pitch = ys[1] - ys[0]
    v = np.clip((y - ys[0]) / pitch, 0, len(ys) - 1.001)
    u = np.clip((x - xs[0]) / pitch, 0, len(xs) - 1.001)
    row, column = v.astype(np.intp), u.astype(np.intp)
    v, u = v - row, u - column
    top = maps[..., row, column] * (1 - u) + maps[..., row, column + 1] * u
    return top * (1 - v) + (maps[..., row + 1, column] * (1 - u) + maps[..., row + 1, column + 1] * u) * v
