"""``sheafstain score`` from folders to files."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sheafstain.cli.console import console
from sheafstain.cli.energies import Energies, read_windows
from sheafstain.cli.score import score
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.metrics.catalogue import BY_KEY
from sheafstain.metrics.fetch import fetch_missing
from sheafstain.metrics.report import read_report
from sheafstain.metrics.suite import Suite
from sheafstain.metrics.weights import MetricWeights
from sheafstain.window import Size

FAST = {"metrics": ("psnr", "ts", "dab-r", "miod"), "device": "cpu", "workers": 1}
SIDE = 288


def picture(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(80, 250, (SIDE // 16, SIDE // 16, 3), np.uint8).repeat(16, 0).repeat(16, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for k, side in enumerate(("pred", "real", "he")):
        (tmp_path / side).mkdir()
        for i in range(5):
            Image.fromarray(picture(10 * k + i)).save(tmp_path / side / f"f{i}.png")
    return tmp_path


def run(root: Path, output: str = "out", **options: Any) -> None:
    score(root / "pred", root / "real", output=root / output, **(FAST | options))


def test_four_files_and_a_table(root: Path, capsys: pytest.CaptureFixture[str]):
    run(root, source=root / "he", name="method A")
    assert {"report.json", "report.csv", "report.md", "report.tex", "images.jsonl"} <= {
        path.name for path in (root / "out").iterdir()
    }
    report = read_report(root / "out")
    assert report.name == "method A"
    assert [result.key for result in report.results] == ["psnr", "ts", "dab-r", "miod"]
    ts = report.result("ts")
    assert ts is not None and set(ts.sides) == {"real", "source"}
    rows = list(csv.DictReader((root / "out" / "report.csv").open()))
    assert [float(row["psnr"]) for row in rows] == report.column("psnr")
    captured = capsys.readouterr()
    assert "PSNR↑" in captured.out and "real IHC" in captured.out and "H&E" in captured.out
    assert "95% percentile bootstrap" in captured.out
    assert "score: 5/5 images" in captured.err


def test_the_same_command_again_measures_nothing(root: Path, monkeypatch: pytest.MonkeyPatch):
    run(root)
    before = (root / "out" / "report.json").read_text()
    monkeypatch.setattr(Suite, "measure", lambda *_: pytest.fail("measured again"))
    run(root)
    assert (root / "out" / "report.json").read_text() == before


def test_a_folder_against_itself_is_told(root: Path, capsys: pytest.CaptureFixture[str]):
    score(root / "real", root / "real", output=root / "out", **FAST)
    captured = capsys.readouterr()
    assert "is scored against itself" in captured.err
    assert "infinite for 5 images" in captured.out and "∞" in captured.out


def test_one_file_is_all_that_is_left(root: Path, monkeypatch: pytest.MonkeyPatch):
    run(root)
    with monkeypatch.context() as patch:
        patch.setattr("sheafstain.metrics.report.write_whole", lambda *_: (_ for _ in ()).throw(OSError("full disk")))
        with pytest.raises(OSError, match="full disk"):
            run(root, "single.md")
    assert (root / "single.md.work" / "images.jsonl").exists(), "what was measured is kept until the file is written"
    run(root, "single.md")
    assert sorted(path.name for path in root.iterdir() if path.name.startswith("single")) == ["single.md"]
    assert (root / "single.md").read_text() == (root / "out" / "report.md").read_text()


def test_json_lines(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "json", True)
    run(root)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    results = {event["key"]: event for event in events if event["event"] == "result"}
    report = read_report(root / "out")
    assert results["psnr"]["value"] == report.results[0].value
    assert {event["event"] for event in events} >= {"progress", "result", "score", "written"}


def test_a_limit_is_drawn_and_said(root: Path, capsys: pytest.CaptureFixture[str]):
    run(root, "two", limit=2)
    run(root, "four", limit=4)
    two, four = (read_report(root / name) for name in ("two", "four"))
    names = [{image.name for image in report.images} for report in (two, four)]
    assert (len(names[0]), len(names[1])) == (2, 4) and names[0] < names[1]
    assert two.protocol["sample"] == {"limit": 2, "seed": 0, "of": 5}
    assert "2 of 5 images, drawn with seed 0" in capsys.readouterr().out


def test_what_is_missing_is_told_and_strict_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(root / "none"))
    monkeypatch.setenv("TORCH_HOME", str(root / "none"))
    run(root, metrics=("fid", "kid", "psnr"))
    captured = capsys.readouterr()
    assert "FID, KID×10³ are left out" in captured.err
    assert "FID, KID×10³: left out" in captured.out
    assert [fault.name for fault in read_report(root / "out").left_out] == ["FID", "KID×10³"]
    with pytest.raises(SheafStainError, match=r"^FID: .*--strict"):
        run(root, "strict", metrics=("fid", "psnr"), strict=True)
    with pytest.raises(SheafStainError, match="none of the metrics"):
        run(root, "nothing", metrics=("fid",))


def test_weights_come_when_asked_for(root: Path, monkeypatch: pytest.MonkeyPatch):
    """From a file here, since the network is no part of a test; a file of another content is not kept."""
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(root / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(root / "none"))
    (root / "published").mkdir()
    (root / "published" / "net.pth").write_bytes(b"published")
    url, right = (root / "published" / "net.pth").as_uri(), hashlib.sha256(b"published").hexdigest()
    for sha256, came in ((hashlib.sha256(b"other").hexdigest(), False), (right, True)):
        known = MetricWeights("fid-inception", "FID", ("net.pth",), "MIT", url=url, sha256=sha256)
        monkeypatch.setattr("sheafstain.metrics.fetch.by_id", lambda name, known=known: known)
        if came:
            assert fetch_missing((BY_KEY["fid"],)) == [root / "weights" / "net.pth"]
            assert fetch_missing((BY_KEY["fid"],)) == [], "it is here now"
        else:
            with pytest.raises(SheafStainError, match=r"FID: file://.*net\.pth did not come"):
                fetch_missing((BY_KEY["fid"],))
        assert (root / "weights" / "net.pth").exists() == came


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "--limit is at least 1"),
        ({"batch": 0}, "--batch is at least 1"),
        ({"device": "abacus"}, "no device 'abacus'"),
        ({"device": "meta"}, "metrics run on cpu or cuda"),
        ({"metrics": ("beauty",)}, "no such metric"),
        ({"borders": "somewhere"}, "--borders is"),
        ({"metrics": ("ts-borders",)}, "needs --borders"),
        ({"output": "report.pdf"}, r"report\.pdf: reports end in"),
    ],
)
def test_wrong_commands(root: Path, options: dict[str, Any], said: str):
    output = str(options.pop("output", "out"))
    with pytest.raises(UsageError, match=said):
        run(root, output, **options)
    assert not (root / output).exists()


def test_an_encoder_gives_a_distance_of_its_own_name(root: Path, capsys: pytest.CaptureFixture[str]):
    run(root, metrics=("distribution",), encoder="random-tiny")
    report = read_report(root / "out")
    fd = report.result("fd-encoder")
    assert fd is not None and fd.label == "FD (random-tiny)" and fd.value is not None and fd.value > 0
    assert fd.details["encoder"].startswith("random-tiny ")
    assert "random-tiny is not trained" in capsys.readouterr().err
    score(
        root / "real",
        root / "real",
        output=root / "same",
        encoder="random-tiny",
        **(FAST | {"metrics": ("fd-encoder",)}),
    )
    same = read_report(root / "same").result("fd-encoder")
    assert same is not None and same.value == pytest.approx(0, abs=1e-3 * fd.value)


# --- windows ---------------------------------------------------------------------------------------------------------


def keep(path: Path, tones: list[float], dtype: Any = np.float32, **changes: Any) -> None:
    """Four 256² windows at stride 32 in an image of 288², each of one tone."""
    path.parent.mkdir(exist_ok=True)
    cover = np.array([(y, x, 256, 256) for y in (0, 32) for x in (0, 32)])
    pixels = np.stack([np.full((256, 256, 3), tone) for tone in tones])
    pixels = (pixels * 255).round().astype(np.uint8) if dtype is np.uint8 else pixels.astype(dtype)
    np.savez(path, **({"size": np.array([SIDE, SIDE]), "cover": cover, "pixels": pixels} | changes))


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_the_energy_of_windows_by_hand(root: Path, dtype: Any):
    """All six pairs overlap; tones 0.2, 0.2, 0.2, 0.6: three pairs differ by 0.4."""
    for i in range(5):
        keep(root / "windows" / f"f{i}.npz", [0.2, 0.2, 0.2, 0.6], dtype)
    run(root, metrics=("dirichlet", "psnr"), windows=root / "windows")
    report = read_report(root / "out")
    assert report.column("dirichlet") == pytest.approx([0.08] * 5, abs=1e-6)
    assert set(report.images[0].hashes) == {"pred", "real", "windows"}
    keep(root / "windows" / "f1.npz", [0.2, 0.2, 0.2, 0.2], dtype)
    run(root, metrics=("dirichlet", "psnr"), windows=root / "windows")
    assert read_report(root / "out").column("dirichlet") == pytest.approx([0.08, 0, 0.08, 0.08, 0.08], abs=1e-6)


def test_windows_that_do_not_meet_have_no_energy(root: Path):
    keep(root / "windows" / "a.npz", [0.1], cover=np.array([(0, 0, 256, 256)]))
    assert math.isnan(Energies(root / "windows").value("a"))


def test_windows_have_to_be_there(root: Path):
    keep(root / "windows" / "f0.npz", [0.1] * 4)
    with pytest.raises(SheafStainError, match=r"no f1\.npz \(4 of 5 images have none\)"):
        run(root, windows=root / "windows")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cover": np.zeros((3, 4), int)}, r"cover \[3, 4\]"),
        ({"cover": np.zeros((4, 4), int)}, "other sizes"),
        ({"cover": np.zeros((4, 4))}, "whole numbers"),
        ({"size": np.array([288])}, r"size \[1\]"),
        ({"pixels": np.full((4, 256, 256, 3), 200.0)}, "floats from 0 to 1"),
        ({"pixels": np.array([{}], object)}, "not windows"),
    ],
)
def test_malformed_windows_are_named(tmp_path: Path, changes: dict[str, Any], said: str):
    keep(tmp_path / "w" / "a.npz", [0.1] * 4, **changes)
    with pytest.raises(SheafStainError, match=rf"a\.npz: .*{said}"):
        read_windows(tmp_path / "w" / "a.npz")


def test_windows_as_written(tmp_path: Path):
    keep(tmp_path / "w" / "a.npz", [0.1] * 4)
    size, cover, pixels = read_windows(tmp_path / "w" / "a.npz")
    assert size == Size(SIDE, SIDE) and str(cover[1]) == "256×256+32+0" and pixels.shape == (4, 256, 256, 3)
    (tmp_path / "w" / "b.npz").write_bytes((tmp_path / "w" / "a.npz").read_bytes()[:500])
    with pytest.raises(SheafStainError, match=r"b\.npz: not windows"):
        read_windows(tmp_path / "w" / "b.npz")
