"""The images of the HER2 task: what a classifier is trained on, what it is tested on, and that all of it is there.

Grades and splits come from the names of a data set in the layout of BCI. The test images are its real IHC; the training
images are a method's translations of its train split under the same stems, or its real IHC, which gives the ceiling.
Everything is read once before the training starts, so that a damaged test image does not show after a hundred epochs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sheafstain.datasets.layouts import open_dataset
from sheafstain.datasets.records import Record, Severity, images
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.image import read_image
from sheafstain.window import Size

GRADES = ("0", "1+", "2+", "3+")
LOW, HIGH = "Low", "High"
CLASS = {"0": LOW, "1+": LOW, "2+": HIGH, "3+": HIGH}  # paper, appendix "Downstream HER2 Classification Details"
SMALLEST = 64  # px: a ResNet halves five times, and batch statistics need more than one position
RESIZER = "bilinear, antialiased (Pillow)"


@dataclass(frozen=True, slots=True)
class Case:
    """One image with the grade of its name."""

    name: str
    grade: str
    path: Path

    @property
    def high(self) -> bool:
        return CLASS[self.grade] == HIGH


@dataclass(frozen=True, slots=True)
class CaseSet:
    """Images that were read and found whole, of one size after resizing."""

    folder: Path
    cases: tuple[Case, ...]
    size: Size  # as the network sees them
    resized: int  # how many are another size on disk
    sha256: str  # over names, grades and files

    @property
    def high(self) -> NDArray[np.float64]:
        """1 for High and 0 for Low, [n]."""
        return np.array([case.high for case in self.cases], np.float64)

    @property
    def counts(self) -> dict[str, int]:
        """Images by grade, then by class."""
        grades = Counter(case.grade for case in self.cases)
        classes = Counter(CLASS[case.grade] for case in self.cases)
        return {grade: grades[grade] for grade in GRADES} | {name: classes[name] for name in (LOW, HIGH)}

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """uint8 [h, w, 3] of the i-th image, resized where it has to be."""
        array = read_image(self.cases[i].path)
        if array.shape[:2] == (self.size.h, self.size.w):
            return array
        resized = Image.fromarray(array).resize((self.size.w, self.size.h), Image.Resampling.BILINEAR)
        return np.asarray(resized)


def list_cases(data: Path, translated: Path | None) -> tuple[list[Case], list[Case]]:
    """Training and test images by their names; no file is opened.

    All that is not test is trained on: BCI has no official validation split, and the 3,116 + 780 of the paper are its
    3,896 training pairs.
    """
    dataset = open_dataset(data)
    if all(record.grade is None for record in dataset.records):
        raise UsageError(
            f"{dataset.root}: layout {dataset.layout} without HER2 grades; the grade is the third field of a BCI name "
            "(HE and IHC/test/00007_test_1+.png)"
        )
    faults = [problem for problem in dataset.problems if problem.severity is Severity.ERROR]
    if faults:
        first = faults[0]
        raise SheafStainError(
            f"{first.file or dataset.root}: {first.text}; {len(faults)} such faults in the set: correct them "
            f"(sheafstain data check {data} lists them)"
        )
    test = dataset.select("test")
    train = tuple(record for record in dataset.records if record.split in ("train", "val"))
    for records, split in ((train, "train"), (test, "test")):
        if not records:
            raise SheafStainError(f"{dataset.root}: has no {split} split; this task needs train and test")
        _both_classes(records, split, dataset.root)
    real = {record.id: record.ihc for record in train}
    if len(real) < len(train):
        raise SheafStainError(f"{dataset.root}: the same name lies in train and in val; remove one of the two")
    paths = real if translated is None else _translations(translated, sorted(real))
    trained = [Case(record.id, record.grade or "", paths[record.id]) for record in train]
    return trained, [Case(record.id, record.grade or "", record.ihc) for record in test]


def _both_classes(records: Sequence[Record], split: str, root: Path) -> None:
    found = {CLASS[record.grade or ""] for record in records}
    if len(found) == 1:
        (only,) = found
        what = "a classifier has nothing to tell apart" if split == "train" else "AUROC is undefined"
        raise SheafStainError(
            f"{root}: all {len(records)} {split} images are {only} ({_grades_of(only)}), so {what}; "
            "images of both classes are needed"
        )


def _grades_of(name: str) -> str:
    return ", ".join(grade for grade in GRADES if CLASS[grade] == name)


def _translations(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The translated image of every training name; other files of the folder are left alone."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise SheafStainError(f"{folder}: {what}; --translated is a folder of translated training images")
    wanted = set(names)
    found: dict[str, Path] = {}
    for file in images(folder)[0]:
        if file.stem in wanted and found.setdefault(file.stem, file) is not file:
            raise SheafStainError(f"{folder}: holds {found[file.stem].name} and {file.name}; remove one of the two")
    missing = [name for name in names if name not in found]
    if missing:
        raise SheafStainError(
            f"{folder}: no translation of {len(missing)} of the {len(names)} training images ({_first(missing)}); "
            "translate the H&E of the whole training split, under the names it has"
        )
    return found


def _first(items: Iterable[object], count: int = 3) -> str:
    shown = [str(item) for item in items]
    return ", ".join(shown[:count]) + (", …" if len(shown) > count else "")


def read_cases(
    train: Sequence[Case],
    test: Sequence[Case],
    size: int | None,
    *,
    workers: int = 1,
    advance: Callable[[int], None] | None = None,
) -> tuple[CaseSet, CaseSet]:
    """Read every image once; they must be whole and, unless ``size`` (a side in px) is given, of one size."""
    if size is not None and size < SMALLEST:
        raise UsageError(f"--size is at least {SMALLEST} px, not {size}: the network halves an image five times")
    with ThreadPoolExecutor(workers) as pool:
        read = []
        for one in pool.map(_read, [*train, *test]):
            read.append(one)
            if advance:
                advance(1)
    broken = [one for one in read if isinstance(one, SheafStainError)]
    if broken:
        count = f" ({len(broken)} such images)" if len(broken) > 1 else ""
        raise SheafStainError(f"{broken[0]}{count}")
    whole = [one for one in read if not isinstance(one, SheafStainError)]
    seen = _common_size([*train, *test], [found for found, _ in whole], size)
    return (
        _set(train, whole[: len(train)], seen),
        _set(test, whole[len(train) :], seen),
    )


def _read(case: Case) -> tuple[Size, str] | SheafStainError:
    try:
        array = read_image(case.path)
    except SheafStainError as error:
        return error
    with case.path.open("rb") as file:
        return Size(*array.shape[:2]), hashlib.file_digest(file, "sha256").hexdigest()


def _set(cases: Sequence[Case], read: Sequence[tuple[Size, str]], size: Size) -> CaseSet:
    digest = hashlib.sha256()
    for case, (_, file) in sorted(zip(cases, read, strict=True), key=lambda item: item[0].name):
        digest.update(f"{case.name} {case.grade} {file}\n".encode())
    resized = sum(found != size for found, _ in read)
    return CaseSet(cases[0].path.parent, tuple(cases), size, resized, digest.hexdigest())


def _common_size(cases: Sequence[Case], sizes: Sequence[Size], side: int | None) -> Size:
    counts = Counter(sizes)
    first = {found: cases[sizes.index(found)].path for found in counts}
    if side is None:
        if len(counts) > 1:
            said = ", ".join(f"{n} of {found} ({first[found]}{', …' * (n > 1)})" for found, n in counts.most_common(3))
            raise SheafStainError(f"the images are not of one size: {said}; --size N resizes them all to N×N")
        (only,) = counts
        if min(only.h, only.w) < SMALLEST:
            raise SheafStainError(f"{first[only]}: {only} px; the network needs {SMALLEST} px a side, see --size")
        return only
    for found in counts:
        if found.h != found.w:
            raise SheafStainError(f"{first[found]}: {found} px is not square, and --size {side} would distort it")
    return Size(side, side)
