"""``sheafstain compare``: reports side by side, image by image."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sheafstain.cli.console import console

if TYPE_CHECKING:
    from sheafstain.metrics.comparison import Comparison


def compare(
    *reports: Path,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    metrics: Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)] = (),
    seed: int = 0,
) -> None:
    """Compare reports of "sheafstain score": every method against the first, on the same images.

    Reports that were not measured in the same way (definition, resizer, number of images, the images themselves) are
    refused, with what differs.

    Parameters
    ----------
    reports
        Two or more report.json, or the folders that hold them. The others are compared with the first.
    output
        Folder for comparison.json, .csv, .md and .tex; or one file of these endings. Nothing is written when not given.
    metrics
        Only these metrics, by key; all when not given.
    seed
        Of the bootstrap.
    """
    from sheafstain.metrics.comparison import compare as side_by_side
    from sheafstain.metrics.comparison import texts
    from sheafstain.metrics.report import check_target, read_report, write_files

    if output is not None:
        check_target(output, "comparisons")
    comparison = side_by_side([read_report(path) for path in reports], metrics, seed)
    _tell(comparison)
    if output is not None:
        for path in write_files(output, "comparison", texts(comparison)):
            console.line(f"written: {path}")
            console.event("written", path=str(path))


def _tell(comparison: Comparison) -> None:
    from sheafstain.metrics import comparison as tables

    for pairing in comparison.pairings:
        console.event("pair", **asdict(pairing))
    for key, marks in comparison.marks.items():
        console.event("marks", metric=key, methods=marks)
    console.table(
        tables.heading(comparison),
        tables.rows(comparison, {"best": "{} *", "second": "{} +"}),
        title=f"{len(comparison.reports[0].images)} images; * best, + second best",
    )
    console.table(tables.PAIRED_HEADING, tables.paired_rows(comparison), title="image by image")
    for note in tables.notes(comparison):
        console.line(note)
