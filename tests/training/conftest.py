"""A data set, a configuration and a loop so small that a step takes a few hundredths of a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sheafstain.methods.engine import Engine
from sheafstain.methods.registry import find_method
from sheafstain.slides.image import write_image
from sheafstain.training import data
from sheafstain.training.config import TrainConfig, config_of
from sheafstain.training.loop import Loop
from sheafstain.training.parallel import World
from sheafstain.training.run import train
from sheafstain.training.settings import Given

SMALL: dict[str, Any] = {
    "method": "unsb",
    "settings.ngf": 4,
    "settings.ndf": 4,
    "settings.blocks": 1,
    "settings.positions": 16,
    "data.window": 96,
    "batch": 2,
    "schedule.constant": 2,
    "schedule.decay": 2,
    "watch.log": 2,
    "watch.save": 4,
    "watch.validate": 100,
    "watch.images": 1,
    "watch.tensorboard": False,
    "engine.device": "cpu",
}


def draw_pairs(root: Path, train: int = 3, val: int = 1, shape: tuple[int, int] = (192, 176)) -> Path:
    """Blobs of tissue in two stains, so that there is something to see and to learn."""
    rng = np.random.default_rng(1)
    for split, count in (("train", train), ("val", val)):
        for k in range(count):
            coarse = rng.random((shape[0] // 16, shape[1] // 16))
            tissue = np.kron(coarse, np.ones((16, 16)))[..., None]
            for side, colour in (("HE", (150, 60, 140)), ("IHC", (120, 80, 40))):
                grain = rng.integers(0, 20, (*shape, 3))
                image = 235 - (235 - np.array(colour)) * (tissue > 0.4) - grain
                (root / side / split).mkdir(parents=True, exist_ok=True)
                write_image(root / side / split / f"{k}.png", image.clip(0, 255).astype(np.uint8))
    return root


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pairs(tmp_path_factory.mktemp("pairs"))


def small_config(**changes: Any) -> TrainConfig:
    """The small configuration with changes; of its settings those that the method has."""
    values = SMALL | changes
    taken = {f"settings.{name.name}" for name in fields(find_method(values["method"]).settings)}
    ours = {key: value for key, value in values.items() if key in (*changes, *taken) or "settings." not in key}
    return config_of({key: Given(value, "the test") for key, value in ours.items()})


@pytest.fixture
def configured(pairs: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    """``configured(batch=1, **{"settings.ngf": 8})``: a run into ``tmp_path / "run"``."""
    return lambda **changes: small_config(**({"data.root": str(pairs), "output": str(tmp_path / "run")} | changes))


@pytest.fixture(scope="session")
def trained(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with an average; copy it before changing it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(small_config(**{"data.root": str(pairs), "output": str(folder), "steps": 2, "optimiser.ema": 10}))
    return folder


def build_loop(config: TrainConfig, world: World | None = None) -> Loop:
    """What ``run`` builds, without a folder."""
    here = world or World()
    torch.manual_seed(config.seed)
    method = find_method(config.method).train(config.settings, Engine.on("cpu"), 0, None)
    batches = data.read_batches(config, data.select(config, "train"), method.needs, None, here)
    return Loop(config, method, batches, here)


@pytest.fixture
def loop_of() -> Callable[..., Loop]:
    return build_loop
