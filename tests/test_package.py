"""The package as it is installed: its size, its import rule, its pins, and that no registry is named."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sheafstain

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def needed_by(*names: str) -> set[str]:
    """All packages that an install of these brings here, extras left out."""
    seen: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue  # for another platform
        seen.add(name)
        wanted = (line for line in map(Requirement, lines) if not line.marker or line.marker.evaluate({"extra": ""}))
        waiting += [canonicalize_name(requirement.name) for requirement in wanted]
    return seen


def test_a_small_core():
    """At most 35 packages beyond torch's own (design, numbers to respect)."""
    ours = needed_by("sheafstain") - {"sheafstain"} - needed_by("torch")
    assert {"numpy", "cyclopts", "openslide-python", "timm"} <= ours
    assert len(ours) <= 35, sorted(ours)


def test_what_it_says_about_itself():
    facts = metadata("sheafstain")
    assert facts["Version"] == sheafstain.__version__ == version("sheafstain")
    assert facts["License-Expression"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (ROOT / "src" / "sheafstain" / "py.typed").exists()


def test_all_that_is_installed_is_pinned():
    """Versions are pinned by name alone; GPU libraries follow from torch."""
    pins = [Requirement(line) for line in PYPROJECT["tool"]["uv"]["constraint-dependencies"]]
    for pin in pins:
        (rule,) = pin.specifier
        assert rule.operator == "=="
        assert pin.url is None
    pinned = {canonicalize_name(pin.name) for pin in pins}
    groups = [Requirement(line).name for line in PYPROJECT["dependency-groups"]["dev"]]
    loose = needed_by("sheafstain", *groups) - {"sheafstain"} - pinned
    assert not {name for name in loose if not re.match(r"(nvidia|cuda)-|triton$", name)}


def test_no_registry_is_named():
    files = [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / ".ci" / "run", *ROOT.glob("*.md")]
    for file in files:
        found = re.search(
            r"index-url|extra-index|find-links|/simple\b|://[\w.]*(pi\.org|hosted\.)", file.read_text("utf-8")
        )
        assert found is None, f"{file.name}: {found}"
    if (ROOT / ".git").exists():
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert "uv.lock" not in tracked.split()


def test_the_import_rule_can_fail(tmp_path: Path):
    """The same contract on a tree where the colour maths imports a room above it, and where a room has no place."""
    pytest.importorskip("importlinter")
    rooms = ["cli", "sheaf", "datasets", "hub", "slides", "device", "whole", "errors", "stain", "window", "__main__"]

    def lint() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
        options = ["--no-cache", "--config", str(ROOT / "pyproject.toml")]
        return subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)

    package = tmp_path / "sheafstain"
    package.mkdir()
    (package / "__init__.py").touch()
    for room in rooms:
        (package / f"{room}.py").touch()
    assert lint().returncode == 0, lint().stdout
    (package / "stain.py").write_text("def f():\n    from sheafstain.slides import write\n")
    (package / "slides.py").write_text("write = 1\n")
    broken = lint()
    assert broken.returncode == 1
    assert "sheafstain.stain -> sheafstain.slides" in broken.stdout
    (package / "stain.py").write_text("")
    (package / "helpers.py").touch()
    assert "sheafstain.helpers" in lint().stdout
