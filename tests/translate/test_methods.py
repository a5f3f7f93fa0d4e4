"""Every method of the registry through the same path, in its own way to cover an image (D24)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stain_doubles import MeanEncoder

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.methods.model import Model, ModelConfig, load_model, save_model
from sheafstain.methods.registry import METHODS
from sheafstain.translate.stainer import Stainer
from sheafstain.window import Window

SETTINGS: dict[str, dict[str, Any]] = {
    "sheafstain": {"ngf": 4, "blocks": 1, "T": 2},
    "unsb": {"ngf": 4, "blocks": 1, "T": 2},
    "cyclegan": {"ngf": 4, "blocks": 1},
    "pix2pix": {"ngf": 2, "depth": 8},
}
TILED = sorted(name for name, entry in METHODS.items() if entry.tiling.stride == entry.tiling.side)
FREE = sorted(name for name, entry in METHODS.items() if entry.tiling.free)


def model_of(folder: Path, name: str) -> Model:
    torch.manual_seed(0)
    entry, width = METHODS[name], 3 if name == "sheafstain" else 0
    generator = entry.build_generator(entry.settings(**SETTINGS[name]), width)
    config = ModelConfig(name, name, "HER2", 0.5, SETTINGS[name], width)
    return load_model(save_model(folder / name, config, generator, "# for tests"), device="cpu")


def image(h: int, w: int) -> np.ndarray:
    return np.random.default_rng(0).integers(90, 230, (h, w, 3), dtype=np.uint8)


def alone(model: Model, pixels: np.ndarray, window: Window) -> np.ndarray:
    """What the model makes of one window by itself."""
    he = torch.from_numpy(pixels[window.slices].astype(np.float32) / 127.5 - 1).permute(2, 0, 1)[None]
    made = model.translate(he, CanvasNoise(torch.tensor([0]), [window], model.latent_width))
    return ((made[0].permute(1, 2, 0).numpy() + 1) * 127.5 + 0.5).astype(np.uint8)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_translates(tmp_path: Path, name: str):
    stained = Stainer(model_of(tmp_path, name), MeanEncoder(), batch=4).stain(image(256, 512))
    assert stained.pixels.shape == (256, 512, 3) and stained.pixels.std() > 0
    assert stained.report["model"]["method"] == name
    assert np.isnan(stained.defect).all() == (name in TILED)
    assert stained.report["windows"]["lattice"] == (2 if name in TILED else 3)


@pytest.mark.parametrize("name", TILED)
def test_rivals_set_windows_side_by_side_row_by_row(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """4×4 windows of a 1024² image in raster order, each as if there were no other."""
    assert set(TILED) == {"unsb", "cyclegan", "pix2pix"}
    model, pixels, seen = model_of(tmp_path, name), image(1024, 1024), []
    translate = Model.translate

    def noted(self: Model, he: torch.Tensor, noise: CanvasNoise, *rest: Any, **options: Any) -> torch.Tensor:
        seen.extend(noise.windows)
        return translate(self, he, noise, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Model, "translate", noted)
        stained = Stainer(model, batch=4).stain(pixels)
    assert seen == [Window(y, x, 256, 256) for y in range(0, 1024, 256) for x in range(0, 1024, 256)]
    assert np.isnan(stained.energy) and stained.report["windows"]["extra"] == 0
    for window in (seen[0], seen[6], seen[15]):
        assert np.abs(stained.pixels[window.slices].astype(int) - alone(model, pixels, window)).max() <= 1


@pytest.mark.parametrize("name", sorted(set(FREE) & set(TILED)))
def test_fully_convolutional_rivals_take_an_image_at_once(tmp_path: Path, name: str):
    model, pixels = model_of(tmp_path, name), image(512, 768)
    whole = Stainer(model).stain(pixels, cover="whole").pixels
    assert np.abs(whole.astype(int) - alone(model, pixels, Window(0, 0, 512, 768))).max() <= 1
    assert np.abs(whole.astype(int) - Stainer(model).stain(pixels).pixels).max() > 1


def test_an_image_in_pieces_is_nearly_the_image_at_once(tmp_path: Path):
    """What pieces share is more than a network of this depth looks; its instance norms see each piece by itself."""
    model, pixels = model_of(tmp_path, "cyclegan"), image(256, 1600)
    whole = Stainer(model).stain(pixels, cover="whole").pixels
    at_once = alone(model, pixels, Window(0, 0, 256, 1600))
    assert np.abs(whole.astype(int) - at_once).mean() < 2
    rows = np.abs(np.diff(whole.astype(int), axis=1)).mean((0, 2))
    assert rows[1024 + 128 - 1] < 1.2 * np.median(rows), "no seam where pieces meet"
