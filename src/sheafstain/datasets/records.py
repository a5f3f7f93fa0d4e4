"""What a data set is: records (one H&E/IHC pair each), and what was found wrong while listing them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from sheafstain.errors import UsageError
from sheafstain.slides.image import SUFFIXES

STAINS = ("HER2", "Ki67", "ER", "PR")  # as MIST names its folders and as every record spells them
UNKNOWN_STAIN = "IHC"  # for layouts whose names do not tell which marker it is
SPLITS = ("train", "val", "test", "all")  # "all": the set is not split

_STAIN_ORDER = (*STAINS, UNKNOWN_STAIN)
_FIELD = re.compile(r"(?P<slide>.+)_\d+_\d+")  # slide_y_x, how MIST and most tiling tools name a field of a slide
_NOT_DATA = frozenset({"thumbs.db", "desktop.ini", "__macosx"})


class Severity(StrEnum):
    ERROR = "error"  # training would fail or its figures would be wrong
    WARNING = "warning"  # probably not meant
    NOTE = "note"  # to know


@dataclass(frozen=True, slots=True)
class Record:
    """One pair of registered images. ``id`` is the stem of the H&E file, unique within a stain and split."""

    id: str
    split: str  # one of SPLITS
    stain: str  # one of STAINS, or UNKNOWN_STAIN
    grade: str | None  # HER2 "0", "1+", "2+", "3+"
    slide: str | None  # None where the name does not tell
    he: Path
    ihc: Path


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str  # a key of check.ADVICE
    severity: Severity
    text: str
    file: Path | None = None
    slide: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a layout finds in a folder by names alone."""

    records: list[Record] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Layout:
    """A published way to lay pairs out in folders."""

    name: str
    shape: str  # for people: how the folders look
    holds: Callable[[Path], bool]  # does this very folder look like it?
    read: Callable[[Path], Listing]
    published: Mapping[tuple[str, str], int] = field(default_factory=dict)  # pairs by (stain, split)


@dataclass(frozen=True)
class DataSet:
    """All pairs of one folder, in an order that does not depend on the file system."""

    layout: str
    root: Path
    records: tuple[Record, ...]
    problems: tuple[Problem, ...]  # from names alone; check.check_dataset reads the files too
    published: Mapping[tuple[str, str], int]  # the full set's pairs by (stain, split); empty where unknown

    @property
    def stains(self) -> tuple[str, ...]:
        return tuple(sorted({record.stain for record in self.records}, key=_STAIN_ORDER.index))

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(sorted({record.split for record in self.records}, key=SPLITS.index))

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Pairs by (stain, split), zero for a published split of which nothing is there."""
        found = Counter((record.stain, record.split) for record in self.records)
        return {key: found[key] for key in sorted({*found, *self.published}, key=lambda key: _order(*key))}

    @property
    def complete(self) -> bool | None:
        """Is every published pair there (paper, appendix "Dataset Statistics")? None where none are published."""
        return self.counts == dict(self.published) if self.published else None

    def select(self, split: str | None = None, stain: str | None = None) -> tuple[Record, ...]:
        return tuple(
            record for record in self.records if split in (None, record.split) and stain in (None, record.stain)
        )

    def select_some(self, split: str | None = None, stain: str | None = None) -> tuple[Record, ...]:
        """The same for what a user asked for: nothing of it is an error, which says what there is."""
        if records := self.select(split, stain):
            return records
        has = f"stains {', '.join(self.stains)}; splits {', '.join(self.splits)}"
        raise UsageError(f"{self.root}: no pair of that split and stain; it has {has}")


def in_order(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(sorted(records, key=lambda record: (_order(record.stain, record.split), record.id)))


def _order(stain: str, split: str) -> tuple[int, int]:
    return _STAIN_ORDER.index(stain), SPLITS.index(split)


def slide_of(stem: str) -> str | None:
    """``100M2004069_21_29`` → ``100M2004069``: the part before the two trailing numbers."""
    match = _FIELD.fullmatch(stem)
    return match["slide"] if match else None


def folders(root: Path) -> list[Path]:
    """The visible sub-folders, sorted."""
    return [Path(entry) for entry in _visible(root) if entry.is_dir()]


def images(folder: Path) -> tuple[list[Path], list[Problem]]:
    """The image files right inside a folder (none if it does not exist), and notes on what else lies there."""
    found: list[Path] = []
    problems: list[Problem] = []
    for entry in _visible(folder):
        path = Path(entry)
        if entry.is_dir():
            problems.append(Problem("other", Severity.NOTE, "is a folder and is not looked into", path))
        elif path.suffix.lower() in SUFFIXES:
            found.append(path)
        else:
            problems.append(Problem("other", Severity.NOTE, "is not an image and is not used", path))
    return found, problems


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """What is meant to be seen, by name. Hidden are .DS_Store, AppleDouble twins (._x.png) and half-written files."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:  # not iterdir: it would ask the file system once more for every file
        seen = [entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() not in _NOT_DATA]
    return sorted(seen, key=lambda entry: entry.name)


def pair(he: Path, ihc: Path, key: Callable[[Path], str]) -> tuple[list[tuple[Path, Path]], list[Problem]]:
    """Match the images of two folders by ``key`` of their paths; what finds no partner is a problem."""
    sides: list[dict[str, Path]] = []
    problems: list[Problem] = []
    for folder in (he, ihc):
        files, notes = images(folder)
        problems += notes
        by_key: dict[str, Path] = {}
        for file in files:
            first = by_key.setdefault(key(file), file)
            if first is not file:
                text = f"has the same name as {first.name} but for its ending; the partner is not clear"
                problems.append(Problem("ambiguous", Severity.ERROR, text, file))
        sides.append(by_key)
    for mine, other, where in ((sides[0], sides[1], ihc), (sides[1], sides[0], he)):
        for name in sorted(mine.keys() - other.keys()):
            text = f"has no partner in {where.parent.name}/{where.name}"
            problems.append(Problem("unpaired", Severity.ERROR, text, mine[name]))
    return [(sides[0][name], sides[1][name]) for name in sorted(sides[0].keys() & sides[1].keys())], problems
