"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    # One worker a core already: threads of numpy and torch, which read this when imported, would only fight.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("sheafstain", deadline=None)  # a busy machine is not a failure
settings.load_profile("sheafstain" if "CI" not in os.environ else "ci")


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
