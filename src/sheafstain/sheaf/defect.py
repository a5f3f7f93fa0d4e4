"""How far translated windows are from a section: coboundary, Dirichlet energy and the worst of a defect map.

    (δs)ᵢⱼ = sⱼ|Uᵢⱼ − sᵢ|Uᵢⱼ                                    (paper, appendix Sheaf Theory Background)
    E = mean over overlapping pairs of the mean over Uᵢⱼ of (δs)²   (paper, "Inherent restriction map learning")

on the [0, 1] scale, the mean taken over pixels and channels (D9).
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sheafstain.sheaf.cover import WINDOW
from sheafstain.window import Size, Window

BLOCK = 2**17  # px
TOGETHER = 2**18  # values of overlaps that are compared at once
Ends = tuple[np.ndarray, np.ndarray]  # what two windows show on their overlap


def coboundary(first: Window, s_first: np.ndarray, second: Window, s_second: np.ndarray) -> np.ndarray:
    """s_second − s_first on the overlap of two windows with pixels ``[h, w, c]``, float32 on the [0, 1] scale."""
    return _difference(*_ends(first.overlap(second), first, s_first, second, s_second))


def pair_energy(first: Window, s_first: np.ndarray, second: Window, s_second: np.ndarray) -> float:
    """Mean square of the coboundary over pixels and channels of an overlap that is not empty."""
    return _energies([_ends(first.overlap(second), first, s_first, second, s_second)])[0]


def _energies(pairs: Sequence[Ends]) -> list[float]:
    """The same of every pair; bytes on overlaps of one size side by side, as far as they fit into the cache."""
    energies = [0.0] * len(pairs)
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for k, (one, other) in enumerate(pairs):
        if one.dtype == other.dtype == np.uint8:
            alike[one.shape].append(k)
        else:
            energies[k] = float(np.mean(np.square(_difference(one, other)), dtype=np.float64))
    for shape, members in alike.items():
        step = max(TOGETHER // math.prod(shape), 1)
        for some in (members[start : start + step] for start in range(0, len(members), step)):
            for k, energy in zip(some, _energies_of_bytes([pairs[k] for k in some]), strict=True):
                energies[k] = float(energy)
    return energies


def _energies_of_bytes(pairs: Sequence[Ends]) -> np.ndarray:
    """Of n pairs ``[h, w, c]`` of one size, [n], several times as fast: a slide has more values in overlaps than in
    itself. A row's sum of squares is a whole number, which float32 holds exactly but where windows contradict each
    other outright."""
    n, (h, w, c) = len(pairs), pairs[0][0].shape
    difference = np.stack([one for one, _ in pairs], dtype=np.int16).reshape(n, h, w * c)
    difference -= np.stack([other for _, other in pairs]).reshape(n, h, w * c)
    values = difference.astype(np.float32)
    return np.vecdot(values, values).sum(1, dtype=np.float64) / (255**2 * h * w * c)


def _ends(overlap: Window, first: Window, s_first: np.ndarray, second: Window, s_second: np.ndarray) -> Ends:
    return s_first[overlap.within(first).slices], s_second[overlap.within(second).slices]


def _difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return _unit(other) - _unit(one)


def _unit(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(np.float32) / np.float32(255 if pixels.dtype == np.uint8 else 1)


@dataclass(frozen=True, slots=True)
class EnergySummary:
    """Distribution of the energy over the overlapping pairs of an image or slide; ``energy`` is E(G)."""

    pairs: int
    energy: float
    median: float
    p95: float
    p99: float
    worst: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class DirichletEnergy:
    """Energies of all overlapping pairs while the windows come, in any order within a band.

    A pair is measured as soon as both windows are there, on what of their overlap lies in the image: 72 pairs for the
    5×5 lattice of a 1024² image. ``rows_done`` forgets windows, so that memory grows with the width of a slide only
    (and by 8 bytes a pair).
    """

    def __init__(self, size: Size) -> None:
        self._image = Window.of(size)
        self._settled = array("d")  # pairs whose overlap ended above the last promise
        self._worst: tuple[float, Window] | None = None  # of them
        self._pending: list[tuple[float, Window]] = []
        self._first = 0
        self._columns: dict[int, list[tuple[Window, np.ndarray]]] = {}  # windows by the 256-px columns they reach

    def add(self, window: Window, pixels: np.ndarray) -> None:
        """A translated window ``[h, w, c]``, uint8 or on the [0, 1] scale; kept until its rows are done."""
        self.add_all([(window, pixels)])

    def add_all(self, windows: Iterable[tuple[Window, np.ndarray]]) -> None:
        """Several at once: their pairs are measured together, which is faster where many overlap alike."""
        found: list[tuple[Window, Ends]] = []
        for window, pixels in windows:
            if pixels.shape[:2] != (window.h, window.w):
                raise ValueError(f"window {window} needs pixels [{window.h}, {window.w}, c], not {pixels.shape}")
            visible = window.overlap(self._image)
            if visible.empty:
                continue
            part = pixels[visible.within(window).slices]
            columns = range(visible.x // WINDOW, (visible.right - 1) // WINDOW + 1)
            near = {id(other): (other, theirs) for c in columns for other, theirs in self._columns.get(c, ())}
            for other, theirs in near.values():
                overlap = visible.overlap(other)
                if not overlap.empty and overlap.bottom > self._first:
                    found.append((overlap, _ends(overlap, other, theirs, visible, part)))
            for c in columns:
                self._columns.setdefault(c, []).append((visible, part))
        energies = _energies([ends for _, ends in found])
        self._pending += zip(energies, (overlap for overlap, _ in found), strict=True)

    def rows_done(self, y: int) -> None:
        """Promise that no further window starts above row ``y``."""
        for c, held in list(self._columns.items()):
            self._columns[c] = [(w, p) for w, p in held if w.bottom > y]
        done = [pair for pair in self._pending if pair[1].bottom <= y]
        self._pending = [pair for pair in self._pending if pair[1].bottom > y]
        self._settled.extend(energy for energy, _ in done)
        self._worst = _worst(done, self._worst)

    def settled(self) -> tuple[np.ndarray, tuple[float, Window] | None]:
        """Energies of the pairs whose overlap ended above the last promise, and the worst of them: for ``go_on``."""
        return np.array(self._settled), self._worst

    def go_on(self, energies: np.ndarray, worst: tuple[float, Window] | None, y: int) -> None:
        """Start where another left off at the promise ``y``: pairs that it settled are not measured again."""
        self._settled, self._worst, self._first = array("d", energies), worst, y

    @property
    def held(self) -> int:
        """Windows that may still meet others."""
        return len({id(window) for held in self._columns.values() for window, _ in held})

    @property
    def energies(self) -> np.ndarray:
        """Energy of each pair [pairs], ascending: the order of the windows leaves no trace."""
        return np.sort(np.array([*self._settled, *(energy for energy, _ in self._pending)], np.float64))

    @property
    def energy(self) -> float:
        """E(G): the mean over pairs; NaN without one."""
        energies = self.energies
        return math.fsum(energies) / len(energies) if len(energies) else math.nan

    @property
    def worst(self) -> Window | None:
        """The overlap with the highest energy: where to look first."""
        worst = _worst(self._pending, self._worst)
        return None if worst is None else worst[1]

    def summary(self) -> EnergySummary:
        energies = self.energies
        quantiles = np.quantile(energies, (0.5, 0.95, 0.99, 1)) if len(energies) else np.full(4, np.nan)
        return EnergySummary(len(energies), self.energy, *(float(q) for q in quantiles))


def _worst(pairs: Sequence[tuple[float, Window]], known: tuple[float, Window] | None) -> tuple[float, Window] | None:
    """The pair with the highest energy; of equal ones the first from the top, in whatever order they were measured."""
    return min((*pairs, *([known] if known else [])), key=lambda pair: (-pair[0], pair[1]), default=None)


def worst_area(defect: np.ndarray, share: float = 0.01) -> np.ndarray:
    """Mask [h, w] of the pixels with the highest defect: ``share`` of those where it is defined, ties included.

    Pixels where the windows agree exactly are never part of it.
    """
    defined = defect[~np.isnan(defect)]
    if not defined.size:
        return np.zeros(defect.shape, bool)
    keep = max(math.ceil(share * defined.size), 1)
    threshold = np.partition(defined, -keep)[-keep]
    return (defect >= threshold) & (defect > 0)  # NaN compares false


def blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """A map's rows in blocks that fit into the cache with what is computed from them; no large memory is taken."""
    step = max(BLOCK // max(shape[1], 1), 1)
    return (slice(y, y + step) for y in range(0, shape[0], step))


class DefectTally:
    """Mean, quantiles and defined share of a defect map whose rows come one band after the other, in fixed memory.

    The histogram counts root-mean-square differences, of which 0.5 is the largest that values in [0, 1] can have:
    quantiles are exact to one part in 4096 of that range.
    """

    BINS = 4096
    LARGEST = 0.5

    def __init__(self) -> None:
        self._histogram = np.zeros(self.BINS, np.int64)
        self._sum = 0.0
        self.pixels = 0

    def add(self, defect: np.ndarray) -> None:
        """Rows [h, w], NaN where undefined."""
        for rows in blocks(defect.shape):
            values = np.fmax(defect[rows], 0)  # NaN becomes 0
            self._sum += float(values.sum(1).sum(dtype=np.float64))
            np.sqrt(values, out=values)
            values *= np.float32(self.BINS / self.LARGEST)
            counts = np.bincount(values.astype(np.uint16).ravel(), minlength=self.BINS + 1)
            counts[0] -= np.count_nonzero(np.isnan(defect[rows]))
            counts[self.BINS - 1] += counts[self.BINS]  # the largest value there can be
            self._histogram += counts[: self.BINS]
        self.pixels += defect.size

    def counts(self) -> tuple[np.ndarray, float, int]:
        """Histogram, sum and number of pixels: for ``go_on``."""
        return self._histogram.copy(), self._sum, self.pixels

    def go_on(self, histogram: np.ndarray, total: float, pixels: int) -> None:
        """Start where another left off."""
        self._histogram, self._sum, self.pixels = histogram.astype(np.int64), total, pixels

    @property
    def defined(self) -> float:
        """Share of the pixels under two windows or more."""
        return float(self._histogram.sum()) / self.pixels if self.pixels else math.nan

    @property
    def mean(self) -> float:
        count = int(self._histogram.sum())
        return self._sum / count if count else math.nan

    def quantile(self, q: float) -> float:
        """The defect (a variance) below which a share q of the defined pixels lies; 0.99 bounds the worst percent."""
        count = self._histogram.cumsum()
        if not count[-1]:
            return math.nan
        bin_of = int(np.searchsorted(count, q * count[-1]))
        below = count[bin_of - 1] if bin_of else 0
        inside = (q * count[-1] - below) / max(self._histogram[bin_of], 1)
        return float(((bin_of + inside) * self.LARGEST / self.BINS) ** 2)
