"""Gluing against a plain full-canvas computation in double precision, and what must never happen."""

from __future__ import annotations

import numpy as np
import pytest

from sheafstain.sheaf.cover import Lattice, cut
from sheafstain.sheaf.glue import Glued, Gluer, Kind, glue, kernel
from sheafstain.sheaf.refine import refine
from sheafstain.window import Size, Window

Pieces = list[tuple[Window, np.ndarray, Kind]]


def ramp(k: float, side: int) -> float:
    return min((k + 0.5) / 32, 1, (side - k - 0.5) / 32)


def cosine(k: float, side: int) -> float:
    return 0.5 * (1 - np.cos(2 * np.pi * (k + 0.5) / side))


def plain(pieces: Pieces, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Mean and weighted variance from full canvases of Σw, Σws and Σw(s − mean)², in double precision."""
    h = max(size.h, *(w.bottom for w, _, _ in pieces))
    w = max(size.w, *(w.right for w, _, _ in pieces))
    total, mean, variance, count = np.zeros((h, w, 1)), np.zeros((h, w, 3)), np.zeros((h, w, 3)), np.zeros((h, w))
    weights = []
    for window, pixels, kind in pieces:
        shape = ramp if kind == "lattice" else cosine
        weight = np.array([shape(k, window.h) for k in range(window.h)])[:, None, None] * np.array(
            [shape(k, window.w) for k in range(window.w)]
        ).reshape(1, -1, 1)
        weights.append(weight)
        total[window.slices] += weight
        mean[window.slices] += weight * pixels
        count[window.slices] += 1
    mean /= total
    for (window, pixels, _), weight in zip(pieces, weights, strict=True):
        variance[window.slices] += weight * (pixels - mean[window.slices]) ** 2
    spread = (variance / total).mean(2)
    spread[count < 2] = np.nan
    return mean[: size.h, : size.w], spread[: size.h, : size.w]


def disagreeing(size: Size, stride: int = 192, seed: int = 0, dtype: type = np.float32, extras: int = 0) -> Pieces:
    """Windows that agree on nothing."""
    rng = np.random.default_rng(seed)
    lattice = Lattice.over(size, stride=stride)
    windows: list[tuple[Window, Kind]] = [(w, "lattice") for w in lattice]
    for y, x in rng.integers(0, max(min(size.h, size.w) - 256, 1), (extras, 2)).tolist():
        windows.append((Window(y, x, 256, 256), "extra"))
    drawn = [rng.random((256, 256, 3), dtype=np.float32) for _ in windows]
    if dtype == np.uint8:
        drawn = [np.rint(255 * d).astype(np.uint8) for d in drawn]
    return [(w, d.astype(dtype), kind) for (w, kind), d in zip(windows, drawn, strict=True)]


@pytest.mark.parametrize(
    ("size", "stride", "extras"),
    [(Size(640, 700), 192, 0), (Size(640, 700), 192, 7), (Size(500, 1300), 128, 3), (Size(90, 130), 192, 0)],
    ids=str,
)
def test_mean_and_defect_agree_with_full_canvases(size: Size, stride: int, extras: int):
    pieces = disagreeing(size, stride, extras=extras)
    mean, variance = plain(pieces, size)
    glued = glue(pieces, size, dtype=np.float32)
    assert glued.defect is not None and glued.pixels.dtype == glued.defect.dtype == np.float32
    assert np.allclose(glued.pixels, mean, atol=2e-6)
    assert np.array_equal(np.isnan(glued.defect), np.isnan(variance))
    assert np.allclose(glued.defect, variance, atol=1e-6, equal_nan=True)


def test_covers_of_extras_alone_agree_with_full_canvases():
    """Every window an extra one: nothing is below them when they come, and the second of a pixel defines its defect."""
    size = Size(500, 480)
    for kinds in (("extra", "extra"), ("extra", "lattice")):
        pieces: Pieces = [(w, p, kinds[i % 2]) for i, (w, p, _) in enumerate(disagreeing(size, extras=3))]
        mean, variance = plain(pieces, size)
        glued = glue(pieces, size, dtype=np.float32)
        assert np.allclose(glued.pixels, mean, atol=2e-6)
        assert glued.defect is not None
        assert np.array_equal(np.isnan(glued.defect), np.isnan(variance))
        assert np.allclose(glued.defect, variance, atol=1e-6, equal_nan=True)


def test_bytes_agree_with_full_canvases_to_the_rounding():
    size = Size(640, 700)
    pieces = disagreeing(size, dtype=np.uint8, extras=4)
    mean, variance = plain(pieces, size)
    glued = glue(pieces, size)
    certain = abs(mean % 1 - 0.5) > 1e-3
    assert np.array_equal(glued.pixels[certain], np.rint(mean)[certain])
    assert glued.defect is not None
    assert np.allclose(glued.defect, variance / 255**2, atol=1e-6, equal_nan=True)
    as_floats = glue([(w, (p / 255).astype(np.float32), k) for w, p, k in pieces], size)
    assert np.array_equal(as_floats.pixels[certain], glued.pixels[certain])


def test_halves_round_to_even():
    window = Window(0, 0, 256, 256)
    one, two, three = (np.full((256, 256, 1), v, np.uint8) for v in (1, 2, 3))
    low = glue([(window, one, "lattice"), (window, two, "lattice")], window.size, channels=1)
    high = glue([(window, two, "lattice"), (window, three, "lattice")], window.size, channels=1)
    assert (low.pixels == 2).all() and (high.pixels == 2).all()
    assert low.defect is not None and np.allclose(low.defect, 0.25 / 255**2)


@pytest.mark.parametrize("size", [Size(1024, 1024), Size(1000, 700), Size(333, 90), Size(7, 5)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_identity_in_is_identity_out_bit_for_bit_with_no_defect(size: Size, dtype: type):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (size.h, size.w, 3), dtype=np.uint8)
    lattice = Lattice.over(size)
    extras = refine(image, lattice)
    if dtype == np.float32:
        image = rng.random((size.h, size.w, 3), dtype=np.float32)
    pieces: Pieces = [(w, cut(image, w), "lattice") for w in lattice]
    pieces += [(w, cut(image, w), "extra") for w in extras]
    glued = glue(pieces, size, dtype=dtype)
    assert np.array_equal(glued.pixels, image)
    assert glued.defect is not None
    defined = ~np.isnan(glued.defect)
    assert not glued.defect[defined].any()  # exactly 0: no noise from subtracting large squares
    if size.area > 256**2:
        assert defined.any() and not defined.all()


def test_equal_windows_far_from_zero_have_no_variance():
    window = Window(0, 0, 256, 256)
    bright = np.full((256, 256, 3), 0.9987, np.float32)
    glued = glue([(window.shift(0, 64 * i), bright, "lattice") for i in range(6)], Size(256, 576), dtype=np.float32)
    assert (glued.pixels == np.float32(0.9987)).all()
    assert glued.defect is not None and np.nanmax(glued.defect) == 0


def test_the_defect_is_undefined_where_one_window_covers_and_only_there():
    size = Size(448, 448)
    glued = glue(disagreeing(size), size)
    assert glued.defect is not None
    single = np.ones((448, 448), bool)
    single[192:256, :] = single[:, 192:256] = False
    assert np.array_equal(np.isnan(glued.defect), single)
    assert (glued.defect[~single] > 0).all()


def test_kernels_are_the_paper_s():
    lattice, extra = kernel("lattice", 256), kernel("extra", 256)
    assert lattice[:3].tolist() == pytest.approx([0.5 / 32, 1.5 / 32, 2.5 / 32])
    assert (lattice[32:224] == 1).all() and lattice[31] < 1
    assert extra == pytest.approx([cosine(k, 256) for k in range(256)], abs=1e-6)
    assert 0 < extra[0] < 4e-5 and extra.argmax() in (127, 128)
    for weights in (lattice, extra, kernel("lattice", 20)):
        assert (weights > 0).all() and np.array_equal(weights, weights[::-1])


def rows(gluer: Gluer, pieces: Pieces, steps: list[int]) -> Glued:
    """Windows in the order given, each just before the rows that it begins in are promised."""
    waiting, bands = list(pieces), []
    for y in [*steps, gluer.size.h]:
        for piece in [p for p in waiting if p[0].y < y]:
            gluer.add(*piece)
        waiting = [p for p in waiting if p[0].y >= y]
        bands += list(gluer.rows_done(y))
    assert [b.window.y for b in bands] == [0, *(b.window.bottom for b in bands[:-1])]
    defects = [b.defect for b in bands if b.defect is not None]
    return Glued(Window.of(gluer.size), np.concatenate([b.pixels for b in bands]), np.concatenate(defects))


def test_the_order_of_windows_and_the_height_of_bands_leave_no_trace():
    size = Size(900, 1400)  # wider than a block
    pieces = disagreeing(size, extras=9)
    whole = glue(pieces, size, dtype=np.float32)
    rng = np.random.default_rng(0)
    for steps in ([192, 384, 576, 768], [100, 101, 555], list(range(16, 900, 16))):
        rng.shuffle(pieces)  # type: ignore[arg-type]
        banded = rows(Gluer(size, dtype=np.float32), pieces, steps)
        assert np.array_equal(banded.pixels, whole.pixels)
        assert whole.defect is not None and banded.defect is not None
        assert np.array_equal(banded.defect, whole.defect, equal_nan=True)


def test_windows_are_forgotten_when_their_rows_are_out():
    size = Size(4096, 300)
    gluer, most = Gluer(size), 0
    for row in Lattice.over(size).rows():
        for window in row:
            gluer.add(window, np.zeros((256, 256, 3), np.uint8))
        most = max(most, gluer.held)
        list(gluer.rows_done(row[0].y + 192))
    assert most == 4  # two lattice rows of two windows


def test_glass_is_filled_with_the_background():
    size = Size(256, 640)
    left, right = Window(0, 0, 256, 256), Window(0, 384, 256, 256)
    dark = np.zeros((256, 256, 3), np.uint8)
    for dtype, white in ((np.uint8, 242), (np.float32, np.float32(0.95))):
        gluer = Gluer(size, dtype=dtype, background=0.95)
        gluer.add(left, dark)
        gluer.add(right, dark)
        (band,) = gluer.finish()
        assert band.defect is not None and np.isnan(band.defect).all()
        assert np.allclose(band.pixels[:, 256:384], white, atol=1e-6) and not band.pixels[:, :256].any()
    (empty,) = Gluer(size, background=1.0).finish()
    assert (empty.pixels == 255).all()


def test_extras_alone_over_glass():
    size = Size(300, 300)
    pixels = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    gluer = Gluer(size, background=1.0)
    gluer.add(Window(20, 30, 256, 256), pixels, "extra")
    out = np.concatenate([band.pixels for band in gluer.finish()])
    assert np.array_equal(out[20:276, 30:286], pixels)
    out[20:276, 30:286] = 255
    assert (out == 255).all()


def test_a_hole_without_background_is_an_error_that_says_where():
    gluer = Gluer(Size(256, 300))
    gluer.add(Window(0, 0, 256, 256), np.zeros((256, 256, 3), np.uint8))
    with pytest.raises(ValueError, match="no window covers the pixel at row 0, column 256"):
        list(gluer.finish())


def test_without_defect_the_pixels_are_the_same():
    size = Size(500, 500)
    pieces = disagreeing(size, extras=3)
    gluer = Gluer(size, defect=False)
    for piece in pieces:
        gluer.add(*piece)
    bands = list(gluer.finish())
    assert all(band.defect is None for band in bands)
    assert np.array_equal(np.concatenate([band.pixels for band in bands]), glue(pieces, size).pixels)


def test_other_channels_half_precision_and_overshoot():
    size = Size(300, 400)
    lattice = list(Lattice.over(size))
    gluer = Gluer(size, channels=1)
    for i, window in enumerate(lattice):
        gluer.add(window, np.full((256, 256, 1), 1.25 if i % 2 else -0.25, np.float16))
    out = np.concatenate([band.pixels for band in gluer.finish()])
    assert out.shape == (300, 400, 1)
    assert out[0, 0] == 0 and out[0, -1] == 255  # clipped, not wrapped


@pytest.mark.parametrize(
    ("window", "pixels", "message"),
    [
        (Window(0, 0, 256, 256), np.zeros((255, 256, 3), np.uint8), "needs pixels"),
        (Window(0, 0, 256, 256), np.zeros((3, 256, 256), np.uint8), "needs pixels"),
        (Window(0, 0, 256, 256), np.zeros((256, 256, 3), np.int64), "uint8, float16 or float32"),
        (Window(0, 0, 256, 256), np.zeros((256, 256, 3), np.float32), "all uint8 or all floating"),
        (Window(99, 0, 256, 256), np.zeros((256, 256, 3), np.uint8), "already done"),
    ],
)
def test_wrong_windows_are_refused(window: Window, pixels: np.ndarray, message: str):
    gluer = Gluer(Size(600, 256))
    gluer.add(Window(0, 0, 256, 256), np.zeros((256, 256, 3), np.uint8))
    list(gluer.rows_done(100))
    if window.y == 0:
        window = window.shift(192, 0)
    with pytest.raises(ValueError, match=message):
        gluer.add(window, pixels)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float):
    pixels = np.zeros((256, 256, 3), np.float32)
    pixels[200, 7, 1] = value
    with pytest.raises(ValueError, match="not finite"):
        Gluer(Size(256, 256)).add(Window(0, 0, 256, 256), pixels)
    with pytest.raises(ValueError, match="uint8 or float32"):
        Gluer(Size(256, 256), dtype=np.int32)
