"""Measures against numbers counted by hand, against each other and, where it is installed, scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafstain.metrics.statistics import bootstrap
from sheafstain.studies.her2_measures import (
    DECISION,
    Confusion,
    Roc,
    auroc,
    auroc_difference,
    constant,
    measure,
)

# Scores from a small range, so that ties are frequent; both classes present.
two_classes = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=40).filter(
    lambda rows: len({truth for truth, _ in rows}) == 2
)


def columns(rows: list[tuple[bool, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([t for t, _ in rows], float), np.array([s for _, s in rows], float) / 6


def test_by_hand():
    """Positives score 0.9, 0.7, 0.4; negatives 0.7, 0.2. Pairs won 1 + ½ + 0 and 1 + 1 + 1: 4.5 of 6."""
    truth, score = np.array([1.0, 1, 1, 0, 0]), np.array([0.9, 0.7, 0.4, 0.7, 0.2])
    found = measure(truth, (score >= 0.5).astype(float), score)
    assert {key: round(value.value, 12) for key, value in found.items()} == {
        "accuracy": 0.6,  # two of three, one of two
        "f1": round(2 / 3, 12),  # TP 2, FP 1, FN 1
        "auroc": 0.75,
        "balanced_accuracy": round((2 / 3 + 1 / 2) / 2, 12),
        "sensitivity": round(2 / 3, 12),
        "specificity": 0.5,
    }
    assert Confusion.of(truth, (score >= 0.5).astype(float)) == Confusion(tp=2, fn=1, fp=1, tn=1)
    roc = Roc.of(truth, score)
    assert roc.threshold.tolist() == [math.inf, 0.9, 0.7, 0.4, 0.2]
    assert roc.true_positive.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    assert roc.false_positive.tolist() == [0, 0, 0.5, 0.5, 1]


def test_always_high_on_bci():
    """273 Low and 704 High: what the paper's table has to be held against."""
    truth = np.repeat([0.0, 1.0], [273, 704])
    high, low = constant(truth, True), constant(truth, False)
    assert round(high["accuracy"].value, 4) == 0.7206
    assert round(high["f1"].value, 4) == 0.8376
    assert round(low["accuracy"].value, 4) == 0.2794
    assert low["f1"].value == 0
    for answer in (high, low):
        assert answer["auroc"].value == answer["balanced_accuracy"].value == 0.5
        assert {value.interval for value in answer.values()} == {None}


@given(two_classes)
def test_auroc_is_the_share_of_pairs_won_and_the_area_under_the_curve(rows: list[tuple[bool, int]]):
    truth, score = columns(rows)
    positives, negatives = score[truth == 1], score[truth == 0]
    won = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    assert auroc(truth, score) == pytest.approx(won / (len(positives) * len(negatives)))
    assert Roc.of(truth, score).area == pytest.approx(float(auroc(truth, score)))


@given(two_classes)
def test_the_other_class_as_positive(rows: list[tuple[bool, int]]):
    """AUROC, accuracy and balanced accuracy are the same, sensitivity and specificity change places."""
    truth, score = columns(rows)
    answer = (score >= 0.5).astype(float)
    one, other = (
        measure(truth, answer, score, intervals=False),
        measure(1 - truth, 1 - answer, -score, intervals=False),
    )
    for key in ("accuracy", "auroc", "balanced_accuracy"):
        assert one[key].value == pytest.approx(other[key].value)
    assert one["sensitivity"].value == other["specificity"].value


@given(two_classes)
def test_the_curve_rises_from_corner_to_corner(rows: list[tuple[bool, int]]):
    truth, score = columns(rows)
    roc = Roc.of(truth, score)
    assert (roc.false_positive[0], roc.true_positive[0]) == (0, 0)
    assert (roc.false_positive[-1], roc.true_positive[-1]) == (1, 1)
    assert (np.diff(roc.false_positive) >= 0).all() and (np.diff(roc.true_positive) >= 0).all()
    for fpr, tpr, threshold in zip(roc.false_positive, roc.true_positive, roc.threshold, strict=True):
        answer = score >= threshold
        assert (answer[truth == 0].mean(), answer[truth == 1].mean()) == pytest.approx((fpr, tpr))


@given(two_classes)
def test_like_scikit_learn(rows: list[tuple[bool, int]]):
    from sklearn import metrics

    truth, score = columns(rows)
    answer = (score >= 0.5).astype(float)
    found = {key: value.value for key, value in measure(truth, answer, score, intervals=False).items()}
    assert found == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(truth, answer),
            "f1": metrics.f1_score(truth, answer, zero_division=0),  # type: ignore[reportArgumentType]  its stubs know words alone
            "auroc": metrics.roc_auc_score(truth, score),
            "balanced_accuracy": metrics.balanced_accuracy_score(truth, answer),
            "sensitivity": metrics.recall_score(truth, answer),
            "specificity": metrics.recall_score(1 - truth, 1 - answer),
        }
    )
    fpr, tpr, thresholds = metrics.roc_curve(truth, score, drop_intermediate=False)
    roc = Roc.of(truth, score)
    assert (roc.false_positive, roc.true_positive, roc.threshold) == (
        pytest.approx(fpr),
        pytest.approx(tpr),
        pytest.approx(thresholds),
    )


def test_many_draws_at_once_are_as_each_alone():
    rng = np.random.default_rng(0)
    truth, answer, score = (rng.integers(0, high, (50, 12)).astype(float) for high in (2, 2, 5))
    for k in range(50):
        for statistic in DECISION.values():
            np.testing.assert_equal(statistic(truth, answer)[k], statistic(truth[k], answer[k]))
        np.testing.assert_equal(auroc(truth, score)[k], auroc(truth[k], score[k]))


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Scores N(0, 1) and N(1, 1): AUROC is Φ(1/√2) = 0.760. 95 % intervals from 40 test sets of 60 images."""
    rng = np.random.default_rng(1)
    truth = np.repeat([0.0, 1.0], 30)
    inside = 0
    for _ in range(40):
        interval = bootstrap(auroc, truth, rng.normal(truth))
        assert interval is not None
        inside += interval[0] <= 0.7602 <= interval[1]
    assert inside >= 34  # fewer has a chance of 0.3 % where an interval holds it in 95 of 100


def test_the_difference_of_two_scores_on_the_same_images():
    rng = np.random.default_rng(2)
    truth = np.repeat([0.0, 1.0], 40)
    good = rng.normal(2 * truth)
    assert auroc_difference(truth, good, good).interval == (0, 0)
    useless = auroc_difference(truth, good, rng.normal(size=80))
    assert useless.value < -0.3
    assert useless.interval is not None and useless.interval[1] < 0


def test_one_class_has_no_auroc():
    assert math.isnan(auroc(np.ones(4), np.arange(4.0)))
    with pytest.raises(ValueError, match="single class"):
        measure(np.ones(4), np.ones(4), np.ones(4))


@pytest.mark.parametrize("counts", [Confusion(618, 86, 143, 130), Confusion(1, 703, 1, 272), Confusion(700, 4, 1, 272)])
def test_accuracy_and_f1_leave_one_possibility(counts: Confusion):
    accuracy = (counts.tp + counts.tn) / 977
    f1 = 2 * counts.tp / (2 * counts.tp + counts.fp + counts.fn)
    assert Confusion.implied(accuracy, f1, 704, 273) == counts
