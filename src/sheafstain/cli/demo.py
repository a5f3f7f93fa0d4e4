"""``sheafstain demo``: synthetic tissue, stained, measured against the truth, and shown on one page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.cli.models import GUIDE, warn_of_synthetic
from sheafstain.cli.sizes import parse_size
from sheafstain.cli.stain import windows_progress
from sheafstain.errors import UsageError

if TYPE_CHECKING:
    from sheafstain.metrics.report import Report
    from sheafstain.studies.demo import Files
    from sheafstain.window import Size


def demo(
    *,
    output: Annotated[Path, Parameter(alias="-o")] = Path("demo"),
    model: Annotated[str, Parameter(alias="-m")] = "her2",
    size: str | None = None,
    slide: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    workers: int | None = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Stain synthetic tissue, measure the result against its truth, and show all of it on one page.

    Needs no download and no account, and a few minutes on a laptop. Draws a phantom, a field of tissue that belongs to
    nobody and of which everything is known, and a small slide; stains both; scores the field against the stain that the
    same section would really have; and writes FOLDER/report.html, one file to open in a browser.

    Parameters
    ----------
    output
        Folder of everything that is written.
    model
        One of those that ship (her2, er, pr, ki67), or any other whose stain a phantom has.
    size
        Width x height of the field, in pixels. When not given, what a laptop does in a minute.
    slide
        Width x height of the slide; likewise.
    seed
        Another seed draws other tissue.
    device
        cpu, cuda, cuda:1, mps; the first GPU when there is one.
    workers
        Processes that draw; one for each core when not given.
    overwrite
        Write into a folder that holds something, and replace what an earlier demonstration left.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output}: is a file; give a folder")
    if not overwrite and output.is_dir() and any(output.iterdir()):
        raise UsageError(f"{output}: holds something already; give another folder with -o, or --overwrite")
    if seed is not None and not 0 <= seed < 2**24:
        raise UsageError(f"--seed is from 0 to {2**24 - 1}, not {seed}")

    from sheafstain.slides.write import NOTICE
    from sheafstain.studies import demo as study
    from sheafstain.studies.demo_page import write_page
    from sheafstain.translate.stainer import Stainer

    field_size = study.FIELD if size is None else _size(size, "--size", study.SMALLEST_FIELD)
    slide_size = study.SLIDE if slide is None else _size(slide, "--slide", study.SMALLEST_SLIDE)
    began = time.monotonic()
    stainer = Stainer.load(model, device=device)  # first: what is missing is said before anything is drawn
    files = study.Files(output, study.marker_of(stainer.model))
    warn_of_synthetic(stainer.model.config)
    chosen = study.SEED if seed is None else seed
    with console.progress("drawing", study.pieces(slide_size), "pieces") as advance:
        resolution = study.resolution_of(stainer.model)
        study.draw(files, chosen, resolution, field_size, slide_size, workers=workers, advance=advance)
    study.stain(files, stainer, windows_progress)
    with console.progress("measuring", len(study.comparisons(files)), "comparisons") as advance:
        reports = study.measure(files, advance)
    commands = _next_commands(files, model)
    write_page(files, reports, commands)
    _tell(files, reports, commands, time.monotonic() - began, NOTICE)


def _size(text: str, option: str, smallest: int) -> Size:
    size = parse_size(text, option)
    if min(size.h, size.w) < smallest:
        raise UsageError(f"{option} starts at {smallest} px a side, not {text}")
    return size


def _next_commands(files: Files, model: str) -> list[tuple[str, str]]:
    return [
        ("what the model is, and what it is not", f"sheafstain models {model}"),
        (
            "a defect at every pixel",
            f"sheafstain stain {files.he} -o {files.folder / 'dense.png'} --model {model} --cover dense",
        ),
        (
            "eight samples: their mean, and how much they differ",
            f"sheafstain stain {files.he} -o {files.folder / 'samples.png'} --model {model} --samples 8",
        ),
        ("all metrics", f"sheafstain score {files.stained} {files.truth} -o {files.folder / 'score-all'}"),
        (
            "a slide of yours; what a model trained on phantoms makes of it means nothing",
            f"sheafstain stain slide.svs -o slide-{files.marker.lower()}.tif --model {model}",
        ),
    ]


def _tell(
    files: Files, reports: dict[str, Report], commands: list[tuple[str, str]], seconds: float, notice: str
) -> None:
    from sheafstain.studies.demo import METRICS, value

    r, of_consecutive = (value(reports, name, "dab-r") for name in ("stain", "consecutive"))
    figures = {key: value(reports, "stain", key) for key in METRICS}
    console.event("demo", folder=str(files.folder), page=str(files.page), seconds=round(seconds, 1), figures=figures)
    console.line(f"{files.page}: the page to open ({seconds:.0f} s)")
    for path, what in (
        (files.he, "the field, H&E"),
        (files.stained, f"virtual {files.marker}"),
        (files.truth, f"the {files.marker} of the same section"),
        (files.stained_slide, "a slide, stained"),
        (files.picture, "the field at a glance"),
    ):
        console.line(f"{path}: {what}")
    if r is not None and of_consecutive is not None:
        console.line(
            f"DAB-r against the truth: {r:.2f}; that of the next section, really stained: {of_consecutive:.2f}"
        )
    console.line(f"{notice[:1].upper()}{notice[1:]}.")
    console.line()
    console.line("What next:")
    for purpose, command in commands:
        console.line(f"  # {purpose}")
        console.line(f"  {command}")
    console.line("  # a model for real tissue")
    console.line(f"  {GUIDE}")
