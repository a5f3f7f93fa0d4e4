"""The guides are walked through: every command and snippet of these pages runs, in its order, on small phantoms.

What stands in the pages is meant for real data. ``SMALLER`` says what is different here: sizes, steps, and an encoder
that is no download. Nothing else is changed, so a renamed option, key, file or function is found.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sheafstain import hub
from sheafstain.datasets.phantom.dataset import write_dataset
from sheafstain.datasets.phantom.plan import Plan
from sheafstain.datasets.phantom.slide import write_slide
from sheafstain.methods.model import ModelConfig, save_model
from sheafstain.methods.registry import METHODS
from sheafstain.methods.sheafstain import SheafStainSettings
from sheafstain.window import Resolution, Size

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")

ROOT = Path(__file__).parents[1]
GUIDES = ("quickstart", "train_your_own", "own_encoder", "defect")
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

_NETWORKS = "--settings.ngf 4 --settings.ndf 4 --settings.blocks 1 --settings.positions 16 --data.window 96"
_TRAINING = f"{_NETWORKS} --steps 1 --watch.images 1 --watch.tensorboard false"
SMALLER = (
    (r"\bprov-gigapath\b", "random-tiny"),
    (r"--batch 24", "--batch 2"),
    (r"--limit 50", "--limit 1 --pairs 1"),
    (r"^(sheafstain demo)", r"\1 --size 320 --slide 576x512 --workers 1"),
    (r"^(sheafstain train \S*paper\S*)(?!.*--encoder)", r"\1 --encoder.name random-tiny"),
    (r"^(sheafstain train \S+)", rf"\1 {_TRAINING}"),
    (r"^(sheafstain score .*)", r"\1 --workers 1"),
)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the guides suppose it: data sets in their layouts, a slide, an image, and models by name."""
    root = tmp_path_factory.mktemp("guides")
    for name, layout, marker in (("BCI_dataset", "bci", "HER2"), ("MIST", "mist", "ER"), ("ours", "pairs", "PR")):
        plan = Plan(layout, 5, 2, 2, (marker,), Size(320, 320), Resolution(0.5), 1, False)
        write_dataset(root / "data" / name, plan, workers=1)
    shutil.copyfile(next((root / "data/ours/HE/val").iterdir()), root / "field.png")
    write_slide(root / "slide.tif", 5, Size(512, 640), Resolution(0.5), workers=1)
    (root / "slide.tif").rename(root / "slide.svs")
    torch.manual_seed(0)
    settings = {"ngf": 4, "blocks": 1, "T": 2, "conditioning": "none"}
    for name, stain in (("her2", "HER2"), ("ki67", "Ki67")):
        generator = METHODS["sheafstain"].build_generator(SheafStainSettings(**settings), 0)
        told = {"synthetic": True}
        config = ModelConfig(name=name, method="sheafstain", stain=stain, mpp=0.5, settings=settings, training=told)
        save_model(root / "weights" / name, config, generator, f"# {name}")
    (root / "configs").symlink_to(ROOT / "configs")
    return root


def smaller(command: str) -> list[str]:
    for pattern, small in SMALLER:
        command = re.sub(pattern, small, command)
    return command.split()


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_is_walked_through(
    guide: str, template: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]], monkeypatch
):
    monkeypatch.chdir(shutil.copytree(template, tmp_path / "here", symlinks=True))
    monkeypatch.setenv(hub.WEIGHTS_VARIABLE, str(tmp_path / "here" / "weights"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = 0
    for language, text in BLOCK.findall((ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(text, f"{guide}.md", "exec"), {"__name__": "__main__"})
            continue
        for line in text.splitlines():
            program, *arguments = smaller(line.removeprefix("$ "))
            if program == "make":  # it would set up an environment; what it runs is in the page, too
                continue
            assert program == "sheafstain", line
            code, out, err = call(*arguments)
            assert code == 0, f"{line}\n{out}\n{err}"
            ran += 1
    assert ran
    if guide == "train_your_own":
        assert "sheafstain" in Path("out/table/comparison.md").read_text()


def test_the_colours_of_the_defect_guide():
    """Two windows of equal weight; Beer–Lambert on 8 bits by hand."""
    rows = np.array([[0.650, 0.704, 0.286], [0.268, 0.570, 0.776]])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def colour(haematoxylin: float, dab: float) -> np.ndarray:
        return (256 * np.exp(-np.array([haematoxylin, dab]) @ rows) - 1) / 255

    white, blue, pale = colour(0, 0), colour(0.5, 0), colour(0.15, 0)
    weak, brown, dark = colour(0.1, 0.2), colour(0.2, 0.5), colour(0.2, 0.9)
    rms = [
        f"{np.sqrt(np.mean(((one - other) / 2) ** 2)):.2f}"
        for one, other in ((pale, weak), (blue, brown), (blue, dark), (weak, dark), (white, dark))
    ]
    page = (ROOT / "docs" / "defect.md").read_text(encoding="utf-8")
    table = page.partition("| one window | the other | RMS |")[2].partition("\n\n")[0]
    assert re.findall(r"\| (\d\.\d\d) \|", table) == rms
