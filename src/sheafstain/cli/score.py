"""``sheafstain score``: measure translated images against the real ones, by every metric, with its protocol."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.errors import SheafStainError, UsageError

if TYPE_CHECKING:
    from sheafstain.metrics.report import Report
    from sheafstain.metrics.sources import Listing
    from sheafstain.metrics.suite import Suite


def score(
    pred: Path,
    gt: Path,
    *,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    source: Path | None = None,
    name: str | None = None,
    metrics: Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)] = (),
    borders: str | None = None,
    encoder: Annotated[str | None, Parameter(alias="-e")] = None,
    windows: Path | None = None,
    resize: Annotated[bool, Parameter(negative=())] = False,
    allow_unpaired: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    limit: int | None = None,
    seed: int = 0,
    weights: Path | None = None,
    features: Path | None = None,
    workers: int | None = None,
    batch: int | None = None,
    device: str | None = None,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Score translated images against the real ones, whatever made them.

    Writes report.json (everything, image by image), report.csv (one row an image), report.md and report.tex. A run that
    was stopped goes on where it was when started again with the same output.

    Parameters
    ----------
    pred
        Folder of translated images, or one translated slide (read in windows of 1024x1024 that hold tissue).
    gt
        Folder of real IHC images of the same names (endings may differ), or the real slide.
    output
        Folder to write to; or one file that ends in .json, .csv, .md or .tex. When not given out/score-NAME.
    source
        Folder of the H&E images, or the H&E slide: its values stand beside those that need a yardstick.
    name
        What the method is called in tables; the name of PRED when not given.
    metrics
        Keys (fid, kid, lpips, dists, psnr, ssim, ts, seam-excess, dab-r, dab-kl, dab-jsd, iod, miod, fod, dab-dice,
        dab-iou, dab-p90-r, …) or groups (distribution, fidelity, seam, chromogen, windows); all when not given.
    borders
        Where the method's own patches end, beside multiples of 256: multiples-of-N, lattice-192 (windows of 256 at that
        stride), or pixel positions as 192,256,384.
    encoder
        Also the Fréchet and kernel distance of this encoder's features: a name that "sheafstain encoders" lists, a
        folder, or NAME=FILE.
    windows
        Folder with STEM.npz for each image, the translated windows before gluing, for their Dirichlet energy. Arrays:
        size [2] (height, width of the image), cover [n, 4] (y, x, height, width) and pixels [n, h, w, 3] (uint8, or
        floats from 0 to 1).
    resize
        Bring images of another size to that of the real ones, and say so in the report.
    allow_unpaired
        Leave images without a partner out, and say so in the report.
    strict
        Fail at the first unreadable file, and at a metric that cannot be measured here.
    limit
        Only so many images, drawn by the seed; a larger limit contains a smaller one.
    seed
        Of the bootstrap, of the KID subsets and of --limit.
    weights
        Folder to look into for the metrics' weights before the usual places ("sheafstain doctor" lists them).
    features
        Folder where features of single images are kept; one folder for several runs saves the real images. When not
        given it lies in the output folder.
    workers
        Threads that decode, and that measure what needs no network; one for each core, at most 16, when not given.
    batch
        Images measured at once.
    device
        cpu, cuda or cuda:1; the first GPU when there is one.
    download
        Fetch what is not here: the metrics' published weights, and the encoder's from the Hugging Face Hub.
    """
    for option, value in (("--limit", limit), ("--workers", workers), ("--batch", batch)):
        if value is not None and value < 1:
            raise UsageError(f"{option} is at least 1, not {value}")
    called = name or pred.resolve().stem
    target = output or Path("out") / f"score-{called.replace('/', '_')}"
    work = _work_folder(target)

    import torch

    from sheafstain.device import choose_device, cores
    from sheafstain.metrics.fetch import fetch_missing
    from sheafstain.metrics.protocol import choose
    from sheafstain.metrics.scoring import score as measure
    from sheafstain.metrics.sources import list_items
    from sheafstain.metrics.suite import Borders, Suite

    given = {"encoder": encoder, "borders": borders, "windows": windows}
    chosen = choose(metrics, [option for option, value in given.items() if value is not None])
    own = None if borders is None else Borders.parse(borders)
    listing = list_items(pred, gt, source, resize=resize, allow_unpaired=allow_unpaired)
    if pred.samefile(gt):
        console.warn(f"{pred} is scored against itself: every distance is 0 and PSNR is infinite")
    listing, sample = _drawn(listing, limit, seed)
    place = choose_device(device)
    if place.type not in ("cpu", "cuda"):  # mps has no float64, in which all sums over pixels are taken
        raise UsageError(f"--device {device}: metrics run on cpu or cuda")
    if place.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # ten bits of mantissa are not enough to be compared by
    for came in fetch_missing(chosen, weights) if download else ():
        console.line(f"fetched: {came}")
    suite = Suite(
        chosen,
        folder=weights,
        device=place,
        borders=own,
        encoder=None if encoder is None else _encoder(encoder, place, download),
        windows=None if windows is None else _energies(windows, listing),
    )
    for line in _left_out(suite):
        console.warn(line + (", or give --download" if "; fetch http" in line and not download else ""))
    if strict and suite.left_out:
        raise SheafStainError(f"{suite.left_out[0].name}: {suite.left_out[0].reason} (--strict)")
    if not suite.metrics:
        raise SheafStainError("none of the metrics can be measured here; the reasons are above")
    if suite.light:
        torch.set_num_threads(1)  # every worker measures an image of its own: threads within them would only fight
    size = batch or (4 if place.type == "cuda" else 1)
    try:
        with console.progress("score", len(listing.items), "images") as advance:
            report = measure(
                listing,
                suite,
                work,
                name=called,
                features=features,
                batch=size,
                workers=workers or min(cores(), 16),
                seed=seed,
                strict=strict,
                sample=sample,
                advance=advance,
            )
    except torch.OutOfMemoryError as error:
        raise SheafStainError(f"{place} has too little memory for --batch {size}; give a smaller one") from error
    _tell(report)
    for path in _write(report, target):
        console.line(f"written: {path}")
        console.event("written", path=str(path))
    if work != target:
        shutil.rmtree(work)


