"""``sheafstain data phantom``: draw procedural tissue with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.cli.sizes import parse_size
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.window import Resolution


def phantom(
    out: Path,
    *,
    layout: Literal["pairs", "bci", "mist"] = "pairs",
    train: int = 16,
    val: int = 4,
    marker: tuple[Literal["HER2", "ER", "PR", "Ki67"], ...] = ("HER2",),
    size: str = "1024x1024",
    mpp: float = 0.5,
    seed: int = 0,
    fields: int = 4,
    ihc_variation: float = 1.0,
    truth: Annotated[bool, Parameter(negative=())] = False,
    picture: Path | None = None,
    slide: str | None = None,
    layer: Literal["he", "ihc", "truth"] = "he",
    workers: int | None = None,
) -> None:
    """Draw procedural tissue with known truth: a data set of pairs, or a whole slide.

    The same seed draws the same pixels. An interrupted data set is finished by the same command.

    Parameters
    ----------
    out
        Folder of the data set; with --slide the file, which ends in .tif.
    layout
        Folders and names: pairs (HE and IHC), bci (HER2 grades in the names) or mist (one folder for each marker).
    train
        Pairs to train on.
    val
        Pairs to validate on (test, in the words of BCI), from other specimens.
    marker
        What the IHC shows; --layout mist takes several.
    size
        Width x height of each image, in pixels.
    mpp
        Pixel size in µm.
    seed
        Another seed draws other specimens.
    fields
        Images from each specimen.
    ihc_variation
        How much the IHC of a data set varies in dyes, light and focus: 1 as between laboratories, 0.3 as in one, 0 not.
    truth
        Also write what no public set has: the aligned IHC, nuclei and tissue masks, DAB amounts, displacement.
    picture
        Also write a picture of the first pair in all its layers, to this PNG.
    slide
        Draw one whole slide of this width x height instead of a data set.
    layer
        Which stain of the slide: he, ihc (the consecutive section) or truth (the IHC of the H&E's own section).
    workers
        Processes that draw; one for each core when not given.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"--workers is at least 1, not {workers}")
    if seed < 0 or seed >= 2**31:
        raise UsageError(f"--seed is from 0 to {2**31 - 1}, not {seed}")
    if slide is not None:
        _slide(out, parse_size(slide, "--slide"), _resolution(mpp), seed, marker, layer, workers)
    else:
        _dataset(
            out,
            layout,
            train,
            val,
            marker,
            parse_size(size, "--size"),
            _resolution(mpp),
            seed,
            fields,
            truth,
            ihc_variation,
            picture,
            workers,
        )


def _dataset(
    out, layout, train, val, marker, size, resolution, seed, fields, truth, ihc_variation, picture, workers
) -> None:
    from sheafstain.datasets.phantom.dataset import write_dataset
    from sheafstain.datasets.phantom.plan import Plan

    markers = tuple(dict.fromkeys(marker))
    plan = Plan(layout, seed, train, val, markers, size, resolution, fields, truth, ihc_variation)
    pairs = (train + val) * len(plan.markers)
    with console.progress("drawing", pairs, "pairs") as advance:
        drawn = write_dataset(out, plan, workers=workers, advance=advance)
    console.line(f"{out}: {pairs} pairs, layout {layout}, {size} px at {resolution}" + _of(drawn, pairs))
    console.event("phantom", path=str(out), pairs=pairs, drawn=drawn, layout=layout, seed=seed)
    if picture is not None:
        from sheafstain.datasets.phantom.phantom import Phantom
        from sheafstain.datasets.phantom.picture import picture as layers
        from sheafstain.slides.image import write_image

        first = plan.items()[0]
        write_image(
            picture, layers(Phantom(first.specimen, first.marker, resolution, None, ihc_variation), first.window)
        )
        console.line(f"{picture}: the first pair in all its layers")
        console.event("picture", path=str(picture))


def _of(drawn: int, pairs: int) -> str:
    return "" if drawn == pairs else f" ({drawn} drawn now, the others were there)"


def _slide(out, size, resolution, seed, marker, layer, workers) -> None:
    from sheafstain.datasets.phantom.slide import blocks_of, write_slide

    if out.suffix.lower() not in (".tif", ".tiff"):
        raise UsageError(f"{out}: a slide is written as a pyramidal TIFF; end its name in .tif")
    if len(marker) != 1:
        raise UsageError("a slide has one marker; give --marker once")
    if not out.parent.is_dir():
        raise SheafStainError(f"{out.parent}: no such folder")
    with console.progress("drawing", blocks_of(size), "blocks") as advance:
        write_slide(out, seed, size, resolution, marker=marker[0], layer=layer, workers=workers, advance=advance)
    console.line(f"{out}: {'H&E' if layer == 'he' else marker[0]}, {size} px at {resolution}")
    console.event("slide", path=str(out), layer=layer, width=size.w, height=size.h, mpp=resolution.mpp, seed=seed)


def _resolution(mpp: float) -> Resolution:
    if not 0.1 <= mpp <= 2:
        raise UsageError(f"--mpp {mpp:g} is outside of what a phantom can show; choose 0.1 to 2 µm per pixel")
    return Resolution(mpp)
