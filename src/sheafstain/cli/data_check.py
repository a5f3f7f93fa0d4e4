"""``sheafstain data check``: is this data set fit to train on?"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.errors import SheafStainError, UsageError

if TYPE_CHECKING:
    from sheafstain.datasets.check import Report

_SHOWN = 5  # problems of a kind in the table; the report has all


def check(
    path: Path,
    *,
    layout: Literal["bci", "mist", "pairs"] | None = None,
    report: Path | None = None,
    split: Path | None = None,
    write_split: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    allow_leak: Annotated[bool, Parameter(negative=())] = False,
    workers: int | None = None,
) -> None:
    """Check a data set: unpaired, unreadable, wrong-sized, duplicate and leaking files.

    Every image is decoded in full. Exit code 1 if there are errors; warnings and notes are told and change nothing.

    Parameters
    ----------
    path
        The folder of the data set, or one that holds it.
    layout
        How the folders are laid out; found out when not given.
    report
        Write all problems to this JSON file.
    split
        Use the split of this CSV file (id, slide, split) instead of that of the folders.
    write_split
        Write a split by slide to this CSV file and check the set under it.
    val_fraction
        The share of the pairs that --write-split puts into validation, about.
    seed
        Another seed draws other slides for validation.
    allow_leak
        Slides that lie in several splits are warnings, not errors (the published MIST split has them).
    workers
        Threads that decode; all cores, at most 16, when not given.
    """
    import warnings

    from sheafstain.datasets.check import check_dataset, files_of
    from sheafstain.datasets.layouts import open_dataset
    from sheafstain.datasets.records import Severity
    from sheafstain.datasets.split import write_split as write_split_file
    from sheafstain.whole import whole

    if split is not None and write_split is not None:
        raise UsageError("--split uses a split and --write-split makes one: give one of them")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers is at least 1, not {workers}")
    if write_split is not None:
        write_split_file(open_dataset(path, layout), write_split, val_fraction, seed)
        console.line(f"split by slide written to {write_split}")
        console.event("split", path=str(write_split))
    dataset = open_dataset(path, layout, split_file=split or write_split)
    console.line(f"{dataset.root}: layout {dataset.layout}, {len(dataset.records)} pairs")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of damaged files, which the table names
    with ExitStack() as stack:
        # The report's place is taken first: an unwritable folder shows now and not after an hour of reading.
        part = stack.enter_context(whole(report)) if report is not None else None
        if part is not None:
            part.touch()
        with console.progress("reading", len(files_of(dataset))) as advance:
            found = check_dataset(dataset, allow_leak=allow_leak, workers=workers, advance=advance)
        _tell(found)
        if part is not None:
            part.write_text(_as_text(found), encoding="utf-8")
    if found.count(Severity.ERROR):
        raise SheafStainError(f"{dataset.root}: {found.summary}")
    console.line(f"passed: {found.summary}")


def _as_text(found: Report) -> str:
    import json

    return json.dumps(found.as_json(), indent=1, ensure_ascii=False) + "\n"


def _tell(found: Report) -> None:
    from sheafstain.datasets.check import ADVICE, count_rows, problem_row

    counts = list(count_rows(found.dataset))
    problems = [problem_row(problem, found.dataset.root) for problem in found.problems]
    for row in counts:
        console.event("count", **row)
    for row in problems:
        console.event("problem", **row)
    facts = found.as_json()
    console.event("checked", **{key: facts[key] for key in ("root", "layout", "complete", "sizes", "severities")})

    columns = ("stain", "split", "pairs", "published", "slides", "grades")
    console.table(columns, ([_cell(row[column]) for column in columns] for row in counts))
    if not problems:
        return
    rows: list[tuple[str, ...]] = []
    for (severity, kind), group in groupby(problems, key=lambda row: (row["severity"], row["kind"])):
        members = list(group)
        rows += [(severity, kind, row["file"] or "", row["text"]) for row in members[:_SHOWN]]
        if len(members) > _SHOWN:
            rows.append((severity, kind, f"… and {len(members) - _SHOWN} more", "all of them in the --report"))
    console.table(("severity", "kind", "file", "what is wrong"), rows)
    for kind in (kind for kind in ADVICE if any(row["kind"] == kind for row in problems)):
        console.line(f"{kind}: {ADVICE[kind]}")


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{grade}: {count}" for grade, count in value.items())
    return "" if value is None else str(value)