def _work_folder(target: Path) -> Path:
    """Where the state of the run is: the output folder, or a folder beside an output file until that is written."""
    from sheafstain.metrics.report import SUFFIXES, check_target

    check_target(target, "reports")
    return target.with_name(f"{target.name}.work") if target.suffix in SUFFIXES else target


def _drawn(listing: Listing, limit: int | None, seed: int) -> tuple[Listing, dict[str, int] | None]:
    """The first ``limit`` of a seeded shuffle, in the order of the listing."""
    from dataclasses import replace

    if limit is None or limit >= len(listing.items):
        return listing, None
    order = list(range(len(listing.items)))
    random.Random(seed).shuffle(order)
    items = [listing.items[i] for i in sorted(order[:limit])]
    names = {item.name for item in items}
    resized = [name for name in listing.resized if name in names]
    return replace(listing, items=items, resized=resized), {"limit": limit, "seed": seed, "of": len(listing.items)}


def _encoder(encoder: str, device: Any, download: bool) -> Any:
    from sheafstain.sheaf.encoders import load_encoder

    loaded = load_encoder(encoder, device=device, download=download)
    if loaded.entry.random:
        console.warn(f"{loaded.id} is not trained: distances of its features say little about tissue")
    return loaded


def _energies(folder: Path, listing: Listing) -> Any:
    from sheafstain.cli.energies import Energies

    if listing.windowed:
        raise UsageError("--windows is for folders of images, not for slides")
    energies = Energies(folder)
    if missing := [item.name for item in listing.items if not energies.file(item.name).is_file()]:
        raise SheafStainError(
            f"{folder}: no {missing[0]}.npz ({len(missing)} of {len(listing.items)} images have none)"
        )
    return energies


def _left_out(suite: Suite) -> list[str]:
    """One line for each reason: five metrics may want the same file."""
    by_reason: dict[str, list[str]] = {}
    for fault in suite.left_out:
        by_reason.setdefault(fault.reason, []).append(fault.name)
    return [
        f"{', '.join(labels)} {'are' if len(labels) > 1 else 'is'} left out: {why}" for why, labels in by_reason.items()
    ]


def _write(report: Report, target: Path) -> list[Path]:
    from sheafstain.metrics import tables
    from sheafstain.metrics.report import write_files

    texts = {
        ".json": report.to_text,
        ".csv": report.to_csv,
        ".md": lambda: tables.markdown(report),
        ".tex": lambda: tables.latex(report),
    }
    return write_files(target, "report", {suffix: text() for suffix, text in texts.items()})


def _tell(report: Report) -> None:
    from sheafstain.metrics import tables

    for result in report.results:
        console.event("result", **result.as_json())
    for fault in report.left_out:
        console.event("left_out", metric=fault.name, reason=fault.reason)
    for fault in report.unreadable:
        console.event("unreadable", image=fault.name, reason=fault.reason)
    console.event("score", name=report.name, images=len(report.images))
    console.table(tables.heading(report), tables.rows(report), title=f"{report.name}: {len(report.images)} images")
    for line in (*tables.intervals_said(report), *tables.remarks(report)):
        console.line(line)
