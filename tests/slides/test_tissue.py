"""Tissue masks against the truth of phantoms, hand-made slides and the eye's verdict on two real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import binary_dilation, zoom

from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.specimen import Specimen
from sheafstain.slides.read import open_slide, view_of
from sheafstain.slides.tissue import TissueMask, glass_of
from sheafstain.slides.write import open_writer
from sheafstain.window import Resolution, Size, Window

EOSIN, HAEMATOXYLIN = (225, 160, 195), (110, 85, 160)


def glass(h: int = 1024, w: int = 1536, colour: tuple[int, ...] = (240, 240, 241), seed: int = 0) -> np.ndarray:
    """Bare glass as a scanner sees it, at 1 µm/px: uint8 [h, w, 3] with a grey level of noise."""
    noise = np.random.default_rng(seed).normal(0, 1.5, (h, w, 1))
    return np.clip(np.asarray(colour) + noise, 0, 255).astype(np.uint8)


def paint(image: np.ndarray, window: Window, colour: tuple[int, ...], texture: float = 12) -> None:
    noise = np.random.default_rng(window.y).normal(0, texture, (window.h, window.w, 1))
    image[window.slices] = np.clip(np.asarray(colour) + noise, 0, 255)


def mask_of(image: np.ndarray, **options) -> TissueMask:
    return TissueMask.of(view_of(image, Resolution(1.0)), **options)


@pytest.mark.parametrize("seed", [3, 4])  # lilac glass; dim glass
def test_phantom_slides_lose_no_tissue_and_skip_bare_glass(seed: int):
    size, step = Size(1024, 1024), Resolution(2.0)
    phantom = Phantom(Specimen.draw(seed), "HER2", step, size)
    layers = phantom.draw(Window.of(size), ("he", "tissue"))
    truth = layers["tissue"] > 0
    mask = TissueMask.of(view_of(layers["he"], step))
    assert mask.scale == 4
    cells = truth.reshape(256, 4, 256, 4).mean((1, 3))
    assert mask.mask[cells > 0.5].mean() > 0.995
    far = ~binary_dilation(cells > 0, iterations=8)
    assert far.sum() > 500
    assert mask.mask[far].mean() < 0.001
    assert mask.share == pytest.approx((cells > 0.5).mean(), abs=0.02)
    for y in range(0, size.h - 64, 48):
        for x in range(0, size.w - 64, 48):
            window = Window(y, x, 64, 64)
            if truth[window.slices].mean() > 0.005:
                assert mask(window)
            elif not truth[Window(y - 64, x - 64, 192, 192).overlap(Window.of(size)).slices].any():
                assert not mask(window)


def test_real_slides(real: Path):
    """CMU-1: a strip of skin on wide glass. The other: a field of tissue with lumina, all of it to be stained."""
    with open_slide(real / "slides/CMU-1-Small-Region.svs") as slide:
        mask = TissueMask.of(slide.view())
        assert mask.scale == 16
        assert 0.38 < mask.share < 0.47
        for y, x, tissue in (
            (2000, 800, True),  # epidermis
            (1000, 500, True),  # a thread of tissue away from the rest
            (2300, 1900, True),  # dermis
            (300, 300, False),
            (2500, 100, False),
            (200, 1800, False),
        ):
            assert mask(Window(y, x, 128, 128)) is tissue, (y, x)
    with open_slide(real / "slides/he-40x.svs") as slide:
        assert TissueMask.of(slide.view()).share == 1


def test_real_fields_without_glass_are_tissue(real: Path):
    from sheafstain.slides.image import read_image

    paths = [*(real / "he").glob("*.tif"), *(real / "bci/HE/test").glob("*.png")]
    assert paths
    for path in paths:
        assert TissueMask.of(view_of(read_image(path), Resolution(0.4))).share == 1, path


def test_pale_tissue_is_kept():
    """Eosin so thin that it takes 6 % of the light in one colour, around something that takes more."""
    image = glass()
    paint(image, Window(200, 300, 400, 500), (236, 222, 232), texture=4)
    paint(image, Window(300, 400, 60, 60), EOSIN)
    mask = mask_of(image, margin=0)
    assert mask.mask[26:74, 39:99].all()
    assert mask.share == pytest.approx(400 * 500 / image[..., 0].size, rel=0.05)


@pytest.mark.parametrize("colour", [(250, 250, 250), (247, 240, 230), (215, 208, 212), (180, 178, 172)])
def test_glass_of_any_colour_is_glass(colour: tuple[int, ...]):
    image = glass(colour=colour)
    assert mask_of(image).share == 0
    assert np.abs(glass_of(image[::8, ::8]) - colour).max() <= 4
    paint(image, Window(200, 300, 300, 300), tuple(round(a * b / 255) for a, b in zip(colour, EOSIN, strict=True)))
    assert mask_of(image).share == pytest.approx(300 * 300 / image[..., 0].size, rel=0.15)


def test_what_scanners_fill_in_is_not_taken_for_the_glass():
    image = glass(colour=(226, 222, 224))
    image[:, :600] = 255
    paint(image, Window(200, 900, 300, 300), EOSIN)
    mask = mask_of(image, margin=0)
    assert not mask(Window(0, 0, 1024, 860))
    assert mask(Window(300, 1000, 64, 64))
    assert mask.share < 0.1


def test_uneven_light_and_shadows_are_glass():
    image = glass(colour=(238, 238, 238)).astype(float)
    image *= 1 - 0.04 * np.linspace(0, 1, image.shape[1])[:, None]  # towards the edge
    image[400:, 700:720] *= 0.9  # the edge of the cover slip
    assert mask_of(image.astype(np.uint8)).share == 0


def test_dust_and_green_ink_are_dropped_and_other_ink_is_kept():
    image = glass()
    for k in range(20):
        paint(image, Window(30 + 40 * k, 30 + 60 * k, 14, 14), (60, 50, 60))
    paint(image, Window(700, 100, 150, 500), (20, 150, 90))
    assert mask_of(image).share == 0
    paint(image, Window(100, 800, 200, 200), HAEMATOXYLIN)
    paint(image, Window(160, 860, 30, 30), (20, 150, 90))  # ink on tissue
    mask = mask_of(image, margin=0)
    assert mask.share == pytest.approx(200 * 200 / image[..., 0].size, rel=0.25)  # and its rim
    assert mask.mask[14:36, 102:123].all()
    paint(image, Window(600, 900, 200, 200), (40, 50, 150))  # a blue pen could be haematoxylin
    assert mask_of(image, margin=0)(Window(650, 950, 20, 20))


def test_gaps_close_and_large_lumina_stay_open():
    image = glass()
    paint(image, Window(100, 100, 800, 900), EOSIN)
    image[200:300, 200:320] = glass(100, 120)  # a gland of 100 µm
    image[400:800, 300:800] = glass(400, 500)
    mask = mask_of(image, margin=0)
    assert mask(Window(240, 250, 8, 8))
    assert not mask(Window(560, 500, 80, 80))


def test_the_margin_is_looked_at():
    image = glass()
    paint(image, Window(480, 800, 240, 240), EOSIN)
    for margin in (0, 32, 100):
        mask = mask_of(image, margin=margin)
        assert mask(Window(500, 800 - margin - 60, 64, 64))
        assert not mask(Window(500, 800 - margin - 64 - 20, 64, 64))
    assert mask_of(image).margin == 64
    assert not mask_of(image)(Window(5000, 0, 64, 64))
    assert not mask_of(image, margin=0)(Window(500, 800, 0, 64))


@settings(max_examples=40)
@given(
    window=st.builds(Window, st.integers(-100, 700), st.integers(-100, 900), st.integers(0, 300), st.integers(0, 300)),
    margin=st.integers(0, 70),
    scale=st.sampled_from([8.0, 17.165]),
)
def test_a_question_is_a_look_at_the_cells(window: Window, margin: int, scale: float):
    cells = np.random.default_rng(0).random((80, 100)) < 0.002
    mask = TissueMask(cells, scale, margin, Window(0, 0, 640, 800))
    grown = window.grow(margin)
    edges = np.arange(101) * scale
    rows = (edges[:80] < grown.bottom) & (edges[1:81] > grown.y)
    columns = (edges[:100] < grown.right) & (edges[1:] > grown.x)
    assert mask(window) == (not window.empty and cells[np.ix_(rows, columns)].any())  # an empty window is nowhere


def test_a_region_has_the_tissue_of_the_whole(tmp_path: Path):
    """Also a region with no glass in it, and at another µm/px."""
    image = glass()
    paint(image, Window(300, 500, 400, 400), EOSIN)
    with open_writer(tmp_path / "a.tif", Size(1024, 1536), Resolution(1.0), description={}, tile=256) as slide:
        slide.rows(image)
    with open_slide(tmp_path / "a.tif") as slide:
        for mpp in (1.0, 0.7, 2.0):
            whole = slide.view(Resolution(mpp))
            everywhere = TissueMask.of(whole)
            for region in (Window(350, 550, 300, 300), Window(0, 0, 250, 450), Window(201, 333, 400, 777)):
                view = slide.view(Resolution(mpp), region=region)
                mask = TissueMask.of(view)
                for y in range(0, view.size.h, 50):
                    for x in range(0, view.size.w, 50):
                        window = Window(y, x, 40, 40)
                        assert mask(window) == everywhere(window.shift(view.window.y, view.window.x))
            inside = TissueMask.of(slide.view(Resolution(mpp), region=Window(350, 550, 300, 300)))
            assert inside.share == 1


def test_the_mask_stays_small():
    """A slide at 8 µm/px is one of 250 × 250 mm; its cells get larger instead of more."""
    huge = view_of(np.broadcast_to(glass(2, 2)[:1, :1], (3000, 3000, 3)), Resolution(8.0))
    mask = TissueMask.of(huge)
    assert mask.mask.shape == (1500, 1500)
    assert mask.scale == 2


def test_without_pixel_size_half_a_micrometre_is_assumed():
    image = zoom(glass(256, 256), (4, 4, 1), order=0)
    assert TissueMask.of(view_of(image)).scale == 16


def test_damage_counts_as_tissue(tmp_path: Path):
    import tifffile

    image = glass()
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb", tile=(256, 256), compression="deflate")
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        offset, count = tiff.pages[0].dataoffsets[8], tiff.pages[0].databytecounts[8]
    with (tmp_path / "a.tif").open("r+b") as file:
        file.seek(offset)
        file.write(bytes(count))
    with open_slide(tmp_path / "a.tif", mpp=1.0) as slide:
        mask = TissueMask.of(slide.view(), margin=0)
    assert mask(Window(256, 512, 256, 256))
    assert mask.share == pytest.approx(1 / 24)
