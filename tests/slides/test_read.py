"""Reading slides: what comes out is held against the array that went in, tifffile, OpenSlide and NumPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openslide
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.read import View, open_slide, view_of
from sheafstain.slides.tiff import TiffLevel
from sheafstain.slides.write import open_writer
from sheafstain.window import Resolution, Size, Window


def picture(h: int, w: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with a texture, uint8 [h, w, 3]: JPEG keeps them, and no two places are alike."""
    y, x = np.mgrid[:h, :w]
    base = np.stack([np.sin(y / 31), np.cos(x / 37), np.sin((x + 2 * y) / 53)], -1) * 55 + 150
    noise = np.random.default_rng(seed).normal(0, 3, (h, w, 1))
    return np.clip(base + noise, 0, 255).astype(np.uint8)


PICTURE = picture(531, 677)


def pyramid(path: Path, image: np.ndarray = PICTURE, mpp: float = 0.25, tile: int = 128) -> Path:
    with open_writer(path, Size(*image.shape[:2]), Resolution(mpp), description={}, tile=tile) as slide:
        slide.rows(image)
    return path


def svs(path: Path, image: np.ndarray = PICTURE, mpp: float = 0.25, **options) -> Path:
    """Tiles, thumbnail, lower level, label and macro in the order of an Aperio scanner."""
    said = f"Aperio Image Library v11.2.1\n{image.shape[1]}x{image.shape[0]} (128x128)|AppMag = 40|MPP = {mpp}"
    options = {"compression": "jpeg", "photometric": "rgb"} | options
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(image, tile=(128, 128), description=said, metadata=None, **options)
        tiff.write(image[::4, ::4], description="Aperio\nthumbnail", metadata=None, compression="lzw")
        tiff.write(image[::4, ::4], tile=(128, 128), description="Aperio\nlevel", metadata=None, **options)
        tiff.write(image[:90, :80], description="Aperio\nlabel", subfiletype=1, metadata=None, compression="lzw")
        tiff.write(image[:95, :180], description="Aperio\nmacro", subfiletype=9, metadata=None, compression="lzw")
    return path


def whole(path: Path, **options) -> np.ndarray:
    with open_slide(path, **options) as slide:
        return slide.view().read()


# --- formats ----------------------------------------------------------------------------------------------------------

STORED = {
    "one uncompressed strip": {},
    "uncompressed tiles": {"tile": (64, 128)},
    "deflate strips with predictor": {"compression": "deflate", "predictor": True, "rowsperstrip": 7},
    "deflate tiles with predictor": {"compression": "deflate", "predictor": True, "tile": (112, 80)},
    "LZW strips": {"compression": "lzw", "rowsperstrip": 1},
    "LZW tiles with predictor": {"compression": "lzw", "predictor": True, "tile": (256, 256)},
    "zstd tiles": {"compression": "zstd", "tile": (128, 128)},
    "JPEG 2000 tiles": {"compression": "jpeg2000", "tile": (128, 128)},
    "Aperio's JPEG 2000": {"compression": 33005, "tile": (128, 128)},
    "a tile larger than the image": {"compression": "deflate", "tile": (1024, 1024)},
    "big-endian": {"compression": "lzw", "byteorder": ">"},
}


@pytest.mark.parametrize("options", STORED.values(), ids=STORED)
def test_lossless_tiffs_come_out_as_they_went_in(tmp_path: Path, options: dict):
    order = {"byteorder": options.pop("byteorder")} if "byteorder" in options else {}
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb", **options, **order)
    with open_slide(tmp_path / "a.tif", strict=True) as slide:
        assert (slide.size, slide.levels, slide.resolution) == (Size(531, 677), (Size(531, 677),), None)
        view = slide.view()
        assert view.read().dtype == np.uint8
        assert np.array_equal(view.read(), PICTURE)
        assert view.damaged == []


