"""BCI: HER2, ``BCI_dataset/{HE,IHC}/{train,test}/NNNNN_{train|test}_{0|1+|2+|3+}.png`` (Liu et al. 2022).

The two files of a pair have the same name, its third field is the HER2 grade. The names say nothing about slides, so no
slide-level split can be made and no leak can be seen. There is no validation split.
"""

from __future__ import annotations

import re
from pathlib import Path

from sheafstain.datasets.records import Layout, Listing, Problem, Record, Severity, images, pair

_NAME = re.compile(r"(?P<number>\d+)_(?P<split>train|test)_(?P<grade>0|1\+|2\+|3\+)")
_SPLITS = ("train", "val", "test")  # val: where a user has set some of train apart


def _holds(root: Path) -> bool:
    here = (root / side / split for side in ("HE", "IHC") for split in _SPLITS)
    return any(_NAME.fullmatch(file.stem) for folder in here for file in images(folder)[0])


def _read(root: Path) -> Listing:
    listing = Listing()
    for split in _SPLITS:
        pairs, problems = pair(root / "HE" / split, root / "IHC" / split, _number)
        listing.problems.extend(problems)
        for he, ihc in pairs:
            listing.problems.extend(_problems_of_names(he, ihc, split))
            grades = {match["grade"] if (match := _NAME.fullmatch(file.stem)) else None for file in (he, ihc)}
            grade = grades.pop() if len(grades) == 1 else None
            listing.records.append(Record(he.stem, split, "HER2", grade, None, he, ihc))
    return listing


def _number(file: Path) -> str:
    """Partners are found by number, so that a wrong grade shows as such and not as two lost partners."""
    match = _NAME.fullmatch(file.stem)
    return match["number"] if match else file.stem


def _problems_of_names(he: Path, ihc: Path, split: str) -> list[Problem]:
    problems = []
    matches = [_NAME.fullmatch(file.stem) for file in (he, ihc)]
    for file, match in zip((he, ihc), matches, strict=True):
        if match is None:
            text = "is not named like BCI (00007_test_1+.png); it has no grade"
            problems.append(Problem("name", Severity.ERROR, text, file))
        elif split != "val" and match["split"] != split:
            text = f"says {match['split']} in its name and lies in {split}"
            problems.append(Problem("name", Severity.ERROR, text, file))
    if all(matches) and len({match["grade"] for match in matches if match}) > 1:
        problems.append(Problem("grade", Severity.ERROR, f"has another grade than its H&E partner {he.name}", ihc))
    return problems


LAYOUT = Layout(
    name="bci",
    shape="{HE,IHC}/{train,test}/00007_test_1+.png",
    holds=_holds,
    read=_read,
    published={("HER2", "train"): 3896, ("HER2", "test"): 977},
)
