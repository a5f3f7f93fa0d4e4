"""The demonstration: a phantom stained, and measured against a truth that no real tissue has.

FOLDER/he.png, consecutive.png, truth.png   one field: H&E, the next section immunostained, the same section
FOLDER/phantom.png                          all that is known of it
FOLDER/slide.tif                            a small slide of another part of the same tissue
FOLDER/her2.png, slide-her2.tif             both stained, each with its defect and report (the model's stain)
FOLDER/score/*.json                         the field's scores
FOLDER/report.html, picture.jpg             the page, and the field at a glance, which ``demo_page.py`` makes
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sheafstain.datasets.phantom.phantom import BLOCK, Phantom
from sheafstain.datasets.phantom.picture import picture
from sheafstain.datasets.phantom.plan import ONE_LABORATORY, choose_fields
from sheafstain.datasets.phantom.slide import blocks_of, write_slide
from sheafstain.datasets.phantom.specimen import MARKERS, Marker, Specimen
from sheafstain.errors import SheafStainError
from sheafstain.metrics.protocol import choose
from sheafstain.metrics.report import Report
from sheafstain.metrics.scoring import score
from sheafstain.metrics.sources import list_items
from sheafstain.metrics.suite import Suite
from sheafstain.slides.image import read_image, write_image
from sheafstain.stain import chromogen
from sheafstain.translate.protocol import Translator
from sheafstain.translate.stainer import Stainer
from sheafstain.whole import write_whole
from sheafstain.window import Resolution, Size

# These keep it under three minutes on two slow cores.
FIELD = Size(1024, 1024)
SLIDE = Size(1024, 1536)
SMALLEST_FIELD, SMALLEST_SLIDE = 256, BLOCK  # px a side: a window, and what a slide is drawn in
SEED = 2508  # a specimen with all four markers in it; seeds below 2²⁴ are in no training set of the embedded models

METRICS = ("psnr", "ssim", "seam-excess", "dab-r", "dab-jsd", "fod", "dab-iou")  # which need no weights
SQUARE = 32  # px: side of the squares in which defect and error are compared

Advance = Callable[[int], None]
Progress = Callable[[str], AbstractContextManager[Callable[[int, Size], Advance]]]


@dataclass(frozen=True, slots=True)
class Files:
    """Where everything of a demonstration is."""

    folder: Path
    marker: Marker

    @property
    def he(self) -> Path:
        return self.folder / "he.png"

    @property
    def consecutive(self) -> Path:
        return self.folder / "consecutive.png"

    @property
    def truth(self) -> Path:
        return self.folder / "truth.png"

    @property
    def phantom(self) -> Path:
        return self.folder / "phantom.png"

    @property
    def slide(self) -> Path:
        return self.folder / "slide.tif"

    @property
    def stained(self) -> Path:
        return self.folder / f"{self.marker.lower()}.png"

    @property
    def stained_slide(self) -> Path:
        return self.folder / f"slide-{self.marker.lower()}.tif"

    @property
    def picture(self) -> Path:
        return self.folder / "picture.jpg"

    @property
    def page(self) -> Path:
        return self.folder / "report.html"


def marker_of(model: Translator) -> Marker:
    """Which of the phantom's markers the model draws."""
    stain = model.config.stain
    for marker in MARKERS:
        if stain.lower().replace("-", "") == marker.lower():
            return marker
    raise SheafStainError(
        f"{model.config.name}: draws {stain}, and a phantom shows {', '.join(MARKERS)}; stain an image of your own "
        f"with sheafstain stain"
    )


def resolution_of(model: Translator) -> Resolution:
    """At which pixel size to draw: the model's own, so that its output lies on the truth pixel by pixel."""
    return Resolution(0.5 if model.config.mpp is None else model.config.mpp)


def pieces(slide: Size) -> int:
    """How many ``draw`` tells of: the field, and the slide's blocks."""
    return 1 + blocks_of(slide)


def draw(
    files: Files,
    seed: int,
    resolution: Resolution,
    size: Size,
    slide: Size,
    *,
    workers: int | None = None,
    advance: Advance = lambda count: None,
) -> None:
    """Draw the field in three stains and the slide in H&E."""
    specimen = Specimen.draw(seed)
    window = choose_fields(specimen, size, resolution, 1)[0]
    phantom = Phantom(specimen, files.marker, resolution, None, ONE_LABORATORY)  # as the embedded models know it
    layers = phantom.draw(window, ("he", "ihc", "truth"))
    files.folder.mkdir(parents=True, exist_ok=True)
    write_image(files.he, layers["he"])
    write_image(files.consecutive, layers["ihc"])
    write_image(files.truth, layers["truth"])
    write_image(files.phantom, picture(phantom, window))
    advance(1)
    write_slide(files.slide, seed, slide, resolution, marker=files.marker, workers=workers, advance=advance)


def stain(files: Files, stainer: Stainer, progress: Progress) -> None:
    """Stain the field and the slide; ``progress(name)`` yields what ``Stainer.stain_file`` takes as ``start``."""
    for source, target in ((files.he, files.stained), (files.slide, files.stained_slide)):
        mpp = resolution_of(stainer.model).mpp if source == files.he else None  # a slide says it itself
        with progress(source.name) as start:
            stainer.stain_file(source, target, mpp=mpp, overwrite=True, start=start)


def comparisons(files: Files) -> dict[str, tuple[Path, Path]]:
    """What is held against what. Only the first tells of the model; the others are what to read it beside."""
    return {
        "stain": (files.stained, files.truth),
        "consecutive": (files.consecutive, files.truth),
        "input": (files.he, files.truth),
        "stain-against-consecutive": (files.stained, files.consecutive),
    }


def measure(files: Files, advance: Advance = lambda count: None) -> dict[str, Report]:
    """Scores of the field, by the names of ``comparisons``."""
    suite = Suite(choose(METRICS, ()))
    folder = files.folder / "score"
    folder.mkdir(exist_ok=True)
    found = {}
    for name, (pred, real) in comparisons(files).items():
        with tempfile.TemporaryDirectory() as state:
            found[name] = score(list_items(pred, real), suite, Path(state), name=name, workers=1)
        write_whole(folder / f"{name}.json", found[name].to_text().encode())
        advance(1)
    return found


def value(reports: Mapping[str, Report], name: str, key: str) -> float | None:
    """One number of ``measure``; None where there is none."""
    result = reports[name].result(key)
    return None if result is None else result.value


def dab(path: Path) -> NDArray[np.float32]:
    """The chromogen map [h, w] of an image, in optical density."""
    pixels = torch.from_numpy(read_image(path)).permute(2, 0, 1)
    return chromogen(pixels.float() / 255)[0].numpy()


def agreement(rms: NDArray[np.float32], error: NDArray[np.float32]) -> float | None:
    """Pearson r between defect and error over squares of 32 px that have a defect; None where it does not exist."""
    pairs = [
        (float(np.nanmean(square)), float(of_error.mean()))
        for square, of_error in zip(_squares(rms), _squares(error), strict=True)
        if np.isfinite(square).mean() > 0.5
    ]
    if len(pairs) < 3:
        return None
    defects, errors = np.array(pairs).T
    if not defects.std() or not errors.std():
        return None
    return float(np.corrcoef(defects, errors)[0, 1])


def _squares(values: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    h, w = values.shape
    for y in range(0, h - SQUARE + 1, SQUARE):
        for x in range(0, w - SQUARE + 1, SQUARE):
            yield values[y : y + SQUARE, x : x + SQUARE]