@pytest.mark.parametrize(
    "options",
    [
        {"tile": (128, 128), "subsampling": (2, 2)},
        {"tile": (64, 256), "subsampling": (2, 1)},
        {"tile": (128, 128), "subsampling": (1, 1)},
        {"tile": (128, 128), "compressionargs": {"level": 95, "outcolorspace": "rgb"}},
        {"rowsperstrip": 40, "subsampling": (2, 2)},
        {"rowsperstrip": 24},
    ],
)
def test_jpeg_tiffs_as_tifffile_decodes_them(tmp_path: Path, options: dict):
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb", compression="jpeg", **options)
    seen = whole(tmp_path / "a.tif", strict=True)
    assert np.array_equal(seen, tifffile.imread(tmp_path / "a.tif"))
    assert np.abs(seen.astype(int) - PICTURE).mean() < 6


def test_our_own_pyramid(tmp_path: Path):
    path = pyramid(tmp_path / "a.tif")
    with open_slide(path) as slide, tifffile.TiffFile(path) as tiff:
        assert slide.levels == (Size(531, 677), Size(266, 339), Size(133, 170), Size(67, 85))
        assert slide.resolution == Resolution(0.25)
        for k, level in enumerate(tiff.series[0].levels):
            view = slide.view(level=k)
            assert np.array_equal(view.read(), level.asarray())
            assert view.resolution == Resolution(0.25 * 2**k)
            assert view.downsample == 2**k


@pytest.mark.parametrize("compression", ["jpeg", 33005])
def test_aperio_levels_without_label_and_thumbnail(tmp_path: Path, compression: str | int):
    path = svs(tmp_path / "a.svs", mpp=0.2525, compression=compression)
    with open_slide(path) as slide, openslide.OpenSlide(path) as other:
        assert slide.format == "SVS"
        assert [(s.w, s.h) for s in slide.levels] == list(other.level_dimensions) == [(677, 531), (170, 133)]
        assert slide.resolution == Resolution(0.2525)
        for k, dimensions in enumerate(other.level_dimensions):
            expected = np.asarray(other.read_region((0, 0), k, dimensions))[..., :3]
            assert np.abs(slide.view(level=k).read().astype(int) - expected).max() <= 2


