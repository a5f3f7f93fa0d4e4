"""The demonstration as a user meets it, with a model that knows nothing; and its figures, computed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sheafstain import hub
from sheafstain.methods.model import ModelConfig, save_model
from sheafstain.methods.registry import METHODS
from sheafstain.methods.sheafstain import SheafStainSettings
from sheafstain.slides.image import read_image
from sheafstain.slides.read import open_slide
from sheafstain.studies.demo import Files, agreement, dab, marker_of
from sheafstain.studies.stained_page import around, page_of
from sheafstain.window import Resolution, Size, Window

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")

Call = Callable[..., tuple[int, str, str]]
Elements = Callable[[str], set[str]]
SMALL = ("--size", "320", "--slide", "576x512", "--workers", "1")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setenv(hub.WEIGHTS_VARIABLE, str(tmp_path / "weights"))
    monkeypatch.chdir(tmp_path)


def save(name: str = "her2", stain: str = "HER2", mpp: float | None = 0.5, *, synthetic: bool = True) -> None:
    torch.manual_seed(0)
    settings = {"ngf": 4, "blocks": 1, "T": 2, "conditioning": "none"}
    generator = METHODS["sheafstain"].build_generator(SheafStainSettings(**settings), 0)
    told = {"synthetic": synthetic}
    config = ModelConfig(name=name, method="sheafstain", stain=stain, mpp=mpp, settings=settings, training=told)
    save_model(hub.shipped_folder() / name, config, generator, f"# {name}")


def test_all_of_it(call: Call, elements_of: Elements):
    save()
    code, out, err = call("demo", *SMALL)
    assert code == 0, err
    assert {path.name for path in Path("demo").iterdir()} == {
        *("he.png", "consecutive.png", "truth.png", "phantom.png", "slide.tif", "score", "report.html", "picture.jpg"),
        *("her2.png", "her2.defect.png", "her2.json"),
        *("slide-her2.tif", "slide-her2.defect.tif", "slide-her2.json"),
    }
    assert read_image("demo/her2.png").shape == read_image("demo/truth.png").shape == (320, 320, 3)
    with open_slide(Path("demo/slide-her2.tif")) as slide:
        assert slide.size == Size(512, 576) and slide.resolution == Resolution(0.5)
    for stained in ("her2", "slide-her2"):
        assert json.loads(Path(f"demo/{stained}.json").read_text())["protocol"]["nfe"] == 2

    html = Path("demo/report.html").read_text()
    elements_of(html)
    assert (
        html.count("<img ") == 4 + 2 + 3 + 3 and "correlate with r = " in html and "Virtual HER2, demonstrated" in html
    )
    assert "has learned from phantoms alone" in html and err.count("synthetic tissue alone") == 1
    assert "demo/report.html: the page to open" in out and "Research use only" in out
    for line in out.partition("What next:")[2].splitlines():
        if line.startswith("  sheafstain"):
            assert line.strip() in html

    panels = np.split(read_image("demo/picture.jpg"), [320, 328, 648, 656, 976, 984], axis=1)
    for panel, name in zip(panels[::2], ("he", "her2", "truth"), strict=False):
        assert np.abs(panel - read_image(f"demo/{name}.png").astype(int)).mean() < 4  # it is a JPEG
    assert panels[-1].shape == (320, 320, 3) and all((gap > 200).all() for gap in panels[1::2])

    # the yardsticks do not depend on the model: brown is where the truth has it
    scores = {path.stem: json.loads(path.read_text()) for path in Path("demo/score").iterdir()}
    assert set(scores) == {"stain", "consecutive", "input", "stain-against-consecutive"}
    r = {name: next(m["value"] for m in said["results"] if m["key"] == "dab-r") for name, said in scores.items()}
    maps = [dab(Path("demo") / f"{name}.png").ravel() for name in ("consecutive", "truth")]
    assert r["consecutive"] == pytest.approx(np.corrcoef(maps)[0, 1], abs=1e-3)

    code, _, err = call("demo", *SMALL)
    assert code == 2 and "demo: holds something already" in err
    code, out, _ = call("demo", *SMALL, "--overwrite", "--json")
    assert code == 0
    last = json.loads(out.splitlines()[-1])
    assert last["event"] == "demo" and last["figures"]["dab-r"] == r["stain"]  # the same seed, the same pixels


def test_another_marker_and_pixel_size(call: Call):
    save("mine", "Ki-67", 0.46, synthetic=False)
    code, _, err = call("demo", "-m", "mine", "-o", "out/shown", *SMALL, "--seed", "3")
    assert code == 0 and "synthetic tissue alone" not in err
    assert read_image("out/shown/ki67.png").shape == (320, 320, 3)
    with open_slide(Path("out/shown/slide-ki67.tif")) as slide:
        assert slide.resolution == Resolution(0.46)
    assert "has learned from phantoms" not in Path("out/shown/report.html").read_text()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 1, "her2: no such folder, and no model of that name is here"),
        (("--size", "big"), 2, "--size is WIDTHxHEIGHT in pixels"),
        (("--slide", "600x500"), 2, "--slide starts at 512 px a side"),
        (("--size", "100"), 2, "--size starts at 256 px a side"),
        (("--seed", "99999999"), 2, "--seed is from 0 to"),
        (("-o", "file"), 2, "file: is a file; give a folder"),
        (("-m", "other"), 1, "other: draws CD3, and a phantom shows HER2, ER, PR, Ki67"),
    ],
)
def test_what_cannot_be_shown_is_said_before_anything_is_written(
    call: Call, options: tuple[str, ...], code: int, said: str
):
    Path("file").touch()
    save("other", "CD3")
    if "--slide" in options:
        save()
    got, _, err = call("demo", *options)
    assert got == code and said in err and len(err.strip().splitlines()) == 1
    assert not Path("demo").exists()


def test_the_marker_of_a_model(monkeypatch: pytest.MonkeyPatch):
    class Told:
        def __init__(self, stain: str) -> None:
            self.config = ModelConfig(name="m", method="unsb", stain=stain, mpp=None, settings={})

    assert [marker_of(Told(stain)) for stain in ("HER2", "Ki-67", "ki67", "er")] == ["HER2", "Ki67", "Ki67", "ER"]  # type: ignore[arg-type]


def test_defect_and_error_agree_by_pearson_over_squares():
    rng = np.random.default_rng(0)
    defects, errors = rng.random((2, 3, 4)).astype(np.float32)
    spread = np.ones((32, 32), np.float32)
    rms, error = np.kron(defects, spread), np.kron(errors, spread)
    assert agreement(rms, error) == pytest.approx(np.corrcoef(defects.ravel(), errors.ravel())[0, 1], abs=1e-5)
    rms[:32, :32] = np.nan  # undefined: left out
    expected = np.corrcoef(defects.ravel()[1:], errors.ravel()[1:])[0, 1]
    assert agreement(rms, error) == pytest.approx(expected, abs=1e-5)
    assert agreement(np.zeros_like(rms), error) is None
    assert agreement(np.full_like(rms, np.nan), error) is None


def test_a_place_is_moved_into_the_image():
    size = Size(1000, 2000)
    assert around(Window(0, 0, 256, 256), size) == Window(0, 0, 512, 512)
    assert around(Window(400, 800, 256, 256), size) == Window(272, 672, 512, 512)
    assert around(Window(900, 1900, 100, 100), size) == Window(488, 1488, 512, 512)
    assert around(Window(0, 0, 256, 256), Size(300, 2000)) == Window(0, 0, 300, 512)


def test_the_page_of_any_output(call: Call, elements_of: Elements):
    save()
    assert call("demo", *SMALL)[0] == 0
    files = Files(Path("demo"), "HER2")
    for stained, he in ((files.stained, files.he), (files.stained_slide, files.slide)):
        html = page_of(stained, he)
        elements_of(html)
        assert "Virtual HER2" in html and he.name in html
    part = Path("demo/part.png")
    assert call("stain", files.slide, "-o", part, "-m", "her2", "--region", "64,0,512,300")[0] == 0
    elements_of(page_of(part, files.slide))
    from sheafstain.errors import SheafStainError

    with pytest.raises(SheafStainError, match="name an image or slide that sheafstain stain wrote"):
        page_of(files.he, files.he)
    with pytest.raises(SheafStainError, match="not the"):
        page_of(files.stained, files.slide)
