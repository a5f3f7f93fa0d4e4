"""Energy-extreme refinement: the paper's counts, energies against a plain FFT, and slides read in any bands."""

from __future__ import annotations

import numpy as np
import pytest

from sheafstain.sheaf.cover import Lattice
from sheafstain.sheaf.refine import Refinement, mid_band_energy, refine
from sheafstain.window import Size, Window


def texture(size: Size, seed: int = 0) -> np.ndarray:
    """Noise whose strength varies over the image."""
    rng = np.random.default_rng(seed)
    coarse = rng.random((size.h // 128 + 2, size.w // 128 + 2, 1))
    strength = coarse.repeat(128, 0).repeat(128, 1)[: size.h, : size.w]
    return (127 + 120 * strength * (rng.random((size.h, size.w, 3)) - 0.5)).astype(np.uint8)


def distance(a: Window, b: Window) -> float:
    return float(np.hypot(a.y - b.y, a.x - b.x))


def candidates(lattice: Lattice, apart: float, order: float) -> int:
    """Starts on the 16-px grid whose distance in that norm to every lattice window is large enough."""
    grid = np.array([(y, x) for y in range(0, lattice.ys[-1] + 1, 16) for x in range(0, lattice.xs[-1] + 1, 16)])
    windows = np.array([(w.y, w.x) for w in lattice])
    return int((np.linalg.norm(grid[:, None] - windows, ord=order, axis=2).min(1) >= apart).sum())


def test_the_112_px_rule_leaves_208_candidates_and_the_maximum_norm_none():
    lattice = Lattice.over(Size(1024, 1024))
    assert candidates(lattice, 112, 2) == 208
    assert candidates(lattice, 112, np.inf) == 0
    assert candidates(lattice, 96, np.inf) == 376


def test_nine_extras_on_1024_apart_from_each_other_and_from_the_lattice():
    lattice = Lattice.over(Size(1024, 1024))
    extras = refine(texture(lattice.size), lattice)
    assert len(lattice) + len(extras) == 34
    placed = list(lattice)
    for extra in extras:
        assert extra.on_lattice() and Window.of(lattice.size).contains(extra)
        assert min(distance(extra, other) for other in placed) >= 112
        placed.append(extra)


def test_extremes_of_both_kinds_are_chosen():
    image = np.full((1024, 1024, 3), 128, np.uint8)
    rng = np.random.default_rng(0)
    image[96:352, 96:352] = rng.integers(0, 256, (256, 256, 1))  # the detailed place: a candidate of its own
    image[::8, 512:] ^= 8  # everything on the right has a little detail, the rest of the left none
    first, second, *_ = refine(image, Lattice.over(Size(1024, 1024)))
    assert first == Window(96, 96, 256, 256)
    assert second.right <= 512 and not second.meets(first.grow(-100))


def test_energy_agrees_with_the_fourier_transform_of_the_mirrored_image():
    grey = np.random.default_rng(0).random((64, 96)).astype(np.float32)
    mirrored = np.block([[grey, grey[:, ::-1]], [grey[::-1], grey[::-1, ::-1]]]).astype(np.float64)
    frequency = np.hypot(np.fft.fftfreq(128)[:, None], np.fft.fftfreq(192))
    spectrum = np.fft.fft2(mirrored)
    spectrum[(frequency < 1 / 16) | (frequency > 1 / 4)] = 0
    band = np.fft.ifft2(spectrum).real[:64, :96]
    expected = [[(band[y : y + 16, x : x + 16] ** 2).sum() for x in range(0, 96, 16)] for y in range(0, 64, 16)]
    assert np.allclose(mid_band_energy(grey), expected, rtol=1e-4)


@pytest.mark.parametrize(("frequency", "passes"), [(1 / 32, False), (1 / 8, True), (3 / 8, False)])
def test_the_band_is_one_sixteenth_to_one_quarter(frequency: float, passes: bool):
    x = np.arange(256) + 0.5
    wave = np.tile(np.cos(2 * np.pi * frequency * x), (256, 1)).astype(np.float32)
    energy = mid_band_energy(wave).sum() / wave.size
    assert energy == pytest.approx(0.5 if passes else 0, abs=1e-4)


def test_the_density_of_a_slide_is_that_of_the_paper():
    lattice = Lattice.over(Size(3000, 4100))
    extras = refine(texture(lattice.size), lattice)
    assert len(extras) == pytest.approx(len(lattice) * 9 / 25, rel=0.06)
    windows = [*lattice, *extras]
    assert min(distance(a, b) for i, a in enumerate(windows) for b in windows[max(i, len(lattice)) + 1 :]) >= 112


def test_extras_of_neighbouring_blocks_keep_their_distance():
    """On a sparse lattice candidates lie on the lines between blocks, within reach of another block's windows."""
    lattice = Lattice.over(Size(2816, 2816), stride=256)
    extras = refine(texture(lattice.size), lattice)
    assert len(extras) > 30
    assert min(distance(a, b) for i, a in enumerate(extras) for b in extras[:i]) >= 112


def test_any_bands_give_the_same_windows_in_bounded_memory():
    lattice = Lattice.over(Size(2300, 1100))
    image = texture(lattice.size)
    whole = refine(image, lattice)
    rng = np.random.default_rng(0)
    for _ in range(3):
        steps = np.sort(rng.integers(0, 2301, 12)).tolist()
        stream, found, held = Refinement(lattice), [], 0
        for top, bottom in zip([0, *steps], [*steps, 2300], strict=True):
            found += stream.add(image[top:bottom])
            held = max(held, stream.held)
        assert found == whole
        assert held <= 5 * 192 + 256 + max(np.diff([0, *steps, 2300]))


def test_glass_gets_no_extra_windows():
    lattice = Lattice.over(Size(1024, 1024))
    extras = refine(texture(lattice.size), lattice, tissue=lambda w: w.x < 400)
    assert len(extras) == 5  # 9/25 of the 15 lattice windows on tissue, rounded
    assert all(w.x < 400 for w in extras)
    assert refine(texture(lattice.size), lattice, tissue=lambda _: False) == []


def test_a_flat_image_is_covered_in_raster_order():
    lattice = Lattice.over(Size(1024, 1024))
    extras = refine(np.full((1024, 1024, 3), 241, np.uint8), lattice)
    assert len(extras) == 9
    assert extras == sorted(extras)


@pytest.mark.parametrize("size", [Size(100, 100), Size(256, 900), Size(300, 300)], ids=str)
def test_an_image_without_room_between_its_windows_has_none(size: Size):
    assert refine(texture(size), Lattice.over(size)) == []


def test_a_dense_cover_needs_none():
    lattice = Lattice.over(Size(1024, 1024), stride=128)
    assert refine(texture(lattice.size), lattice) == []


def test_rows_of_another_image_are_refused():
    stream = Refinement(Lattice.over(Size(1024, 1024)))
    with pytest.raises(ValueError, match="uint8"):
        stream.add(np.zeros((4, 1000, 3), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        stream.add(np.zeros((4, 1024, 3), np.float32))


@pytest.mark.parametrize(
    "within", [Window(1000, 1100, 100, 900), Window(1500, 0, 640, 200), Window(0, 2000, 1, 1)], ids=str
)
def test_the_blocks_around_a_place_choose_what_they_choose_in_the_whole(within: Window):
    lattice = Lattice.over(Size(2150, 2500))
    image = texture(lattice.size)
    part = Refinement(lattice, within=within)
    assert part.view.area < image[..., 0].size
    chosen: list[Window] = []
    for top in range(part.view.y, part.view.bottom, 100):
        before = part.decided
        more = part.add(image[top : min(top + 100, part.view.bottom), part.view.x : part.view.right])
        assert all(before <= window.y < part.decided for window in more)
        chosen += more
    reaching = [w for w in refine(image, lattice) if w.meets(within)]
    assert [w for w in chosen if w.meets(within)] == reaching
    assert part.decided == lattice.frame.bottom
