"""``sheafstain models`` as a user meets it, and what is said of a model that has seen no tissue."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sheafstain import hub
from sheafstain.methods.model import ModelConfig, find_model, save_model
from sheafstain.methods.registry import METHODS
from sheafstain.methods.unsb import UnsbSettings
from sheafstain.slides.image import write_image

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")

Call = Callable[..., tuple[int, str, str]]
SETTINGS = {"ngf": 4, "blocks": 1, "T": 2}


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setenv(hub.WEIGHTS_VARIABLE, str(tmp_path / "weights"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


def save(folder: Path, *, synthetic: bool, stain: str = "HER2", card: str = "# A card\n") -> int:
    """A tiny UNSB; returns its number of parameters."""
    torch.manual_seed(len(folder.name))
    generator = METHODS["unsb"].build_generator(UnsbSettings(**SETTINGS), 0)
    told = {"synthetic": synthetic}
    config = ModelConfig(name=folder.name, method="unsb", stain=stain, mpp=0.5, settings=SETTINGS, training=told)
    save_model(folder, config, generator, card)
    return sum(parameter.numel() for parameter in generator.parameters())


def rows(out: str) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in map(json.loads, out.splitlines()) if row["event"] == "model"}


def test_without_any_it_says_where_they_come_from(tmp_path: Path, call: Call):
    code, out, _ = call("models")
    assert code == 0 and "No translator is here" in out and str(tmp_path / "weights") in out


def test_they_are_found_in_all_places(tmp_path: Path, call: Call):
    parameters = save(tmp_path / "shipped" / "her2", synthetic=True)
    save(tmp_path / "weights" / "Ours", synthetic=False, stain="ER")
    snapshot = tmp_path / "hub" / "models--someone--stain" / "snapshots" / "abc"
    save(snapshot, synthetic=False, stain="PR")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    (tmp_path / "shipped" / "an-encoder").mkdir()
    (tmp_path / "shipped" / "an-encoder" / "config.json").write_text('{"architecture": "vit"}')
    code, out, err = call("models", "--json")
    found = rows(out)
    assert code == 0 and not err
    assert {name: row["where"] for name, row in found.items()} == {
        "Ours": "weights folder",
        "her2": "shipped",
        "someone/stain": "Hub cache",
    }
    assert found["her2"]["parameters"] == parameters and found["her2"]["synthetic"] is True
    assert found["her2"]["hash"] == hub.content_hash(tmp_path / "shipped" / "her2" / hub.SAFE)
    assert all(find_model(name) == Path(str(row["path"])) for name, row in found.items())
    code, out, _ = call("models")
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["her2"]]
    assert "HER2" in line and "phantoms" in line and "shipped" in line
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["Ours"]]
    assert "real pairs" in line
    assert "Those trained on phantoms mean nothing on real slides" in out


def test_the_first_of_a_name_counts_and_a_damaged_one_is_named(tmp_path: Path, call: Call):
    save(tmp_path / "shipped" / "her2", synthetic=True)
    save(tmp_path / "weights" / "her2", synthetic=False)
    save(tmp_path / "weights" / "cut", synthetic=False)
    weights = tmp_path / "weights" / "cut" / hub.SAFE
    weights.write_bytes(weights.read_bytes()[:-7])
    code, out, err = call("models")
    assert code == 0 and "phantoms" not in out
    assert "cut is left out" in err and "7 of its" in err


def test_one_is_shown_with_its_card(tmp_path: Path, call: Call):
    save(tmp_path / "shipped" / "her2", synthetic=True, card="---\ntags: [x]\n---\n\n# What it is and is not\n")
    code, out, _ = call("models", "her2")
    assert code == 0 and "phantoms: synthetic tissue, no patient" in out and "H&E at 0.5 µm per pixel" in out
    assert out.rstrip().endswith("# What it is and is not") and "tags" not in out
    code, out, _ = call("models", "her2", "--json")
    assert json.loads(out)["card"] == "# What it is and is not"
    code, _, err = call("models", "her3")
    assert code == 1 and "no model of that name is here" in err and len(err.splitlines()) == 1


def test_a_folder_of_results_does_not_hide_a_model(tmp_path: Path):
    save(tmp_path / "shipped" / "her2", synthetic=True)
    (tmp_path / "her2").mkdir()
    assert find_model("her2") == tmp_path / "shipped" / "her2" / hub.SAFE
    save(tmp_path / "her2", synthetic=False)
    assert find_model("her2") == Path("her2") / hub.SAFE


@pytest.mark.parametrize("synthetic", [True, False])
def test_using_one_that_has_seen_no_tissue_says_so_once(tmp_path: Path, call: Call, synthetic: bool):
    save(tmp_path / "weights" / "ours", synthetic=synthetic)
    (tmp_path / "in").mkdir()
    image = np.random.default_rng(0).integers(90, 230, (256, 256, 3), dtype=np.uint8)
    for name in ("a", "b"):
        write_image(tmp_path / "in" / f"{name}.png", image)
    code, _, err = call("stain", "in", "-o", "out", "-m", "ours")
    assert code == 0
    assert err.count("warning: ours was trained on synthetic tissue alone") == int(synthetic)
    assert err.count("train on BCI or MIST: docs/train_your_own.md") == int(synthetic)
    report = json.loads((tmp_path / "out" / "a.json").read_text())
    assert report["model"]["synthetic"] is synthetic
    code, out, _ = call("stain", "in", "-o", "out", "-m", "ours", "--overwrite", "--json")
    said = [json.loads(line) for line in out.splitlines()]
    assert sum(row["event"] == "warning" for row in said) == int(synthetic)
