"""The models that ship: they are small, fit to their encoder, and draw on phantoms what they were trained to draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sheafstain import hub
from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.plan import ONE_LABORATORY, choose_fields
from sheafstain.datasets.phantom.specimen import MARKERS, Marker, Specimen
from sheafstain.methods.model import find_model, read_config
from sheafstain.metrics.chromogen import dab_r
from sheafstain.translate.stainer import Stainer
from sheafstain.window import Resolution, Size

SPECIMEN = 2508  # has all four markers in it; of a seed that no embedded model was trained on


@pytest.fixture(autouse=True)
def nothing_else_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path))


def test_all_of_it_is_small() -> None:
    sizes = {path: path.stat().st_size for path in hub.shipped_folder().rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= 40e6
    assert sizes[hub.shipped_folder() / "phantom-small" / "model.safetensors"] <= 12e6


@pytest.mark.parametrize("marker", MARKERS)
def test_each_is_made_from_phantoms_with_the_encoder_that_ships(marker: Marker) -> None:
    place = find_model(marker.lower())
    assert place.is_relative_to(hub.shipped_folder())
    config = read_config(place.with_name("config.json"))
    encoder = hub.shipped_folder() / "phantom-small" / "model.safetensors"
    assert config.stain == marker and config.synthetic and config.encoder_hash == hub.content_hash(encoder)
    card = (hub.shipped_folder() / marker.lower() / "README.md").read_text()
    assert "it has never seen tissue" in card and "| seed and machine | 0; 1 × cuda: NVIDIA H200" in card
    assert str(Path.home()) not in card and "/tmp" not in card


@pytest.mark.parametrize("marker", MARKERS)
def test_the_stain_lies_nearer_to_the_truth_than_the_input_and_hardly_depends_on_the_window(marker: Marker) -> None:
    resolution = Resolution(0.5)
    specimen = Specimen.draw(SPECIMEN)
    window = choose_fields(specimen, Size(448, 448), resolution, 1)[0]
    layers = Phantom(specimen, marker, resolution, None, ONE_LABORATORY).draw(window, ("he", "truth"))
    stained = Stainer.load(marker.lower(), device="cpu").stain(layers["he"])
    assert stained.energy < 0.002
    assert agreement(stained.pixels, layers["truth"]) > agreement(layers["he"], layers["truth"]) + 0.05


def agreement(pred: np.ndarray, real: np.ndarray) -> float:
    one, other = (torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255 for image in (pred, real))
    return float(dab_r(one, other))
