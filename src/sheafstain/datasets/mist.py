"""MIST: four stains, ``{HER2,Ki67,ER,PR}/TrainValAB/{trainA,trainB,valA,valB}/SLIDE_y_x.jpg`` (Li et al. 2023).

A is H&E, B is IHC; partners share the stem, their endings may differ. The official validation set was drawn at random
over fields, so nearly every slide is in both splits: a leak by our rules, of which results should say so.
"""

from __future__ import annotations

from pathlib import Path

from sheafstain.datasets.records import STAINS, UNKNOWN_STAIN, Layout, Listing, Record, folders, pair, slide_of

_SPLITS = ("train", "val", "test")


def _holds(root: Path) -> bool:
    return bool(_stain_folders(root))


def _read(root: Path) -> Listing:
    listing = Listing()
    for stain, folder in _stain_folders(root).items():
        present = [split for split in _SPLITS if (folder / f"{split}A").is_dir() or (folder / f"{split}B").is_dir()]
        for split in present:
            pairs, problems = pair(folder / f"{split}A", folder / f"{split}B", lambda file: file.stem)
            listing.problems.extend(problems)
            # Some copies name the validation folders testA and testB.
            name = "val" if split == "test" and "val" not in present else split
            for he, ihc in pairs:
                listing.records.append(Record(he.stem, name, stain, None, slide_of(he.stem), he, ihc))
    return listing


def _stain_folders(root: Path) -> dict[str, Path]:
    """Stain → the folder with trainA and its like; ``root`` is the set, one stain of it, or that very folder."""
    if (own := _split_parent(root)) is not None:
        named = own.resolve()
        return {_stain(named.parent.name if named.name == "TrainValAB" else named.name) or UNKNOWN_STAIN: own}
    found = {}
    for folder in folders(root):
        stain, parent = _stain(folder.name), _split_parent(folder)
        if stain and parent:
            found[stain] = parent
    return {stain: found[stain] for stain in STAINS if stain in found}


def _split_parent(root: Path) -> Path | None:
    for folder in (root, root / "TrainValAB"):
        if any((folder / f"{split}{side}").is_dir() for split in _SPLITS for side in "AB"):
            return folder
    return None


def _stain(name: str) -> str | None:
    return next((stain for stain in STAINS if name.replace("-", "").casefold() == stain.casefold()), None)


LAYOUT = Layout(
    name="mist",
    shape="{HER2,Ki67,ER,PR}/TrainValAB/{trainA,trainB,valA,valB}/SLIDE_y_x.jpg",
    holds=_holds,
    read=_read,
    published={
        ("HER2", "train"): 4642,
        ("HER2", "val"): 1000,
        ("Ki67", "train"): 4361,
        ("Ki67", "val"): 1000,
        ("ER", "train"): 4153,
        ("ER", "val"): 1000,
        ("PR", "train"): 4139,
        ("PR", "val"): 1000,
    },
)
