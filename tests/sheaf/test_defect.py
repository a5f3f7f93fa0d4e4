"""Dirichlet energy and defect maps on cases computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sheafstain.sheaf.cover import Lattice, pairs
from sheafstain.sheaf.defect import DefectTally, DirichletEnergy, coboundary, pair_energy, worst_area
from sheafstain.window import Size, Window


def flat(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.full((256, 256, 3), value, dtype)


LEFT, RIGHT = Window(0, 0, 256, 256), Window(0, 192, 256, 256)


def test_the_coboundary_is_the_second_minus_the_first_on_the_overlap():
    rng = np.random.default_rng(0)
    one, other = rng.random((2, 256, 256, 3), dtype=np.float32)
    delta = coboundary(LEFT, one, RIGHT, other)
    assert delta.shape == (256, 64, 3)
    assert np.array_equal(delta, other[:, :64] - one[:, 192:])
    assert np.array_equal(delta, -coboundary(RIGHT, other, LEFT, one))


def test_two_flat_windows_that_differ_by_a_tenth():
    assert pair_energy(LEFT, flat(0.5), RIGHT, flat(0.6)) == pytest.approx(0.01, rel=1e-5)
    assert pair_energy(LEFT, flat(0, np.uint8), RIGHT, flat(51, np.uint8)) == pytest.approx(0.04, rel=1e-5)


@pytest.mark.parametrize("largest", [3, 255])
@pytest.mark.parametrize("place", [RIGHT, Window(64, 16, 256, 256), Window(192, 192, 256, 256)], ids=str)
def test_bytes_have_the_energy_of_their_values(place: Window, largest: int):
    one, other = np.random.default_rng(1).integers(0, largest + 1, (2, 256, 256, 3), np.uint8)
    exact = np.square(coboundary(LEFT, one.astype(np.float64), place, other.astype(np.float64)), dtype=np.float64)
    assert pair_energy(LEFT, one, place, other) == pytest.approx(exact.mean() / 255**2, rel=1e-6)
    assert pair_energy(LEFT, one, place, other) == pair_energy(place, other, LEFT, one)


def test_one_channel_and_one_column_count_by_their_share():
    red = flat(0.0)
    red[..., 0] = 0.3
    assert pair_energy(LEFT, flat(0), RIGHT, red) == pytest.approx(0.09 / 3, rel=1e-5)
    column = flat(0.0)
    column[:, 10] = 1
    assert pair_energy(LEFT, flat(0), RIGHT, column) == pytest.approx(1 / 64, rel=1e-5)
    column[:, 10], column[:, 100] = 0, 1  # outside the overlap
    assert pair_energy(LEFT, flat(0), RIGHT, column) == 0


def test_the_72_pairs_of_a_1024_image_whose_columns_step_by_a_tenth():
    """Horizontal and diagonal pairs differ by 0.1, vertical ones agree: (20 + 32) / 72 of 0.01."""
    size = Size(1024, 1024)
    energy = DirichletEnergy(size)
    for window in Lattice.over(size):
        energy.add(window, flat(0.1 * (window.x // 192)))
    summary = energy.summary()
    assert summary.pairs == 72
    assert energy.energy == summary.energy == pytest.approx(0.01 * 52 / 72, rel=1e-5)
    assert energy.energies[:20].max() == 0
    assert energy.energies[20:] == pytest.approx([0.01] * 52, rel=1e-5)
    assert (summary.median, summary.p95, summary.worst) == pytest.approx((0.01,) * 3, rel=1e-5)
    assert summary.as_dict()["pairs"] == 72


@pytest.mark.parametrize("size", [Size(1024, 1024), Size(1000, 1500), Size(300, 90)], ids=str)
def test_windows_in_any_order_and_bands_give_the_pairs_of_the_cover(size: Size):
    rng = np.random.default_rng(0)
    lattice = list(Lattice.over(size))
    pixels = {w: rng.integers(0, 256, (256, 256, 3), dtype=np.uint8) for w in lattice}
    image = Window.of(size)
    expected = []
    for i, j in pairs(lattice):
        u, v = lattice[i], lattice[j]
        overlap = u.overlap(v).overlap(image)
        if not overlap.empty:
            one, other = (pixels[w][overlap.within(w).slices].astype(float) / 255 for w in (u, v))
            expected.append(((one - other) ** 2).mean())
    energy, most = DirichletEnergy(size), 0
    for row in Lattice.over(size).rows():
        for k in rng.permutation(len(row)):
            energy.add(row[k], pixels[row[k]])
        most = max(most, energy.held)
        energy.rows_done(row[0].y + 192)
    assert energy.energies == pytest.approx(sorted(expected), rel=1e-5)
    assert most <= 2 * len(row)
    shuffled = DirichletEnergy(size)
    for k in rng.permutation(len(lattice)):
        shuffled.add(lattice[k], pixels[lattice[k]])
    assert shuffled.energy == energy.energy or (math.isnan(energy.energy) and math.isnan(shuffled.energy))


def test_agreeing_windows_have_no_energy_and_the_worst_pair_is_named():
    size = Size(640, 640)
    energy = DirichletEnergy(size)
    for window in Lattice.over(size):
        energy.add(window, flat(0.25 if window != Window(384, 384, 256, 256) else 0.75))
    assert np.count_nonzero(energy.energies) == 3
    assert energy.worst is not None and Window(384, 384, 256, 256).contains(energy.worst)
    assert energy.summary().worst == pytest.approx(0.25)


def test_one_window_has_no_energy_at_all():
    energy = DirichletEnergy(Size(200, 200))
    energy.add(LEFT, flat(0.5))
    assert math.isnan(energy.energy) and energy.summary().pairs == 0 and energy.worst is None
    with pytest.raises(ValueError, match="needs pixels"):
        energy.add(LEFT, flat(0.5)[:10])


def test_the_worst_percent_of_the_defined_pixels():
    defect = np.full((100, 200), np.nan, np.float32)
    defect[:, :100] = np.arange(10_000).reshape(100, 100) / 1e6
    mask = worst_area(defect)
    assert mask.sum() == 100 and mask[99, :100].all()
    assert worst_area(np.full((5, 5), np.nan)).sum() == 0
    assert worst_area(np.zeros((5, 5))).sum() == 0  # agreement is not an area to look at
    assert worst_area(np.full((5, 5), 0.1)).all()  # all alike: no pixel is better than another


def test_the_tally_of_a_map_in_bands_is_that_of_the_map():
    rng = np.random.default_rng(0)
    defect = (rng.gamma(1.5, 0.004, (500, 300))).astype(np.float32)
    defect[rng.random(defect.shape) < 0.3] = np.nan
    tally = DefectTally()
    for top in range(0, 500, 64):
        tally.add(defect[top : top + 64])
    assert tally.defined == pytest.approx(np.mean(~np.isnan(defect)))
    assert tally.mean == pytest.approx(np.nanmean(defect, dtype=np.float64), rel=1e-6)
    for q in (0.01, 0.5, 0.95, 0.99):
        assert math.sqrt(tally.quantile(q)) == pytest.approx(math.sqrt(np.nanquantile(defect, q)), abs=0.5 / 4096 * 2)
    assert np.mean(defect[~np.isnan(defect)] > tally.quantile(0.99)) == pytest.approx(0.01, abs=0.001)


def test_the_largest_defect_there_can_be_is_in_the_last_bin():
    tally = DefectTally()
    tally.add(np.array([[0.25, np.nan, 0.25]], np.float32))  # half of the pixels 0 and half of them 1
    counts, total, pixels = tally.counts()
    assert counts[-1] == counts.sum() == 2 and total == 0.5 and pixels == 3


def test_an_empty_tally():
    tally = DefectTally()
    assert math.isnan(tally.mean) and math.isnan(tally.quantile(0.5)) and math.isnan(tally.defined)
    tally.add(np.full((3, 3), np.nan, np.float32))
    assert tally.defined == 0 and math.isnan(tally.mean)


@pytest.mark.parametrize("stop", [100, 256, 400, 700])
def test_energies_go_on_where_another_left_off(stop: int):
    """The second run sees every window that reaches below the promise, and counts each pair once."""
    size, rng = Size(900, 500), np.random.default_rng(3)
    pixels = {w: rng.integers(0, 256, (256, 256, 3), dtype=np.uint8) for w in Lattice.over(size)}
    undisturbed, first, second = DirichletEnergy(size), DirichletEnergy(size), DirichletEnergy(size)
    for window in pixels:
        undisturbed.add(window, pixels[window])
        if window.y < stop:
            first.add(window, pixels[window])
    first.rows_done(stop)
    second.go_on(*first.settled(), stop)
    for window in pixels:
        if window.bottom > stop:
            second.add(window, pixels[window])
    assert np.array_equal(second.energies, undisturbed.energies)
    assert second.worst == undisturbed.worst
