from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from sheafstain import hub
from sheafstain.bridge.noise import CanvasNoise
from sheafstain.errors import SheafStainError
from sheafstain.methods.engine import Engine
from sheafstain.methods.model import ModelConfig, find_model, load_model, save_model
from sheafstain.methods.registry import METHODS
from sheafstain.window import Window

SETTINGS: dict[str, dict[str, Any]] = {
    "sheafstain": {"ngf": 8, "ndf": 8, "blocks": 2, "stain_align": 0.0},
    "unsb": {"ngf": 8, "blocks": 2, "as_released": True},
    "cyclegan": {"ngf": 8, "blocks": 2},
    "pix2pix": {"ngf": 8, "depth": 6},
}


def save(folder: Path, name: str = "sheafstain", *, half: bool = False) -> tuple[Path, torch.nn.Module]:
    torch.manual_seed(3)
    entry, width = METHODS[name], 6 if name == "sheafstain" else 0
    settings = entry.settings(**SETTINGS[name])
    generator = entry.build_generator(settings, width)
    config = ModelConfig("mine", name, "HER2", 0.5, asdict(settings), width, training={"steps": 3})
    return save_model(folder, config, generator, "# A card\n", half=half), generator


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_model_translates_as_the_method_does(tmp_path: Path, name: str) -> None:
    folder, generator = save(tmp_path / name, name)
    model = load_model(folder, device="cpu")
    he = torch.rand(2, 3, 64, 64) * 2 - 1
    windows = [Window(0, 0, 64, 64), Window(0, 48, 64, 64)]
    noise = CanvasNoise(torch.tensor([7, 7]), windows, model.latent_width)
    M, c_n = (torch.randn(2, 6, 4, 4), torch.randn(2, 6)) if name == "sheafstain" else (None, None)
    out = model.translate(he, noise, M, c_n)
    assert out.shape == he.shape and out.dtype == torch.float32 and out.abs().max() <= 1
    entry = METHODS[name]
    with torch.no_grad():
        true = entry.translate(generator.eval(), entry.settings(**SETTINGS[name]), he, noise, M, c_n, None)
    assert torch.equal(out, true)
    assert model.conditioning == ("lattice" if name == "sheafstain" else "none")
    assert model.hash == hub.content_hash(folder / hub.SAFE)


def test_the_folder_is_complete_and_holds_no_pickle(tmp_path: Path) -> None:
    folder, _ = save(tmp_path / "m")
    assert {p.name for p in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    content = json.loads((folder / "config.json").read_text())
    assert content["stain"] == "HER2" and content["training"] == {"steps": 3}


def test_half_precision_is_half_the_size_and_loads_as_float32(tmp_path: Path) -> None:
    whole, generator = save(tmp_path / "whole")
    half, _ = save(tmp_path / "half", half=True)
    sizes = [(folder / hub.SAFE).stat().st_size for folder in (whole, half)]
    assert 0.45 < sizes[1] / sizes[0] < 0.6
    state = load_model(half, device="cpu")._generator.state_dict()
    for name, tensor in generator.state_dict().items():
        assert state[name].dtype == torch.float32
        assert torch.allclose(state[name], tensor, atol=1e-3)


def test_models_are_found_by_name_and_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub.WEIGHTS_VARIABLE, str(tmp_path / "weights"))
    folder, _ = save(tmp_path / "weights" / "mine")
    assert find_model("mine") == folder / hub.SAFE
    snapshot = tmp_path / "hub" / "models--someone--stain" / "snapshots" / "abc"
    save(snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_model("someone/stain") == snapshot / hub.SAFE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "magic"}, "method 'magic'"),
        ({"format": 7}, "format 7"),
        ({"settings": {"ngf": 8, "colour": 1}}, "describes no sheafstain network"),
        ({"width": 12}, "misshapen"),
    ],
)
def test_a_wrong_description_is_said(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder, _ = save(tmp_path / "m")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(SheafStainError, match=words):
        load_model(folder, device="cpu")


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(SheafStainError, match="no model of that name"):
        find_model("nothing-of-the-kind")
    folder, _ = save(tmp_path / "m")
    (folder / "config.json").unlink()
    with pytest.raises(SheafStainError, match=r"no config\.json"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(SheafStainError, match="damaged"):
        load_model(folder)
    save(folder)
    weights = folder / hub.SAFE
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(SheafStainError, match="bytes are missing"):
        load_model(folder)


def test_the_engine_chooses_float32_on_a_cpu() -> None:
    engine = Engine.on("cpu")
    assert engine.dtype == torch.float32 and not engine.compile
