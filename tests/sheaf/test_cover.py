"""Covers: the paper's counts, images of awkward sizes, and the geometry of training."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from sheafstain.sheaf.cover import DENSE, Lattice, cut, draw_triple, pairs, triples
from sheafstain.window import CELL, Size, Window

AWKWARD = [
    Size(1024, 1024),
    Size(1, 1),
    Size(100, 700),
    Size(256, 256),
    Size(257, 1000),
    Size(449, 272),
    Size(2000, 333),
]


def test_the_paper_has_25_windows_72_pairs_and_a_64_px_overlap():
    windows = list(Lattice.over(Size(1024, 1024)))
    assert [w.y for w in windows[::5]] == [0, 192, 384, 576, 768]
    edges = pairs(windows)
    overlaps = [windows[i].overlap(windows[j]).size for i, j in edges]
    assert (len(windows), len(edges)) == (25, 72)
    assert [overlaps.count(s) for s in (Size(256, 64), Size(64, 256), Size(64, 64))] == [20, 20, 32]


def test_triples_are_those_that_share_a_pixel():
    windows = list(Lattice.over(Size(1024, 1024)))
    shared = [
        (i, j, k)
        for i, j, k in combinations(range(25), 3)
        if windows[i].overlap(windows[j]).overlap(windows[k]).area > 0
    ]
    assert triples(windows) == shared
    assert len(shared) == 64  # four of the four windows around each of the 16 inner corners


@pytest.mark.parametrize("size", AWKWARD, ids=str)
@pytest.mark.parametrize(("side", "stride"), [(256, 192), (256, 128), (224, 80), (224, 112), (224, 160), (224, 224)])
def test_every_pixel_is_covered_by_windows_on_the_token_lattice(size: Size, side: int, stride: int):
    lattice = Lattice.over(size, side, stride)
    count = np.zeros((size.h, size.w), int)
    for window in lattice:
        assert window.y % CELL == window.x % CELL == 0
        count[window.slices] += 1
    assert count.min() >= 1
    assert len(list(lattice)) == len(lattice)
    for length, starts in ((size.h, lattice.ys), (size.w, lattice.xs)):
        beyond = starts[-1] + side - length
        assert 0 <= beyond < CELL or (starts == (0,) and length < side)
        assert all(0 < b - a <= stride for a, b in pairwise(starts))


def test_the_dense_cover_covers_the_inside_four_times():
    count = np.zeros((1024, 1024), int)
    for window in Lattice.over(Size(1024, 1024), stride=DENSE):
        count[window.slices] += 1
    assert count[128:-128, 128:-128].min() == 4
    assert count.min() == 1  # the very corners


def test_an_image_smaller_than_a_window_has_one_window_that_reaches_beyond_it():
    assert list(Lattice.over(Size(90, 120))) == [Window(0, 0, 256, 256)]


@pytest.mark.parametrize(("side", "stride"), [(256, 100), (256, 0), (256, 272), (250, 80)])
def test_windows_off_the_token_lattice_are_refused(side: int, stride: int):
    with pytest.raises(ValueError, match="multiples of 16"):
        Lattice.over(Size(1024, 1024), side, stride)


def test_nothing_has_no_cover():
    with pytest.raises(ValueError, match="has no cover"):
        Lattice.over(Size(0, 10))
    assert pairs([]) == triples([]) == []


@pytest.mark.parametrize("window", [Window(-40, 3, 70, 20), Window(0, 0, 256, 256), Window(20, 25, 16, 16)])
def test_cut_mirrors_beyond_the_border(window: Window):
    image = np.random.default_rng(0).integers(0, 256, (37, 41, 3), dtype=np.uint8)
    padded = np.pad(image, ((300, 300), (300, 300), (0, 0)), mode="symmetric")
    assert np.array_equal(cut(image, window), padded[window.shift(300, 300).slices])


def test_cut_inside_is_a_view():
    image = np.zeros((64, 64, 3), np.uint8)
    assert np.shares_memory(cut(image, Window(8, 8, 16, 16)), image)


def test_training_triples_reach_all_offsets_and_places():
    rng = np.random.default_rng(0)
    drawn = [draw_triple(Size(1024, 1030), rng) for _ in range(4000)]
    inside = Window(0, 0, 1024, 1024)  # the last whole cells of 1030 columns
    for t in drawn:
        assert all(w.on_lattice() and inside.contains(w) for w in (t.ref, t.adj1, t.adj2))
        assert (t.adj1.x, t.adj2.y) == (t.ref.x, t.ref.y)  # perpendicular
        assert t.common.h >= 64 and t.common.w >= 64
    offsets = set(range(64, 193, 16))
    for found in ({t.adj1.y - t.ref.y for t in drawn}, {t.adj2.x - t.ref.x for t in drawn}):
        assert found == offsets | {-d for d in offsets}
    assert {t.ref.y for t in drawn} == set(range(0, 769, 16))


def test_training_in_an_image_that_has_little_room():
    rng = np.random.default_rng(0)
    drawn = {draw_triple(Size(336, 320), rng) for _ in range(500)}
    assert {abs(t.adj1.y - t.ref.y) for t in drawn} == {64, 80}
    assert {abs(t.adj2.x - t.ref.x) for t in drawn} == {64}
    with pytest.raises(ValueError, match="no room"):
        draw_triple(Size(319, 1024), rng)
