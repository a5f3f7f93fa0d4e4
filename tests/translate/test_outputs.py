"""What is left behind: every format as five readers see it, and a report whose figures are those of the maps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openslide
import pytest
import pyvips
import tifffile
import zarr
from ome_types import from_xml, validate_xml
from ome_zarr_models.v04.image import Image as OmeZarrImage
from stain_doubles import MeanEncoder, Wobbling

from sheafstain.slides.image import read_image, write_image
from sheafstain.translate import maps
from sheafstain.translate.stainer import Stainer
from sheafstain.window import Window

LEVELS = [(701, 1110), (351, 555), (176, 278)]  # h, w: down to one of Zarr's chunks of 512
TIFF_LEVELS = [*LEVELS, (88, 139)]  # down to one tile of 256
FORMATS = ("tif", "ome.tif", "zarr", "png")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One image translated into every format, with two samples."""
    folder = tmp_path_factory.mktemp("made")
    y, x = np.mgrid[:701, :1110]
    smooth = np.stack([np.sin(y / 40), np.cos(x / 50), np.sin((x + y) / 70)], -1) * 60 + 150
    write_image(folder / "in.png", smooth.astype(np.uint8))
    stainer = Stainer(Wobbling(conditioning="lattice"), MeanEncoder())
    for suffix in FORMATS:
        stainer.stain_file(folder / "in.png", folder / f"out.{suffix}", samples=2, workers=1 + len(suffix) % 3)
    return folder


@pytest.fixture(scope="module")
def exact(made: Path) -> dict[str, np.ndarray]:
    """Stain and maps as the PNGs have them."""
    maps_of = {kind: read_image(made / f"out.{kind}.png")[..., 0] for kind in ("defect", "spread")}
    return {"": read_image(made / "out.png"), **maps_of}


def close(seen: np.ndarray, expected: np.ndarray, exactly: bool) -> bool:
    off = np.abs(seen.astype(int) - expected)
    return not off.any() if exactly else bool(off.mean() < 8)  # JPEG of noise


KINDS = ("", "defect", "spread")


