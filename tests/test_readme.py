"""What the documents promise: marked commands and snippets run, all others exist, and every link leads somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sheafstain.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?P<mark><!-- run -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block of a document; a line ``<!-- run -->`` right above it says that it runs as it stands."""

    document: Path
    language: str
    runs: bool
    text: str

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


BLOCKS = [
    Block(document, found["language"], bool(found["mark"]), found["text"])
    for document in DOCUMENTS
    for found in BLOCK.finditer(document.read_text(encoding="utf-8"))
]


def name(block: Block) -> str:
    return f"{block.document.stem}: {block.text.splitlines()[0][:40]}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.runs and b.language == "console"], ids=name)
def test_marked_commands_run(block: Block, tmp_path: Path):
    binaries = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    for command in block.commands:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.runs and b.language == "python"], ids=name)
def test_marked_snippets_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.document, "exec"), {"__name__": "__main__"})


COMMANDS = sorted({command for block in BLOCKS for command in block.commands})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists(command: str):
    """The words are parsed by the command line itself: a renamed option is found here, not by a reader."""
    program, *arguments = shlex.split(command, comments=True)
    if program == "sheafstain":
        app.parse_args([a for a in arguments if a != "--json"], exit_on_error=False, print_error=False)
    elif program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(arguments) <= set(targets)
    elif program == "python":
        assert (ROOT / arguments[0]).exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path):
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_page_is_listed():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.name == "index.md" or f"({page.relative_to(ROOT / 'docs').as_posix()})" in index, page.name


def test_there_is_something_to_test():
    assert any(block.runs and block.language == "console" for block in BLOCKS)
    assert len(COMMANDS) >= 5
