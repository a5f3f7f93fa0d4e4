"""What is translated: every format, stored in every way, and its damage; the model gives back what it gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openslide
import pytest
import tifffile
from stain_doubles import Identity
from vendor_files import KINDS, PICTURE, dicom, mrxs, picture

from sheafstain.errors import SheafStainError
from sheafstain.slides.image import read_image
from sheafstain.slides.read import open_slide
from sheafstain.translate.stainer import Stainer
from sheafstain.window import Resolution, Size, Window

ODD = picture(531, 677)
STORED = {
    "one strip": {},
    "LZW strips": {"compression": "lzw", "rowsperstrip": 7},
    "LZW tiles": {"compression": "lzw", "predictor": True, "tile": (256, 256)},
    "deflate strips": {"compression": "deflate", "rowsperstrip": 100},
    "deflate tiles": {"compression": "deflate", "predictor": True, "tile": (112, 80)},
    "JPEG strips": {"compression": "jpeg", "rowsperstrip": 40},
    "JPEG tiles": {"compression": "jpeg", "tile": (128, 128)},
    "JPEG 2000 tiles": {"compression": "jpeg2000", "tile": (128, 128)},
    "Aperio's JPEG 2000": {"compression": 33005, "tile": (128, 128)},
}
HALF = {"resolution": (2e4, 2e4), "resolutionunit": "CENTIMETER"}  # 0.5 µm/px


def stained(source: Path, output: Path, **options: object) -> tuple[np.ndarray, dict]:
    written = Stainer(Identity()).stain_file(source, output, **options)  # type: ignore[arg-type]
    return read_image(output), dict(written.report)


@pytest.mark.parametrize(("make", "vendor"), KINDS.items(), ids=KINDS.values())
def test_every_vendor(tmp_path: Path, make: Callable[[Path], Path], vendor: str):
    pixels, report = stained(make(tmp_path), tmp_path / "out.png", strict=True)
    assert np.abs(pixels[:512, :768].astype(int) - PICTURE).mean() < 3
    assert report["input"]["format"] == vendor and report["input"]["mpp"] == 0.5
    assert report["damaged"] == []


@pytest.mark.parametrize("known", [True, False], ids=["0.5 µm/px", "no µm/px"])
@pytest.mark.parametrize("options", STORED.values(), ids=STORED)
def test_tiffs_of_odd_size_stored_in_every_way(tmp_path: Path, options: dict, known: bool):
    about = HALF if known else {}
    tifffile.imwrite(tmp_path / "in.tif", ODD, photometric="rgb", **options, **about)
    pixels, report = stained(tmp_path / "in.tif", tmp_path / "out.png", strict=True)
    expected = tifffile.imread(tmp_path / "in.tif")
    assert np.array_equal(pixels, expected)
    assert np.abs(expected.astype(int) - ODD).mean() < 6
    assert (report["input"]["mpp"], report["input"]["mpp_assumed"]) == ((0.5, False) if known else (None, True))


@pytest.mark.parametrize("ome", [False, True], ids=["flat", "OME"])
def test_pyramids_are_entered_at_the_level_that_fits(tmp_path: Path, ome: bool):
    path = tmp_path / ("in.ome.tif" if ome else "in.tif")
    levels = [ODD, ODD[::2, ::2] // 2, ODD[::4, ::4] // 4]  # of other brightness, so that it shows which was taken
    options = {"photometric": "rgb", "tile": (64, 64), "compression": "deflate"}
    with tifffile.TiffWriter(path) as tiff:
        for k, level in enumerate(levels):
            place = {"resolution": (4e4 / 2**k, 4e4 / 2**k), "resolutionunit": "CENTIMETER", "subfiletype": int(k > 0)}
            said = {"axes": "YXS", "PhysicalSizeX": 0.25, "PhysicalSizeY": 0.25} if ome and not k else None
            tiff.write(level, **options, **place, metadata=said, **({"subifds": 2} if ome and not k else {}))
    pixels, report = stained(path, tmp_path / "out.png")
    assert np.array_equal(pixels, levels[1])
    assert report["input"]["mpp"] == 0.25 and report["input"]["view_mpp"] == pytest.approx(0.5)
    assert np.array_equal(stained(path, tmp_path / "coarse.png", level=2)[0], levels[2])
    assert np.array_equal(stained(path, tmp_path / "claimed.png", mpp=0.5)[0], ODD)


def test_real_slides(tmp_path: Path, real: Path):
    """What is stored at 0.499 µm/px is what OpenSlide sees; what is at 0.25 is halved."""
    cmu = real / "slides" / "CMU-1-Small-Region.svs"
    region = Window(700, 900, 600, 500)
    pixels, report = stained(cmu, tmp_path / "cmu.png", region=region, strict=True)
    with openslide.OpenSlide(cmu) as other:
        expected = np.asarray(other.read_region((900, 700), 0, (500, 600)))[..., :3]
    assert np.array_equal(pixels, expected)
    fine = real / "slides" / "he-40x.svs"
    with open_slide(fine) as slide:
        view = slide.view(Resolution(0.5))
        pixels, report = stained(fine, tmp_path / "fine.png", strict=True)
        assert np.array_equal(pixels, view.read())
        assert report["output"]["size"] == [view.size.w, view.size.h]
        assert abs(view.size.w - slide.size.w / 2) <= 1


@pytest.mark.parametrize("make", [dicom, mrxs], ids=["dicom", "mirax"])
def test_a_folder_that_is_one_slide(tmp_path: Path, make: Callable[[Path], Path]):
    """Of DICOM any file names the slide; of MIRAX the file beside its folder."""
    from sheafstain.cli.stain import _jobs

    folder = tmp_path / "biopsy"
    folder.mkdir()
    made = make(folder)
    [(file, target)] = _jobs([folder], tmp_path / "out", None)
    assert file == made
    assert target.name == ("biopsy.tif" if make is dicom else "a.tif")


@pytest.mark.parametrize("compression", ["jpeg", "deflate", "lzw"])
def test_a_damaged_tile_in_the_middle(tmp_path: Path, compression: str):
    """At 0.25 µm/px for a model at 0.5: the report names the place in the output, and the rest is right."""
    image = picture(1024, 1280)
    options = {"tile": (256, 256), "compression": compression, "photometric": "rgb"}
    place = {"resolution": (4e4, 4e4), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(tmp_path / "in.tif", image, **options, **place)
    whole, _ = stained(tmp_path / "in.tif", tmp_path / "whole.png")
    with tifffile.TiffFile(tmp_path / "in.tif") as tiff:
        offset, length = tiff.pages.first.dataoffsets[5 + 2], tiff.pages.first.databytecounts[5 + 2]
    with (tmp_path / "in.tif").open("r+b") as file:
        file.seek(offset + length // 3)
        file.write(b"\0" * (length // 3))
    pixels, report = stained(tmp_path / "in.tif", tmp_path / "out.png")
    assert report["damaged"] == [[256, 128, 128, 128]]
    assert (pixels[128:256, 256:384] == 255).all()
    pixels[128:256, 256:384] = whole[128:256, 256:384]
    assert np.array_equal(pixels, whole)
    elsewhere, report = stained(tmp_path / "in.tif", tmp_path / "part.png", region=Window(0, 0, 200, 200))
    assert report["damaged"] == [] and np.array_equal(elsewhere, whole[:100, :100])
    with pytest.raises(SheafStainError, match=r"in\.tif: .*of level 0"):
        stained(tmp_path / "in.tif", tmp_path / "strict.png", strict=True)
    assert not (tmp_path / "strict.png").exists() and not (tmp_path / "strict.json").exists()


@pytest.mark.parametrize("size", [Size(1, 1), Size(17, 300), Size(256, 255), Size(700, 5)], ids=str)
def test_images_of_any_size(tmp_path: Path, size: Size):
    image = picture(size.h, size.w)
    tifffile.imwrite(tmp_path / "in.tif", image, photometric="rgb", compression="deflate")
    pixels, report = stained(tmp_path / "in.tif", tmp_path / "out.png")
    assert np.array_equal(pixels, image)
    assert report["output"]["size"] == [size.w, size.h]
