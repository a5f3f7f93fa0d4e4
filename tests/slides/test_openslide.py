"""The formats that OpenSlide alone understands, and the level that reads through it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vendor_files import JPEG_TIFF, KINDS, PICTURE, dicom, mrxs, philips, picture

from sheafstain.errors import SheafStainError
from sheafstain.slides.openslide import OpenSlideFile, OpenSlideLevel
from sheafstain.slides.read import Pyramid, View, open_slide
from sheafstain.window import Resolution, Size, Window


@pytest.mark.parametrize(("make", "vendor"), KINDS.items(), ids=KINDS.values())
def test_every_vendor(tmp_path: Path, make: Callable[[Path], Path], vendor: str):
    with open_slide(make(tmp_path), strict=True) as slide:
        assert slide.format == vendor
        assert slide.resolution == Resolution(0.5)
        assert len(slide.fingerprint) == 32
        view = slide.view(region=Window(0, 0, 512, 768))
        seen = view.read()
        assert np.abs(seen.astype(int) - PICTURE).mean() < 3
        assert view.damaged == []
        assert np.array_equal(np.concatenate(list(view.rows(77, 50))), seen[77:])
        part = slide.view(region=Window(100, 200, 300, 301))
        assert np.array_equal(part.read(), seen[100:400, 200:501])
        coarse = slide.view(Resolution(1.2), region=Window(0, 0, 512, 768))
        assert abs(coarse.read().astype(float).mean() - PICTURE.mean()) < 2
        assert slide.view().thumbnail(100).shape[1] == 100


def test_dicom_has_the_levels_of_its_series(tmp_path: Path):
    with open_slide(dicom(tmp_path)) as slide:
        assert slide.levels == (Size(512, 768), Size(256, 384))
        assert np.abs(slide.view(level=1).read().astype(int) - PICTURE[::2, ::2]).mean() < 3


def test_what_was_not_scanned_has_the_colour_of_the_glass(tmp_path: Path):
    with open_slide(mrxs(tmp_path, absent=4), strict=True) as slide:
        view = slide.view()
        hole = view.read()[256:, 256:512]
        assert (hole == (0xFA, 0xF0, 0xE0)).all()
        assert view.damaged == []


def test_the_files_beside_it_are_part_of_the_fingerprint(tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with open_slide(mrxs(tmp_path / "one")) as one, open_slide(mrxs(tmp_path / "two", absent=0)) as two:
        assert one.fingerprint != two.fingerprint


# --- the level itself, on a TIFF whose pixels are known ---------------------------------------------------------------


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("known") / "a.tif"
    tifffile.imwrite(path, picture(700, 900), tile=(128, 128), **JPEG_TIFF)
    return path


def view_through_openslide(path: Path, strict: bool = False) -> View:
    level = OpenSlideLevel(OpenSlideFile(path), 0, strict)
    return Pyramid((level,), (1.0,), None).view(1.0, Window.of(level.size))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 699), band=st.integers(1, 800), across=st.sampled_from([128, 300, 2048]))
def test_any_rows_are_those_of_the_tiff(
    known: Path, monkeypatch: pytest.MonkeyPatch, start: int, band: int, across: int
):
    monkeypatch.setattr("sheafstain.slides.openslide._ACROSS", across)
    seen = np.concatenate(list(view_through_openslide(known).rows(start, band)))
    assert np.abs(seen.astype(int) - tifffile.imread(known)[start:]).max() <= 1  # another build of libjpeg


def test_damage_is_white_and_listed_here_too(tmp_path: Path, known: Path):
    path = tmp_path / "a.tif"
    path.write_bytes(known.read_bytes())
    with tifffile.TiffFile(path) as tiff, path.open("r+b") as file:
        for index in (2 * 8 + 3, 4 * 8 + 6):
            file.seek(tiff.pages[0].dataoffsets[index] + 400)
            file.write(bytes(tiff.pages[0].databytecounts[index] - 500))
    expected = tifffile.imread(known).astype(int)
    places = [Window(256, 384, 128, 128), Window(512, 768, 128, 128)]
    for place in places:
        expected[place.slices] = 255
    view = view_through_openslide(path)
    assert np.abs(view.read() - expected).max() <= 1
    assert sorted(view.damaged) == places
    with pytest.raises(SheafStainError, match=r"a\.tif: cannot be decoded at \(\d+, \d+\) of level 0"):
        view_through_openslide(path, strict=True).read()


@pytest.mark.parametrize("make", [mrxs, dicom, philips], ids=["mirax", "dicom", "philips"])
def test_a_broken_file_is_said_in_a_line(tmp_path: Path, make: Callable[[Path], Path]):
    path = make(tmp_path)
    broken = tmp_path / "a/Slidedat.ini" if make is mrxs else path
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(SheafStainError) as error:
        open_slide(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
