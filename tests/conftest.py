"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
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
    from sheafstain.cli.console import console

    for name in ("json", "debug"):  # main sets them for its process, which here has other tests to come
        monkeypatch.setattr(console, name, False)

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


class _Balanced(HTMLParser):
    """Fails where an element is closed that is not the one that is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def elements_of() -> Callable[[str], set[str]]:
    """The elements of a page, which has to be well formed and one file that needs no other."""

    def elements_of(html: str) -> set[str]:
        parser = _Balanced()
        parser.feed(html)
        assert parser.open == []
        assert not parser.seen & {"script", "link", "iframe", "object"}
        assert all(found.startswith("data:image/jpeg;base64,") for found in re.findall(r'(?:src|href)="([^"]*)"', html))
        assert not re.search(r"url\(|@import|https?:", html)
        return parser.seen

    return elements_of
