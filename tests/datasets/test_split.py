"""Splits by slide: no slide on both sides, about the asked share, the same from run to run."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafstain.datasets.layouts import open_dataset
from sheafstain.datasets.records import DataSet, Record
from sheafstain.datasets.split import split_by_slide, write_split
from sheafstain.errors import SheafStainError, UsageError


def dataset_of(fields: dict[str, int], stain: str = "ER") -> DataSet:
    records = [
        Record(
            f"{slide}_{k}_0", "train", stain, None, slide, Path(f"a/{slide}_{k}_0.png"), Path(f"b/{slide}_{k}_0.png")
        )
        for slide, count in fields.items()
        for k in range(count)
    ]
    return DataSet("mist", Path("set"), tuple(records), (), {})


def touch_mist(root: Path, stain: str, fields: dict[str, int]) -> None:
    """Every fifth field in val, as the published split does it: slides on both sides."""
    n = 0
    for slide, count in fields.items():
        for k in range(count):
            for side in "AB":
                folder = root / stain / "TrainValAB" / f"{'val' if n % 5 == 0 else 'train'}{side}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{slide}_{k}_7.jpg").touch()
            n += 1


@given(
    fields=st.dictionaries(st.text("0123456789M", min_size=1, max_size=6), st.integers(1, 40), min_size=2, max_size=30),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 5),
)
def test_share_and_determinism(fields: dict[str, int], fraction: float, seed: int) -> None:
    data = dataset_of(fields)
    side = split_by_slide(data, fraction, seed)
    assert side.keys() == fields.keys()
    assert set(side.values()) == {"train", "val"}
    val = sum(count for slide, count in fields.items() if side[slide] == "val")
    assert abs(val - fraction * sum(fields.values())) <= max(fields.values())
    shuffled = replace(data, records=tuple(reversed(data.records)))
    assert split_by_slide(shuffled, fraction, seed) == side


def test_seeds_differ() -> None:
    data = dataset_of({f"s{k}": 10 for k in range(30)})
    assert len({tuple(sorted(split_by_slide(data, seed=seed).items())) for seed in range(5)}) == 5
    assert Counter(split_by_slide(data).values()) == {"train": 24, "val": 6}


def test_a_slide_of_two_stains_is_on_one_side() -> None:
    er, pr = dataset_of({f"s{k}": 10 for k in range(20)}), dataset_of({f"s{k}": 10 for k in range(10, 40)}, "PR")
    side = split_by_slide(replace(er, records=er.records + pr.records))
    assert len(side) == 40
    for stain in (er, pr):
        assert sum(side[record.slide or ""] == "val" for record in stain.records) == len(stain.records) // 5


@pytest.mark.parametrize("fraction", [0, 1, -0.2, 1.5, float("nan")])
def test_impossible_share(fraction: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        split_by_slide(dataset_of({"a": 2, "b": 2}), fraction)


def test_one_slide_cannot_be_split() -> None:
    with pytest.raises(SheafStainError, match="two or more"):
        split_by_slide(dataset_of({"a": 9}))


def test_written_and_applied(tmp_path: Path) -> None:
    touch_mist(tmp_path / "MIST", "HER2", {f"{k}M20": 6 for k in range(10)})
    published = open_dataset(tmp_path)
    path = tmp_path / "split.csv"
    write_split(published, path, 0.2)
    rows = list(csv.reader(path.open()))
    assert rows[0] == ["id", "slide", "split"]
    assert len(rows) == 61
    assert rows[1][0].startswith(rows[1][1] + "_")

    data = open_dataset(tmp_path, split_file=path)
    assert {r.id: r.split for r in data.records} == {row[0]: row[2] for row in rows[1:]}
    assert data.counts == {("HER2", "train"): 48, ("HER2", "val"): 12}
    sides = {(r.slide, r.split) for r in data.records}
    assert len(sides) == 10  # one side each
    assert {r.he for r in data.records} == {r.he for r in published.records}
    assert data.published == {}

    with pytest.raises(SheafStainError, match="is there already"):
        write_split(published, path)


def test_bci_names_tell_no_slide(tmp_path: Path) -> None:
    for side in ("HE", "IHC"):
        (tmp_path / side / "train").mkdir(parents=True)
        for k in range(4):
            (tmp_path / side / "train" / f"{k:05d}_train_0.png").touch()
    with pytest.raises(SheafStainError, match=r"4 of 4 names tell no slide.*BCI does not publish"):
        write_split(open_dataset(tmp_path), tmp_path / "split.csv")
    assert not (tmp_path / "split.csv").exists()

    # A validation split made by hand is what BCI users need; a byte-order mark is what spreadsheets add.
    rows = "".join(f"{k:05d}_train_0,,{'val' if k == 3 else 'train'}\n" for k in range(4))
    (tmp_path / "mine.csv").write_text("id,slide,split\n" + rows, encoding="utf-8-sig")
    data = open_dataset(tmp_path, split_file=tmp_path / "mine.csv")
    assert data.counts == {("HER2", "train"): 3, ("HER2", "val"): 1}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "first line is id,slide,split"),
        ("name,split\n1,train\n", "first line is id,slide,split"),
        ("id,split\na,train\nb,validation\n", "line 3.*'validation'"),
        ("id,split\na,train\na,val\nb,val\n", "line 3.*two splits"),
        ("id,split\na,train\n", "no row for 1 of 2.*b for one"),
        ("id,split\na\nb,val\n", "line 2.*None"),
        ("\xff\xfe\x00", "not a split file"),
    ],
)
def test_wrong_split_files(tmp_path: Path, text: str, match: str) -> None:
    for side in ("HE", "IHC"):
        (tmp_path / side).mkdir()
        for name in "ab":
            (tmp_path / side / f"{name}.png").touch()
    (tmp_path / "split.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(SheafStainError, match=match):
        open_dataset(tmp_path, split_file=tmp_path / "split.csv")


def test_split_file_cannot_tell_repeated_names(tmp_path: Path) -> None:
    for folder in ("HE/train", "IHC/train", "HE/val", "IHC/val"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.png").touch()
    (tmp_path / "split.csv").write_text("id,split\n1,train\n")
    with pytest.raises(SheafStainError, match="1 is in two splits"):
        open_dataset(tmp_path, split_file=tmp_path / "split.csv")
