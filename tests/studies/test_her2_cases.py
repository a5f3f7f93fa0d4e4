"""Which images a classifier sees, and what is said when they are not all there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.image import read_image, write_image
from sheafstain.studies.her2_cases import CaseSet, list_cases, read_cases
from sheafstain.window import Size


def read(data: Path, translated: Path | None = None, size: int | None = None) -> tuple[CaseSet, CaseSet]:
    return read_cases(*list_cases(data, translated), size, workers=2)


def test_real_and_translated(toy, tmp_path: Path):
    data = toy(tmp_path / "BCI", train=8, test=4)
    train, test = read(data)
    assert [case.name for case in test.cases] == ["00000_test_0", "00001_test_1+", "00002_test_2+", "00003_test_3+"]
    assert test.high.tolist() == [0, 0, 1, 1]
    assert train.counts == {"0": 2, "1+": 2, "2+": 2, "3+": 2, "Low": 4, "High": 4}
    assert {case.path.parent for case in train.cases} == {data / "IHC" / "train"}
    np.testing.assert_array_equal(test.pixels(2), read_image(test.cases[2].path))

    out = tmp_path / "method"
    shutil.copytree(data / "HE" / "train", out)
    (out / "00000_train_0.png").rename(out / "00000_train_0.tif")  # endings may differ, content counts
    write_image(out / "overview.png", np.zeros((8, 8, 3), np.uint8))  # what else lies there is left alone
    translated, same = read(data, out)
    assert [case.name for case in translated.cases] == [case.name for case in train.cases]
    assert {case.path.parent for case in translated.cases} == {out}
    assert same.sha256 == test.sha256
    assert translated.sha256 == train.sha256, "the toy's H&E is its IHC: the same bytes, grades and names"
    write_image(out / "00003_train_3+.png", np.zeros((64, 64, 3), np.uint8))
    assert read(data, out)[0].sha256 != train.sha256


def test_a_validation_split_is_trained_on(toy, tmp_path: Path):
    data = toy(tmp_path / "BCI", train=8, test=4)
    for stain in ("HE", "IHC"):
        (data / stain / "val").mkdir()
        name = "00001_train_1+.png"
        (data / stain / "train" / name).rename(data / stain / "val" / name)
    assert len(list_cases(data, None)[0]) == 8


def test_missing_translations_are_counted(toy, tmp_path: Path):
    data = toy(tmp_path / "BCI", train=8, test=4)
    out = tmp_path / "method"
    out.mkdir()
    shutil.copy(data / "HE" / "train" / "00005_train_1+.png", out)
    said = "no translation of 7 of the 8 training images (00000_train_0, 00001_train_1+, 00002_train_2+, …)"
    with pytest.raises(SheafStainError, match=re.escape(f"{out}: {said}")):
        list_cases(data, out)
    shutil.copy(out / "00005_train_1+.png", out / "00005_train_1+.jpg")
    with pytest.raises(SheafStainError, match=r"holds 00005_train_1\+.jpg and 00005_train_1\+.png"):
        list_cases(data, out)
    with pytest.raises(SheafStainError, match="no such folder; --translated is a folder of translated"):
        list_cases(data, tmp_path / "nowhere")


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_single_class(toy, tmp_path: Path, split: str):
    data = toy(tmp_path / "BCI", train=4, test=4)
    for stain in ("HE", "IHC"):
        for file in (data / stain / split).glob("*_[01]*.png"):
            if not file.stem.endswith(("2+", "3+")):
                file.unlink()
    why = {"train": "nothing to tell apart", "test": "AUROC is undefined"}[split]
    with pytest.raises(SheafStainError, match=rf"all 2 {split} images are High \(2\+, 3\+\), so .*{why}"):
        list_cases(data, None)


def test_a_split_that_is_not_there(toy, tmp_path: Path):
    data = toy(tmp_path / "BCI", train=4, test=4)
    for stain in ("HE", "IHC"):
        shutil.rmtree(data / stain / "test")
    with pytest.raises(SheafStainError, match="has no test split"):
        list_cases(data, None)


def test_without_grades(toy, tmp_path: Path):
    data = toy(tmp_path / "BCI", train=4, test=4)
    plain = tmp_path / "pairs"
    for stain in ("HE", "IHC"):
        (plain / stain).mkdir(parents=True)
        for i, file in enumerate(sorted((data / stain / "train").iterdir())):
            shutil.copy(file, plain / stain / f"{i}.png")
    with pytest.raises(UsageError, match="layout pairs without HER2 grades"):
        list_cases(plain, None)


def test_a_name_without_a_grade_and_a_lost_partner(toy, tmp_path: Path):
    data = toy(tmp_path / "BCI", train=8, test=4)
    (data / "HE" / "train" / "00002_train_2+.png").unlink()
    with pytest.raises(SheafStainError, match=r"00002_train_2\+.png: has no partner in HE/train; 1 such faults"):
        list_cases(data, None)
    (data / "IHC" / "train" / "00002_train_2+.png").unlink()
    for stain in ("HE", "IHC"):
        (data / stain / "test" / "00001_test_1+.png").rename(data / stain / "test" / "00001_test_4+.png")
    with pytest.raises(SheafStainError, match=r"00001_test_4\+.png: is not named like BCI"):
        list_cases(data, None)


def test_unreadable_images_are_all_found_before_training(toy, tmp_path: Path):
    data = toy(tmp_path / "BCI", train=8, test=4)
    whole = (data / "IHC" / "test" / "00002_test_2+.png").read_bytes()
    (data / "IHC" / "test" / "00002_test_2+.png").write_bytes(whole[: len(whole) // 2])  # its header is whole
    with pytest.raises(SheafStainError, match=r"00002_test_2\+.png: is truncated or damaged[^(]*\([^(]*$"):
        read(data)
    (data / "IHC" / "train" / "00001_train_1+.png").write_bytes(b"")
    with pytest.raises(SheafStainError, match=r"00001_train_1\+.png: is empty.* \(2 such images\)"):
        read(data)


def test_sizes(toy, tmp_path: Path):
    data = toy(tmp_path / "BCI", train=4, test=4)
    out = toy(tmp_path / "other", train=4, test=4, side=96) / "IHC" / "train"
    with pytest.raises(SheafStainError, match=r"not of one size: 4 of 96×96 .*, 4 of 64×64 .*--size N resizes them"):
        read(data, out)
    train, test = read(data, out, size=64)
    assert (train.size, train.resized, test.resized) == (Size(64, 64), 4, 0)
    assert train.pixels(0).shape == (64, 64, 3)
    mean = read_image(train.cases[0].path).mean((0, 1))
    np.testing.assert_allclose(train.pixels(0).mean((0, 1)), mean, atol=1.5)  # noise at the border weighs otherwise
    with pytest.raises(UsageError, match="--size is at least 64"):
        read(data, size=32)
    write_image(out / "00000_train_0.png", np.zeros((96, 128, 3), np.uint8))
    with pytest.raises(SheafStainError, match=r"00000_train_0.png: 128×96 px is not square"):
        read(data, out, size=64)
    small = toy(tmp_path / "small", train=4, test=4, side=32)
    with pytest.raises(SheafStainError, match="32×32 px; the network needs 64 px"):
        read(small)


def test_real_names_and_grades(real: Path, tmp_path: Path):
    """Four real BCI pairs, all of the test split: a training split of the same images under training names."""
    for stain in ("HE", "IHC"):
        (tmp_path / stain / "train").mkdir(parents=True)
        shutil.copytree(real / "bci" / stain / "test", tmp_path / stain / "test")
        for file in (tmp_path / stain / "test").glob("*.png"):
            shutil.copy(file, tmp_path / stain / "train" / file.name.replace("_test_", "_train_"))
    train, test = read(tmp_path)
    assert train.size == Size(1024, 1024)
    assert test.counts == {"0": 1, "1+": 1, "2+": 1, "3+": 1, "Low": 2, "High": 2}
