"""Your own pairs: two folders, ``HE`` and ``IHC`` (or ``he``/``ihc``, or ``A``/``B``), partners by stem.

Split folders ``train``, ``val``, ``test`` may lie inside the two (``HE/train``) or around them (``train/HE``); without
any the split is ``all``. A stem that ends in ``_y_x`` (two numbers) names its slide, as in MIST.
"""

from __future__ import annotations

from pathlib import Path

from sheafstain.datasets.records import (
    UNKNOWN_STAIN,
    Layout,
    Listing,
    Problem,
    Record,
    Severity,
    folders,
    images,
    pair,
    slide_of,
)

_SPLITS = ("train", "val", "test")


def _holds(root: Path) -> bool:
    return bool(_two_folders_by_split(root))


def _read(root: Path) -> Listing:
    listing = Listing()
    for split, (he, ihc) in _two_folders_by_split(root).items():
        pairs, problems = pair(he, ihc, lambda file: file.stem)
        listing.problems.extend(problems)
        for a, b in pairs:
            listing.records.append(Record(a.stem, split, UNKNOWN_STAIN, None, slide_of(a.stem), a, b))
    if "all" not in _two_folders_by_split(root) and (two := _two_folders(root)) is not None:
        loose = [file for folder in two for file in images(folder)[0]]
        text = "lies beside the split folders and is not used"
        listing.problems.extend(Problem("other", Severity.WARNING, text, file) for file in loose)
    return listing


def _two_folders_by_split(root: Path) -> dict[str, tuple[Path, Path]]:
    if (two := _two_folders(root)) is not None:
        he, ihc = two
        inside = {s: (he / s, ihc / s) for s in _SPLITS if (he / s).is_dir() or (ihc / s).is_dir()}
        return inside or {"all": two}
    return {split: two for split in _SPLITS if (two := _two_folders(root / split)) is not None}


def _two_folders(root: Path) -> tuple[Path, Path] | None:
    by_name = {folder.name.casefold(): folder for folder in folders(root)}
    for he, ihc in (("he", "ihc"), ("a", "b")):
        if he in by_name and ihc in by_name:
            return by_name[he], by_name[ihc]
    return None


LAYOUT = Layout(
    name="pairs",
    shape="{HE,IHC}/name.png or {A,B}/name.png, with train, val, test folders if split",
    holds=_holds,
    read=_read,
)
