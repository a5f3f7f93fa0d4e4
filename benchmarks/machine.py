"""Which machine measured: every benchmark's rows go to ``benchmarks/results/NAME.csv`` with what made them.

Use from a script in this folder::

    from machine import record

    record("glue", [{"case": "8192²", "mpx_per_s": 71.2, "peak_mb": 310}])

prints the rows and appends them, each with date, git revision, processor, cores, GPU and versions. All rows of one file
have the same keys; a new set of keys needs a new file, so that no column changes its meaning half-way.
"""

from __future__ import annotations

import csv
import functools
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sheafstain.device import cores

RESULTS = Path(__file__).parent / "results"
_VERSIONS = ("sheafstain", "torch", "timm", "numpy", "tifffile", "imagecodecs")


def record(name: str, rows: Iterable[Mapping[str, object]]) -> Path:
    """Print ``rows`` and append them to ``results/NAME.csv``; floats are rounded to four digits or to whole numbers."""
    rows = [{key: _short(value) for key, value in row.items()} for row in rows]
    if not rows:
        raise ValueError("nothing was measured")
    machine = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), **describe()}
    header = [*rows[0], *machine]
    path = RESULTS / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    new = not path.exists()
    if not new:
        with path.open(newline="") as file:
            known = next(csv.reader(file))
        if known != header:
            raise ValueError(f"{path} has the columns {known}, not {header}; give the new measurement a new name")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, header, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow({**row, **machine})  # a row with other keys than the first raises here
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(f"{machine['cpu']}, {machine['cores']} cores, GPU {machine['gpu']}, {machine['revision']} → {path}")
    return path


@functools.cache
def describe() -> dict[str, str]:
    """Revision, processor, usable cores, memory, GPU, system and versions, as text."""
    return {
        "revision": _revision(),
        "cpu": _cpu(),
        "cores": str(cores()),
        "ram_gb": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f}",
        "gpu": _say("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").replace("\n", " + ") or "none",
        "system": f"{platform.system()} {platform.machine()}",
        "versions": "; ".join([f"python {platform.python_version()}", *_installed()]),
    }


def _revision() -> str:
    revision = _say("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    return revision + ("+changes" if _say("git", "status", "--porcelain", "--untracked-files=no") else "")


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return _say("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or "unknown"


def _installed() -> list[str]:
    found = []
    for package in _VERSIONS:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found


def _say(*command: str) -> str:
    """What a command prints, or nothing where there is no such command or it fails."""
    try:
        return subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return value


if __name__ == "__main__":
    for key, value in describe().items():
        print(f"{key}: {value}")
