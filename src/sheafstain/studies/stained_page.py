"""The page of a stained file, made from the files that ``sheafstain stain`` left and the H&E that it was made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sheafstain.errors import SheafStainError
from sheafstain.slides.read import Slide, View, open_slide
from sheafstain.translate import maps
from sheafstain.translate.files import Outputs
from sheafstain.view.stained import Panels, stained_page
from sheafstain.window import Resolution, Size, Window

LONGEST = 1024  # px: side of the picture of the whole
SIDE = 512  # px: side of a place that is shown at full resolution
PLACES = 3


def page_of(stain: Path, he: Path, *, places: int = PLACES) -> str:
    """The page of a stained image or slide of any size, as one HTML file."""
    report = read_report(stain)
    return stained_page(report, whole_panels(stain, he, report), list(worst_panels(stain, he, report, places)))


def read_report(stain: Path) -> dict[str, Any]:
    """What lies beside an output of ``sheafstain stain``."""
    path = Outputs(stain).report
    try:
        report = json.loads(path.read_bytes())
        if not isinstance(report, dict) or "identity" not in report:
            raise ValueError("it is of something else")
    except FileNotFoundError:
        raise SheafStainError(f"{path}: is not there; name an image or slide that sheafstain stain wrote") from None
    except ValueError as error:
        raise SheafStainError(f"{path}: is not the report of a stained image ({error})") from error
    return report


def whole_panels(stain: Path, he: Path, report: Mapping[str, Any], longest: int = LONGEST) -> Panels:
    """All of an output, at the stored level that is just small enough; a map must not be averaged with what is not."""
    outputs = Outputs(stain)
    with ExitStack() as opened:
        pixels, defect = (opened.enter_context(open_slide(path)) for path in (outputs.stain, outputs.defect))
        level = _level(pixels, longest)
        source = _he(opened, he, report)
        return Panels(
            source.thumbnail(longest),
            pixels.view(level=level).read(),
            maps.decode(defect.view(level=level).read()[..., 0]),
        )


def worst_panels(stain: Path, he: Path, report: Mapping[str, Any], most: int = PLACES) -> Iterator[Panels]:
    """Where windows disagree most, at full resolution; places that overlap are shown once."""
    outputs = Outputs(stain)
    with ExitStack() as opened:
        pixels, defect = (opened.enter_context(open_slide(path)) for path in (outputs.stain, outputs.defect))
        source = _he(opened, he, report)
        shown: list[Window] = []
        for worst in report["defect"]["worst"]:
            x, y, w, h = worst["place"]
            place = around(Window(y, x, h, w), pixels.size)
            if len(shown) == most or place.size == pixels.size:
                break
            if any(not place.overlap(other).empty for other in shown):
                continue
            shown.append(place)
            of_view = place.shift(source.window.y, source.window.x)
            yield Panels(
                replace(source, window=of_view).read(),
                pixels.view(region=place).read(),
                maps.decode(defect.view(region=place).read()[..., 0]),
                f"{place.size} px at {place.x}, {place.y}: RMS {worst['rms']:.3f}",
            )


def around(window: Window, size: Size, side: int = SIDE) -> Window:
    """The square of that side with the window in its middle, moved into the image; smaller where the image is."""
    h, w = min(side, size.h), min(side, size.w)
    y = min(max(window.y + (window.h - h) // 2, 0), size.h - h)
    x = min(max(window.x + (window.w - w) // 2, 0), size.w - w)
    return Window(y, x, h, w)


def _he(opened: ExitStack, path: Path, report: Mapping[str, Any]) -> View:
    """The H&E as it was translated: the same pixel size, the same part."""
    said = report["input"]
    slide = opened.enter_context(open_slide(path, mpp=None if said["mpp_assumed"] else said["mpp"]))
    level = report["identity"]["level"]
    asked = None if level is not None or slide.resolution is None else Resolution(said["view_mpp"])
    view = slide.view(asked, level=level)
    if [view.size.w, view.size.h] != said["view"]:
        raise SheafStainError(f"{path}: is {view.size} px there, not the {said['view']} of what was translated")
    x, y, w, h = report["output"]["place"]
    return replace(view, window=Window(y, x, h, w))


def _level(slide: Slide, longest: int) -> int:
    fits = [k for k, size in enumerate(slide.levels) if max(size.h, size.w) <= longest]
    return fits[0] if fits else len(slide.levels) - 1
