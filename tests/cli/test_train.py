"""``sheafstain train`` and ``sheafstain export`` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from sheafstain.slides.image import write_image
from sheafstain.training.loop import Loop

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")

Call = Callable[..., tuple[int, str, str]]

SMALL = {
    "method": "unsb",
    "settings": {"ngf": 4, "ndf": 4, "blocks": 1, "positions": 16},
    "data": {"root": "data", "window": 96},
    "schedule": {"constant": 1, "decay": 0},
    "batch": 2,
    "watch": {"log": 1, "images": 1, "tensorboard": False},
    "engine": {"device": "cpu"},
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration, with its data set, in the folder that is worked in."""
    rng = np.random.default_rng(0)
    for side in ("HE", "IHC"):
        for split in ("train", "val"):
            (tmp_path / "data" / side / split).mkdir(parents=True)
            image = rng.integers(0, 200, (128, 128, 3), dtype=np.uint8)
            write_image(tmp_path / "data" / side / split / "a.png", image)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def test_a_training_and_its_model(config: Path, call: Call):
    code, out, err = call("train", config, "--watch.save", "1", "-o", "out/run")
    assert code == 0, err
    assert "step 2/2  epoch 1/1" in out and "G.nce" in out and "held out: psnr" in out
    assert out.splitlines()[-1] == "out/run/model: the trained model"
    assert yaml.safe_load(Path("out/run/config.yaml").read_text())["watch"]["save"] == 1
    code, out, _ = call("export", "out/run", "--checkpoint", "1", "-o", "out/early", "--json")
    assert code == 0
    (line,) = (json.loads(line) for line in out.splitlines())
    assert line == {
        "event": "model",
        "path": "out/early",
        "checkpoint": "out/run/checkpoints/step-00000001.safetensors",
    }
    assert json.loads(Path("out/early/config.json").read_text())["name"] == "run"
    code, _, err = call("export", "out/run", "--checkpoint", "9")
    assert code == 1 and "has no checkpoint '9'; it has 1, 2, best" in err


def test_machines_read_the_same(config: Path, call: Call):
    code, out, _ = call("train", config, "--json", "-o", "out/run")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    names = [event["event"] for event in events if event["event"] != "progress"]
    assert names == ["start", "step", "step", "look", "checkpoint", "model"]
    steps = [event for event in events if event["event"] == "step"]
    assert [step["step"] for step in steps] == [1, 2]
    assert steps[0].keys() >= {"epoch", "losses", "images_per_second", "memory", "seconds_left", "lr"}


def test_the_resolved_configuration_is_shown(config: Path, call: Call):
    code, out, _ = call("train", config, "--show", "--batch=7")
    shown = yaml.safe_load(out)
    assert code == 0 and shown["batch"] == 7 and shown["optimiser"]["betas"] == [0.5, 0.999]
    assert not Path("out").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_stopped_and_gone_on_with(
    config: Path, call: Call, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
):
    take_step = Loop.take_step

    def interrupted(self: Loop) -> None:
        take_step(self)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Loop, "take_step", interrupted)
    got, out, _ = call("train", config, "-o", "out/run")
    assert got == code and "stopped after step 1, saved; --resume goes on" in out
    monkeypatch.undo()
    monkeypatch.chdir(config.parent)
    got, out, err = call("train", "out/run", "--resume")  # the folder knows its configuration
    assert got == 0, err
    assert "goes on from step-00000001.safetensors" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--settings.ngff", "8"], 2, "--settings.ngff: there is no setting 'settings.ngff'; did you mean"),
        (["--batch", "many"], 2, "--batch: batch is a whole number, not 'many'"),
        (["--data.root", "nowhere"], 1, "nowhere: no such folder"),
        (["--data.held_out", "test"], 2, "no pair of split 'test'"),
        (["--engine.device", "cuda:77"], 2, "there is no device 'cuda:77' here"),
        (["--data.window", "128", "--method", "cut"], 2, "--method: there is no method 'cut'"),
        (["--data.window", "160"], 1, "too few for windows of 160 px"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(config: Path, call: Call, arguments: list[str], code: int, message: str):
    got, _, err = call("train", config, "-o", "out/run", *arguments)
    assert got == code and message in err.splitlines()[-1]
    assert not Path("out/run/checkpoints").exists()


def test_a_configuration_that_is_not_there(call: Call, tmp_path: Path):
    code, _, err = call("train", tmp_path / "none.yaml")
    assert code == 2 and "none.yaml: no such configuration" in err