def test_ome_tiff_with_subifds(tmp_path: Path):
    """The lower levels, which OpenSlide does not see."""
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as tiff:
        pixel = {"PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 500, "PhysicalSizeYUnit": "nm"}
        options = {"photometric": "rgb", "tile": (64, 64), "compression": "deflate"}
        tiff.write(PICTURE, subifds=2, metadata={"axes": "YXS", **pixel}, **options)
        tiff.write(PICTURE[::2, ::2], subfiletype=1, metadata=None, **options)
        tiff.write(PICTURE[::4, ::4], subfiletype=1, metadata=None, **options)
        tiff.write(PICTURE[:50, :60], metadata={"axes": "YXS", "Name": "macro"}, **options)
    with open_slide(tmp_path / "a.ome.tif") as slide:
        assert slide.format == "OME-TIFF"
        assert slide.levels == (Size(531, 677), Size(266, 339), Size(133, 170))
        assert slide.resolution == Resolution(0.5)
        assert np.array_equal(slide.view(level=2).read(), PICTURE[::4, ::4])
        assert np.array_equal(slide.view(Resolution(1.0)).read(), PICTURE[::2, ::2])


def test_real_slides_are_what_openslide_sees(real: Path):
    for path in sorted((real / "slides").glob("*.svs")):
        with open_slide(path, strict=True) as slide, openslide.OpenSlide(path) as other:
            assert (slide.size.w, slide.size.h) == other.dimensions
            assert slide.resolution == Resolution(float(other.properties["openslide.mpp-x"]))
            region = Window(700, 300, 900, 1100)
            expected = np.asarray(other.read_region((300, 700), 0, (1100, 900)))[..., :3]
            assert np.array_equal(slide.view(region=region).read(), expected)


def test_png_and_jpeg_are_slides_of_one_level(tmp_path: Path):
    Image.fromarray(PICTURE).save(tmp_path / "a.png")
    with open_slide(tmp_path / "a.png", mpp=0.5) as slide:
        assert (slide.format, slide.size, slide.resolution) == ("PNG", Size(531, 677), Resolution(0.5))
        assert np.array_equal(slide.view().read(), PICTURE)
    Image.fromarray(PICTURE).save(tmp_path / "b.png", "JPEG")
    with open_slide(tmp_path / "b.png") as slide:
        assert (slide.format, slide.resolution) == ("JPEG", None)


# --- colours ----------------------------------------------------------------------------------------------------------


def test_grey_palette_and_inverted_grey(tmp_path: Path):
    grey = PICTURE[..., 0]
    expected = np.repeat(grey[..., None], 3, axis=2)
    tifffile.imwrite(tmp_path / "a.tif", grey, photometric="minisblack", tile=(64, 64), compression="deflate")
    assert np.array_equal(whole(tmp_path / "a.tif"), expected)
    tifffile.imwrite(tmp_path / "a.tif", grey, photometric="minisblack", tile=(64, 64), compression="jpeg")
    assert np.abs(whole(tmp_path / "a.tif").astype(int) - expected).mean() < 4
    tifffile.imwrite(tmp_path / "b.tif", 255 - grey, photometric="miniswhite", compression="lzw")
    assert np.array_equal(whole(tmp_path / "b.tif"), expected)
    colours = np.random.default_rng(0).integers(0, 256, (3, 256), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "c.tif", grey, photometric="palette", colormap=colours.astype(np.uint16) * 257)
    assert np.array_equal(whole(tmp_path / "c.tif"), colours.T[grey])


@pytest.mark.parametrize("kind", ["unassalpha", "assocalpha", "unspecified"])
def test_transparency_shows_white_glass(tmp_path: Path, kind: str):
    alpha = np.tile(np.linspace(0, 255, PICTURE.shape[1]).astype(np.uint8), (PICTURE.shape[0], 1))
    share = alpha[..., None] / 255
    stored = np.round(PICTURE * share).astype(np.uint8) if kind == "assocalpha" else PICTURE
    rgba = np.dstack([stored, alpha])
    tifffile.imwrite(tmp_path / "a.tif", rgba, photometric="rgb", extrasamples=[kind], tile=(64, 64))
    expected = PICTURE if kind == "unspecified" else PICTURE * share + 255 * (1 - share)
    assert np.abs(whole(tmp_path / "a.tif") - expected).max() <= 1


def test_unusual_tiffs_are_read_another_way(tmp_path: Path):
    cmyk = Image.fromarray(PICTURE).convert("CMYK")
    cmyk.save(tmp_path / "a.tif", compression="tiff_lzw")
    assert np.abs(whole(tmp_path / "a.tif").astype(int) - PICTURE).max() <= 1
    planes = {"photometric": "rgb", "planarconfig": "separate", "compression": "deflate"}
    tifffile.imwrite(tmp_path / "b.tif", np.moveaxis(PICTURE, 2, 0), **planes)
    assert np.array_equal(whole(tmp_path / "b.tif"), PICTURE)
    tifffile.imwrite(tmp_path / "c.tif", np.moveaxis(PICTURE, 2, 0), tile=(128, 128), **planes)
    assert np.array_equal(whole(tmp_path / "c.tif"), PICTURE)


# --- µm/px ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "mpp"),
    [
        ({"resolution": (20_000, 20_000), "resolutionunit": "CENTIMETER"}, 0.5),
        ({"resolution": (101_600, 101_600), "resolutionunit": "INCH"}, 0.25),
        ({"resolution": (20_000, 20_400), "resolutionunit": "CENTIMETER"}, (0.5 + 10_000 / 20_400) / 2),
        ({"resolution": (72, 72), "resolutionunit": "INCH"}, None),  # an image editor
        ({"resolution": (1200, 1200), "resolutionunit": "INCH"}, None),  # a printer
        ({"resolution": (1, 1), "resolutionunit": "NONE"}, None),
        ({"description": json.dumps({"mpp": 0.3}), "metadata": None}, 0.3),
        ({"description": "Aperio Image|AppMag = 20|MPP = 0.4990|Left = 1", "metadata": None}, 0.499),
        ({"description": "Aperio Image|MPP = |Left = 1", "metadata": None}, None),
        ({}, None),
    ],
)
def test_pixel_size(tmp_path: Path, options: dict, mpp: float | None):
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb", tile=(128, 128), **options)
    with open_slide(tmp_path / "a.tif") as slide:
        assert (slide.resolution and slide.resolution.mpp) == (mpp and pytest.approx(mpp, rel=1e-6))
    with open_slide(tmp_path / "a.tif", mpp=0.7) as slide:
        assert slide.resolution == Resolution(0.7)


