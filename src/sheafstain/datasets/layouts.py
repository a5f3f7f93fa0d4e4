"""From a folder to a data set: which layout it has, where inside it starts, and what it holds."""

from __future__ import annotations

from pathlib import Path

from sheafstain.datasets import bci, mist, pairs
from sheafstain.datasets.records import DataSet, Layout, Problem, Severity, folders, in_order
from sheafstain.datasets.split import resplit
from sheafstain.errors import SheafStainError, UsageError

# In the order in which they are tried: BCI is also two folders HE and IHC, and more.
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (bci.LAYOUT, mist.LAYOUT, pairs.LAYOUT)}

_DEPTH = 2  # archives unpack into a folder, and people put that into a folder


def open_dataset(root: Path | str, layout: str | None = None, *, split_file: Path | str | None = None) -> DataSet:
    """List the pairs under ``root`` by their names; no image is opened.

    ``layout`` is found out where it is not given. ``split_file`` (see ``split.write_split``) replaces the split that
    the folders make.
    """
    root = Path(root)
    if not root.is_dir():
        raise SheafStainError(f"{root}: {'is a file, not' if root.exists() else 'no such'} folder with a data set")
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"there is no layout {layout!r}; {root} {_looks_like(root)}. Layouts: {_shapes()}")
    folder, chosen = _find(root, layout)
    listing = chosen.read(folder)
    records = in_order(listing.records)
    if not records and not listing.problems:
        raise SheafStainError(f"{folder}: has the folders of layout {chosen.name} and no image in them")
    stains = {record.stain for record in records}
    published = {key: pairs for key, pairs in chosen.published.items() if key[0] in stains}
    dataset = DataSet(chosen.name, folder, records, tuple(listing.problems), published)
    if dataset.complete is False:
        dataset = DataSet(chosen.name, folder, records, (*listing.problems, *_incomplete(dataset)), published)
    return dataset if split_file is None else resplit(dataset, Path(split_file))


def _find(root: Path, layout: str | None) -> tuple[Path, Layout]:
    matches = _matches(root, [LAYOUTS[layout]] if layout else list(LAYOUTS.values()))
    if not matches:
        asked = f"is not a data set of layout {layout}" if layout else "is not a data set of a known layout"
        raise UsageError(f"{root}: {asked}; it {_looks_like(root)}. Layouts: {_shapes()}")
    if len(matches) > 1:
        found = ", ".join(f"{folder} ({layout.name})" for folder, layout in matches)
        raise UsageError(f"{root}: holds more than one data set, name one of them: {found}")
    return matches[0]


def _matches(root: Path, layouts: list[Layout]) -> list[tuple[Path, Layout]]:
    """The data sets at the least depth at which there are any."""
    level = [root]
    for _ in range(_DEPTH + 1):
        first = ((folder, next((layout for layout in layouts if layout.holds(folder)), None)) for folder in level)
        found = [(folder, layout) for folder, layout in first if layout is not None]
        if found:
            return found
        level = [inner for folder in level for inner in folders(folder)]
    return []


def _looks_like(root: Path) -> str:
    found = _matches(root, list(LAYOUTS.values()))
    if found:
        return "looks like " + ", ".join(f"{layout.name} (in {folder})" for folder, layout in found)
    inside = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in root.iterdir())
    some = ", ".join(inside[:8]) + (f" and {len(inside) - 8} more" if len(inside) > 8 else "")
    return f"holds {some or 'nothing'}"


def _shapes() -> str:
    return "; ".join(f"{layout.name} = {layout.shape}" for layout in LAYOUTS.values())


def _incomplete(dataset: DataSet) -> list[Problem]:
    return [
        Problem("incomplete", Severity.NOTE, f"{stain} {split}: {found} pairs, the published set has {whole}")
        for (stain, split), found in dataset.counts.items()
        if found != (whole := dataset.published.get((stain, split), 0))
    ]
