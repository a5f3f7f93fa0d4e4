"""Measures of a binary decision over the images of a test set: value, bootstrap interval, ROC curve.

Every function of ``MEASURES`` takes ``truth`` and ``answer`` or ``score`` as float arrays [..., n] (1 is positive) and
gives [...]: the same code makes the value and, over thousands of draws at once, its interval. Where a measure has no
value (a draw without a single negative) it is NaN. Written out here, because scikit-learn is no dependency; the tests
compare with it where it is installed, and with numbers counted by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sheafstain.metrics.statistics import Interval, bootstrap

Values = NDArray[np.float64]


def _share(part: Values, whole: Values) -> Values:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan)


def accuracy(truth: Values, answer: Values) -> Values:
    return (truth == answer).mean(axis=-1)


def sensitivity(truth: Values, answer: Values) -> Values:
    """Share of the positives that are answered positive."""
    return _share((truth * answer).sum(axis=-1), truth.sum(axis=-1))


def specificity(truth: Values, answer: Values) -> Values:
    return sensitivity(1 - truth, 1 - answer)


def balanced_accuracy(truth: Values, answer: Values) -> Values:
    """The mean of sensitivity and specificity: ½ for every constant answer, however uneven the classes."""
    return (sensitivity(truth, answer) + specificity(truth, answer)) / 2


def f1(truth: Values, answer: Values) -> Values:
    """2 TP / (2 TP + FP + FN): 0 where nothing is answered positive; undefined if nothing is positive either."""
    return _share(2 * (truth * answer).sum(axis=-1), truth.sum(axis=-1) + answer.sum(axis=-1))


def auroc(truth: Values, score: Values) -> Values:
    """The chance that a positive scores above a negative, a tie counting half (Mann and Whitney)."""
    from scipy.stats import rankdata

    positives = truth.sum(axis=-1)
    ranks = (rankdata(score, axis=-1) * truth).sum(axis=-1)
    return _share(ranks - positives * (positives + 1) / 2, positives * (truth.shape[-1] - positives))


DECISION: dict[str, Callable[[Values, Values], Values]] = {
    "accuracy": accuracy,
    "f1": f1,
    "balanced_accuracy": balanced_accuracy,
    "sensitivity": sensitivity,
    "specificity": specificity,
}
MEASURES = (*list(DECISION)[:2], "auroc", *list(DECISION)[2:])  # the paper's three first


@dataclass(frozen=True, slots=True)
class Measure:
    value: float
    interval: Interval | None  # 95 %, over images; None for a constant answer, whose value is a matter of counts


def measure(truth: Values, answer: Values, score: Values, *, intervals: bool = True) -> dict[str, Measure]:
    """All measures of a test set with both classes. ``truth`` and ``answer`` 0 or 1, ``score`` any real, each [n]."""
    if not 0 < truth.sum() < len(truth):
        raise ValueError("a test set of a single class has no AUROC")
    found = {}
    for name in MEASURES:
        statistic, column = (auroc, score) if name == "auroc" else (DECISION[name], answer)
        interval = bootstrap(statistic, truth, column) if intervals else None
        found[name] = Measure(float(statistic(truth, column)), interval)
    return found


def constant(truth: Values, answer: bool) -> dict[str, Measure]:
    """What always giving the same answer is worth on this test set."""
    same = np.full(len(truth), float(answer))
    return measure(truth, same, same, intervals=False)


def auroc_difference(truth: Values, one: Values, other: Values) -> Measure:
    """``other − one`` on the same images, which are drawn together."""

    def difference(truth: Values, one: Values, other: Values) -> Values:
        return auroc(truth, other) - auroc(truth, one)

    return Measure(float(difference(truth, one, other)), bootstrap(difference, truth, one, other))


@dataclass(frozen=True, slots=True)
class Roc:
    """Corners of the curve from (0, 0) to (1, 1); images of equal score are one step. Each array [k]."""

    false_positive: Values
    true_positive: Values
    threshold: Values  # positive from this score on; infinite in the first corner, where nothing is

    @classmethod
    def of(cls, truth: Values, score: Values) -> Roc:
        order = np.argsort(-score, kind="stable")
        sorted_score, sorted_truth = score[order], truth[order]
        last = np.append(np.flatnonzero(np.diff(sorted_score)), len(score) - 1)  # of each group of equal scores
        hits = np.cumsum(sorted_truth)[last]
        alarms = last + 1 - hits
        return cls(
            false_positive=np.append(0.0, alarms / alarms[-1]),
            true_positive=np.append(0.0, hits / hits[-1]),
            threshold=np.append(np.inf, sorted_score[last]),
        )

    @property
    def area(self) -> float:
        return float(np.trapezoid(self.true_positive, self.false_positive))


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts of images by truth and answer."""

    tp: int
    fn: int
    fp: int
    tn: int

    @classmethod
    def of(cls, truth: Values, answer: Values) -> Confusion:
        t, a = truth > 0, answer > 0
        return cls(int((t & a).sum()), int((t & ~a).sum()), int((~t & a).sum()), int((~t & ~a).sum()))

    @classmethod
    def implied(cls, accuracy: float, f1: float, positives: int, negatives: int) -> Confusion:
        """The counts that a published accuracy and F1 (below 1) leave possible, to within their rounding.

        With e = FP + FN = (1 − accuracy) N, F1 = 2 TP / (2 TP + e) gives TP = F1 e / (2 (1 − F1)).
        """
        errors = (1 - accuracy) * (positives + negatives)
        tp = min(round(f1 * errors / (2 * (1 - f1))), positives)
        fp = min(max(round(errors) - (positives - tp), 0), negatives)
        return cls(tp, positives - tp, fp, negatives - fp)

    @property
    def balanced_accuracy(self) -> float:
        positives, negatives = self.tp + self.fn, self.fp + self.tn
        return (self.tp / positives + self.tn / negatives) / 2 if positives and negatives else math.nan
