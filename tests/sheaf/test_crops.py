"""Crops: offsets and counts of the paper's geometry, found by drawing and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sheafstain.sheaf.crops import coupled_count, lattice, neighborhood
from sheafstain.window import Size, Window

IMAGE = Size(1024, 1024)
GRID = [Window(y, x, 256, 256) for y in range(0, 769, 192) for x in range(0, 769, 192)]
CORNER, EDGE, INSIDE = GRID[0], GRID[2], GRID[12]


def borders(window: Window) -> int:
    return sum(start in (0, 768) for start in (window.y, window.x))


@pytest.mark.parametrize(("stride", "count"), [(80, 121), (112, 81), (160, 36), (224, 25)])
def test_lattice_counts_on_1024(stride: int, count: int):
    crops = list(lattice(IMAGE, stride))
    assert len(crops) == count
    assert (crops[-1].bottom, crops[-1].right) == (1024, 1024)


def test_offsets_of_the_corners_are_those_of_centred_crops():
    crops = neighborhood(INSIDE, IMAGE, seed=0, jittered=0)
    offsets = {(c.y - INSIDE.y, c.x - INSIDE.x) for c in crops}
    cardinal = {(-64, 16), (96, 16), (16, -64), (16, 96)}
    diagonal = {(-40, -40), (-40, 72), (72, -40), (72, 72)}
    assert offsets == cardinal | diagonal


def test_counts_without_jitter():
    assert [len(neighborhood(w, IMAGE, 0, jittered=0)) for w in (CORNER, EDGE, INSIDE)] == [3, 5, 8]
    assert sum(len(neighborhood(w, IMAGE, 0, jittered=0)) for w in GRID) == 144


def test_counts_with_jitter_over_many_draws():
    """Only jittered crops parallel to a border can leave the image: they stay when j ≥ −16, 49 of 65 values."""
    counts = np.array([[len(neighborhood(w, IMAGE, seed)) for w in GRID] for seed in range(300)])
    kind = np.array([borders(w) for w in GRID])
    assert [(counts[:, kind == k].min(), counts[:, kind == k].max()) for k in (2, 1, 0)] == [(3, 7), (7, 11), (16, 16)]
    totals = counts.sum(1)
    expected = 9 * 16 + 12 * 7 + 4 * 3 + (12 * 4 + 4 * 4) * 49 / 65  # 288.2
    assert totals.mean() == pytest.approx(expected, abs=1)
    assert totals.min() <= 281 <= totals.max()


def test_one_random_draw_gives_the_281_crops_of_the_facts():
    """About one draw in eighty has 281 crops; its edges have 8–11. A corner has at most 7, never 8."""
    counts = {w: len(neighborhood(w, IMAGE, seed=25)) for w in GRID}
    assert sum(counts.values()) == 281
    assert {n for w, n in counts.items() if borders(w) == 1} == {8, 9, 10, 11}
    assert {n for w, n in counts.items() if borders(w) == 2} == {4, 5, 6, 7}
    assert {n for w, n in counts.items() if borders(w) == 0} == {16}


def test_training_draws_have_11_8_crops_on_average():
    """References anywhere in a 512² quadrant: 4–16 crops, mean 11.8, measured independently of this code."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, 257, (3000, 2)).tolist()
    counts = [len(neighborhood(Window(y, x, 256, 256), Size(512, 512), seed=1)) for y, x in places]
    assert np.mean(counts) == pytest.approx(11.8, abs=0.15)
    assert 4 <= min(counts) <= 6
    assert max(counts) == 16


def test_the_draw_depends_on_seed_and_place_alone():
    one = {w: neighborhood(w, IMAGE, 3) for w in GRID}
    other = {w: neighborhood(w, IMAGE, 3) for w in reversed(GRID)}
    assert one == other
    assert neighborhood(INSIDE, IMAGE, 4) != one[INSIDE]
    relative = [[c.within(w) for c in one[w]] for w in (GRID[6], GRID[7])]
    assert relative[0] != relative[1]  # two windows do not share their jitter


def test_jitter_is_lateral_and_reaches_32_px_either_way():
    offsets = {
        (c.y - w.y, c.x - w.x) for seed in range(300) for w in GRID[6:9] for c in neighborhood(w, IMAGE, seed)[8:]
    }
    for dy, dx in offsets:
        along, across = (dy, dx) if dy in (-64, 96) else (dx, dy)
        assert along in (-64, 96)
        assert -16 <= across <= 48
    assert {dx for dy, dx in offsets if dy == 96} == set(range(-16, 49))


def test_tissue_filter_and_coupled_count():
    left = neighborhood(INSIDE, IMAGE, 0, tissue=lambda c: c.x < INSIDE.x)
    assert {c.x for c in left} <= set(range(INSIDE.x))
    assert left == [c for c in neighborhood(INSIDE, IMAGE, 0) if c.x < INSIDE.x]
    assert neighborhood(INSIDE, IMAGE, 0, most=5) == neighborhood(INSIDE, IMAGE, 0)[:5]
    assert [coupled_count(e, 1.0, 3.0) for e in (0, 1, 2, 3, 9)] == [5, 5, 10, 16, 16]
    assert coupled_count(1.0, 2.0, 2.0) == 16  # an image without contrast has nothing to couple to


@pytest.mark.parametrize("size", [Size(256, 256), Size(120, 90), Size(300, 256)], ids=str)
def test_an_image_too_small_for_displaced_crops_gets_one(size: Size):
    (crop,) = neighborhood(Window(0, 0, 256, 256), size, 0)
    assert crop.h == 224
    assert crop.overlap(Window.of(size)).area >= min(size.area, 200 * 200)
