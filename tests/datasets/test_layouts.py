"""Listing data sets by their names. Files are empty here: no image is opened."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sheafstain.datasets.layouts import LAYOUTS, open_dataset
from sheafstain.datasets.records import Severity, slide_of
from sheafstain.errors import SheafStainError, UsageError


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def bci_names(split: str, grades: Iterable[str]) -> list[str]:
    return [f"{side}/{split}/{k:05d}_{split}_{grade}.png" for k, grade in enumerate(grades) for side in ("HE", "IHC")]


def kinds(dataset, kind: str) -> list[str]:
    return [p.file.relative_to(dataset.root).as_posix() for p in dataset.problems if p.kind == kind and p.file]


# --- BCI --------------------------------------------------------------------------------------------------------------


def test_bci(tmp_path: Path) -> None:
    touch(tmp_path, *bci_names("train", ["0", "3+", "1+"]), *bci_names("test", ["2+"]))
    data = open_dataset(tmp_path)
    assert data.layout == "bci"
    assert [(r.id, r.split, r.stain, r.grade, r.slide) for r in data.records] == [
        ("00000_train_0", "train", "HER2", "0", None),
        ("00001_train_3+", "train", "HER2", "3+", None),
        ("00002_train_1+", "train", "HER2", "1+", None),
        ("00000_test_2+", "test", "HER2", "2+", None),
    ]
    assert data.records[1].he == tmp_path / "HE/train/00001_train_3+.png"
    assert data.records[1].ihc == tmp_path / "IHC/train/00001_train_3+.png"
    assert data.splits == ("train", "test")
    assert data.stains == ("HER2",)
    assert [r.grade for r in data.select("train")] == ["0", "3+", "1+"]


def test_bci_counts_tell_a_complete_set(tmp_path: Path) -> None:
    train, test = bci_names("train", ["1+"] * 3896), bci_names("test", ["0"] * 977)
    touch(tmp_path / "BCI_dataset", *train, *test)
    data = open_dataset(tmp_path)
    assert data.root == tmp_path / "BCI_dataset"
    assert data.counts == {("HER2", "train"): 3896, ("HER2", "test"): 977}
    assert data.complete is True
    assert data.problems == ()

    for side in ("HE", "IHC"):
        (data.root / side / "test/00976_test_0.png").unlink()
    data = open_dataset(tmp_path)
    assert data.complete is False
    assert [(p.kind, p.severity, p.text) for p in data.problems] == [
        ("incomplete", Severity.NOTE, "HER2 test: 976 pairs, the published set has 977")
    ]


def test_bci_names_that_contradict(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *bci_names("train", ["0"]),
        "HE/train/00007_train_1+.png",
        "IHC/train/00007_train_2+.png",  # another grade, the same pair
        "HE/test/00008_train_0.png",  # in the wrong split
        "IHC/test/00008_train_0.png",
        "HE/train/extra.png",
        "IHC/train/extra.png",
    )
    data = open_dataset(tmp_path)
    assert kinds(data, "grade") == ["IHC/train/00007_train_2+.png"]
    assert kinds(data, "name") == [
        "HE/train/extra.png",
        "IHC/train/extra.png",
        "HE/test/00008_train_0.png",
        "IHC/test/00008_train_0.png",
    ]
    assert kinds(data, "unpaired") == []
    grades = {r.id: r.grade for r in data.records}
    assert grades["00007_train_1+"] is None
    assert grades["extra"] is None
    assert grades["00000_train_0"] == "0"


# --- MIST -------------------------------------------------------------------------------------------------------------

FIELDS = ("100M2004069_21_29", "15M2102762_18_18", "15M2102762_18_19")


def mist_names(split: str, stems: Iterable[str], folder: str = "TrainValAB", endings: str = "jpg png") -> list[str]:
    a, b = endings.split()
    return [name for stem in stems for name in (f"{folder}/{split}A/{stem}.{a}", f"{folder}/{split}B/{stem}.{b}")]


def test_mist_pairs_by_stem_across_endings(tmp_path: Path) -> None:
    for stain in ("PR", "HER2", "Ki67", "ER"):
        touch(tmp_path / "MIST" / stain, *mist_names("train", FIELDS[1:]), *mist_names("val", FIELDS[:1]))
    data = open_dataset(tmp_path)
    assert data.layout == "mist"
    assert data.stains == ("HER2", "Ki67", "ER", "PR")
    assert len(data.records) == 12
    first = data.select(stain="HER2")
    assert [(r.id, r.split, r.stain, r.grade, r.slide) for r in first] == [
        ("15M2102762_18_18", "train", "HER2", None, "15M2102762"),
        ("15M2102762_18_19", "train", "HER2", None, "15M2102762"),
        ("100M2004069_21_29", "val", "HER2", None, "100M2004069"),
    ]
    assert (first[0].he.suffix, first[0].ihc.suffix) == (".jpg", ".png")
    assert data.published[("ER", "train")] == 4153
    assert sum(data.published.values()) == 4642 + 4361 + 4153 + 4139 + 4 * 1000
    assert data.complete is False


@pytest.mark.parametrize("start", ["MIST", "MIST/Ki67", "MIST/Ki67/TrainValAB"])
def test_mist_from_any_of_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    touch(tmp_path / "MIST" / "Ki67", *mist_names("val", FIELDS))
    data = open_dataset(tmp_path / start)
    assert [(r.stain, r.split) for r in data.records] == [("Ki67", "val")] * 3
    monkeypatch.chdir(tmp_path / start)
    assert open_dataset(".").stains == ("Ki67",)


def test_mist_test_folders_are_its_validation(tmp_path: Path) -> None:
    touch(tmp_path / "ER", *mist_names("train", FIELDS[:1]), *mist_names("test", FIELDS[1:]))
    assert open_dataset(tmp_path).splits == ("train", "val")
    touch(tmp_path / "ER", *mist_names("val", ["1M2_3_4"]))
    assert open_dataset(tmp_path).splits == ("train", "val", "test")


def test_mist_folders_of_an_unnamed_stain(tmp_path: Path) -> None:
    touch(tmp_path, *mist_names("train", FIELDS, folder="."))
    data = open_dataset(tmp_path)
    assert data.layout == "mist"
    assert data.stains == ("IHC",)
    assert data.complete is None


def test_mist_published_counts_of_one_stain(tmp_path: Path) -> None:
    train = mist_names("train", (f"s{k % 56}_{k}_0" for k in range(4139)))
    touch(tmp_path / "PR", *train, *mist_names("val", (f"s{k % 56}_{k}_1" for k in range(1000))))
    data = open_dataset(tmp_path)
    assert data.complete is True
    assert not data.problems


@pytest.mark.parametrize(
    ("stem", "slide"),
    [
        ("100M2004069_21_29", "100M2004069"),
        ("a_b_1_2", "a_b"),
        ("1_2_3_4", "1_2"),
        ("slide_3", None),
        ("slide_x1_y2", None),
        ("_1_2", None),
        ("00007_test_1+", None),
    ],
)
def test_slide_from_name(stem: str, slide: str | None) -> None:
    assert slide_of(stem) == slide


# --- two folders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("he", "ihc"), [("HE", "IHC"), ("he", "ihc"), ("A", "B")])
@pytest.mark.parametrize(
    ("shape", "splits"),
    [
        ("{side}/{name}", ("all",)),
        ("{side}/{split}/{name}", ("train", "test")),
        ("{split}/{side}/{name}", ("train", "test")),
    ],
)
def test_pairs(tmp_path: Path, he: str, ihc: str, shape: str, splits: tuple[str, ...]) -> None:
    for split, name in (("train", "one_0_1"), ("train", "two"), ("test", "three")):
        for side, ending in ((he, "tif"), (ihc, "JPG")):
            touch(tmp_path, shape.format(side=side, split=split, name=f"{name}.{ending}"))
    data = open_dataset(tmp_path)
    assert data.layout == "pairs"
    assert data.splits == splits
    assert {(r.id, r.stain, r.grade, r.slide) for r in data.records} == {
        ("one_0_1", "IHC", None, "one"),
        ("two", "IHC", None, None),
        ("three", "IHC", None, None),
    }
    assert data.complete is None
    assert data.problems == ()


def test_pairs_ids_may_repeat_over_splits(tmp_path: Path) -> None:
    touch(tmp_path, "HE/train/1.png", "IHC/train/1.png", "HE/val/1.png", "IHC/val/1.png")
    assert [(r.split, r.id) for r in open_dataset(tmp_path).records] == [("train", "1"), ("val", "1")]


def test_images_beside_split_folders_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "HE/train/1.png", "IHC/train/1.png", "HE/2.png", "IHC/2.png")
    data = open_dataset(tmp_path)
    assert len(data.records) == 1
    assert kinds(data, "other") == ["HE/2.png", "IHC/2.png"]


# --- partners and litter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "he", "ihc", "pair"),
    [
        ("bci", "HE/train/00003_train_0.png", "IHC/train/00004_train_0.png", "{}/train/00001_train_0.png"),
        (
            "mist",
            "HER2/TrainValAB/trainA/s_1_3.jpg",
            "HER2/TrainValAB/trainB/s_1_4.jpg",
            "HER2/TrainValAB/train{}/s_0_0.jpg",
        ),
        ("pairs", "HE/c.png", "IHC/d.png", "{}/a.png"),
    ],
)
def test_files_without_partner(tmp_path: Path, layout: str, he: str, ihc: str, pair: str) -> None:
    sides = "AB" if layout == "mist" else ("HE", "IHC")
    touch(tmp_path, he, ihc, *(pair.format(side) for side in sides))
    data = open_dataset(tmp_path)
    assert data.layout == layout
    assert len(data.records) == 1
    assert kinds(data, "unpaired") == [he, ihc]
    assert {p.severity for p in data.problems if p.kind == "unpaired"} == {Severity.ERROR}


def test_one_name_two_endings(tmp_path: Path) -> None:
    touch(tmp_path, "HE/a.png", "HE/a.tif", "IHC/a.png")
    data = open_dataset(tmp_path)
    assert kinds(data, "ambiguous") == ["HE/a.tif"]
    assert [r.he.name for r in data.records] == ["a.png"]


def test_litter_is_not_data(tmp_path: Path) -> None:
    touch(tmp_path, "HE/a.png", "IHC/a.png")
    touch(tmp_path, "HE/._a.png", "HE/.DS_Store", "HE/Thumbs.db", "IHC/.b.png.12ab.part", "__MACOSX/HE/._a.png")
    touch(tmp_path, "HE/notes.txt", "IHC/old/a.png")
    data = open_dataset(tmp_path)
    assert [r.id for r in data.records] == ["a"]
    assert kinds(data, "other") == ["HE/notes.txt", "IHC/old"]
    assert {p.severity for p in data.problems} == {Severity.NOTE}


def test_order_is_that_of_the_names(tmp_path: Path) -> None:
    names = [f"{k * 37 % 50}" for k in range(50)]
    touch(tmp_path, *(f"{side}/{name}.png" for name in names for side in ("HE", "IHC")))
    assert [r.id for r in open_dataset(tmp_path).records] == sorted(names)


# --- which layout -----------------------------------------------------------------------------------------------------


def test_wrong_layout_lists_layouts_and_what_is_there(tmp_path: Path) -> None:
    touch(tmp_path / "ER", *mist_names("val", FIELDS))
    with pytest.raises(UsageError) as caught:
        open_dataset(tmp_path, "bci")
    text = str(caught.value)
    assert "\n" not in text
    assert "looks like mist" in text
    assert all(name in text for name in LAYOUTS)
    with pytest.raises(UsageError, match=r"no layout 'cut'.*looks like mist"):
        open_dataset(tmp_path, "cut")


def test_no_layout_says_what_is_there(tmp_path: Path) -> None:
    touch(tmp_path, "images/1.png", "HE/2.png", "notes.txt")
    with pytest.raises(UsageError, match=r"holds HE/, images/, notes\.txt"):
        open_dataset(tmp_path)


def test_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    touch(tmp_path / "BCI_dataset", *bci_names("train", ["0"]))
    touch(tmp_path / "MIST" / "ER", *mist_names("val", FIELDS))
    with pytest.raises(UsageError, match=r"more than one.*BCI_dataset \(bci\).*MIST \(mist\)"):
        open_dataset(tmp_path)
    assert open_dataset(tmp_path, "bci").layout == "bci"
    assert open_dataset(tmp_path, "mist").layout == "mist"


def test_bci_folders_can_be_taken_as_pairs(tmp_path: Path) -> None:
    touch(tmp_path, *bci_names("train", ["0", "1+"]))
    assert open_dataset(tmp_path).layout == "bci"
    assert [r.grade for r in open_dataset(tmp_path, "pairs").records] == [None, None]


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(SheafStainError, match="no such folder"):
        open_dataset(tmp_path / "nowhere")
    touch(tmp_path, "file")
    with pytest.raises(SheafStainError, match="is a file"):
        open_dataset(tmp_path / "file")
    (tmp_path / "HE").mkdir()
    (tmp_path / "IHC").mkdir()
    with pytest.raises(SheafStainError, match="no image"):
        open_dataset(tmp_path)


# --- the real ones ----------------------------------------------------------------------------------------------------


def test_real_bci(real: Path) -> None:
    data = open_dataset(real / "bci")
    assert data.layout == "bci"
    assert [(r.id, r.split, r.stain, r.grade, r.slide) for r in data.records] == [
        ("00007_test_1+", "test", "HER2", "1+", None),
        ("00052_test_3+", "test", "HER2", "3+", None),
        ("00118_test_0", "test", "HER2", "0", None),
        ("00361_test_2+", "test", "HER2", "2+", None),
    ]
    assert data.complete is False
    assert {p.kind for p in data.problems} == {"incomplete"}


def test_real_mist(real: Path) -> None:
    data = open_dataset(real / "mist")
    assert data.layout == "mist"
    assert [(r.id, r.split, r.stain, r.grade, r.slide) for r in data.records] == [
        ("100M2004069_21_29", "val", "HER2", None, "100M2004069"),
        ("15M2102762_18_18", "val", "HER2", None, "15M2102762"),
        ("28M2101987_31_31", "val", "HER2", None, "28M2101987"),
    ]
    assert all(r.he.parent.name == "valA" and r.ihc.parent.name == "valB" for r in data.records)
