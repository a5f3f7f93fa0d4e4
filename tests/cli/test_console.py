"""What people read and what machines read, kept apart."""

from __future__ import annotations

import json

import pytest

from sheafstain.cli.console import Console


def test_for_machines_standard_output_is_json_lines_only(capsys: pytest.CaptureFixture[str]):
    console = Console()
    console.json = True
    console.line("hello")
    console.table(["a"], [["b"]])
    console.warn("take care")
    console.event("finding", name="JPEG", size=3)
    with console.progress("reading", 2) as advance:
        advance(1)
        advance(1)
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events] == ["warning", "finding", "progress"]
    assert events[1] == {"event": "finding", "name": "JPEG", "size": 3}
    assert (events[2]["done"], events[2]["total"]) == (2, 2)
    assert err == ""


def test_for_people_in_a_pipe(capsys: pytest.CaptureFixture[str]):
    console = Console()
    path = "/a/folder/with/a/long/name/" + "x" * 90 + "/image_[red].png"
    console.table(["file", "what is wrong"], [[path, "is empty"]], title="Problems")
    console.event("finding", name="nobody reads this")
    with console.progress("reading", 3, "files") as advance:
        advance(2)
        advance(1)
    out, err = capsys.readouterr()
    assert path in out, "neither folded nor taken for markup"
    assert "nobody" not in out
    assert err.startswith("reading: 3/3 files, ")
    assert err.count("\n") == 1, "no line for every step"


def test_a_long_wait_says_how_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with Console().progress("slide.svs (12.0 Mpx)", 40, "windows") as advance:
        now += 20
        advance(10)
    assert capsys.readouterr().err == "slide.svs (12.0 Mpx): 10/40 windows, 20.0 s, about 60 s left\n"
