"""Numbers over a set of images: mean, spread, bootstrap interval, and the paired comparison of two runs (design D22).

A value that is undefined (NaN) or infinite enters no mean, no interval and no test; it is counted instead. The interval
is the percentile bootstrap over images: draw as many images as there are, with replacement, and take the 2.5th and
97.5th percentile of the statistic over the draws. The same seed gives the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 5000  # the end of an interval then moves by about a hundredth of its width from seed to seed
_AT_ONCE = 2_000_000  # draws held in memory

Interval = tuple[float, float]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """One column of per-image values. ``std`` is the sample standard deviation, as in the paper's tables."""

    n: int  # finite values: what mean, std and interval are of
    undefined: int
    infinite: int
    mean: float | None  # infinite where every defined value is (PSNR of a folder with itself)
    std: float | None  # None for fewer than two values
    interval: Interval | None  # None for fewer than two values


def summarise(values: Sequence[float] | Values, seed: int = 0) -> Summary:
    column = np.asarray(values, np.float64)
    finite = column[np.isfinite(column)]
    undefined, infinite = int(np.isnan(column).sum()), column[np.isinf(column)]
    several = len(finite) > 1
    mean = float(finite.mean()) if len(finite) else None
    if not len(finite) and len(infinite) and (infinite == infinite[0]).all():
        mean = float(infinite[0])
    return Summary(
        n=len(finite),
        undefined=undefined,
        infinite=len(infinite),
        mean=mean,
        std=float(finite.std(ddof=1)) if several else None,
        interval=bootstrap(_mean, finite, seed=seed) if several else None,
    )


def bootstrap(statistic: Callable[..., Values], *columns: Values, seed: int = 0) -> Interval | None:
    """Percentile interval of ``statistic``, which takes arrays [draws, n] and returns [draws].

    Several columns are drawn together: row i of one stays with row i of the others. Draws in which the statistic does
    not exist (the correlation of one image drawn n times) are left out; None where it exists in none.
    """
    n = len(columns[0])
    rng = np.random.default_rng(seed)
    at_once = max(_AT_ONCE // n, 1)
    parts = []
    for done in range(0, RESAMPLES, at_once):
        draws = rng.integers(0, n, (min(at_once, RESAMPLES - done), n))
        parts.append(statistic(*(column[draws] for column in columns)))
    drawn = np.concatenate(parts)
    exists = drawn[np.isfinite(drawn)]
    if not len(exists):
        return None
    low, high = np.percentile(exists, (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return float(low), float(high)


def _mean(values: Values) -> Values:
    return values.mean(axis=-1)


def pearson(x: Values, y: Values) -> Values:
    """Pearson r over the last axis: [..., n] and [..., n] → [...]; NaN where either does not vary."""
    x, y = (array - array.mean(axis=-1, keepdims=True) for array in (x, y))
    scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    # What is left of a constant after its mean is subtracted is rounding, not variation.
    varies = scale > 1e-24
    return np.where(varies, (x * y).sum(axis=-1) / np.where(varies, scale, 1.0), np.nan).clip(-1, 1)


def correlation(x: Sequence[float], y: Sequence[float], seed: int = 0) -> Summary:
    """Pearson r over images with its interval; fewer than three images have none (any two points lie on a line)."""
    both = np.isfinite(x) & np.isfinite(y)
    first, second = (np.asarray(column, np.float64)[both] for column in (x, y))
    r = float(pearson(first, second)) if len(first) >= 3 else math.nan
    defined = not math.isnan(r)
    return Summary(
        n=len(first),
        undefined=int((~both).sum()),
        infinite=0,
        mean=r if defined else None,
        std=None,
        interval=bootstrap(pearson, first, second, seed=seed) if defined else None,
    )


@dataclass(frozen=True, slots=True)
class Paired:
    """What two runs over the same images differ by, ``other − first`` per image."""

    n: int
    left_out: int  # images in which either value is undefined or infinite
    difference: float | None
    interval: Interval | None
    p: float | None  # Wilcoxon signed-rank, two-sided, zero differences dropped; 1 where all are zero
    wins: int  # images in which ``other`` is the better one
    losses: int
    ties: int


def paired(first: Sequence[float], other: Sequence[float], better: str, seed: int = 0) -> Paired:
    """Compare two columns of per-image values; ``better`` is "lower", "higher" or "zero" (the smaller magnitude).

    With "zero" the magnitudes are compared: a seam excess of −0.01 is as far off as one of 0.01.
    """
    from scipy.stats import wilcoxon

    a, b = (np.asarray(column, np.float64) for column in (first, other))
    if better == "zero":
        a, b = np.abs(a), np.abs(b)
    both = np.isfinite(a) & np.isfinite(b)
    d = b[both] - a[both]
    gain = d if better == "higher" else -d
    p = None
    if len(d):
        p = float(wilcoxon(d, zero_method="wilcox").pvalue) if d.any() else 1.0  # type: ignore[attr-defined]
    return Paired(
        n=len(d),
        left_out=int((~both).sum()),
        difference=float(d.mean()) if len(d) else None,
        interval=bootstrap(_mean, d, seed=seed) if len(d) > 1 else None,
        p=p,
        wins=int((gain > 0).sum()),
        losses=int((gain < 0).sum()),
        ties=int((gain == 0).sum()),
    )


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm's correction for as many tests as were made (Holm 1979): the chance of one false finding among them all."""
    order = sorted((value, i) for i, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    largest = 0.0
    for rank, (value, i) in enumerate(order):
        largest = max(largest, min(value * (len(order) - rank), 1.0))
        corrected[i] = largest
    return corrected
