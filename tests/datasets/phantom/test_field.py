"""Fields: functions of place alone, with the moments they promise."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from sheafstain.datasets.phantom.field import Field, hashed, normal, spline_weights, uniform


def test_hash_is_the_published_splitmix64() -> None:
    # First outputs of splitmix64 from state 0 (Steele et al. 2014; the values every implementation is checked with):
    # the finaliser of golden-ratio multiples. ``hashed`` starts from exactly that state for channel 0.
    assert int(hashed(0, 0)) == 0xE220A8397B1DCDAF


def test_spline_weights_are_scipys() -> None:
    t = np.linspace(0, 0.999, 37)
    knots = np.arange(-3.0, 5.0)
    ours = spline_weights(t)
    for node in range(4):
        theirs = BSpline(knots, np.eye(4)[node], 3)(t)
        np.testing.assert_allclose(ours[:, node], theirs, atol=1e-12)


@given(seed=st.integers(0, 2**62), dy=st.integers(-500, 500), dx=st.integers(-500, 500), pitch=st.floats(0.7, 60))
@settings(max_examples=25, deadline=None)
def test_a_window_of_a_field_is_the_field(seed: int, dy: int, dx: int, pitch: float) -> None:
    field = Field(seed, 3, pitch)
    ys, xs = (np.arange(40) + dy) * 0.5, (np.arange(50) + dx) * 0.5
    whole = field.grid(ys, xs)
    part = field.grid(ys[11:23], xs[7:31])
    np.testing.assert_allclose(part, whole[11:23, 7:31], atol=2e-5)
    y, x = np.meshgrid(ys, xs, indexing="ij")
    np.testing.assert_allclose(field.points(y, x), whole, atol=2e-5)


def test_moments() -> None:
    positions = np.arange(1500) * 1.0
    values = np.stack([Field(seed, 0, 3.0).grid(positions, positions) for seed in range(3)])
    assert abs(values.mean()) < 0.01
    assert abs(values.var() - 1) < 0.02
    excess = ((values - values.mean()) ** 4).mean() / values.var() ** 2 - 3
    assert abs(excess) < 0.35  # nearly a bell: a triangle has −0.6, a uniform −1.2


def test_channels_and_seeds_are_independent() -> None:
    positions = np.arange(800) * 2.0
    fields = [Field(seed, channel, 5.0).grid(positions, positions).ravel() for seed in (1, 2) for channel in (1, 2)]
    correlation = np.corrcoef(fields)
    assert np.abs(correlation - np.eye(4)).max() < 0.03


def test_uniform_and_normal_have_their_distributions() -> None:
    from scipy.stats import kstest

    places = np.arange(20_000)
    assert kstest(uniform(7, 1, places), "uniform").pvalue > 1e-3
    assert kstest(normal(7, 1, places), "norm").pvalue > 1e-3
