"""The check finds what was broken on purpose, each fault as its own kind, and nothing else."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

import sheafstain.datasets.check as check_module
from sheafstain.datasets.check import ADVICE, Report, check_dataset, files_of
from sheafstain.datasets.layouts import open_dataset
from sheafstain.slides.image import read_image, write_image


def draw(path: Path, seed: int, height: int = 256, width: int = 256) -> Path:
    """Coloured squares, different for each seed, of few bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    squares = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    pixels = np.kron(squares, np.ones((-(-height // 16), -(-width // 16), 1), np.uint8))
    write_image(path, pixels[:height, :width])
    return path


@pytest.fixture
def bci(tmp_path: Path) -> Path:
    """Six faultless BCI pairs, four of them in train."""
    root = tmp_path / "BCI_dataset"
    for k in range(6):
        split = "train" if k < 4 else "test"
        for side, part in (("HE", 0), ("IHC", 100)):
            draw(root / side / split / f"{k:05d}_{split}_{k % 4}{'+' if k % 4 else ''}.png", k + part)
    return root


def check(root: Path, **options) -> Report:
    return check_dataset(open_dataset(root, options.pop("layout", None)), **options)


def found(report: Report, kind: str | None = None) -> list[tuple[str, str, str]]:
    """Severity, kind and file of what was found, but for the note that a set of six pairs is not the published one."""
    return [
        (p.severity.value, p.kind, p.file.relative_to(report.dataset.root).as_posix() if p.file else "")
        for p in report.problems
        if p.kind != "incomplete" and kind in (None, p.kind)
    ]


def test_a_good_set_is_good(bci: Path) -> None:
    report = check(bci)
    assert found(report) == []
    assert report.summary == "0 errors, 0 warnings"
    assert {str(size): files for size, files in report.sizes.items()} == {"256×256": 12}


def test_unreadable_files_are_all_named_with_their_reason(bci: Path) -> None:
    he = bci / "HE" / "train"
    data = (he / "00000_train_0.png").read_bytes()
    (he / "00000_train_0.png").write_bytes(data[: len(data) // 2])
    (he / "00001_train_1+.png").write_bytes(b"")
    (he / "00002_train_2+.png").write_text("this is no image")
    tifffile.imwrite(he / "00003_train_3+.tif", np.zeros((256, 256), np.uint16))
    (he / "00003_train_3+.png").unlink()
    report = check(bci)
    assert found(report) == [
        ("error", "unreadable", "HE/train/00000_train_0.png"),
        ("error", "unreadable", "HE/train/00001_train_1+.png"),
        ("error", "unreadable", "HE/train/00002_train_2+.png"),
        ("error", "unreadable", "HE/train/00003_train_3+.tif"),
    ]
    reasons = [p.text for p in report.problems if p.kind == "unreadable"]
    for reason, words in zip(reasons, ("truncated or damaged", "is empty", "not a PNG", "16-bit values"), strict=True):
        assert words in reason
        assert str(bci) not in reason  # the file has its own column
    assert report.summary == "4 errors (4 unreadable), 0 warnings"


def test_a_bomb_is_refused_and_not_decoded(bci: Path) -> None:
    file = bci / "IHC" / "test" / "00004_test_0.png"
    data = bytearray(file.read_bytes())
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    import zlib

    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    file.write_bytes(data)
    report = check(bci)
    assert found(report) == [("error", "unreadable", "IHC/test/00004_test_0.png")]
    assert "60000×60000" in report.problems[0].text


def test_a_file_without_partner_is_found_and_still_read(bci: Path) -> None:
    (bci / "IHC" / "test" / "00005_test_1+.png").unlink()
    report = check(bci)
    assert found(report) == [("error", "unpaired", "HE/test/00005_test_1+.png")]
    (bci / "HE" / "test" / "00005_test_1+.png").write_bytes(b"")
    assert [kind for _, kind, _ in found(check(bci))] == ["unreadable", "unpaired"]


def test_partners_of_different_size(bci: Path) -> None:
    draw(bci / "IHC" / "train" / "00002_train_2+.png", 102, 256, 300)
    report = check(bci)
    assert found(report) == [("error", "size", "IHC/train/00002_train_2+.png")]
    assert report.problems[0].text == "is 300×256, its H&E partner 00002_train_2+.png 256×256"


def test_a_pair_of_another_size_and_one_too_small(bci: Path) -> None:
    for side, part in (("HE", 0), ("IHC", 100)):
        draw(bci / side / "train" / "00001_train_1+.png", 1 + part, 320, 272)
        draw(bci / side / "test" / "00004_test_0.png", 4 + part, 256, 255)
    assert found(check(bci)) == [
        ("error", "size", "HE/test/00004_test_0.png"),
        ("error", "size", "IHC/test/00004_test_0.png"),
        ("warning", "size", "HE/test/00004_test_0.png"),
        ("warning", "size", "HE/train/00001_train_1+.png"),
        ("warning", "size", "IHC/test/00004_test_0.png"),
        ("warning", "size", "IHC/train/00001_train_1+.png"),
    ]


def test_no_usual_size_is_one_warning(tmp_path: Path) -> None:
    for k in range(5):
        for side in "AB":
            draw(tmp_path / side / f"{k}.png", 2 * k + (side == "B"), 256 + k, 300)
    assert found(check(tmp_path)) == [("warning", "size", "")]


def test_duplicates_are_found_by_pixels(bci: Path) -> None:
    he = bci / "HE"
    # The same picture in another container within train; a copy over to test.
    pixels = read_image(he / "train" / "00000_train_0.png")
    (he / "train" / "00001_train_1+.png").unlink()
    write_image(he / "train" / "00001_train_1+.tif", pixels)
    shutil.copy(he / "train" / "00003_train_3+.png", he / "test" / "00005_test_1+.png")
    report = check(bci)
    assert found(report) == [
        ("error", "duplicate", "HE/test/00005_test_1+.png"),
        ("warning", "duplicate", "HE/train/00001_train_1+.tif"),
    ]
    assert "HE/train/00003_train_3+.png" in report.problems[0].text
    assert "in train, not test" in report.problems[0].text


def test_the_same_bytes_in_another_shape_are_no_duplicate(bci: Path) -> None:
    for k, shape in ((0, (256, 512, 3)), (1, (512, 256, 3))):
        write_image(bci / "HE" / "train" / f"0000{k}_train_{k}{'+' * k}.png", np.full(shape, 200, np.uint8))
    assert found(check(bci), "duplicate") == []


def test_a_partner_that_is_a_copy(bci: Path) -> None:
    shutil.copy(bci / "HE" / "train" / "00002_train_2+.png", bci / "IHC" / "train" / "00002_train_2+.png")
    report = check(bci)
    assert found(report) == [("error", "duplicate", "IHC/train/00002_train_2+.png")]
    assert "H&E partner" in report.problems[0].text


def test_grade_and_name_faults_come_through(bci: Path) -> None:
    file = bci / "IHC" / "train" / "00002_train_2+.png"
    file.rename(file.with_name("00002_train_3+.png"))
    assert found(check(bci)) == [("error", "grade", "IHC/train/00002_train_3+.png")]


def test_what_reading_changes_is_noted(bci: Path) -> None:
    he = bci / "HE" / "train"
    Image.open(he / "00000_train_0.png").convert("RGBA").save(he / "00000_train_0.png")
    Image.open(he / "00001_train_1+.png").convert("L").save(he / "00001_train_1+.png")
    Image.open(he / "00002_train_2+.png").save(he / "00002_train_2+.png", "JPEG")
    report = check(bci)
    assert found(report) == [
        ("note", "converted", "HE/train/00000_train_0.png"),
        ("note", "converted", "HE/train/00001_train_1+.png"),
        ("note", "suffix", "HE/train/00002_train_2+.png"),
    ]
    assert report.summary == "0 errors, 0 warnings"


@pytest.fixture
def mist(tmp_path: Path) -> Path:
    root = tmp_path / "MIST"
    fields = {"train": ["10M1_0_0", "10M1_0_1", "20M2_0_0"], "val": ["10M1_3_3", "30M3_0_0"]}
    seed = 0
    for stain in ("HER2", "ER"):
        for split, stems in fields.items():
            for stem in stems:
                for side in "AB":
                    seed += 1
                    draw(root / stain / "TrainValAB" / f"{split}{side}" / f"{stem}.png", seed)
    return root


def test_a_slide_in_both_splits_is_a_leak(mist: Path) -> None:
    report = check(mist)
    assert found(report) == [("error", "leak", ""), ("error", "leak", "")]
    assert [(p.slide, p.text) for p in report.problems if p.kind == "leak"] == [
        ("10M1", "slide 10M1 of HER2 is in train (2 pairs) and val (1 pairs) (so in the published split)"),
        ("10M1", "slide 10M1 of ER is in train (2 pairs) and val (1 pairs) (so in the published split)"),
    ]
    allowed = check(mist, allow_leak=True)
    assert found(allowed) == [("warning", "leak", ""), ("warning", "leak", "")]
    assert allowed.summary == "0 errors, 2 warnings"


def test_stains_may_share_sections(mist: Path) -> None:
    source = mist / "HER2" / "TrainValAB" / "trainA" / "20M2_0_0.png"
    shutil.copy(source, mist / "ER" / "TrainValAB" / "valA" / "30M3_0_0.png")
    assert found(check(mist), "duplicate") == []
    shutil.copy(source, mist / "HER2" / "TrainValAB" / "valA" / "30M3_0_0.png")
    assert [severity for severity, _, _ in found(check(mist), "duplicate")] == ["error"]


def test_report_as_json(bci: Path) -> None:
    (bci / "HE" / "train" / "00001_train_1+.png").write_bytes(b"")
    facts = json.loads(json.dumps(check(bci).as_json()))
    assert facts["root"] == str(bci.resolve())
    assert facts["layout"] == "bci"
    assert facts["complete"] is False
    assert facts["counts"][1] == {
        "stain": "HER2",
        "split": "test",
        "pairs": 2,
        "published": 977,
        "slides": None,
        "grades": {"0": 1, "1+": 1},
    }
    assert facts["sizes"] == [{"width": 256, "height": 256, "files": 11}]
    assert facts["severities"] == {"error": 1, "warning": 0, "note": 2}
    assert facts["problems"][0] == {
        "severity": "error",
        "kind": "unreadable",
        "file": "HE/train/00001_train_1+.png",
        "slide": None,
        "text": "is empty (0 bytes); copy or download it again",
    }


@pytest.mark.parametrize("workers", [1, 3])
def test_order_and_bounded_reading(bci: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """Results come in the order of the files whichever thread is first, and no more images are open than threads."""
    lock, live, most, real_read = threading.Lock(), 0, 0, read_image

    def counting(path: Path):
        nonlocal live, most
        with lock:
            live += 1
            most = max(most, live)
        pixels = real_read(path)
        with lock:
            live -= 1
        return pixels

    monkeypatch.setattr(check_module, "read_image", counting)
    (bci / "HE" / "test" / "00004_test_0.png").write_bytes(b"")
    (bci / "IHC" / "train" / "00001_train_1+.png").write_bytes(b"")
    steps: list[int] = []
    report = check(bci, workers=workers, advance=steps.append)
    assert [file for _, _, file in found(report)] == ["HE/test/00004_test_0.png", "IHC/train/00001_train_1+.png"]
    assert sum(steps) == len(files_of(report.dataset)) == 12
    assert 1 <= most <= workers


def test_every_kind_has_advice(bci: Path, mist: Path) -> None:
    (bci / "HE" / "train" / "x.txt").touch()
    (bci / "IHC" / "train" / "00000_train_0.tif").touch()
    kinds = {p.kind for root in (bci, mist) for p in check(root).problems}
    assert {"other", "ambiguous", "leak", "incomplete"} <= kinds <= set(ADVICE)


def test_real_pairs_pass(real: Path) -> None:
    for name in ("bci", "mist"):
        report = check(real / name)
        assert report.summary == "0 errors, 0 warnings"
        assert [str(size) for size in report.sizes] == ["1024×1024"]
