"""The demonstration: a phantom stained, and measured against a truth that no real tissue has, on one page.

FOLDER/he.png, consecutive.png, truth.png   one field: H&E, the next section immunostained, the same section
FOLDER/phantom.png                          all that is known of it
FOLDER/slide.tif                            a small slide of another part of the same tissue
FOLDER/her2.png, slide-her2.tif             both stained, each with its defect and report (the model's stain)
FOLDER/score/*.json                         the field's scores
FOLDER/report.html                          the page
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.picture import picture
from sheafstain.datasets.phantom.plan import choose_fields
from sheafstain.datasets.phantom.slide import write_slide
from sheafstain.datasets.phantom.specimen import Marker, Specimen
from sheafstain.metrics.protocol import choose
from sheafstain.metrics.report import Report
from sheafstain.metrics.scoring import score
from sheafstain.metrics.sources import list_items
from sheafstain.metrics.suite import Suite
from sheafstain.slides.image import read_image, write_image
from sheafstain.stain import chromogen
from sheafstain.translate.stainer import Stainer
from sheafstain.whole import write_whole
from sheafstain.window import Resolution, Size

METRICS = ("psnr", "ssim", "seam-excess", "dab-r", "dab-jsd", "fod", "dab-iou")  # which need no weights
SQUARE = 32  # px: side of the squares in which defect and error are compared
RESOLUTION = Resolution(0.5)


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
    def report(self) -> Path:
        return self.folder / "report.html"


def draw(files: Files, seed: int, size: Size, slide: Size, advance: Callable[[int], None] = lambda count: None) -> None:
    """Draw the field in three stains and the slide in H&E; calls ``advance`` after each of both."""
    specimen = Specimen.draw(seed)
    window = choose_fields(specimen, size, RESOLUTION, 1)[0]
    phantom = Phantom(specimen, files.marker, RESOLUTION)
    layers = phantom.draw(window, ("he", "ihc", "truth"))
    write_image(files.he, layers["he"])
    write_image(files.consecutive, layers["ihc"])
    write_image(files.truth, layers["truth"])
    write_image(files.phantom, picture(phantom, window))
    advance(1)
    write_slide(files.slide, seed, slide, RESOLUTION, marker=files.marker)
    advance(1)


Start = Callable[[int, Size], Callable[[int], None]]


def stain(files: Files, stainer: Stainer, *, nfe: int | None = None, start: Callable[[str], Start | None]) -> None:
    """Stain the field with all the evaluations of the model and the slide with ``nfe``.

    ``start(name)`` gives what ``Stainer.stain_file`` takes as ``start``.
    """
    for source, target, evaluations in ((files.he, files.stained, None), (files.slide, files.stained_slide, nfe)):
        stainer.stain_file(
            source,
            target,
            mpp=None if source == files.slide else RESOLUTION.mpp,
            nfe=evaluations,
            overwrite=True,
            start=start(source.name),
        )


def measure(files: Files) -> dict[str, Report]:
    """Scores of the field by name: each image against the truth, and the stain against the consecutive section."""
    pairs = {"consecutive": (files.consecutive, files.truth), "input": (files.he, files.truth)}
    if files.stained.exists():
        pairs = {
            "stain": (files.stained, files.truth),
            **pairs,
            "stain-against-consecutive": (files.stained, files.consecutive),
        }
    suite = Suite(choose(METRICS, ()))
    folder = files.folder / "score"
    folder.mkdir(exist_ok=True)
    found = {}
    for name, (pred, real) in pairs.items():
        with tempfile.TemporaryDirectory() as state:
            found[name] = score(list_items(pred, real), suite, Path(state), name=name, workers=1)
        write_whole(folder / f"{name}.json", found[name].to_text().encode())
    return found


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


def _squares(values: NDArray[np.float32]) -> Iterable[NDArray[np.float32]]:
    h, w = values.shape
    for y in range(0, h - SQUARE + 1, SQUARE):
        for x in range(0, w - SQUARE + 1, SQUARE):
            yield values[y : y + SQUARE, x : x + SQUARE]


def value(reports: Mapping[str, Report], name: str, key: str) -> float | None:
    """One number of ``measure``; None where there is none."""
    result = reports[name].result(key) if name in reports else None
    return None if result is None else result.value
