"""``sheafstain audit``: how far are a foundation model's tokens from a sheaf?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.errors import SheafStainError, UsageError

if TYPE_CHECKING:
    from sheafstain.sheaf.audit import AuditImage
    from sheafstain.sheaf.audit_log import AuditLog
    from sheafstain.sheaf.audit_report import AuditSummary

T = TypeVar("T")


def audit(
    data: Path,
    *,
    encoder: Annotated[str, Parameter(alias="-e")],
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    layout: Literal["bci", "mist", "pairs"] | None = None,
    split: str | None = None,
    stain: str | None = None,
    limit: int | None = None,
    strides: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (32, 64, 80, 96, 112, 128, 160, 192),
    pairs: int | None = None,
    seed: int = 0,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Measure how far an encoder's tokens of overlapping crops disagree.

    Writes audit.csv, audit.json, audit.md and, where matplotlib is installed, three figures. A run that was stopped
    goes on where it was when started again with the same output folder.

    Parameters
    ----------
    data
        The folder of a data set (both stains are measured), or a folder of images of one stain.
    encoder
        A name that "sheafstain encoders" lists, a folder with config.json and model.safetensors, or NAME=FILE.
    output
        Where to write; out/audit-ENCODER when not given.
    layout
        How the data set's folders are laid out; found out when not given.
    split
        Only this split of the data set.
    stain
        Only this stain of the data set, or the name of the stain of a folder of images (there H&E when not given).
    limit
        Only so many pairs of images, drawn by the seed; a larger limit contains a smaller one. All when not given.
    strides
        Pixels between crops. They are rounded to multiples of the encoder's pitch, without which no tokens coincide.
    pairs
        At most so many pairs of crops per stride and direction of each image, drawn by the seed. When not given every
        adjacent pair is measured: 806 crops for a 1024² image and the eight strides of the paper. With --pairs 4 it is
        about 174, which makes a large encoder bearable on a CPU.
    seed
        Another seed draws other images and pairs.
    batch
        Crops per forward pass.
    device
        cpu, cuda, cuda:1, mps; the first GPU when there is one.
    precision
        bfloat16 on a GPU, float32 on a CPU when not given.
    download
        Fetch the encoder's weights from the Hugging Face Hub if they are not here.
    """
    import torch

    from sheafstain.sheaf.audit import Protocol
    from sheafstain.sheaf.audit import audit as measure
    from sheafstain.sheaf.audit_log import AuditLog
    from sheafstain.sheaf.audit_report import AuditSummary
    from sheafstain.sheaf.encoders import load_encoder

    if limit is not None and limit < 1:
        raise UsageError(f"--limit is at least 1, not {limit}")
    protocol = Protocol(strides=tuple(strides), pairs=pairs, seed=seed)
    images = _images(data, layout, split, stain, limit, seed)
    dtype = None if precision is None else getattr(torch, precision)
    loaded = load_encoder(encoder, device=device, dtype=dtype, batch=batch, download=download)
    if loaded.entry.random:
        console.warn(f"{loaded.id} is not trained: its figures show what the architecture does, not what a model knows")
    folder = output or Path("out") / f"audit-{loaded.id}"
    log = AuditLog(folder, loaded, protocol)
    drawn = list({image.stain: image for image in reversed(images)}.values())  # the first of each stain
    finished = log.finished(images, drawn)
    waiting = [image for image in images if image not in finished]
    if finished:
        console.line(f"{folder}: {len(finished)} of {len(images)} images were measured before")
    with console.progress("audit", total=len(waiting), unit="images") as advance:
        for result in measure(waiting, loaded, protocol, heat=drawn.__contains__):
            log.add(result)
            advance(1)
    summary = AuditSummary.of(log, images)
    written = summary.write(folder) + _figures(summary, log, drawn)
    _tell(summary)
    for path in written:
        console.line(f"written: {path}")
    console.event("audit", output=str(folder), files=[str(path) for path in written], **summary.as_json())
    for name, data_of in summary.stains.items():
        if data_of.locality != 0:
            raise SheafStainError(
                f"{folder}: locality is violated on {name} (largest difference {data_of.locality:g}); restriction is "
                "indexing and cannot change a token, so this is a defect of SheafStain: please report it"
            )


def _images(
    data: Path, layout: str | None, split: str | None, stain: str | None, limit: int | None, seed: int
) -> list[AuditImage]:
    """Each H&E image once, then the IHC image of each pair; of a plain folder, its images."""
    from sheafstain.datasets.layouts import open_dataset
    from sheafstain.datasets.records import images as images_in
    from sheafstain.sheaf.audit import AuditImage
    from sheafstain.sheaf.audit_report import H_AND_E

    try:
        dataset = open_dataset(data, layout)
    except UsageError:
        loose = images_in(data)[0] if layout is None else []
        if not loose:
            raise
        if split is not None:
            raise UsageError(f"{data}: a folder of images has no splits; --split is for data sets") from None
        console.line(f"{data}: a folder of {len(loose)} images, taken for {stain or H_AND_E} (--stain)")
        return [AuditImage(path.stem, stain or H_AND_E, path) for path in _drawn(loose, limit, seed)]
    console.line(f"{dataset.root}: layout {dataset.layout}, {len(dataset.records)} pairs")
    found: list[AuditImage] = []
    seen: set[Path] = set()
    for record in _drawn(dataset.select_some(split, stain), limit, seed):
        key = "/".join((record.split, record.stain, record.id))  # an id alone is unique within a split and stain only
        if record.he not in seen:
            found.append(AuditImage(key, H_AND_E, record.he))
            seen.add(record.he)
        found.append(AuditImage(key, record.stain, record.ihc))
    return found


def _drawn(items: Sequence[T], limit: int | None, seed: int) -> list[T]:
    """The first ``limit`` of a seeded shuffle, so that a longer run keeps what a shorter one has measured."""
    order = list(range(len(items)))
    random.Random(seed).shuffle(order)
    return [items[i] for i in order[:limit]]


def _figures(summary: AuditSummary, log: AuditLog, drawn: list[AuditImage]) -> list[Path]:
    import numpy as np

    from sheafstain.sheaf.audit_figures import draw_all
    from sheafstain.slides.image import read_image

    try:
        import matplotlib  # noqa: F401
    except ImportError:
        console.warn(
            "no figures: matplotlib is missing; pip install 'sheafstain[plots]' and start again, nothing is lost"
        )
        return []
    order = list(summary.stains)
    maps = {
        image.stain: (read_image(image.path), np.load(log.heat_file(image))["heat"])
        for image in sorted(drawn, key=lambda image: order.index(image.stain))
    }
    return draw_all(summary, maps, log.folder)


def _tell(summary: AuditSummary) -> None:
    from sheafstain.sheaf.audit_report import HEADINGS

    for stain, data in summary.stains.items():
        rows = [
            [str(measured), f"{100 * summary.overlap(s):.1f}%", *(f"{value:.3f}" for value in data.cosine[s])]
            for s, measured in enumerate(summary.measured)
        ]
        console.table(("stride", "overlap", *HEADINGS), rows, title=f"{stain}: mean cosine of overlap tokens")
        console.line(
            f"{stain}: {data.images} images, locality {data.locality:g}, elsewhere in the crop {data.unrelated:.3f}"
        )
    for gap in summary.gaps:
        console.line(
            f"{gap.stain} against H&E: |Δ| at most {gap.largest:.3f} (stride {gap.stride}), mean {gap.mean:.3f}"
        )