def named(folder: Path, kind: str, suffix: str) -> Path:
    return folder / ".".join(filter(None, ("out", kind, suffix)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["tif", "ome.tif"])
def test_tiffs_in_openslide_tifffile_and_libvips(made: Path, exact: dict, suffix: str, kind: str):
    path, ome = named(made, kind, suffix), suffix == "ome.tif"
    expected = exact[kind]
    with tifffile.TiffFile(path) as tiff:
        assert [level.shape[:2] for level in tiff.series[0].levels] == TIFF_LEVELS
        assert close(tiff.series[0].levels[0].asarray(), expected, bool(kind))
        if ome:
            validate_xml(tiff.ome_metadata)
            pixels = from_xml(tiff.ome_metadata).images[0].pixels
            assert (pixels.physical_size_x, pixels.physical_size_y) == (0.5, 0.5)
    with openslide.OpenSlide(path) as slide:
        assert [(h, w) for w, h in slide.level_dimensions] == TIFF_LEVELS[: 1 if ome else None]
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(0.5)
        region = np.asarray(slide.read_region((0, 0), 0, slide.dimensions).convert("RGB"))
        assert close(region[..., 0] if kind else region, expected, bool(kind))
    for k, (h, w) in enumerate(TIFF_LEVELS):
        where = {"subifd": k - 1} if ome else {"page": k}
        vips = pyvips.Image.new_from_file(str(path), **where)
        assert (vips.height, vips.width) == (h, w)  # type: ignore[attr-defined]
        assert 1e3 / vips.xres == pytest.approx(0.5 * 2**k)  # type: ignore[attr-defined]
        if k == 0:
            assert close(vips.numpy().reshape(expected.shape), expected, bool(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_zarrs_in_zarr_and_the_ome_tools(made: Path, exact: dict, kind: str):
    group = zarr.open_group(named(made, kind, "zarr"), mode="r")
    [multiscale] = OmeZarrImage.from_zarr(group).ome_attributes.multiscales
    for k, (dataset, size) in enumerate(zip(multiscale.datasets, LEVELS, strict=True)):
        assert np.asarray(group[dataset.path]).shape[1:] == size
        assert dataset.coordinateTransformations[0].scale[1:] == pytest.approx([0.5 * 2**k] * 2)
    level = np.moveaxis(np.asarray(group["0"]), 0, -1)
    assert np.array_equal(level.reshape(exact[kind].shape), exact[kind])


def test_every_file_says_what_it_is(made: Path):
    hashes = "0" * 64, "1" * 64
    for kind, expected in zip(KINDS, ("stain", "defect", "spread"), strict=True):
        with tifffile.TiffFile(named(made, kind, "tif")) as tiff:
            said = json.loads(tiff.pages.first.description)
        assert said["kind"] == expected and said["stain"] == "HER2" and said["source"] == "in.png"
        assert (said["model_hash"], said["encoder_hash"]) == hashes
        assert "research use only" in said["notice"] and said["software"].startswith("SheafStain ")


def test_the_report_says_what_the_map_shows(made: Path, exact: dict):
    report = json.loads((made / "out.json").read_text())
    rms = maps.decode(exact["defect"])
    told = report["defect"]
    assert told["defined"] == pytest.approx((exact["defect"] > 0).mean())
    assert told["rms"] == pytest.approx(np.sqrt(np.nanmean(rms.astype(float) ** 2)), rel=0.02)
    assert told["rms_median"] == pytest.approx(np.nanmedian(rms), rel=0.05)
    assert told["rms_p99"] == pytest.approx(np.nanquantile(rms, 0.99), rel=0.05)
    squares = {
        (y, x): np.nanmean(rms[y : y + 256, x : x + 256]) for y in range(0, 701, 256) for x in range(0, 1110, 256)
    }
    assert told["worst_squares"] == 1  # one percent of fifteen, rounded up
    (y, x), mean = max(squares.items(), key=lambda item: item[1])
    assert told["worst"][0]["place"] == [x, y, min(256, 1110 - x), min(256, 701 - y)]
    assert told["worst"][0]["rms"] == pytest.approx(mean, rel=1e-3)
    assert report["windows"]["lattice"] == 24 and 0 < report["windows"]["extra"] <= 9
    assert report["windows"]["translated_by_this_run"] == 24 + report["windows"]["extra"]
    assert report["energy"]["pairs"] > 60 and report["energy"]["energy"] > 0
    assert set(report["seconds"]) == {"total", "decode", "compute", "glue", "write"}
    assert report["seconds"]["total"] > 0 and report["peak_memory_mb"]["process"] > 50
    assert report["protocol"]["samples"] == 2 and report["encoder"] == {"id": "mean", "hash": "1" * 64}
    assert report["output"]["size"] == [1110, 701]


def test_workers_change_no_byte(tmp_path: Path):
    image = np.random.default_rng(0).integers(0, 256, (600, 1100, 3), dtype=np.uint8)
    write_image(tmp_path / "in.png", image)
    for workers in (1, 5):
        (tmp_path / str(workers)).mkdir()
        Stainer(Wobbling()).stain_file(tmp_path / "in.png", tmp_path / str(workers) / "out.tif", workers=workers)
    for name in ("out.tif", "out.defect.tif"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "5" / name).read_bytes()


def test_the_worst_squares_come_in_order():
    size = Window(0, 0, 1000, 5000)
    coded = np.random.default_rng(0).integers(1, 50, (1000, 5000), dtype=np.uint8)
    coded[:256, 256:512] = 0  # undefined
    coded[256:512, 1024:1280] = 200
    coded[768:, 4864:] = 180  # a part of a square
    areas = maps.Areas(size.size)
    for top in range(0, 1000, 90):
        areas.add(top, coded[top : top + 90])
    worst = areas.worst(0.03)  # of 79 squares
    assert [window for window, _ in worst[:2]] == [Window(256, 1024, 256, 256), Window(768, 4864, 232, 136)]
    assert [rms for _, rms in worst[:2]] == pytest.approx([199 / 508, 179 / 508])
    assert len(worst) == 3
