"""The page of a demonstration: what went in, what came out, what should have, how far apart they are, and what next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafstain.metrics.report import Report
from sheafstain.slides.image import read_image, write_image
from sheafstain.studies.demo import SQUARE, Files, agreement, dab, value
from sheafstain.studies.stained_page import read_report, whole_panels, worst_panels
from sheafstain.view.page import Figure, Html, code, element, figures, listing, note, page, paragraph, section, table
from sheafstain.view.pictures import defect_over, difference, shrunk
from sheafstain.view.stained import UNDEFINED, Panels, facts_table, legend, panels_figures, reading_section
from sheafstain.whole import write_whole

LONGEST = 1024  # px: pictures of the field
PANEL, GAP = 512, 8  # px: one panel of the picture of the field, and the white between two
LIMIT = 1.0  # of DAB, in optical density, at which the colours of a difference end

# Which way is better, and what the number says of this field.
_MEANINGS = {
    "dab-r": ("higher", "does the brown lie where it should? Correlation of the DAB maps, pixel by pixel"),
    "dab-iou": ("higher", "overlap of what is positive: shared area of all positive area"),
    "dab-jsd": ("lower", "is there as much weak and strong brown as there should be, wherever it lies?"),
    "fod": ("lower", "error of the share of positive pixels"),
    "ssim": ("higher", "likeness of structure"),
    "psnr": ("higher", "likeness of pixels, in dB; rewards blur"),
    "seam-excess": ("near 0", "steps at multiples of 256 px that the tissue does not explain"),
}


@dataclass(frozen=True, slots=True)
class Field:
    """All of the measured field that the page and the command tell of."""

    panels: Panels
    truth: NDArray[np.uint8]
    consecutive: NDArray[np.uint8]
    error: NDArray[np.float32]  # DAB of the stain minus DAB of the truth, [h, w]
    agreement: float | None  # of the defect with the size of that error

    @classmethod
    def read(cls, files: Files, report: Mapping[str, Any]) -> Field:
        panels = whole_panels(files.stained, files.he, report, LONGEST)
        error = dab(files.stained) - dab(files.truth)
        rms = panels.rms if panels.rms.shape == error.shape else np.full_like(error, np.nan)
        return cls(panels, read_image(files.truth), read_image(files.consecutive), error, agreement(rms, abs(error)))


def write_page(files: Files, reports: Mapping[str, Report], next_commands: Sequence[tuple[str, str]]) -> None:
    """Write the page, and beside it the picture of the field.

    ``reports`` are those of ``measure``; ``next_commands`` are what each is for, and the command.
    """
    field = Field.read(files, read_report(files.stained))
    write_image(files.picture, picture(field), jpeg_quality=90)
    write_whole(files.page, _page(files, field, reports, next_commands).encode())


def picture(field: Field) -> NDArray[np.uint8]:
    """H&E, virtual stain, true stain and defect side by side."""
    panels = (field.panels.he, field.panels.stain, field.truth, defect_over(field.panels.stain, field.panels.rms))
    small = [shrunk(panel, PANEL) for panel in panels]
    gap = np.full((len(small[0]), GAP, 3), 255, np.uint8)
    return np.concatenate([part for panel in small for part in (panel, gap)][:-1], axis=1)


def _page(files: Files, field: Field, reports: Mapping[str, Report], next_commands: Sequence[tuple[str, str]]) -> str:
    field_report, slide_report = read_report(files.stained), read_report(files.stained_slide)
    model, marker = field_report["model"], files.marker
    lead = (
        f"{marker} drawn on H&E by the model {model['name']}, on a phantom: procedural tissue that is nobody's, of "
        "which everything is known. So the virtual stain can be held against the true one, which no real slide has."
    )
    return page(
        f"Virtual {marker}, demonstrated",
        lead,
        [
            *_warning(model),
            _field_section(field, marker),
            _score_section(reports, marker),
            _defect_section(field, marker),
            reading_section(),
            _slide_section(files, slide_report),
            section("How the field was stained", facts_table(field_report)),
            _files_section(files),
            _next_section(next_commands),
        ],
    )


def _warning(model: Mapping[str, Any]) -> Iterable[Html]:
    if model["synthetic"]:
        yield note(
            f"The model {model['name']} has learned from phantoms alone. It shows how everything works and says "
            "nothing about real tissue: for that, train on real pairs."
        )


def _field_section(field: Field, marker: str) -> Html:
    shown = [
        Figure("H&E", field.panels.he, "What went in."),
        Figure(f"Virtual {marker}", field.panels.stain, "What came out. No antibody was involved."),
        Figure(f"True {marker}", field.truth, "The very same section, stained: what should have come out."),
        Figure(
            "The next section",
            field.consecutive,
            f"{marker} on the section 5 µm deeper, moved and with other cells in it. Of real tissue only this exists: "
            "it is what a model learns from, and is usually judged by.",
        ),
    ]
    return section("One field", figures(shown, LONGEST))


def _score_section(reports: Mapping[str, Report], marker: str) -> Html:
    columns = ("", f"virtual {marker}", "the next section", "the H&E itself", "better", "what it asks")
    rows = []
    for key, (better, meaning) in _MEANINGS.items():
        result = reports["stain"].result(key)
        values = [_number(value(reports, name, key)) for name in ("stain", "consecutive", "input")]
        rows.append((result.label if result else key, *values, better, meaning))
    against = _number(value(reports, "stain-against-consecutive", "dab-r"))
    return section(
        "How far from the truth?",
        paragraph(
            f"All three are held against the true {marker} of the same section. The next section is a real stain, done "
            "right, and still differs: it is other tissue, a little moved. The H&E holds no brown at all and shows "
            "what a metric gives to an answer that says nothing; it is not always nothing, since to the eye of a "
            "metric eosin is a little brown."
        ),
        table(columns, rows),
        paragraph(
            f"On real slides the virtual stain can be held against the next section alone. Here that gives a DAB-r of "
            f"{against}, and against the truth {_number(value(reports, 'stain', 'dab-r'))}: the two are not the same "
            "question. One field is an illustration and no evidence; evidence takes many."
        ),
    )


def _defect_section(field: Field, marker: str) -> Html:
    r = field.agreement
    shown = [
        Figure("Defect", defect_over(field.panels.stain, field.panels.rms), f"Where windows disagree. {UNDEFINED}"),
        Figure(
            "Error",
            difference(field.error, np.zeros_like(field.error), LIMIT),
            f"Red: more DAB than in the true {marker}; blue: less. Known here because this is a phantom.",
        ),
    ]
    told = (
        "It could not be compared with the error here: the field is too small, or nothing disagrees."
        if r is None
        else f"Over squares of {SQUARE} px, defect and size of the error correlate with r = {r:.2f} on this field. "
        "1 would mean that the defect alone tells where the stain is wrong, 0 that it tells nothing."
    )
    return section(
        "Where not to trust it",
        paragraph(
            "The defect needs no truth. It is measured while the image is glued together and is written beside every "
            f"output, on real slides too. {told}"
        ),
        figures(shown, LONGEST),
        legend(),
    )


def _slide_section(files: Files, report: Mapping[str, Any]) -> Html:
    w, h = report["output"]["size"]
    worst = [
        element("div", element("h3", place.title), panels_figures(place, files.marker))
        for place in worst_panels(files.stained_slide, files.slide, report, 1)
    ]
    return section(
        "A slide",
        paragraph(
            f"{w} × {h} px of the same tissue, as a pyramid in a file: read, stained and written in bands, so that a "
            "slide of any height fits into memory. Below it, where its windows disagree most."
        ),
        panels_figures(whole_panels(files.stained_slide, files.slide, report), files.marker),
        *worst,
        facts_table(report),
    )


def _files_section(files: Files) -> Html:
    stained, slide = files.stained, files.stained_slide
    rows = [
        (files.he.name, "the field, H&E"),
        (stained.name, "stained"),
        (
            f"{stained.stem}.defect.png",
            "its defect map: byte v > 0 is a root mean square of (v − 1) / 508, 0 is undefined",
        ),
        (f"{stained.stem}.json", "its report: protocol, windows, energy, worst places, seconds"),
        (files.truth.name, "the truth: the same section stained"),
        (files.consecutive.name, "the next section stained"),
        (files.phantom.name, "all that is known of the field: nuclei, tissue, DAB, displacement"),
        (files.slide.name, "the slide, H&E"),
        (f"{slide.name}, {slide.stem}.defect.tif, {slide.stem}.json", "stained, with its defect map and report"),
        (files.picture.name, "the field at a glance"),
        ("score/", "the scores, as sheafstain compare reads them"),
    ]
    return section("Files", paragraph("Beside this page, which needs none of them, lie"), table(("file", ""), rows))


def _next_section(commands: Sequence[tuple[str, str]]) -> Html:
    lines = [line for purpose, command in commands for line in (f"# {purpose}", command, "")]
    return section(
        "What next",
        listing(lines[:-1]),
        paragraph("Every command has ", code("--help"), ". The pages in docs/ say the rest."),
    )


def _number(number: float | None) -> str:
    return "–" if number is None or not np.isfinite(number) else f"{number:.3g}".replace("-", "−")