def test_a_resolution_needs_one(tmp_path: Path):
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb")
    with open_slide(tmp_path / "a.tif") as slide:
        assert slide.view().resolution is None
        with pytest.raises(SheafStainError, match=r"a\.tif: does not say its µm/px; give it with --mpp"):
            slide.view(Resolution(0.5))
    with open_slide(tmp_path / "a.tif", mpp=4) as slide, pytest.raises(SheafStainError, match="too coarse"):
        slide.view(Resolution(0.5))


def test_oblong_pixels_are_refused(tmp_path: Path):
    options = {"resolution": (20_000, 22_000), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb", **options)
    with pytest.raises(SheafStainError, match=r"not square; give their side with --mpp"):
        open_slide(tmp_path / "a.tif")
    open_slide(tmp_path / "a.tif", mpp=0.5).close()


# --- resampling -------------------------------------------------------------------------------------------------------


def cubic(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def resampled(image: np.ndarray, times: float, size: Size) -> np.ndarray:
    """Antialiased bicubic in floating point, separable, as a dense matrix."""
    out = image.astype(float)
    for axis, (have, want) in enumerate(zip(image.shape[:2], (size.h, size.w), strict=True)):
        centres = (np.arange(want) + 0.5) * times - 0.5
        weights = cubic((np.arange(have) - centres[:, None]) / max(times, 1))
        weights /= weights.sum(1, keepdims=True)
        out = np.moveaxis(np.tensordot(weights, out, (1, axis)), 0, axis)
    return np.clip(out, 0, 255)


@pytest.mark.parametrize("mpp", [0.15, 0.3, 0.4661, 0.61])
def test_resampling_against_numpy(tmp_path: Path, mpp: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sheafstain.slides.resample._BLOCK", 64)
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb", compression="lzw", tile=(128, 128))
    with open_slide(tmp_path / "a.tif", mpp=0.25) as slide:
        view = slide.view(Resolution(mpp))
        seen = view.read()
    times = mpp / 0.25
    assert view.resolution == Resolution(mpp)
    assert view.size == Size(round(531 / times), round(677 / times))
    inner = (slice(2, -2), slice(2, -2))  # at the far border half a pixel may lie beyond the image
    error = np.abs(seen - resampled(PICTURE, times, view.size))[inner]
    assert error.max() <= 1.5
    assert error.mean() < 0.4


def test_the_level_just_finer_is_taken(tmp_path: Path):
    """0.6 µm/px is made from the level of 0.5, whose picture here is another one."""
    levels = [picture(512, 512), picture(256, 256, seed=1)[::-1], picture(128, 128, seed=2)]
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for k, level in enumerate(levels):
            options = {"compression": "lzw", "tile": (64, 64), "subfiletype": int(k > 0), "metadata": None}
            tiff.write(level, photometric="rgb", **options)
    with open_slide(tmp_path / "a.tif", mpp=0.25) as slide:
        for mpp, k, times in ((0.6, 1, 1.2), (0.4, 0, 1.6), (1.3, 2, 1.3), (0.96, 1, 1.92)):
            view = slide.view(Resolution(mpp))
            assert np.abs(view.read() - resampled(levels[k], times, view.size))[2:-2, 2:-2].max() <= 1.5
        for mpp, k in ((0.5, 1), (0.492, 1), (0.508, 1), (1.01, 2), (0.25, 0), (0.246, 0)):
            view = slide.view(Resolution(mpp))
            assert np.array_equal(view.read(), levels[k])
            assert view.resolution == Resolution(0.25 * 2**k)


def test_whole_multiples_are_means(tmp_path: Path):
    """2 × and 3 × the pixel size, to 2 %: means of squares, at an odd border of the pixels there are."""
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb", compression="lzw", rowsperstrip=10)
    with open_slide(tmp_path / "a.tif", mpp=0.25) as slide:
        for mpp, n in ((0.5, 2), (0.505, 2), (0.74, 3), (4, 16)):
            view = slide.view(Resolution(mpp))
            assert view.resolution == Resolution(0.25 * n)
            padded = np.full((-(-531 // n) * n, -(-677 // n) * n, 3), np.nan)
            padded[:531, :677] = PICTURE
            means = np.nanmean(padded.reshape(padded.shape[0] // n, n, padded.shape[1] // n, n, 3), axis=(1, 3))
            assert view.size == Size(*means.shape[:2])
            assert np.abs(view.read() - means).max() <= 0.6, "rounded"


def test_far_reduction_keeps_mean_and_place(tmp_path: Path):
    """7.3 × in one go, first by whole means and then by the filter: a ramp stays a ramp, at the same micrometres."""
    ramp = np.repeat(np.linspace(20, 230, 1400).astype(np.float32)[None, :, None], 800, 0).repeat(3, 2)
    view = _resampled_array(np.round(ramp).astype(np.uint8), 7.3)
    centres = (np.arange(view.size.w) + 0.5) * 7.3 - 0.5
    expected = np.interp(centres, np.arange(1400), ramp[0, :, 0])
    assert np.abs(view.read()[:, 3:-3].astype(float) - expected[None, 3:-3, None]).max() < 1


def _resampled_array(image: np.ndarray, times: float) -> View:
    return view_of(image).coarser(times)


# --- the same pixels however they are asked for -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def slide_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pyramid(tmp_path_factory.mktemp("slide") / "a.tif", tile=64)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sheafstain.slides.resample._BLOCK", 96)
    monkeypatch.setattr("sheafstain.slides.tiff._PIECE", 64)


MPPS = st.sampled_from([None, 0.18, 0.25, 0.33, 0.4661, 0.5, 0.75, 1.7, 2.0])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mpp=MPPS, start=st.floats(0, 1), band=st.integers(1, 300))
def test_rows_from_anywhere_in_any_bands(
    slide_path: Path, small_blocks: None, mpp: float | None, start: float, band: int
):
    with open_slide(slide_path) as slide:
        view = slide.view(Resolution(mpp) if mpp else None)
        expected = view.read()
        first = round(start * view.size.h)
        bands = list(view.rows(first, band))
        assert all(len(rows) == band for rows in bands[:-1])
        seen = np.concatenate([np.empty((0, view.size.w, 3), np.uint8), *bands])
        assert np.array_equal(seen, expected[first:])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    mpp=MPPS,
    region=st.builds(Window, st.integers(-50, 520), st.integers(-50, 670), st.integers(1, 600), st.integers(1, 700)),
    band=st.integers(1, 300),
)
def test_a_region_has_the_pixels_of_the_whole(
    slide_path: Path, small_blocks: None, mpp: float | None, region: Window, band: int
):
    with open_slide(slide_path) as slide:
        resolution = Resolution(mpp) if mpp else None
        if not region.meets(Window.of(slide.size)):
            return
        whole_view, view = slide.view(resolution), slide.view(resolution, region=region)
        assert np.array_equal(np.concatenate(list(view.rows(band=band))), whole_view.read()[view.window.slices])
        # All of the region, and less than a pixel more on each side.
        inside, scale = region.overlap(Window.of(slide.size)), view.downsample
        assert view.window.y * scale <= inside.y + 1e-6
        assert view.window.x * scale <= inside.x + 1e-6
        assert (view.window.y + 1) * scale > inside.y
        assert (view.window.right - 1) * scale < inside.right
        assert min(view.window.right, whole_view.size.w - 1) * scale >= min(inside.right, whole_view.size.w - 2) - scale


def test_a_region_elsewhere_is_refused(slide_path: Path):
    with open_slide(slide_path) as slide:
        with pytest.raises(UsageError, match=r"region 5×5\+900\+0 lies outside the slide of 677×531 px"):
            slide.view(region=Window(0, 900, 5, 5))
        with pytest.raises(UsageError, match="levels 0 to 4, not 5"):
            slide.view(level=5)
        with pytest.raises(ValueError, match="not both"):
            slide.view(Resolution(1), level=1)
        for start, band in ((-1, 5), (532, 5), (0, 0)):
            with pytest.raises(ValueError, match="rows start within"):
                next(slide.view().rows(start, band))
        assert list(slide.view().rows(531)) == []


@pytest.mark.parametrize(("mpp", "tiles"), [(0.25, 9 * 11), (0.4661, 9 * 11), (0.75, 5 * 6)])
def test_every_tile_is_decoded_once(
    slide_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, mpp: float, tiles: int
):
    decoded: list[tuple[Size, Window]] = []
    original = TiffLevel._decoded

    def counting(self: TiffLevel, tile: Window) -> np.ndarray:
        decoded.append((self.size, tile))
        return original(self, tile)

    monkeypatch.setattr(TiffLevel, "_decoded", counting)
    with open_slide(slide_path) as slide:
        for _ in slide.view(Resolution(mpp)).rows():
            pass
    assert len(decoded) == len(set(decoded)) == tiles


def test_a_thumbnail_is_cheap_and_true(slide_path: Path, monkeypatch: pytest.MonkeyPatch):
    used: set[Size] = set()
    original = TiffLevel._decoded

    def noting(self: TiffLevel, tile: Window) -> np.ndarray:
        used.add(self.size)
        return original(self, tile)

    monkeypatch.setattr(TiffLevel, "_decoded", noting)
    with open_slide(slide_path) as slide:
        small = slide.view().thumbnail(100)
        assert small.shape == (78, 100, 3)
        assert used == {Size(133, 170)}
        expected = np.asarray(Image.fromarray(PICTURE).resize((100, 78), Image.Resampling.BICUBIC)).astype(int)
        assert np.abs(small - expected).mean() < 3
        part = slide.view(Resolution(0.5), region=Window(100, 200, 300, 350)).thumbnail(50)
        expected = np.asarray(Image.fromarray(PICTURE[100:400, 200:550]).resize((50, 43), Image.Resampling.BOX))
        assert part.shape == (43, 50, 3)
        assert np.abs(part.astype(int) - expected).mean() < 4
        assert slide.view(level=3).thumbnail(5000).shape == (67, 85, 3)


def test_an_array_is_a_view():
    view = view_of(PICTURE, Resolution(0.5))
    assert (view.size, view.resolution, view.damaged) == (Size(531, 677), Resolution(0.5), [])
    assert np.array_equal(np.concatenate(list(view.rows(10, 100))), PICTURE[10:])
    assert view.thumbnail(60).shape == (47, 60, 3)
    with pytest.raises(ValueError, match="uint8"):
        view_of(PICTURE.astype(np.float32))
    with pytest.raises(ValueError, match="uint8"):
        view_of(PICTURE[..., 0])


def test_leaving_early_leaves_no_thread(slide_path: Path):
    with open_slide(slide_path) as slide:
        for mpp in (0.25, 0.4661):
            rows = slide.view(Resolution(mpp)).rows(band=10)
            next(rows)
            rows.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("slide")]


# --- damage -----------------------------------------------------------------------------------------------------------


def overwrite(path: Path, index: int, change: Callable[[bytes], bytes], page: int = 0) -> None:
    """Change the stored bytes of one tile."""
    with tifffile.TiffFile(path) as tiff:
        of = tiff.pages[page]
        offset, count = of.dataoffsets[index], of.databytecounts[index]
    with path.open("r+b") as file:
        file.seek(offset)
        data = change(file.read(count))
        assert len(data) == count
        file.seek(offset)
        file.write(data)


def zeroed(data: bytes) -> bytes:
    return bytes(len(data))


def noise(data: bytes) -> bytes:
    return np.random.default_rng(0).bytes(len(data))


def hole(data: bytes) -> bytes:
    """Zeros in the middle: a JPEG that still looks like one."""
    return data[: len(data) // 2] + bytes(len(data) // 4) + data[len(data) // 2 + len(data) // 4 :]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 3] + bytes(len(data) - len(data) // 3)


DAMAGE = {
    "JPEG": {"compression": "jpeg", "subsampling": (2, 2)},
    "deflate": {"compression": "deflate"},
    "LZW": {"compression": "lzw"},
    "zstd": {"compression": "zstd"},
}


@pytest.mark.parametrize("change", [zeroed, noise, hole, cut])
@pytest.mark.parametrize("options", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_tile_is_white_and_listed(tmp_path: Path, options: dict, change: Callable[[bytes], bytes]):
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb", tile=(128, 128), **options)
    expected = whole(tmp_path / "a.tif").copy()
    overwrite(tmp_path / "a.tif", 2 * 6 + 3, change)
    place = Window(256, 384, 128, 128)
    expected[place.slices] = 255
    with open_slide(tmp_path / "a.tif", mpp=0.25) as slide:
        view = slide.view()
        assert np.array_equal(view.read(), expected)
        assert np.array_equal(view.read(), expected)
        assert view.damaged == [place], "once, however often it is read"
        assert slide.view(region=Window(0, 0, 200, 200)).damaged == []
        assert slide.view(region=Window(300, 400, 10, 20)).damaged == [Window(0, 0, 10, 20)]
        coarse = slide.view(Resolution(0.4))
        seen = coarse.read()
        (touched,) = coarse.damaged
        assert touched.contains(Window(160, 240, 80, 80))
        assert touched.area < 90**2
        white = np.argwhere((seen == 255).all(2))
        assert touched.contains(Window(*white.min(0), *np.ptp(white, axis=0) + 1))
    with (
        open_slide(tmp_path / "a.tif", strict=True) as slide,
        pytest.raises(SheafStainError, match=r"a\.tif: the tile at \(384, 256\) of level 0 cannot be decoded"),
    ):
        slide.view().read()


def test_a_tile_that_was_never_written_is_glass_not_damage(tmp_path: Path):
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, photometric="rgb", tile=(128, 128), compression="jpeg")
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as tiff:
        counts = list(tiff.pages[0].databytecounts)
        counts[7] = 0
        tiff.pages[0].tags["TileByteCounts"].overwrite(counts)
    with open_slide(tmp_path / "a.tif", strict=True) as slide:
        view = slide.view()
        assert (view.read()[128:256, 128:256] == 255).all()
        assert view.damaged == []


@pytest.mark.parametrize("change", [zeroed, hole])
def test_damage_in_real_jpeg_2000(tmp_path: Path, real: Path, change: Callable[[bytes], bytes]):
    """A tile that is gone is found; a hole in JPEG 2000 may decode to something, as in every reader."""
    path = tmp_path / "a.svs"
    path.write_bytes((real / "slides/he-40x.svs").read_bytes())
    overwrite(path, 27, change)
    with open_slide(path) as slide:
        view = slide.view()
        view.read()
    assert view.damaged == ([Window(768, 768, 256, 256)] if change is zeroed else [])


# --- refused ----------------------------------------------------------------------------------------------------------


def refused(path: Path, what: str) -> None:
    with pytest.raises(SheafStainError, match=what) as error:
        open_slide(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_slide_is_said(tmp_path: Path):
    refused(tmp_path / "none.svs", "no such file")
    refused(tmp_path, "is a folder; name a slide in it")
    (tmp_path / "empty.svs").touch()
    refused(tmp_path / "empty.svs", "is empty")
    (tmp_path / "text.svs").write_text("not a slide at all")
    refused(tmp_path / "text.svs", "is not a slide or image that SheafStain reads")
    (tmp_path / "head.tif").write_bytes(b"II*\0\x08\0\0\0")
    refused(tmp_path / "head.tif", "is truncated|is damaged|without a picture")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("write", [pyramid, svs], ids=["ours", "Aperio"])
def test_a_truncated_slide_is_refused_at_once(tmp_path: Path, write: Callable[[Path], Path], keep: float):
    path = write(tmp_path / "a.tif")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    refused(path, "truncated|damaged")


def test_other_microscopy_is_refused(tmp_path: Path):
    deep = PICTURE.astype(np.uint16) * 257
    tifffile.imwrite(tmp_path / "deep.tif", deep, photometric="rgb", tile=(128, 128))
    refused(tmp_path / "deep.tif", "holds uint16 values, SheafStain reads 8-bit RGB")
    tifffile.imwrite(tmp_path / "float.tif", deep.astype(np.float32), photometric="rgb")
    refused(tmp_path / "float.tif", "holds float32 values")
    channels = np.moveaxis(PICTURE, 2, 0)
    tifffile.imwrite(tmp_path / "f.ome.tif", channels, photometric="minisblack", metadata={"axes": "CYX"})
    refused(tmp_path / "f.ome.tif", "holds 3 grey pictures of one size")
    tifffile.imwrite(tmp_path / "five.tif", np.repeat(PICTURE[..., :1], 5, 2), photometric="minisblack")
    refused(tmp_path / "five.tif", "kind that is not read|cannot be opened|grey pictures")


# --- identity and memory ----------------------------------------------------------------------------------------------


def test_fingerprint(tmp_path: Path):
    path = pyramid(tmp_path / "a.tif", picture(1200, 1500))
    with open_slide(path) as slide:
        first = slide.fingerprint
    with open_slide(path) as slide:
        assert slide.fingerprint == first
    status = path.stat()
    for place in (100, status.st_size // 2 + 5, status.st_size - 3):
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        other = tmp_path / "b.tif"
        other.write_bytes(data)
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        try:
            with open_slide(other) as slide:
                assert slide.fingerprint != first
        except SheafStainError:
            assert place != status.st_size // 2 + 5, "only a broken head or tail is refused"
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with open_slide(path) as slide:
        assert slide.fingerprint != first


@pytest.mark.parametrize("mpp", [0.25, 0.4661])
def test_memory_does_not_grow_with_the_height(tmp_path: Path, mpp: float):
    script = textwrap.dedent("""
        import resource, sys
        from sheafstain.slides.read import open_slide
        from sheafstain.window import Resolution
        with open_slide(sys.argv[1]) as slide:
            for rows in slide.view(Resolution(float(sys.argv[2]))).rows():
                pass
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        """)

    def peak(height: int) -> int:
        path = tmp_path / f"{height}.tif"
        tile = picture(256, 2048)
        size = Size(height, 2048)
        with open_writer(path, size, Resolution(0.25), description={}, tile=256) as slide:
            for _ in range(height // 256):
                slide.rows(tile)
        command = [sys.executable, "-c", script, str(path), str(mpp)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    short, tall = peak(2048), peak(20 * 1024)
    assert tall - short < 0.15 * 20 * 1024 * 2048 * 3, f"{short / 1e6:.0f} MB → {tall / 1e6:.0f} MB"
