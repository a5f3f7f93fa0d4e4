"""The command line's promises: what is imported, what is said, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sheafstain
from sheafstain.cli import app
from sheafstain.errors import SheafStainError, UsageError

COMMANDS = (
    *("encoders", "sections", "audit", "train", "export", "stain", "models", "demo", "score", "compare", "her2"),
    "doctor",
)
HEAVY = ("torch", "torchvision", "timm", "scipy", "numpy", "PIL", "tifffile", "imagecodecs", "openslide", "matplotlib")


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sheafstain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


@pytest.fixture
def raising():
    """A command ``fail`` that raises what the test gives it."""
    errors: list[BaseException] = []

    def fail() -> None:
        raise errors[0]

    app.command(fail)
    yield errors.append
    del app["fail"]


@pytest.mark.parametrize("what", ["import sheafstain", "from sheafstain.cli import main; main()"])
def test_nothing_heavy_is_imported(what: str):
    """The light start, without a stopwatch: benchmarks/startup.py measures it."""
    code = f"""
import sys
sys.argv = ["sheafstain", "--help"]
try:
    {what}
except SystemExit:
    pass
print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].strip() == "loaded:"


def test_every_command_has_a_line_of_help_and_a_page(call):
    code, listed, _ = call("--help")
    assert code == 0
    for name in ("data", *COMMANDS):
        (line,) = [line for line in listed.splitlines() if line.startswith(f"│ {name} ")]
        assert line.strip("│ ").endswith((".", "?")), f"{name} has no line of help"
    for path in (["data", "check"], ["data", "phantom"], *([name] for name in COMMANDS)):
        code, page, _ = call(*path, "--help")
        assert code == 0
        assert page.startswith(f"Usage: sheafstain {' '.join(path)}")
        assert "--json" in page


def test_version(call):
    assert call("--version") == (0, f"{sheafstain.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["docter"], 'Unknown command "docter". Did you mean "doctor"? See: sheafstain --help'),
        (["data", "chek"], 'Unknown command "chek". Did you mean "check"? See: sheafstain data --help'),
        (["--jsno"], 'Unknown option "--jsno". Did you mean "--json"? See: sheafstain --help'),
        (["data", "check", ".", "--layuot", "bci"], "Did you mean --layout? See: sheafstain data check --help"),
        (["data", "check", ".", "--layout", "cbi"], 'Did you mean "bci"? See: sheafstain data check --help'),
        (["data", "check"], "requires an argument. See: sheafstain data check --help"),
    ],
)
def test_a_wrong_command_is_one_line_with_the_nearest_name(call, arguments: list[str], said: str):
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("sheafstain: ")
    assert err.strip().endswith(said)


def test_a_missing_folder_is_a_failure(call, tmp_path: Path):
    code, out, err = call("data", "check", str(tmp_path / "nowhere"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert str(tmp_path / "nowhere") in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SheafStainError("a.png: is empty; fetch it again"), 1, "a.png: is empty; fetch it again"),
        (UsageError("--size 3 is no size"), 2, "--size 3 is no size"),
        (FileNotFoundError(2, "No such file or directory", "b.png"), 1, "b.png: no such file or folder"),
        (OSError(28, "No space left on device", "c.tif"), 1, "c.tif: the disk is full; make room or choose another"),
        (PermissionError(13, "Permission denied", "d"), 1, "d: no permission"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero (a bug; --debug shows where)"),
        (SheafStainError("two\nlines"), 1, "two lines"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_are_one_line_and_a_traceback_only_with_debug(call, raising, error, code: int, said: str):
    raising(error)
    found, out, err = call("fail")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith(f"sheafstain: {said}")
    found, _, err = call("fail", "--debug")
    assert found == code
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith(f"sheafstain: {said}")


@pytest.mark.parametrize("arguments", [["--json", "fail"], ["fail", "--json"], ["docter", "--json"]])
def test_json_lines_wherever_the_option_stands(call, raising, arguments: list[str]):
    raising(SheafStainError("a.png: is empty"))
    _, out, err = call(*arguments)
    (event,) = map(json.loads, out.splitlines())
    assert event["event"] == "error"
    assert err == f"sheafstain: {event['text']}\n"


def test_from_the_shell():
    """The same through a real process: exit codes, and a reader that goes away."""
    assert run("docter").returncode == 2
    failed = run("data", "check", "no such folder")
    assert failed.returncode == 1
    assert failed.stderr.startswith("sheafstain: no such folder")
    assert failed.stderr.count("\n") == 1
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        gone = subprocess.run(
            [sys.executable, "-m", "sheafstain", "doctor", "--json"],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert gone.returncode == 1
    assert gone.stderr == ""
