"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command line in this process: its exit code."""
    from sheafstain.cli import main

    def run(*arguments: str | Path) -> int:
        monkeypatch.setattr(sys, "argv", ["sheafstain", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0)

    return run


@pytest.fixture
def call(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The same with what it printed: exit code, standard output, standard error."""
    return lambda *arguments: (run(*arguments), *capsys.readouterr())


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB that fills up, and that a test may remount read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
