"""The page of a stained image or slide: H&E, stain and defect side by side, the figures of its report, what they say.

``report`` is what lies beside every output as NAME.json. Pictures are those of the whole, or of places worth a look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafstain.view.page import Figure, Html, code, element, figures, page, paragraph, section, table
from sheafstain.view.pictures import LIMIT, RAMP, defect_over

UNDEFINED = "Hatched places are undefined: one window alone covers them, so nothing was compared there."


@dataclass(frozen=True, eq=False, slots=True)
class Panels:
    """One place in all that is known of it: uint8 [h, w, 3] twice and the RMS [h, w] of its defect, NaN: undefined."""

    he: NDArray[np.uint8]
    stain: NDArray[np.uint8]
    rms: NDArray[np.float32]
    title: str = ""


def stained_page(report: Mapping[str, Any], whole: Panels, places: Sequence[Panels] = ()) -> str:
    """The page of one output: the whole of it, and places at full resolution, the worst for example."""
    marker = report["model"]["stain"]
    name = report["input"].get("path", "an image")
    lead = (
        f"What {marker} might have shown on the section {name}, translated from its H&E by {report['model']['name']}."
    )
    return page(f"Virtual {marker}", lead, [*stained_sections(report, whole, places), reading_section()])


def stained_sections(report: Mapping[str, Any], whole: Panels, places: Sequence[Panels] = ()) -> Iterable[Html]:
    marker = report["model"]["stain"]
    yield section("The image", panels_figures(whole, marker), legend(), facts_table(report))
    if places:
        shown = (element("div", element("h3", place.title), panels_figures(place, marker)) for place in places)
        yield section("Where windows disagree most", *shown)


def panels_figures(panels: Panels, marker: str) -> Html:
    return figures(
        [
            Figure("H&E", panels.he, "What went in."),
            Figure(f"Virtual {marker}", panels.stain, "What came out. No antibody was involved."),
            Figure(
                "Defect", defect_over(panels.stain, panels.rms), f"How much overlapping windows disagree. {UNDEFINED}"
            ),
        ]
    )


def legend() -> Html:
    """The ramp of all defects on all pages, so that two pages can be compared."""
    stops = ", ".join(f"rgb{colour}" for colour in RAMP)
    ramp = element("div", class_="ramp", style=f"background: linear-gradient(to right, {stops})")
    ends = (element("span", text) for text in ("windows agree", f"RMS {LIMIT:g} ({LIMIT * 255:.0f} of 255) or more"))
    return element("div", ramp, element("div", *ends, class_="scale"))


def facts_table(report: Mapping[str, Any]) -> Html:
    """The figures that a reader of the image needs."""
    model, encoder, windows = report["model"], report["encoder"], report["windows"]
    defect, energy = report["defect"], report["energy"]["energy"]
    made = f"{model['name']} ({model['method']}, {model['hash'][:12]})"
    sections = (
        "nothing: the model is not conditioned" if encoder is None else f"{encoder['id']} ({encoder['hash'][:12]})"
    )
    extra = f", {windows['extra']} of them extra ones where detail is extreme" if windows.get("extra") else ""
    rows = [
        ("model", made, "which weights: the first digits of their content's hash"),
        ("sections from", sections, "which encoder told the model what lies around"),
        ("µm per pixel", _plain(model["mpp"]), "what the model was trained at; the input is brought to it"),
        ("windows", f"{windows['lattice'] + windows['extra']}{extra}", "pieces that were translated one by one"),
        ("energy", _short(energy), "mean squared disagreement of overlapping windows, before gluing; 0 is a sheaf"),
        ("defect, RMS", _short(defect["rms"]), "disagreement of a typical pixel where it is defined, of 1"),
        ("worst percent", f"above {_short(defect['rms_p99'])}", "the places to look at first"),
        (
            "defined",
            f"{defect['defined']:.0%}" if defect["defined"] is not None else "–",
            "share of the pixels compared",
        ),
        ("seed", str(report["protocol"]["seed"]), "the same seed gives the same pixels"),
        ("time", f"{report['seconds']['total']:.1f} s on {report['device']}", ""),
    ]
    return table(("", "value", "what it is"), rows)


def reading_section() -> Html:
    """What a defect says and what it cannot."""
    return section(
        "How to read the defect",
        paragraph(
            "Every pixel in an overlap is translated more than once, by windows that see different surroundings. "
            "Where they agree, the pixel does not depend on how the image was cut. Where they do not, at least one of "
            "them is wrong, and the glued image is their average: a place to distrust."
        ),
        paragraph(
            element("b", "Low is not right. "),
            "Windows can agree and all be wrong: a model that stains every nucleus brown does so in every window. "
            "The defect shows what the model is undecided about, never what it does not know.",
        ),
        paragraph(
            element("b", "Undefined is not low. "),
            "Where one window alone covers a pixel nothing was compared. ",
            code("--cover dense"),
            " compares everywhere but in the corners of the image, at up to twice the price.",
        ),
    )


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
