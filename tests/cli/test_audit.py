"""``sheafstain audit`` on data sets and folders, from start to figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sheafstain.cli.audit import _drawn, audit
from sheafstain.cli.console import console
from sheafstain.errors import SheafStainError, UsageError

FAST = {"encoder": "random-tiny", "device": "cpu", "strides": (32, 80), "pairs": 1}


def write(path: Path, seed: int, size: tuple[int, int] = (304, 304)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size[0] // 8, size[1] // 8, 3), np.uint8)
    Image.fromarray(noise.repeat(8, 0).repeat(8, 1)).save(path)


@pytest.fixture
def bci(tmp_path: Path) -> Path:
    root = tmp_path / "BCI"
    for i, (split, grade) in enumerate((("train", "1+"), ("train", "3+"), ("test", "0"))):
        for k, side in enumerate(("HE", "IHC")):
            write(root / side / split / f"{i:05}_{split}_{grade}.png", 10 * i + k)
    return root


def run(data: Path, output: Path, **options: object) -> dict[str, object]:
    audit(data, output=output, **(FAST | options))  # type: ignore[arg-type]
    return json.loads((output / "audit.json").read_text())


def test_a_data_set_gives_both_stains_the_tables_and_the_figures(
    bci: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(bci, tmp_path / "out")
    assert {stain: data["images"] for stain, data in result["stains"].items()} == {"H&E": 3, "HER2": 3}  # type: ignore
    assert {data["locality"] for data in result["stains"].values()} == {0.0}  # type: ignore[attr-defined]
    assert [gap["stain"] for gap in result["cross_stain"]] == ["HER2"]  # type: ignore[attr-defined, index]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"audit.csv", "audit.json", "audit.md", "images.jsonl"} <= names
    pytest.importorskip("matplotlib")
    assert {"cosine_against_stride.png", "inverted_u.png", "defect.png"} <= names
    captured = capsys.readouterr()
    assert "HER2 against H&E" in captured.out
    assert "random-tiny is not trained" in captured.err

    lines = (tmp_path / "out" / "images.jsonl").read_text()
    assert run(bci, tmp_path / "out") == result
    assert (tmp_path / "out" / "images.jsonl").read_text() == lines, "nothing is measured twice"
    assert "6 of 6 images were measured before" in capsys.readouterr().out


def test_a_split_and_a_limit(bci: Path, tmp_path: Path) -> None:
    result = run(bci, tmp_path / "out", split="train", limit=1)
    assert {stain: data["images"] for stain, data in result["stains"].items()} == {"H&E": 1, "HER2": 1}  # type: ignore
    more = run(bci, tmp_path / "out", split="train")
    assert more["stains"]["H&E"]["images"] == 2  # type: ignore[index, call-overload]
    rows = [json.loads(line) for line in (tmp_path / "out" / "images.jsonl").read_text().splitlines()[1:]]
    assert len(rows) == len({(row["stain"], row["id"]) for row in rows}) == 4


def test_a_larger_limit_contains_a_smaller() -> None:
    items = list(range(50))
    assert set(_drawn(items, 5, 0)) < set(_drawn(items, 20, 0)) < set(_drawn(items, None, 0)) == set(items)
    assert _drawn(items, 5, 0) != _drawn(items, 5, 1)


def test_a_folder_of_images_is_one_stain(tmp_path: Path) -> None:
    for i in range(2):
        write(tmp_path / "ki67" / f"{i}.png", i)
    result = run(tmp_path / "ki67", tmp_path / "out", stain="Ki67")
    assert list(result["stains"]) == ["Ki67"] and result["cross_stain"] == []  # type: ignore[call-overload]


def test_another_protocol_in_the_same_folder_is_refused(bci: Path, tmp_path: Path) -> None:
    run(bci, tmp_path / "out", limit=1)
    with pytest.raises(SheafStainError, match="pairs was 1, now 2"):
        run(bci, tmp_path / "out", limit=1, pairs=2)


def test_an_image_that_is_too_small_or_broken_is_named_and_what_was_done_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "he"
    for i in range(3):
        write(folder / f"{i}.png", i)
    order = [path.name for path in _drawn(sorted(folder.iterdir()), None, 0)]
    (folder / order[2]).write_bytes(b"no image")
    with pytest.raises(SheafStainError, match=order[2]):
        run(folder, tmp_path / "out", batch=1)
    assert len((tmp_path / "out" / "images.jsonl").read_text().splitlines()) >= 2
    write(folder / order[2], 0, (240, 240))
    with pytest.raises(SheafStainError, match=rf"{order[2]}: 240×240 px hold no two adjacent crops"):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out" / "audit.json").exists()


def test_without_matplotlib_the_tables_are_written(
    bci: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    run(bci, tmp_path / "out", limit=1)
    assert "pip install 'sheafstain[plots]'" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.png"))


def test_machines_get_json_lines_only(
    bci: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "json", True)
    run(bci, tmp_path / "out", limit=1)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["event"] == "audit" and len(events[-1]["overlap"]) == 2 * 2 * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "--limit is at least 1"),
        ({"pairs": 0}, "--pairs must be at least 1"),
        ({"strides": (300,)}, "between 1 and 223"),
        ({"split": "val"}, "no pair of that split and stain; it has stains HER2; splits train, test"),
        ({"encoder": "gigapth"}, "did you mean prov-gigapath"),
    ],
)
def test_wrong_use(bci: Path, tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(bci, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_real_pair(real: Path, tmp_path: Path) -> None:
    """Whatever the encoder: locality is exact, and gluing is not."""
    result = run(real / "bci", tmp_path / "out", limit=1, strides=(80, 192))
    for row in result["overlap"]:  # type: ignore[attr-defined]
        assert 0 < row["cosine"] < 0.999
    assert all(data["locality"] == 0 for data in result["stains"].values())  # type: ignore[attr-defined]
