"""``sheafstain her2`` from data set to figure."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cyclopts import App

from sheafstain.cli.console import console
from sheafstain.cli.her2 import _time, her2
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.image import write_image

GRADES = ("0", "1+", "2+", "3+")
FAST = {"backbone": "resnet18", "init": "random", "epochs": 1, "batch": 4, "lr": 1e-3, "device": "cpu", "workers": 1}


@pytest.fixture(scope="module")
def bci(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images of 64 px to train on and eight to test on, grades in turn."""
    root = tmp_path_factory.mktemp("data") / "BCI"
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for i in range(8):
            for stain in ("HE", "IHC"):
                folder = root / stain / split
                folder.mkdir(parents=True, exist_ok=True)
                pixels = rng.normal(120 + 30 * (i % 4), 20, (64, 64, 3)).clip(0, 255).astype(np.uint8)
                write_image(folder / f"{i:05d}_{split}_{GRADES[i % 4]}.png", pixels)
    return root


@pytest.fixture(scope="module")
def runs(bci: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ceiling and a method that translates nothing."""
    out = tmp_path_factory.mktemp("out") / "her2"
    her2(bci, output=out, **FAST)  # type: ignore[arg-type]
    her2(bci, translated=bci / "HE" / "train", name="untranslated", output=out, **FAST)  # type: ignore[arg-type]
    return out


def test_a_run_writes_all_it_says(runs: Path):
    pytest.importorskip("matplotlib")
    written = {path.name for path in runs.iterdir()}
    for name in ("real-ihc", "untranslated"):
        assert written >= {f"{name}.{suffix}" for suffix in ("json", "csv", "md", "png", "safetensors")}
    result = json.loads((runs / "untranslated.json").read_text())
    assert result["trained_on"] == "translated"
    assert result["train"]["folder"].endswith("HE/train") and result["test"]["folder"].endswith("IHC/test")
    assert {result["test"][name] for name in ("Low", "High")} == {4}
    assert len(result["losses"]) == 1
    with (runs / "untranslated.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8


def test_run_again_it_is_scored_and_not_trained(bci: Path, runs: Path, capsys: pytest.CaptureFixture[str]):
    before = (runs / "real-ihc.json").read_bytes(), (runs / "real-ihc.safetensors").stat().st_mtime_ns
    her2(bci, output=runs, **FAST)  # type: ignore[arg-type]
    assert ((runs / "real-ihc.json").read_bytes(), (runs / "real-ihc.safetensors").stat().st_mtime_ns) == before
    out = capsys.readouterr().out
    assert "1 of 1 epochs were trained before" in out
    for said in ("always High", "patient", "departs from the paper: epochs 1, the paper has 100", "2+ counts as High"):
        assert said in out, said


def test_several_in_one_table_and_figure(runs: Path, capsys: pytest.CaptureFixture[str]):
    her2(compare=(runs / "real-ihc.json", runs / "untranslated.json"), output=runs / "both")
    text = (runs / "both" / "comparison.md").read_text()
    assert "| real-ihc |" in text and "| untranslated |" in text and "paper: UNSB" not in text
    assert "AUROC − real-ihc" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    assert (runs / "both" / "comparison.png").stat().st_size > 10_000


def test_machines_get_json_lines_only(
    bci: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(console, "json", True)
    her2(bci, output=tmp_path, **(FAST | {"epochs": 2}))  # type: ignore[arg-type]
    her2(compare=(runs / "real-ihc.json", runs / "untranslated.json"), output=tmp_path)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_name = {event["event"]: event for event in events}
    assert {"progress", "epoch", "her2", "her2-comparison"} <= by_name.keys()
    epochs = [event for event in events if event["event"] == "epoch"]
    assert [event["epoch"] for event in epochs] == [1, 2] and epochs[0]["left"] > epochs[1]["left"] == 0
    assert by_name["her2"]["measures"]["auroc"]["value"] >= 0 and by_name["her2"]["caveats"]
    assert [result["name"] for result in by_name["her2-comparison"]["results"]] == ["real-ihc", "untranslated"]


def test_without_matplotlib_all_but_the_figure_is_written(
    bci: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    her2(compare=(runs / "real-ihc.json", runs / "untranslated.json"), output=tmp_path)
    assert "pip install 'sheafstain[plots]'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.md"]


def test_names(bci: Path, tmp_path: Path):
    folder = tmp_path / "my method (v2)"
    shutil.copytree(bci / "HE" / "train", folder)
    her2(bci, translated=folder, output=tmp_path / "out", **FAST)  # type: ignore[arg-type]
    assert (tmp_path / "out" / "my-method-v2-.json").is_file()
    for name in ("a/b", "", "..", "comparison"):
        with pytest.raises(UsageError, match="--name"):
            her2(bci, output=tmp_path, name=name, **FAST)  # type: ignore[arg-type]


def test_bad_use_leaves_nothing(bci: Path, runs: Path, tmp_path: Path):
    out = tmp_path / "out"
    cases: list[tuple[dict[str, object], type[SheafStainError], str]] = [
        ({"data": None}, UsageError, "name the folder of a BCI data set, or --compare"),
        ({"compare": (runs / "real-ihc.json",)}, UsageError, "leave out the data set"),
        ({"data": None, "compare": (runs / "real-ihc.json",)}, UsageError, "two results or more"),
        ({"workers": 0}, UsageError, "--workers"),
        ({"translated": bci / "IHC" / "test"}, SheafStainError, "no translation of 8 of the 8 training images"),
        ({"init": "imagenet"}, SheafStainError, "resnet18-f37072fd.pth"),
        ({"data": tmp_path / "nowhere"}, SheafStainError, "no such folder"),
    ]
    for options, kind, said in cases:
        with pytest.MonkeyPatch.context() as patch:
            for variable in ("SHEAFSTAIN_WEIGHTS", "TORCH_HOME"):
                patch.setenv(variable, str(tmp_path / "no-weights"))
            patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no-weights"))
            with pytest.raises(kind, match=said):
                her2(**({"data": bci, "output": out} | FAST | options))  # type: ignore[arg-type]
        assert not out.exists()


def test_the_command_line():
    app = App()
    app.default(her2)
    _, bound, _ = app.parse_args(["--compare", "a.json", "b.json", "-o", "out"], exit_on_error=False, print_error=False)
    assert bound.arguments == {"compare": (Path("a.json"), Path("b.json")), "output": Path("out")}
    _, bound, _ = app.parse_args(["BCI", "--translated", "mine", "--seed", "3"], exit_on_error=False, print_error=False)
    assert bound.arguments == {"data": Path("BCI"), "translated": Path("mine"), "seed": 3}


def test_phantoms(tmp_path: Path):
    """A set as "sheafstain data phantom --layout bci" draws it, one field of 128 px from each specimen."""
    from sheafstain.datasets.phantom.dataset import write_dataset
    from sheafstain.datasets.phantom.plan import Plan
    from sheafstain.window import Resolution, Size

    def both(plan: Plan, split: str) -> bool:
        return len({item.name("bci")[-2:] in ("2+", "3+") for item in plan.items() if item.split == split}) == 2

    plans = (Plan("bci", seed, 3, 3, ("HER2",), Size(128, 128), Resolution(0.5), 1, False) for seed in range(20))
    plan = next(plan for plan in plans if both(plan, "train") and both(plan, "val"))
    write_dataset(tmp_path / "set", plan, workers=1)
    her2(tmp_path / "set", output=tmp_path / "out", **FAST)  # type: ignore[arg-type]
    result = json.loads((tmp_path / "out" / "real-ihc.json").read_text())
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    drawn = {item["id"]: item["her2"] for item in manifest["items"] if item["split"] == "val"}
    assert {image["name"]: image["grade"] for image in result["images"]} == drawn


@pytest.mark.parametrize(
    ("seconds", "said"), [(8.4, "8 s"), (300, "5 min"), (5400, "1 h 30 min"), (36_000, "10 h 00 min")]
)
def test_time_left(seconds: float, said: str):
    assert _time(seconds) == said
