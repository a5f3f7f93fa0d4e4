"""Runs as they go in practice: to the end, stopped, killed, gone on with, refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.errors import SheafStainError
from sheafstain.methods import unsb
from sheafstain.methods.model import load_model
from sheafstain.sheaf.cache import SectionCache, image_id
from sheafstain.slides.image import read_image, write_image
from sheafstain.training import data, export
from sheafstain.training.checkpoint import Checkpoints, read_checkpoint
from sheafstain.training.config import TrainConfig
from sheafstain.training.events import Event
from sheafstain.training.run import train
from sheafstain.training.settings import as_yaml
from sheafstain.window import Window

Configured = Callable[..., TrainConfig]


@pytest.fixture
def events() -> list[Event]:
    return []


def tensors_of(config: TrainConfig) -> dict[str, Tensor]:
    return read_checkpoint(Checkpoints(Path(config.output)).all()[-1])[1]


def log_of(config: TrainConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(config.output) / "log.jsonl").read_text().splitlines()]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_trained_gone_on_with_exported_and_used(configured: Configured, tmp_path: Path, events: list[Event]):
    """The whole method, with sections and stain-align from an encoder of random weights."""
    changes: dict[str, Any] = {
        "method": "sheafstain",
        "encoder.name": "random-tiny",
        "encoder.sections": str(tmp_path / "sections"),
        "settings.stain_align_from": 1,
        "watch.validate": 2,
        "batch": 1,
    }
    whole = configured(**changes, steps=4, output=str(tmp_path / "whole"))
    outcome = train(whole, tell=events.append)
    assert (outcome.step, outcome.signal, outcome.model) == (4, None, tmp_path / "whole" / "model")
    names = [event.name for event in events]
    assert names.count("step") == 2 and names.count("look") == 2 and names[:2] == ["start", "warning"]
    terms = next(event for event in events if event.name == "step").fields["losses"]
    own = ("G.sheaf", "G.cocycle", "G.fourier", "G.dab", "G.stain_align")
    assert terms.keys() == {"D.critic", "E.energy", "G.gan", "G.sb", "G.nce", *own}
    part = configured(**changes, steps=2, output=str(tmp_path / "part"))
    train(part)
    train(configured(**changes, steps=4, output=str(tmp_path / "part")), resume=True)
    assert same(tensors_of(whole), tensors_of(part))

    model = load_model(tmp_path / "part" / "model", device="cpu")
    assert (model.config.stain, model.config.mpp, model.conditioning) == ("IHC", None, "lattice")
    assert model.config.encoder == "random-tiny" and model.config.width == 192
    trained = tensors_of(whole)
    assert all(
        torch.equal(tensor, trained[f"parts.G.{name}"]) for name, tensor in model._generator.state_dict().items()
    )
    record = data.select(whole, "val")[0]
    (folder,) = (tmp_path / "sections").iterdir()
    window = Window(0, 0, 96, 96)
    section = SectionCache(folder).open(image_id(record)).restrict(window)
    he = torch.from_numpy(read_image(record.he)[window.slices]).permute(2, 0, 1)[None].float() / 127.5 - 1
    noise = CanvasNoise(torch.tensor([1]), [window], model.latent_width)
    ihc = model.translate(he, noise, section.M[None], section.c_n[None])
    assert ihc.shape == (1, 3, 96, 96) and bool(ihc.isfinite().all())
    card = (tmp_path / "part" / "model" / "README.md").read_text()
    assert "Research use only" in card and "random-tiny" in card and str(tmp_path) not in card
    assert str(tmp_path) not in (tmp_path / "part" / "model" / "config.json").read_text()


def test_sigterm_saves_and_says_how_to_go_on(configured: Configured, tmp_path: Path, events: list[Event]):
    config = configured(**{"watch.images": 0}, steps=6)

    def tell(event: Event) -> None:
        events.append(event)
        if event.name == "step" and event.fields["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    outcome = train(config, tell=tell)
    assert (outcome.step, outcome.signal, outcome.model) == (3, signal.SIGTERM, None)
    assert "stopped after step 3" in events[-1].text
    assert [path.name for path in Checkpoints(outcome.run).all()] == ["step-00000003.safetensors"]
    assert train(config, resume=True).model is not None
    whole = configured(**{"watch.images": 0}, steps=6, output=str(tmp_path / "whole"))
    train(whole)
    assert same(tensors_of(config), tensors_of(whole))
    steps = [line["step"] for line in log_of(config) if line["event"] == "step"]
    assert steps == [2, 3, 4, 6]


KILLED = """
import os, signal, sys
from sheafstain.training import checkpoint
from sheafstain.training.config import read_config
from sheafstain.training.run import train

