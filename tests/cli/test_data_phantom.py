"""``sheafstain data phantom`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.specimen import Specimen
from sheafstain.slides.image import image_size, read_image
from sheafstain.window import Resolution, Size, Window

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")  # the command line is what is tested

TWO = ("--train", "1", "--val", "1", "--fields", "1", "--workers", "1")
SMALL = ("--size", "128x96", *TWO)
Call = Callable[..., tuple[int, str, str]]


def test_a_set_and_its_picture(call: Call, tmp_path: Path) -> None:
    picture = tmp_path / "look.png"
    code, out, err = call("data", "phantom", tmp_path / "set", *SMALL, "--truth", "--picture", picture)
    assert code == 0
    assert f"{tmp_path / 'set'}: 2 pairs, layout pairs, 128×96 px at 0.5 µm/px" in out
    assert "drawing: 2/2 pairs" in err
    files = {path.relative_to(tmp_path / "set").parts[0] for path in (tmp_path / "set").rglob("*.png")}
    assert files == {"HE", "IHC", "truth"}
    pictures = [path for path in (tmp_path / "set").rglob("*.png") if path.parent.name != "nuclei"]  # 16-bit labels
    assert all(image_size(path) == Size(96, 128) for path in pictures)
    assert read_image(picture).std() > 20
    assert call("data", "check", tmp_path / "set")[0] == 1  # smaller than one patch, and said so
    code, out, _ = call("data", "phantom", tmp_path / "set", *SMALL, "--truth")
    assert code == 0
    assert "0 drawn now" in out


def test_sets_of_one_laboratory(call: Call, tmp_path: Path) -> None:
    for variation in ("0", "1"):
        code, _, _ = call("data", "phantom", tmp_path / variation, *SMALL, "--ihc-variation", variation)
        assert code == 0
        assert json.loads((tmp_path / variation / "manifest.json").read_text())["ihc_variation"] == float(variation)
    one, other = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.png")}
        for name in ("0", "1")
    )
    assert {path.parts[0] for path in one if one[path] != other[path]} == {"IHC"}
    code, _, err = call("data", "phantom", tmp_path / "set", *SMALL, "--ihc-variation", "1.5")
    assert code == 2
    assert "the variation of the IHC is from 0 to 1, not 1.5" in err


def test_json_lines(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("--json", "data", "phantom", tmp_path / "set", *SMALL)
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert events[-1] == {
        "event": "phantom",
        "path": str(tmp_path / "set"),
        "pairs": 2,
        "drawn": 2,
        "layout": "pairs",
        "seed": 0,
    }
    assert {event["event"] for event in events} == {"progress", "phantom"}


def test_a_slide_is_the_phantom(call: Call, tmp_path: Path) -> None:
    """Read back by OpenSlide: size, pixel size, levels, colours; odd sizes, blocks of two processes."""
    import openslide

    path = tmp_path / "slide.tif"
    code, out, _ = call("data", "phantom", path, "--slide", "1100x700", "--mpp", "0.4", "--seed", "3", "--workers", "2")
    assert code == 0
    assert "1100×700 px at 0.4 µm/px" in out
    assert [entry.name for entry in tmp_path.iterdir()] == ["slide.tif"]
    with openslide.OpenSlide(path) as slide:
        assert slide.dimensions == (1100, 700)
        assert slide.level_count == 4
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(0.4, rel=1e-3)
        assert "research use only" in slide.properties["tiff.ImageDescription"]
        read = np.asarray(slide.read_region((300, 250), 0, (400, 300)).convert("RGB")).astype(int)
    phantom = Phantom(Specimen.draw(3), "HER2", Resolution(0.4), Size(700, 1100))
    assert np.abs(read - phantom.he(Window(250, 300, 300, 400))).mean() < 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--layout", "cityscapes"), 2, "--layout"),
        (("--size", "big"), 2, "WIDTHxHEIGHT"),
        (("--size", "20x20"), 2, "64 to 8192"),
        (("--mpp", "7"), 2, "0.1 to 2"),
        (("--seed", "-1"), 2, "--seed"),
        (("--workers", "0"), 2, "at least 1"),
        (("--marker", "ER", "--marker", "PR"), 2, "use --layout mist"),
        (("--layout", "bci", "--marker", "ER"), 2, "bci is a HER2 set"),
        (("--slide", "2000x2000"), 2, "end its name in .tif"),
        (("--train", "0", "--val", "0"), 2, "at least one pair"),
    ],
)
def test_bad_use_is_one_line(call: Call, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    left, out, err = call("data", "phantom", tmp_path / "out", *arguments)
    assert left == code
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_slide_in_a_folder_that_is_not_there(call: Call, tmp_path: Path) -> None:
    code, _, err = call("data", "phantom", tmp_path / "no" / "slide.tif", "--slide", "600x600")
    assert code == 1
    assert "no such folder" in err


def test_a_full_disk(call: Call, tiny_disk: Path) -> None:
    code, _, err = call("data", "phantom", tiny_disk / "set", *TWO, "--size", "512x512")
    assert code == 1
    assert "the disk is full" in err
    assert err.strip().splitlines()[-1].startswith(f"sheafstain: {tiny_disk / 'set'}")
    assert [path for path in tiny_disk.rglob("*") if path.name.endswith(".part")] == []
    for path in tiny_disk.rglob("*.png"):
        read_image(path)  # what is there is whole


def test_a_full_disk_leaves_no_slide(call: Call, tiny_disk: Path) -> None:
    code, _, err = call("data", "phantom", tiny_disk / "slide.tif", "--slide", "1024x1024", "--workers", "1")
    assert code == 1
    assert f"{tiny_disk / 'slide.tif'}: the disk is full" in err
    assert list(tiny_disk.iterdir()) == []


def test_a_read_only_folder(call: Call, tiny_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    code, _, err = call("data", "phantom", tiny_disk / "set", *SMALL)
    assert code == 1
    assert "read-only" in err
    assert err.strip().count("\n") == 0
