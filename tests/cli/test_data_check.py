"""``sheafstain data check`` as a user meets it: what it prints, what it writes, how it exits."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sheafstain.slides.image import write_image

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")  # the command line is what is tested


@pytest.fixture
def mist(tmp_path: Path) -> Path:
    """Ten HER2 fields of five slides, every slide in both splits."""
    rng = np.random.default_rng(3)
    for slide in range(5):
        for k, split in enumerate(("train", "val")):
            for side in "AB":
                folder = tmp_path / "MIST" / "HER2" / "TrainValAB" / f"{split}{side}"
                folder.mkdir(parents=True, exist_ok=True)
                squares = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                write_image(folder / f"{slide}M20_{k}_0.png", np.kron(squares, np.ones((16, 16, 1), np.uint8)))
    return tmp_path / "MIST"


def test_errors_are_told_and_the_exit_code_is_1(
    run: Callable[..., int], mist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "check", mist, "--layout", "mist") == 1
    out, err = capsys.readouterr()
    assert "HER2" in out
    assert "4642" in out
    assert "slide 0M20 of HER2 is in train (1 pairs) and val (1 pairs)" in out
    assert "--allow-leak" in out
    assert err.splitlines()[-1] == f"sheafstain: {mist}: 5 errors (5 leak), 0 warnings"


def test_a_set_without_errors_exits_0(run: Callable[..., int], mist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "check", mist, "--allow-leak") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "passed: 0 errors, 5 warnings"
    assert "reading: 20/20 files" in err


def test_the_table_is_short_and_the_report_is_whole(
    run: Callable[..., int], mist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (mist / "HER2" / "TrainValAB" / "trainB").iterdir():
        file.write_bytes(b"")
    report = mist.parent / "report.json"
    for k in range(3):
        (mist / "HER2" / "TrainValAB" / "valA" / f"extra{k}.png").write_text("no image")
    assert run("data", "check", mist, "--allow-leak", "--report", report) == 1
    out, err = capsys.readouterr()
    assert out.count(" error      unreadable ") == 6  # five of the eight, and the line that says so
    assert "… and 3 more" in out
    facts = json.loads(report.read_text())
    assert sum(p["kind"] == "unreadable" for p in facts["problems"]) == 8
    assert facts["severities"] == {"error": 11, "warning": 5, "note": 2}
    assert "11 errors (8 unreadable, 3 unpaired)" in err


def test_json_lines(run: Callable[..., int], mist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "data", "check", mist) == 1
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    names = [event["event"] for event in events]
    assert names.count("count") == 2
    assert names.count("problem") == 7
    assert names[-1] == "error"
    problem = next(event for event in events if event["event"] == "problem")
    assert (problem["kind"], problem["severity"], problem["slide"]) == ("leak", "error", "0M20")
    checked = next(event for event in events if event["event"] == "checked")
    assert checked["severities"] == {"error": 5, "warning": 0, "note": 2}
    assert err.count("\n") == 1


def test_a_split_by_slide_mends_the_leak(
    run: Callable[..., int], mist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = mist.parent / "split.csv"
    assert run("data", "check", mist, "--write-split", path, "--val-fraction", "0.4", "--seed", "1") == 0
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == 10
    assert len({(row["slide"], row["split"]) for row in rows}) == 5
    assert sum(row["split"] == "val" for row in rows) == 4
    assert run("data", "check", mist, "--split", path) == 0
    assert "passed: 0 errors, 0 warnings" in capsys.readouterr().out
    assert run("data", "check", mist, "--write-split", path) == 1
    assert "is there already" in capsys.readouterr().err


def test_no_split_for_bci(
    run: Callable[..., int], real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "check", real / "bci", "--write-split", tmp_path / "split.csv") == 1
    assert "no slide-level split" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("{mist}", "--layout", "bci"), 2, "looks like mist"),
        (("{mist}", "--layout", "cyclegan"), 2, '"bci", "mist", "pairs"'),
        (("{mist}", "--workers", "0"), 2, "at least 1"),
        (("{mist}", "--split", "a.csv", "--write-split", "b.csv"), 2, "give one of them"),
        (("{mist}", "--val-fraction", "2", "--write-split", "{mist}/x.csv"), 2, "between 0 and 1"),
        (("{mist}/nowhere",), 1, "no such folder"),
        (("{mist}", "--split", "{mist}/no.csv"), 1, "no.csv: no such file"),
        (("{mist}/HER2/TrainValAB/valA",), 2, "known layout"),
    ],
)
def test_bad_use(
    run: Callable[..., int],
    mist: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    assert run("data", "check", *(argument.format(mist=mist) for argument in arguments)) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_an_impossible_report_is_refused_before_reading(
    run: Callable[..., int], mist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mist.parent / "file").touch()
    report = mist.parent / "file" / "report.json"
    assert run("data", "check", mist, "--report", report) == 1
    out, err = capsys.readouterr()
    assert err == f"sheafstain: {report}: Not a directory\n"
    assert "what is wrong" not in out


def test_real_sets(run: Callable[..., int], real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "check", real / "bci") == 0
    assert run("data", "check", real / "mist", "--layout", "mist") == 0
    out = capsys.readouterr().out
    assert "0: 1, 1+: 1, 2+: 1, 3+: 1" in out
    assert run("data", "check", real) == 2
    assert "more than one data set" in capsys.readouterr().err
