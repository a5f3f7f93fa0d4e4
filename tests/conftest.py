"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _beside_the_repository(name: str, variable: str) -> Path:
    folder = Path(os.environ.get(variable) or Path(__file__).parents[2] / "shared" / name)
    if not folder.is_dir():
        pytest.skip(f"no {name} files at {folder}; set {variable} to a folder that holds them")
    return folder


@pytest.fixture(scope="session")
def real() -> Path:
    """Research-only real images (BCI, MIST, slides) that are never part of this repository."""
    return _beside_the_repository("real", "SHEAFSTAIN_REAL")


@pytest.fixture(scope="session")
def backbones() -> Path:
    """Published metric backbones (VGG16, AlexNet, LPIPS and DISTS heads)."""
    return _beside_the_repository("weights", "SHEAFSTAIN_BACKBONES")
