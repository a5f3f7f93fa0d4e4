"""Statistics against SciPy, and against numbers that a hand can work out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sheafstain.metrics.statistics import bootstrap, correlation, holm, paired, pearson, summarise

NAN, INF = math.nan, math.inf


def test_mean_and_sample_deviation_by_hand():
    summary = summarise([1.0, 2.0, 3.0, 6.0])
    assert (summary.n, summary.mean) == (4, 3.0)
    assert summary.std == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3))


def test_what_is_not_a_number_is_counted_and_enters_nothing():
    summary = summarise([1.0, NAN, 3.0, INF, NAN])
    assert (summary.n, summary.undefined, summary.infinite, summary.mean) == (2, 2, 1, 2.0)
    assert summary.interval is not None and all(map(math.isfinite, summary.interval))


def test_one_image_has_neither_deviation_nor_interval():
    summary = summarise([0.25])
    assert (summary.mean, summary.std, summary.interval) == (0.25, None, None)


@pytest.mark.parametrize(("values", "mean"), [([NAN, NAN], None), ([INF, INF], INF), ([INF, NAN], INF), ([], None)])
def test_no_finite_value(values: list[float], mean: float | None):
    """A folder scored against itself has an infinite PSNR, and not an undefined one."""
    summary = summarise(values)
    assert (summary.n, summary.mean, summary.std, summary.interval) == (0, mean, None, None)


def test_the_interval_is_scipys():
    values = np.random.default_rng(3).gamma(2.0, size=60)
    ours = summarise(values).interval
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    assert ours is not None
    # Both are drawn: the ends of 5000 draws scatter by about 0.04 standard errors.
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=0.15 * theirs.standard_error)


def test_the_interval_of_three_images_is_that_of_all_27_draws():
    values = np.array([0.0, 1.0, 5.0])
    means = [np.mean(draw) for draw in itertools.product(values, repeat=3)]
    # 0 and 5 come out of one draw in 27 each, more than 2.5 %, so they are the ends.
    assert np.quantile(means, 0.025, method="inverted_cdf") == 0
    assert bootstrap(lambda drawn: drawn.mean(-1), values) == (0, 5)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(7)
    hits = 0
    for i in range(200):
        low, high = summarise(rng.normal(1.0, 2.0, 50), seed=i).interval or (NAN, NAN)
        hits += low <= 1.0 <= high
    assert 0.88 <= hits / 200 <= 0.99  # 0.95 nominal; the percentile interval of 50 values has 0.93–0.94


def test_the_seed_decides():
    values = np.random.default_rng(0).normal(size=40)
    assert summarise(values, seed=1) == summarise(values, seed=1)
    assert summarise(values, seed=1).interval != summarise(values, seed=2).interval


@given(arrays(np.float64, (2, 12), elements=st.floats(-10, 10, width=16)))
def test_pearson_is_numpys(columns: np.ndarray):
    x, y = columns
    if np.ptp(x) < 1e-6 or np.ptp(y) < 1e-6:
        return
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)


def test_a_correlation_and_its_interval():
    rng = np.random.default_rng(5)
    x = rng.normal(size=80)
    y = 0.6 * x + rng.normal(size=80)
    ours = correlation(x, y)
    theirs = scipy.stats.pearsonr(x, y)
    low, high = theirs.confidence_interval(method=scipy.stats.BootstrapMethod(method="percentile", rng=2))
    assert ours.mean == pytest.approx(theirs.statistic)
    assert ours.interval == pytest.approx((low, high), abs=0.03)


@pytest.mark.parametrize("x", [[0.1, 0.2], [0.1, 0.1, 0.1, 0.1], [0.3, NAN, NAN, 0.2]])
def test_no_correlation_of_two_points_or_of_a_constant(x: list[float]):
    summary = correlation(x, [float(i) for i in range(len(x))])
    assert summary.mean is None and summary.interval is None


def test_draws_without_a_correlation_are_left_out():
    """Of three images one draw in nine is one image thrice."""
    interval = correlation([1.0, 2.0, 4.0], [1.0, 2.5, 3.0]).interval
    assert interval is not None and -1 <= interval[0] <= interval[1] <= 1


# --- two runs --------------------------------------------------------------------------------------------------------


def test_wilcoxon_by_hand():
    """Four images, all better by different amounts: 2 of the 2⁴ sign patterns are as extreme, p = 1/8."""
    result = paired([1.0, 1.0, 1.0, 1.0], [0.9, 0.8, 0.7, 0.5], "lower")
    assert result.p == pytest.approx(2 / 16)
    assert (result.wins, result.losses, result.ties) == (4, 0, 0)
    assert result.difference == pytest.approx(-0.275)


@given(arrays(np.float64, (2, 30), elements=st.floats(0, 1, width=16)))
def test_wilcoxon_is_scipys(columns: np.ndarray):
    a, b = columns
    if (a == b).all():
        return
    assert paired(a, b, "higher").p == pytest.approx(scipy.stats.wilcoxon(b, a).pvalue)


def test_better_says_who_wins():
    a, b = [0.2, 0.2, 0.2], [0.1, 0.2, -0.3]
    assert [(r.wins, r.losses, r.ties) for r in (paired(a, b, how) for how in ("lower", "higher", "zero"))] == [
        (2, 0, 1),
        (0, 2, 1),
        (1, 1, 1),  # −0.3 is farther from zero than 0.2
    ]


def test_equal_runs_do_not_differ():
    result = paired([0.1, 0.5, 0.4], [0.1, 0.5, 0.4], "lower")
    assert (result.p, result.difference, result.interval, result.ties) == (1.0, 0.0, (0.0, 0.0), 3)


def test_undefined_pairs_are_left_out_and_counted():
    result = paired([0.1, NAN, 0.3, INF], [0.2, 0.1, NAN, INF], "lower")
    assert (result.n, result.left_out, result.losses) == (1, 3, 1)
    nothing = paired([NAN], [0.1], "lower")
    assert (nothing.n, nothing.difference, nothing.p, nothing.interval) == (0, None, None, None)


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
