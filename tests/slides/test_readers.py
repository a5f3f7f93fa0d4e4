"""What is written, as OpenSlide, tifffile, libvips, zarr and the OME tools see it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import ome_types
import openslide
import pytest
import pyvips
import tifffile
import torch
import zarr
from ome_types import validate_xml
from ome_zarr_models.v04.image import Image as OmeZarrImage
from PIL import Image

from sheafstain import __version__
from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.specimen import Specimen
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.write import open_writer
from sheafstain.stain import chromogen
from sheafstain.window import Resolution, Size, Window

MPP = 0.4661
SIZE = Size(323, 517)
LEVELS = [(323, 517), (162, 259), (81, 130), (41, 65)]  # h, w; tiles of 128
ABOUT = {"stain": "HER2", "model": "tiny", "model_hash": "a1b2", "seed": 7, "cover": {"stride": 192}}


def write(path: Path, image: np.ndarray, **options) -> Path:
    options = {"tile": 128, "description": ABOUT, **options}
    channels = 3 if image.ndim == 3 else 1
    with open_writer(path, Size(*image.shape[:2]), Resolution(MPP), channels=channels, **options) as slide:
        for y in range(0, len(image), 90):
            slide.rows(image[y : y + 90])
    return path


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    y, x = np.mgrid[: SIZE.h, : SIZE.w]
    smooth = np.stack([np.sin(y / 40), np.cos(x / 50), np.sin((x + y) / 70)], -1) * 60 + 150
    noise = np.random.default_rng(0).normal(0, 3, (SIZE.h, SIZE.w, 1))
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def defects() -> np.ndarray:
    """A map, of which a large part and some lone pixels are not defined."""
    rng = np.random.default_rng(1)
    values = rng.integers(1, 256, (SIZE.h, SIZE.w), dtype=np.uint8)
    values[rng.random(values.shape) < 0.4] = 0
    values[100:200, 200:400] = 0
    return values


def levels_of(full: np.ndarray) -> list[np.ndarray]:
    """Each level from the one above, pixel by pixel in whole numbers: means of what there is, half rounded up."""
    levels = [full]
    while max(levels[-1].shape[:2]) > 128:
        above = levels[-1].astype(int)
        there = above > 0 if above.ndim == 2 else np.ones_like(above, bool)
        below = np.empty((-(-above.shape[0] // 2), -(-above.shape[1] // 2), *above.shape[2:]), np.uint8)
        for y, x in np.ndindex(below.shape[:2]):
            four, count = (a[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].sum((0, 1)) for a in (above, there))
            below[y, x] = (2 * four + count) // np.maximum(2 * count, 1)
        levels.append(below)
    return levels


@pytest.fixture(scope="module")
def exact(image: np.ndarray, defects: np.ndarray) -> dict[int, list[np.ndarray]]:
    return {3: levels_of(image), 1: levels_of(defects)}


def is_level(seen: np.ndarray, expected: np.ndarray, lossless: bool) -> bool:
    if seen.shape != expected.shape:
        return False
    off = np.abs(seen.astype(int) - expected)
    return not off.any() if lossless else bool(off.mean() < 2 and off.max() < 16)


KINDS = [
    ("a.tif", 3, False),
    ("a.tiff", 3, True),
    ("a.tif", 1, False),
    ("a.ome.tif", 3, False),
    ("a.ome.tiff", 1, True),
]


@pytest.mark.parametrize(("name", "channels", "lossless"), KINDS)
def test_tiff_readers(tmp_path: Path, exact: dict, name: str, channels: int, lossless: bool):
    path, ome = write(tmp_path / name, exact[channels][0], lossless=lossless), ".ome." in name
    lossless = lossless or channels == 1
    with tifffile.TiffFile(path) as tif:
        assert len(tif.series) == 1, "one picture, its other pages are levels of it"
        assert [level.shape[:2] for level in tif.series[0].levels] == LEVELS
        for k, (level, expected) in enumerate(zip(tif.series[0].levels, exact[channels], strict=True)):
            assert is_level(level.asarray(), expected, lossless)
            above, below = level.keyframe.tags["XResolution"].value
            assert 1e4 * below / above == pytest.approx(MPP * 2**k, rel=1e-6)
            assert level.keyframe.tags["YResolution"].value == (above, below)
    with openslide.OpenSlide(path) as slide:
        seen = 1 if ome else len(LEVELS)  # OpenSlide does not look at SubIFDs
        assert [(h, w) for w, h in slide.level_dimensions] == LEVELS[:seen]
        for axis in "xy":
            assert float(slide.properties[f"openslide.mpp-{axis}"]) == pytest.approx(MPP, rel=1e-6)
        for k in range(seen):
            region = np.asarray(slide.read_region((0, 0), k, slide.level_dimensions[k]).convert("RGB"))
            assert is_level(region if channels == 3 else region[..., 1], exact[channels][k], lossless)
    for k, expected in enumerate(exact[channels]):
        where = {"subifd": k - 1} if ome else {"page": k}
        vips = pyvips.Image.new_from_file(str(path), **where)
        assert is_level(vips.numpy(), expected, lossless)
        assert 1e3 / vips.xres == pytest.approx(MPP * 2**k, rel=1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize("channels", [3, 1])
def test_ome_xml_is_valid_and_says_all(tmp_path: Path, exact: dict, channels: int):
    path = write(tmp_path / "a.ome.tif", exact[channels][0])
    with tifffile.TiffFile(path) as tif:
        xml = tif.ome_metadata
    assert xml is not None
    validate_xml(xml)  # by the schema of 2016-06, which ome-types carries
    ome = ome_types.from_xml(xml)
    [picture] = ome.images
    pixels = picture.pixels
    assert (pixels.size_y, pixels.size_x, pixels.size_c, pixels.type.value) == (SIZE.h, SIZE.w, channels, "uint8")
    assert (pixels.physical_size_x, pixels.physical_size_y) == (MPP, MPP)
    assert pixels.physical_size_x_unit.value == pixels.physical_size_y_unit.value == "µm"
    assert [(c.name, c.samples_per_pixel) for c in pixels.channels] == [("HER2", channels)]
    said = dict(ome.structured_annotations[0].value)  # type: ignore[attr-defined]
    assert [ref.id for ref in picture.annotation_refs] == [ome.structured_annotations[0].id]
    assert (said["stain"], said["seed"], said["model_hash"]) == ("HER2", "7", "a1b2")
    assert json.loads(said["cover"]) == {"stride": 192}
    assert "research use only" in said["notice"]
    assert "research use only" in str(picture.description)
    assert ome.creator == said["software"] == f"SheafStain {__version__}"


def test_ome_xml_of_odd_words(tmp_path: Path, image: np.ndarray):
    """What is written in a description cannot break the file."""
    about = {"stain": '<Ki-67> & "more" µm', "note": "a\nb", "none": None}
    path = write(tmp_path / "a.ome.tif", image, description=about)
    with tifffile.TiffFile(path) as tif:
        validate_xml(tif.ome_metadata)
        ome = ome_types.from_xml(tif.ome_metadata)
    assert ome.images[0].pixels.channels[0].name == about["stain"]


@pytest.mark.parametrize("channels", [3, 1])
def test_zarr_readers(tmp_path: Path, exact: dict, channels: int):
    path = write(tmp_path / "a.zarr", exact[channels][0])
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == 2
    for k, expected in enumerate(exact[channels]):
        level = np.moveaxis(np.asarray(group[str(k)]), 0, -1)  # type: ignore[arg-type]
        assert np.array_equal(level, expected.reshape(level.shape)), "lossless"
    [multiscale] = OmeZarrImage.from_zarr(group).ome_attributes.multiscales  # raises where it is no OME-Zarr 0.4
    assert multiscale.version == "0.4"
    assert [(axis.name, axis.type, axis.unit) for axis in multiscale.axes] == [
        ("c", "channel", None),
        ("y", "space", "micrometer"),
        ("x", "space", "micrometer"),
    ]
    for k, dataset in enumerate(multiscale.datasets):
        assert dataset.path == str(k)
        scale, translation = dataset.coordinateTransformations
        assert scale.scale == pytest.approx([1, MPP * 2**k, MPP * 2**k])
        covered = np.arange(2**k) * MPP  # centres of the pixels of level 0 that the first pixel is the mean of
        assert translation.translation == pytest.approx([0, covered.mean(), covered.mean()])
    attributes = json.loads((path / ".zattrs").read_text(encoding="utf-8"))
    assert len(attributes["omero"]["channels"]) == channels
    if channels == 3:
        assert [c["color"] for c in attributes["omero"]["channels"]] == ["FF0000", "00FF00", "0000FF"]
        assert attributes["omero"]["rdefs"]["model"] == "color"
    assert attributes["sheafstain"]["stain"] == "HER2"
    assert "research use only" in attributes["sheafstain"]["notice"]


@pytest.mark.parametrize("channels", [3, 1])
def test_png_readers(tmp_path: Path, exact: dict, channels: int):
    path = write(tmp_path / "a.png", exact[channels][0])
    with Image.open(path) as png:
        assert np.array_equal(np.asarray(png), exact[channels][0])
        said = json.loads(png.info["Description"])
        assert (said["stain"], said["mpp"]) == ("HER2", MPP)
        assert "research use only" in said["notice"]
    vips = pyvips.Image.new_from_file(str(path))
    assert np.array_equal(vips.numpy(), exact[channels][0])
    assert 1e3 / vips.xres == pytest.approx(MPP, rel=1e-5)  # type: ignore[attr-defined]


def test_a_png_has_its_limit(tmp_path: Path):
    with pytest.raises(UsageError, match=r"a\.png: 40000×30000 px .* write a \.tif"):
        open_writer(tmp_path / "a.png", Size(30_000, 40_000), Resolution(0.5), description={})


def test_only_a_zarr_is_replaced_by_a_zarr(tmp_path: Path, image: np.ndarray):
    path = write(tmp_path / "a.zarr", image[:100, :100])
    write(path, image[:80, :120])
    assert zarr.open_group(path, mode="r")["0"].shape == (3, 80, 120)  # type: ignore[union-attr]
    (tmp_path / "mine.zarr").mkdir()
    (tmp_path / "mine.zarr" / "notes").touch()
    with pytest.raises(SheafStainError, match="is no OME-Zarr"):
        write(tmp_path / "mine.zarr", image)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "mine.zarr"]


def test_colours_survive_jpeg(tmp_path: Path):
    """The figures of docs/slides.md, on a phantom of HER2 3+ drawn without compression."""
    window = Window(0, 0, 512, 512)
    stained = Phantom(Specimen.draw(5), "HER2", Resolution(0.5), window.size).draw(window, ("ihc",))["ihc"]
    seen = tifffile.imread(write(tmp_path / "a.tif", stained))
    assert np.abs(seen.astype(int) - stained).mean() < 0.8
    before, after = (chromogen(torch.from_numpy(a).permute(2, 0, 1) / 255) for a in (stained, seen))
    assert before.mean() > 0.1, "there is brown in it"
    assert (after - before).abs().mean() < 0.04 * before.mean()
    assert (after.mean() - before.mean()).abs() < 0.004 * before.mean(), "what is lost is noise, not stain"
