"""A toy data set in the layout of BCI, on which a grade is a colour, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sheafstain.slides.image import write_image

GRADES = ("0", "1+", "2+", "3+")
Toy = Callable[..., Path]


@pytest.fixture(scope="session")
def toy() -> Toy:
    """Square images, High brown and Low blue; or either at random with ``signal=False``. Grades in turn."""

    def draw(
        root: Path, train: int = 16, test: int = 16, *, signal: bool = True, side: int = 64, seed: int = 0
    ) -> Path:
        rng = np.random.default_rng(seed)
        for split, count in (("train", train), ("test", test)):
            for i in range(count):
                grade = GRADES[i % 4]
                brown = grade in ("2+", "3+") if signal else rng.random() < 0.5
                noise = rng.normal((150, 110, 80) if brown else (200, 205, 225), 25, (side, side, 3))
                for stain in ("HE", "IHC"):
                    folder = root / stain / split
                    folder.mkdir(parents=True, exist_ok=True)
                    write_image(folder / f"{i:05d}_{split}_{grade}.png", noise.clip(0, 255).astype(np.uint8))
        return root

    return draw


@pytest.fixture(autouse=True)
def _no_weights_here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the machine has: no test finds ImageNet weights, nor the network."""
    for variable in ("SHEAFSTAIN_WEIGHTS", "TORCH_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path_factory.getbasetemp() / "no-weights"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path_factory.getbasetemp() / "no-weights"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    yield
