"""The algebra of windows: what must hold for any rectangle, wherever it lies."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafstain.window import CELL, Resolution, Size, Window

places = st.integers(-60, 60)
sides = st.integers(0, 50)
windows = st.builds(Window, places, places, sides, sides)
factors = st.fractions(Fraction(1, 8), 8, max_denominator=16)


def pixel_set(window: Window) -> set[tuple[int, int]]:
    return {(y, x) for y in range(window.y, window.bottom) for x in range(window.x, window.right)}


@given(windows, windows)
def test_overlap_holds_the_common_pixels(a: Window, b: Window):
    assert pixel_set(a.overlap(b)) == pixel_set(a) & pixel_set(b)
    assert a.meets(b) == bool(pixel_set(a) & pixel_set(b))
    assert a.contains(b) == (pixel_set(b) <= pixel_set(a))


@given(windows, windows, windows)
def test_overlap_is_commutative_associative_and_idempotent(a: Window, b: Window, c: Window):
    assert a.overlap(b) == b.overlap(a)
    assert a.overlap(b).overlap(c) == a.overlap(b.overlap(c))
    assert a.overlap(a) == a
    assert a.contains(a.overlap(b))
    assert b.contains(a.overlap(b))


@given(windows, windows, windows)
def test_containment_is_an_order(a: Window, b: Window, c: Window):
    assert a.contains(a)
    if a.contains(b) and b.contains(c):
        assert a.contains(c)
    if a.contains(b) and b.contains(a) and not a.empty:
        assert a == b
    if a.contains(b) and not b.empty:
        assert a.overlap(b) == b


@given(windows, windows, windows, places, places)
def test_a_change_of_frame_changes_nothing_else(a: Window, b: Window, frame: Window, dy: int, dx: int):
    assert a.shift(dy, dx).shift(-dy, -dx) == a
    assert a.shift(dy, dx).size == a.size
    assert a.within(frame).shift(frame.y, frame.x) == a
    assert a.within(a) == Window.of(a.size)
    assert a.overlap(b).within(frame) == a.within(frame).overlap(b.within(frame))
    assert a.contains(b) == a.within(frame).contains(b.within(frame))


@given(st.data())
def test_slices_cut_what_the_window_says(data: st.DataObject):
    """Restriction composes: cutting V from the cut of U is cutting V from the image, for V inside U."""
    image = np.arange(40 * 50).reshape(40, 50)
    u = data.draw(st.builds(Window, st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 30)))
    y, x = data.draw(st.integers(u.y, u.bottom - 1)), data.draw(st.integers(u.x, u.right - 1))
    v = Window(y, x, data.draw(st.integers(0, u.bottom - y)), data.draw(st.integers(0, u.right - x)))
    assert u.contains(v)
    assert image[u.slices].shape == (u.h, u.w)
    assert np.array_equal(image[u.slices][v.within(u).slices], image[v.slices])


@given(windows, st.integers(0, 30))
def test_grow_is_undone_by_shrinking(a: Window, margin: int):
    assert a.grow(margin).grow(-margin) == a
    assert a.grow(margin).contains(a)


@given(windows, windows, factors)
def test_scale_holds_every_pixel_and_no_more(a: Window, b: Window, factor: Fraction):
    scaled = a.scale(factor)
    assert scaled.y <= a.y * factor < scaled.y + 1
    assert scaled.bottom - 1 < a.bottom * factor <= scaled.bottom
    assert scaled.x <= a.x * factor < scaled.x + 1
    assert scaled.right - 1 < a.right * factor <= scaled.right
    if a.contains(b) and not b.empty:
        assert scaled.contains(b.scale(factor))
    assert a.empty or scaled.scale(1 / factor).contains(a)
    assert a.scale(1) == a


@given(windows, st.integers(1, 24))
def test_cells_and_pixels(a: Window, pitch: int):
    lattice = a.pixels(pitch)
    assert lattice.on_lattice(pitch)
    assert lattice.cells(pitch) == a
    snapped = a.snap(pitch)
    assert snapped.on_lattice(pitch)
    assert snapped.contains(a)
    assert snapped.snap(pitch) == snapped
    assert snapped.cells(pitch).pixels(pitch) == snapped
    # The smallest: every border cell row and column holds a pixel of the window.
    assert a.empty or (0 <= a.y - snapped.y < pitch and 0 <= snapped.bottom - a.bottom < pitch)
    assert a.empty or (0 <= a.x - snapped.x < pitch and 0 <= snapped.right - a.right < pitch)
    if not a.on_lattice(pitch):
        with pytest.raises(ValueError, match="lattice"):
            a.cells(pitch)


def test_the_papers_windows():
    assert CELL == 16
    reference = Window(0, 0, 256, 256)
    assert reference.cells() == Window(0, 0, 16, 16)
    east, south = reference.shift(0, 80), reference.shift(80, 0)
    assert reference.overlap(east) == Window(0, 80, 256, 176)
    assert east.overlap(south) == Window(80, 80, 176, 176)
    assert reference.overlap(east).overlap(south).area / reference.area == pytest.approx(0.47, abs=0.005)
    assert reference.overlap(east).cells().within(east.cells()) == Window(0, 0, 16, 11)


@given(sides, sides, factors)
def test_size(h: int, w: int, factor: Fraction):
    size = Size(h, w)
    assert Window.of(size).size == size
    assert size.area == h * w
    scaled = size.scale(factor)
    assert abs(scaled.h - h * factor) < 1
    assert (scaled.w > 0) == (w > 0), "a side neither appears nor vanishes"
    assert size.scale(1) == size


@given(st.floats(0.05, 20), st.floats(0.05, 20), st.floats(0, 1e5))
def test_resolution(mpp: float, other: float, pixels: float):
    here, there = Resolution(mpp), Resolution(other)
    assert here.pixels(here.microns(pixels)) == pytest.approx(pixels)
    assert there.microns(pixels * here.factor_to(there)) == pytest.approx(here.microns(pixels))
    assert here.factor_to(there) * there.factor_to(here) == pytest.approx(1)


def test_values_that_are_none():
    for wrong in (lambda: Size(-1, 2), lambda: Window(0, 0, 2, -1), lambda: Window(0, 0, 4, 4).grow(-3)):
        with pytest.raises(ValueError, match="negative"):
            wrong()
    for mpp in (0, -0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="µm per pixel"):
            Resolution(mpp)
    with pytest.raises(ValueError, match="before the array"):
        _ = Window(-1, 0, 4, 4).slices
    with pytest.raises(FrozenInstanceError):
        Window(0, 0, 1, 1).y = 3  # pyright: ignore


def test_printed_width_first():
    assert str(Size(30_000, 40_000)) == "40000×30000"
    assert str(Window(1, 2, 3, 4)) == "4×3+2+1"
    assert str(Resolution(0.4661)) == "0.4661 µm/px"
