"""Splits by slide: all fields of a slide on one side, so that validation does not see what training saw.

A split file is a CSV table with the columns id, slide and split, one row for each H&E file. It can be written here
where the file names tell the slide, or by hand where you know better.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

from sheafstain.datasets.records import SPLITS, DataSet, in_order
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.whole import whole


def split_by_slide(dataset: DataSet, val_fraction: float = 0.2, seed: int = 0) -> dict[str, str]:
    """Slide → "train" or "val", about ``val_fraction`` of each stain's pairs in val; the same for the same seed.

    Slides are taken in the order of a hash, so the file system and the order of the files play no part. A slide that
    serves several stains is on the same side in all.
    """
    if not 0 < val_fraction < 1:
        raise UsageError(f"the validation fraction lies between 0 and 1, not {val_fraction}")
    unknown = [record for record in dataset.records if record.slide is None]
    if unknown:
        why = "BCI does not publish slides" if dataset.layout == "bci" else "they do not end in _y_x"
        raise SheafStainError(
            f"{dataset.root}: no slide-level split: {len(unknown)} of {len(dataset.records)} names tell no slide, "
            f"{unknown[0].he.name} for one ({why}); write the split file by hand"
        )
    side: dict[str, str] = {}
    for stain in dataset.stains:
        pairs = Counter(record.slide for record in dataset.select(stain=stain) if record.slide)
        if len(pairs) < 2:
            raise SheafStainError(f"{dataset.root}: {stain} comes from {len(pairs)} slide; a split needs two or more")
        target = val_fraction * pairs.total()
        val = sum(count for slide, count in pairs.items() if side.get(slide) == "val")
        for slide in sorted(pairs.keys() - side.keys(), key=lambda slide: _rank(slide, seed)):
            nearer = abs(val + pairs[slide] - target) < abs(val - target)
            side[slide] = "val" if nearer else "train"
            val += pairs[slide] if nearer else 0
        if len({side[slide] for slide in pairs}) == 1:  # one slide alone is nearly all of the stain's pairs
            smallest = min(pairs, key=lambda slide: (pairs[slide], _rank(slide, seed)))
            side[smallest] = "train" if side[smallest] == "val" else "val"
    return side


def _rank(slide: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\0{slide}".encode()).digest()


def write_split(dataset: DataSet, path: Path, val_fraction: float = 0.2, seed: int = 0) -> None:
    if path.exists():
        raise SheafStainError(f"{path}: is there already; remove it or choose another name for the split")
    side = split_by_slide(dataset, val_fraction, seed)
    rows = sorted({(record.id, record.slide, side[record.slide]) for record in dataset.records if record.slide})
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([("id", "slide", "split"), *rows])
    with whole(path) as part:
        part.write_text(table.getvalue(), encoding="utf-8")


def resplit(dataset: DataSet, path: Path) -> DataSet:
    """The same pairs under the split of the file. The published counts no longer apply."""
    splits = _read(path)
    missing = [record.id for record in dataset.records if record.id not in splits]
    if missing:
        raise SheafStainError(
            f"{path}: has no row for {len(missing)} of {len(dataset.records)} pairs of {dataset.root}, "
            f"{missing[0]} for one; was it written for another set?"
        )
    twice = Counter((record.stain, record.id) for record in dataset.records).most_common(1)
    if twice and twice[0][1] > 1:
        raise SheafStainError(f"{dataset.root}: {twice[0][0][1]} is in two splits; a split file cannot tell them apart")
    records = in_order(replace(record, split=splits[record.id]) for record in dataset.records)
    return replace(dataset, records=records, published={})


def _read(path: Path) -> dict[str, str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if not {"id", "split"} <= set(rows.fieldnames or ()):
                raise SheafStainError(f"{path}: is not a split file; its first line is id,slide,split")
            splits: dict[str, str] = {}
            for row in rows:
                if row["split"] not in SPLITS[:3]:
                    what = f"a split is train, val or test, not {row['split']!r}"
                    raise SheafStainError(f"{path}: line {rows.line_num}: {what}")
                if splits.setdefault(row["id"], row["split"]) != row["split"]:
                    raise SheafStainError(f"{path}: line {rows.line_num}: {row['id']} is given two splits")
    except (UnicodeDecodeError, csv.Error) as error:
        raise SheafStainError(f"{path}: is not a split file ({error})") from error
    return splits
