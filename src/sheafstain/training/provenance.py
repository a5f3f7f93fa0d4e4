"""What a run was made with: versions, revision, machine (D25)."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from sheafstain import __version__

PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "pillow", "safetensors")


def versions() -> dict[str, str]:
    return {"sheafstain": __version__, "python": platform.python_version()} | {
        name: _version(name) for name in PACKAGES
    }


def revision() -> str | None:
    """The git revision of the source tree that runs, "+" where it has changes; None for an installed package."""
    folder = Path(__file__).parent
    found = _git(folder, "rev-parse", "HEAD")
    if found is None:
        return None
    return found + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".") else "")


def machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return f"{device.type}: {name}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
