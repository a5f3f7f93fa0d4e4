"""Random fields over the plane that are functions of place alone.

Every value is a hash of (seed, channel, lattice node), so any window of an endless slide can be drawn on its own, in
any order, on any machine, and draws the same. Fields are uniform B-spline sums over such a lattice: smooth,
band-limited, cheap on a grid (two small matrix products) and exact at scattered points.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.floating]

# Two-dimensional variance of Σ w_i w_j v_ij for unit-variance nodes v, averaged over one lattice cell: (151/315)².
_SPREAD = 151 / 315


def hashed(seed: int, channel: int, *coordinates: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Sixty-four well-mixed bits per place; ``coordinates`` broadcast against each other (splitmix64 finaliser)."""
    with np.errstate(over="ignore"):
        state = _mix(np.uint64(seed % 2**64) + np.uint64(channel + 1) * np.uint64(0x9E3779B97F4A7C15))
        for coordinate in coordinates:
            state = _mix(
                state ^ (np.asarray(coordinate).astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
            )
    return np.asarray(state, np.uint64)


def _mix(bits: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    bits = np.asarray(bits, np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def uniform(seed: int, channel: int, *coordinates: NDArray[np.integer]) -> NDArray[np.floating]:
    """Uniform in [0, 1), one per place."""
    return (hashed(seed, channel, *coordinates) >> np.uint64(11)) * 2.0**-53


def normal(seed: int, channel: int, *coordinates: NDArray[np.integer]) -> NDArray[np.floating]:
    """Standard normal, one per place (Box–Muller on the two halves of one hash)."""
    bits = hashed(seed, channel, *coordinates)
    radius = ((bits >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
    angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2 * np.pi * 2.0**-32)
    return np.sqrt(-2 * np.log(radius)) * np.cos(angle)


def spline_weights(t: Floats) -> NDArray[np.float64]:
    """Uniform cubic B-spline weights of the four nodes floor(x) − 1 … floor(x) + 2 at t = x − floor(x): [..., 4]."""
    t = np.asarray(t, np.float64)
    s = 1 - t
    return np.stack([s**3, 4 - 6 * t**2 + 3 * t**3, 4 - 6 * s**2 + 3 * s**3, t**3], axis=-1) / 6


@dataclass(frozen=True)
class Axis:
    """Positions along one axis on a node lattice: sparse ``weights`` [n, nodes] turn node values into values."""

    nodes: NDArray[np.int64]
    weights: csr_array

    @classmethod
    def at(cls, positions: Floats, pitch: float) -> Axis:
        """Evenly spaced positions in µm; pitch in µm between nodes."""
        return _axis(float(positions[0]), float(positions[1] - positions[0]), len(positions), pitch)

    @classmethod
    def _regular(cls, start: float, step: float, count: int, pitch: float) -> Axis:
        x = (start + step * np.arange(count)) / pitch
        cell = np.floor(x).astype(np.int64)
        nodes = np.arange(int(cell.min()) - 1, int(cell.max()) + 3)
        columns = (cell - 1 - nodes[0])[:, None] + np.arange(4)
        entries = spline_weights(x - cell).astype(np.float32).ravel()
        starts = np.arange(0, 4 * len(x) + 1, 4)
        return cls(nodes, csr_array((entries, columns.ravel(), starts), shape=(len(x), len(nodes))))


_axis = lru_cache(512)(Axis._regular)  # the fields of a raster, and of its neighbours, share their axes


@dataclass(frozen=True)
class Field:
    """A stationary Gaussian-like field of mean 0 and variance 1 with features of about two pitches."""

    seed: int
    channel: int
    pitch: float  # µm

    def grid(self, ys: Floats, xs: Floats) -> NDArray[np.float32]:
        """On the grid ys × xs (µm): [len(ys), len(xs)]."""
        rows, columns = Axis.at(ys, self.pitch), Axis.at(xs, self.pitch)
        nodes = self._nodes(rows.nodes, columns.nodes)
        tall = rows.weights @ (nodes / np.float32(_SPREAD))
        return np.ascontiguousarray((columns.weights @ np.ascontiguousarray(tall.T)).T)

    def points(self, y: Floats, x: Floats) -> NDArray[np.float64]:
        """At scattered points (µm), any shape."""
        y, x = np.asarray(y, np.float64) / self.pitch, np.asarray(x, np.float64) / self.pitch
        row, column = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
        wy, wx = spline_weights(y - row), spline_weights(x - column)
        total = np.zeros(y.shape)
        r0, c0 = row.min(initial=0) - 1, column.min(initial=0) - 1
        r1, c1 = row.max(initial=0) + 3, column.max(initial=0) + 3
        nodes = self._nodes(np.arange(r0, r1), np.arange(c0, c1))
        for i in range(4):
            for j in range(4):
                total += wy[..., i] * wx[..., j] * nodes[row - 1 + i - r0, column - 1 + j - c0]
        return total / _SPREAD

    def _nodes(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float32]:
        """Mean 0, variance 1: the sum of two uniforms; the spline's sum over sixteen nodes makes it bell-shaped."""
        bits = hashed(self.seed, self.channel, rows[:, None], columns[None, :])
        halves = bits.view(np.uint32).reshape(*bits.shape, 2).sum(axis=-1, dtype=np.uint64)
        return (halves * np.float32(6**0.5 * 2.0**-32) - np.float32(6**0.5)).astype(np.float32)
