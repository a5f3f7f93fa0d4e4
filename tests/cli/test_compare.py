"""``sheafstain compare`` on reports that ``score`` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sheafstain.cli.compare import compare
from sheafstain.cli.console import console
from sheafstain.cli.score import score
from sheafstain.errors import SheafStainError, UsageError

METRICS = ("psnr", "ts", "dab-r")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three methods on six images: real plus noise of 10, 30 and 60 grey levels."""
    root = tmp_path_factory.mktemp("reports")
    rng = np.random.default_rng(0)
    for i in range(6):
        real = rng.integers(80, 200, (18, 18, 3)).repeat(16, 0).repeat(16, 1)
        for name, noise in (("real", 0), ("near", 10), ("far", 30), ("farther", 60)):
            noisy = (real + rng.normal(0, 1, real.shape) * noise).clip(0, 255).astype(np.uint8)
            (root / name).mkdir(exist_ok=True)
            Image.fromarray(noisy).save(root / name / f"{i}.png")
    for name in ("near", "far", "farther"):
        score(root / name, root / "real", output=root / f"score-{name}", metrics=METRICS, device="cpu", workers=1)
    return {name: root / f"score-{name}" for name in ("near", "far", "farther")} | {"root": root}


def test_a_table_with_marks(reports: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    compare(reports["far"], reports["near"] / "report.json", reports["farther"])
    out = capsys.readouterr().out
    (psnr,) = (line for line in out.splitlines() if line.strip().startswith("PSNR↑") and "±" in line)
    best, second = psnr.index("*"), psnr.index("+")
    assert second < best, "far is second best and stands first, near is best"
    (pair,) = (line for line in out.splitlines() if "near − far" in line and "PSNR" in line)
    assert "6 : 0 : 0" in pair and "0.0312" in pair  # 2 / 2⁶
    assert not list(Path.cwd().glob("comparison.*"))


def test_files(reports: dict[str, Path], tmp_path: Path):
    compare(reports["near"], reports["far"], output=tmp_path / "out", metrics=("psnr",))
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".csv", ".md", ".tex"}
    said = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert said["pairs"][0]["paired"]["losses"] == 6
    assert said["methods"][0]["results"]["psnr"]["mark"] == "best"
    compare(reports["near"], reports["far"], output=tmp_path / "table.tex")
    assert r"\textbf" in (tmp_path / "table.tex").read_text()
    with pytest.raises(UsageError, match="comparisons end in"):
        compare(reports["near"], reports["far"], output=tmp_path / "table.docx")


def test_json_lines(reports: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "json", True)
    compare(reports["near"], reports["far"])
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    pairs = {event["key"]: event for event in events if event["event"] == "pair"}
    assert pairs["psnr"]["paired"]["wins"] == 0
    assert {"metric": "psnr", "methods": {"near": "best"}, "event": "marks"} in events


def test_other_images_are_refused(reports: dict[str, Path], tmp_path: Path):
    root = reports["root"]
    score(root / "near", root / "near", output=tmp_path / "self", metrics=METRICS, device="cpu", name="self")
    with pytest.raises(SheafStainError, match="far and self cannot be compared: the real images differ for 6"):
        compare(reports["far"], tmp_path / "self")
    score(root / "near", root / "real", output=tmp_path / "few", metrics=METRICS, device="cpu", name="few", limit=4)
    with pytest.raises(SheafStainError, match="N is 6 and 4"):
        compare(reports["far"], tmp_path / "few")
    with pytest.raises(SheafStainError, match="no such report"):
        compare(reports["far"], tmp_path / "nothing")
    with pytest.raises(UsageError, match="two reports or more"):
        compare(reports["far"])