save = checkpoint.save_file

def dies(tensors, path, about):
    save(tensors, path, about)
    if "step-00000004" in path.name:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

checkpoint.save_file = dies
train(read_config(sys.argv[1]))
"""


def test_killed_while_writing_a_checkpoint(configured: Configured, tmp_path: Path):
    changes = {"watch.images": 0, "watch.save": 2, "steps": 6}
    config = configured(**changes)
    (tmp_path / "config.yaml").write_text(as_yaml(config))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "config.yaml")]
    killed = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, timeout=240)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    held = Checkpoints(Path(config.output))
    assert [path.name for path in held.all()] == ["step-00000002.safetensors"]
    assert len(list(held.folder.iterdir())) == 2  # and what was half-written, under no final name
    assert log_of(config)[-1]["step"] == 4
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the process that was killed: sums over threads round in another order
    try:
        train(config, resume=True)
        whole = configured(**changes, output=str(tmp_path / "whole"))
        train(whole)
    finally:
        torch.set_num_threads(threads)
    assert same(tensors_of(config), tensors_of(whole))
    assert not list(held.folder.glob(".*"))
    assert [line["step"] for line in log_of(config) if line["event"] == "step"] == [2, 4, 6]
    assert json.loads((Path(config.output) / "run.json").read_text())[1]["machine"].startswith("1 × cpu")


def test_what_a_run_leaves(trained: Path):
    held = sorted(path.relative_to(trained).as_posix() for path in trained.rglob("*") if path.is_file())
    assert held == [
        "checkpoints/best.safetensors",
        "checkpoints/step-00000002.safetensors",
        "config.yaml",
        "log.jsonl",
        "model/README.md",
        "model/config.json",
        "model/model.safetensors",
        "pictures/step-00000002.png",
        "run.json",
    ]
    (start,) = json.loads((trained / "run.json").read_text())
    assert {"torch", "python", "sheafstain"} <= start["versions"].keys() and "revision" in start
    picture = read_image(trained / "pictures" / "step-00000002.png")
    assert picture.shape == (18 + 192, 4 * 176 + 3 * 6, 3)  # smaller images than a picture shows are not enlarged


def test_the_average_is_what_is_exported(trained: Path, tmp_path: Path):
    checkpoint = export.newest(trained)
    _, tensors = read_checkpoint(checkpoint)
    model = load_model(export.export(checkpoint, tmp_path / "mine"), device="cpu")
    state = model._generator.state_dict()
    assert all(torch.equal(tensor, tensors[f"average.{name}"]) for name, tensor in state.items())
    assert any(not torch.equal(tensor, tensors[f"parts.G.{name}"]) for name, tensor in state.items())
    assert model.config.name == "mine"
    assert export.newest(trained, "2") == checkpoint
    assert export.newest(trained, "best").name == "best.safetensors"
    with pytest.raises(SheafStainError, match="has no checkpoint '7'; it has 2, best"):
        export.newest(trained, "7")


def test_a_model_that_has_seen_no_tissue_says_so(configured: Configured, pairs: Path, trained: Path, tmp_path: Path):
    card = (trained / "model" / "README.md").read_text()
    assert "other scanners, stainers and tissues" in card and "phantoms" not in card
    assert not load_model(trained / "model", device="cpu").config.synthetic
    shutil.copytree(pairs, tmp_path / "drawn")
    (tmp_path / "drawn" / "manifest.json").write_text(json.dumps({"drawing": 1, "items": []}))
    train(configured(**{"data.root": str(tmp_path / "drawn"), "steps": 1}))
    assert load_model(tmp_path / "run" / "model", device="cpu").config.synthetic
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "it has never seen tissue" in card and "other scanners" not in card


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_second_start_needs_to_be_meant(configured: Configured, copied: Path):
    with pytest.raises(SheafStainError, match="holds a training already; go on with it by --resume"):
        train(configured())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings.ngf": 8}, "settings.ngf was 4, now 8"),
        ({"optimiser.lr": 1.0}, r"optimiser.lr was 0.0002, now 1.0"),
        ({"method": "cyclegan"}, "method was unsb, now cyclegan"),
        ({"schedule.decay": 9}, "schedule.decay was 2, now 9"),
    ],
)
def test_a_checkpoint_of_another_configuration(
    configured: Configured, copied: Path, changes: dict[str, Any], message: str
):
    with pytest.raises(SheafStainError, match=f"step-00000002.safetensors: of another training.*{message}"):
        train(configured(**{"optimiser.ema": 10}, **changes), resume=True)


def test_a_checkpoint_of_other_pairs(configured: Configured, copied: Path, tmp_path: Path, pairs: Path):
    other = shutil.copytree(pairs, tmp_path / "other")
    config = configured(**{"optimiser.ema": 10, "data.root": str(other)}, steps=3)
    for side in ("HE", "IHC"):
        (other / side / "train" / "2.png").rename(other / side / "train" / "3.png")
    with pytest.raises(SheafStainError, match=r"of another training.*records was"):
        train(config, resume=True)
    for side in ("HE", "IHC"):
        (other / side / "train" / "3.png").rename(other / side / "train" / "2.png")
    assert train(config, resume=True).step == 3  # the folder itself may move


def test_a_truncated_checkpoint(configured: Configured, copied: Path):
    path = copied / "checkpoints" / "step-00000002.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SheafStainError, match=r"step-00000002.safetensors: not a whole checkpoint"):
        train(configured(**{"optimiser.ema": 10}), resume=True)


def test_an_encoder_of_another_width(configured: Configured, tmp_path: Path):
    changes = {"method": "sheafstain", "settings.stain_align": 0, "encoder.sections": str(tmp_path / "s"), "batch": 1}
    train(configured(**changes, **{"encoder.name": "random-tiny"}, steps=1))
    (folder,) = (tmp_path / "s").iterdir()
    note = json.loads((folder / "cache.json").read_text())
    (folder / "cache.json").write_text(json.dumps(note | {"width": 384}))
    config = configured(**changes, **{"encoder.name": "random-tiny"}, steps=2)
    with pytest.raises(SheafStainError, match=r"cache.json: describes other sections") as caught:
        train(config, resume=True)
    assert "\n" not in str(caught.value)


def test_a_loss_that_is_not_finite_leaves_the_last_checkpoint(configured: Configured, monkeypatch: pytest.MonkeyPatch):
    losses = [unsb.critic_loss, unsb.critic_loss, lambda *logits: torch.tensor(torch.nan) * logits[0].sum()]
    monkeypatch.setattr(unsb, "critic_loss", lambda *logits: losses.pop(0)(*logits))
    config = configured(**{"watch.images": 0, "watch.save": 1}, steps=5)
    with pytest.raises(SheafStainError, match=r"not-finite-step-2-.*not finite since step 3: D.critic.*--resume"):
        train(config)
    assert list(Path(config.output).glob("not-finite-*.safetensors"))
    assert [path.stem for path in Checkpoints(Path(config.output)).all()] == ["step-00000001", "step-00000002"]
    assert all(bool(tensor.isfinite().all()) for tensor in tensors_of(config).values())
    assert not (Path(config.output) / "model").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.train": "test"}, "no pair of split 'test'.*splits train, val"),
        ({"data.stain": "ER"}, "no pair of split 'train' and stain 'ER'"),
        ({"data.root": "/nowhere"}, "/nowhere: no such folder"),
        ({"data.window": 192}, r"HE/train/0.png: 176×192 px are too few for windows of 192 px.*--data.window"),
        ({"data.window": 128, "method": "sheafstain", "settings.conditioning": "none", "settings.stain_align": 0},
         "too few for windows of 128 px and their neighbours, which need 192"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_learned_from(configured: Configured, changes: dict[str, Any], message: str):
    with pytest.raises(SheafStainError, match=message) as caught:
        train(configured(**changes))
    assert "\n" not in str(caught.value)


def test_partners_of_two_sizes(configured: Configured, pairs: Path, tmp_path: Path):
    other = shutil.copytree(pairs, tmp_path / "other")
    write_image(other / "IHC" / "train" / "1.png", np.zeros((192, 192, 3), np.uint8))
    with pytest.raises(SheafStainError, match=r"IHC/train/1.png: is of 192×192 px and its H&E of 176×192"):
        train(configured(**{"data.root": str(other)}))
