"""What a run was made with: revision and machine; versions are those that every result names (D25)."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch


def revision() -> str | None:
    """The git revision of the source tree that runs, "+" where it has changes; None for an installed package."""
    room = Path(__file__).parent
    if _git(room, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # the repository around an environment is not ours
    changed = _git(room.parent, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{_git(room, 'rev-parse', 'HEAD')}{'+' if changed else ''}"


def machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return f"{device.type}: {name}"


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
