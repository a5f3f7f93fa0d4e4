"""``sheafstain stain``: translate images and slides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.cli.models import warn_of_synthetic
from sheafstain.errors import SheafStainError, UsageError

if TYPE_CHECKING:
    from sheafstain.translate.slide import Written
    from sheafstain.window import Size, Window

# What is taken from a folder. A DICOM slide is a folder of its own, and is named by any file in it.
_FILES = (
    ".svs",
    ".ndpi",
    ".mrxs",
    ".scn",
    ".bif",
    ".vms",
    ".vmu",
    ".svslide",
    ".tif",
    ".tiff",
    ".png",
    ".jpg",
    ".jpeg",
)


def stain(
    inputs: Annotated[list[Path], Parameter(name="INPUT", negative=())],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    model: Annotated[str, Parameter(alias="-m")],
    format: Literal["tif", "ome.tif", "zarr", "png"] | None = None,  # noqa: A002
    protocol: Literal["paper"] | None = None,
    conditioning: Literal["lattice", "neighborhood", "none"] | None = None,
    cover: Literal["refined", "lattice", "dense", "whole"] | None = None,
    nfe: int | None = None,
    samples: int = 1,
    seed: int = 0,
    region: str | None = None,
    mpp: float | None = None,
    level: int | None = None,
    glass: Annotated[bool, Parameter(negative=())] = False,
    encoder: str | None = None,
    device: str | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    batch: int | None = None,
    workers: int | None = None,
    strict: Annotated[bool, Parameter(negative=())] = False,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Translate H&E images and slides into virtual IHC, with a map of where not to trust it.

    Beside every output NAME.tif it writes NAME.defect.tif, how much overlapping windows disagree at each pixel, and
    NAME.json, a report. Research use only.

    A run that was stopped, by Ctrl-C, a full disk or a power cut, goes on where it was when the same command is given
    again, and ends with the same pixels.

    Parameters
    ----------
    inputs
        Images, slides (SVS, NDPI, MRXS, SCN, BIF, DICOM, generic and OME TIFF) or folders of them.
    output
        A file for one input, else a folder.
    model
        A model's folder, the name of one that is here, or its id on the Hugging Face Hub.
    format
        Of the outputs, where they are not named: tif (flat pyramid) for slides and png for images when not given.
    protocol
        "paper": sections of neighbourhoods and the 34 windows of the paper, whatever the model's own way.
    conditioning
        Where the encoder looks: once over the slide, or around each window. The model's own way when not given.
    cover
        refined (windows and extra ones where detail is extreme), lattice (no extra ones), dense (every 128 px, for a
        defect everywhere) or whole (an image at once, for methods that can). The model's own way when not given.
    nfe
        Evaluations of the generator; all that the model was trained for when not given.
    samples
        Draw several and write their mean and, as NAME.spread.tif, their spread.
    seed
        Of all noise. Sample k is what seed + k alone gives.
    region
        X,Y,W,H in pixels of the slide's full resolution: translate only this part.
    mpp
        µm/px of the input at full resolution, where the file does not say or is wrong.
    level
        Take this level of the slide as it is, whatever its µm/px.
    glass
        Translate places without tissue too; they are left grey otherwise, on images above 16 Mpx.
    encoder
        Where the weights of the model's encoder are: a name that "sheafstain encoders" lists, a folder, or NAME=FILE.
    device
        cpu, cuda, cuda:1, mps; the first GPU when there is one.
    precision
        bfloat16 on a GPU, float32 on a CPU when not given.
    batch
        Windows translated at once.
    workers
        Threads that encode the output.
    strict
        Fail at the first damaged tile or file; otherwise it is filled with white, or left out, and listed.
    overwrite
        Replace outputs that are there, and start anew what could go on.
    download
        Fetch a missing model and its encoder from the Hugging Face Hub.
    """
    import torch

    from sheafstain.translate.stainer import Stainer

    for option, value in (("--batch", batch), ("--workers", workers), ("--samples", samples)):
        if value is not None and value < 1:
            raise UsageError(f"{option} is at least 1, not {value}")
    part = None if region is None else _region(region)
    jobs = _jobs(inputs, output, format)
    if protocol == "paper":
        conditioning, cover = conditioning or "neighborhood", cover or "refined"
    stainer = Stainer.load(
        model,
        encoder=encoder,
        device=device,
        dtype=None if precision is None else getattr(torch, precision),
        batch=batch,
        download=download,
    )
    warn_of_synthetic(stainer.model.config)
    failed: list[str] = []
    for path, target in jobs:
        try:
            with windows_progress(path.name) as start, _told(target):
                written = stainer.stain_file(
                    path,
                    target,
                    conditioning=conditioning,
                    cover=cover,
                    nfe=nfe,
                    seed=seed,
                    samples=samples,
                    glass=glass,
                    mpp=mpp,
                    level=level,
                    region=part,
                    strict=strict,
                    overwrite=overwrite,
                    workers=workers,
                    start=start,
                )
        except torch.OutOfMemoryError as error:
            raise SheafStainError(
                f"{path}: the GPU has too little memory for this batch; give a smaller --batch"
            ) from error
        except UsageError:
            raise
        except SheafStainError as error:
            if strict or len(jobs) == 1:
                raise
            console.warn(str(error))
            failed.append(path.name)
            continue
        _tell(written)
    if failed:
        raise SheafStainError(f"{len(failed)} of {len(jobs)} inputs were not translated: {', '.join(failed[:5])}")


def _jobs(inputs: list[Path], output: Path, format: str | None) -> list[tuple[Path, Path]]:  # noqa: A002
    """Each input with its output."""
    from sheafstain.translate.files import SUFFIXES, Outputs

    if missing := [path for path in inputs if not path.exists()]:  # told before hours of work on the others
        raise SheafStainError(f"{missing[0]}: no such file or folder")
    files = [file for path in inputs for file in (_in_folder(path) if path.is_dir() else [path])]
    named = output.name.lower().endswith(SUFFIXES) and not (output.is_dir() and output.suffix != ".zarr")
    if named:
        if len(files) != 1 or inputs[0].is_dir():
            raise UsageError(f"{output}: is one file, and there are {len(files)} inputs; give a folder")
        if format is not None and not output.name.lower().endswith(f".{format}"):
            raise UsageError(f"{output}: does not end in .{format}; leave --format out, or give a folder")
        jobs = [(files[0], output)]
    else:
        output.mkdir(parents=True, exist_ok=True)
        jobs = [(file, output / f"{_stem(file)}.{format or _usual(file)}") for file in files]
    taken: dict[Path, Path] = {}
    for file, target in jobs:
        if target.exists() and file.exists() and target.samefile(file):
            raise UsageError(f"{target}: is an input; give another folder for the output")
        if (other := taken.setdefault(Outputs(target).report, file)) != file:  # a.png and a.tif share a.json
            raise UsageError(
                f"{target}: would be the output of {other} and of {file}; rename one, or give two commands"
            )
    return jobs


def _in_folder(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _FILES and not file.name.startswith("."))
    if not files:
        files = sorted(folder.glob("*.dcm"))[:1]
    if not files:
        raise UsageError(f"{folder}: has no image or slide in it ({' '.join(_FILES)})")
    return files


def _stem(file: Path) -> str:
    if file.suffix.lower() == ".dcm":
        return file.resolve().parent.name
    stem = file.name[: -len(file.suffix)] if file.suffix else file.name
    return stem[:-4] if stem.lower().endswith(".ome") else stem


def _usual(file: Path) -> str:
    return "png" if file.suffix.lower() in (".png", ".jpg", ".jpeg") else "tif"


def _region(text: str) -> Window:
    from sheafstain.window import Window

    try:
        x, y, w, h = (int(part) for part in text.split(","))
        if min(x, y) < 0 or min(w, h) < 1:
            raise ValueError
    except ValueError:
        raise UsageError(f"--region is X,Y,W,H in pixels, as 2000,1500,1024,1024, not {text!r}") from None
    return Window(y, x, h, w)


@contextmanager
def windows_progress(name: str) -> Iterator[Callable[[int, Size], Callable[[int], None]]]:
    """A bar that begins when the number of windows is known."""
    with ExitStack() as opened:

        def start(windows: int, size: Size) -> Callable[[int], None]:
            label = f"{name} ({size.area / 1e6:.1f} Mpx)"
            return opened.enter_context(console.progress(label, total=windows, unit="windows"))

        yield start


@contextmanager
def _told(target: Path) -> Iterator[None]:
    """Say that what was stopped can go on."""
    from sheafstain.translate.files import Outputs

    try:
        yield
    except BaseException as error:
        if Outputs(target).state.exists() and not isinstance(error, SheafStainError):
            console.warn(f"{target}: unfinished; the same command goes on where this one stopped")
        raise


def _tell(written: Written) -> None:
    report, outputs = written.report, written.outputs
    if written.present:
        console.line(f"{outputs.stain}: is there already")
    else:
        facts: list[str] = [f"{report['windows']['lattice'] + report['windows']['extra']} windows"]
        if (energy := report["energy"]["energy"]) is not None:
            facts.append(f"energy {energy:.3g}")
        if (rms := report["defect"]["rms_p99"]) is not None:
            facts.append(f"worst percent above {rms:.3f} RMS")
        facts.append(f"{report['seconds']['total']:.1f} s")
        console.line(f"{outputs.stain}: {', '.join(facts)}")
        if report["damaged"]:
            console.warn(
                f"{outputs.stain}: {len(report['damaged'])} damaged places of the input are white; see the report"
            )
    console.event("stained", output=str(outputs.stain), present=written.present, **_facts(report))


def _facts(report: Any) -> dict[str, Any]:
    return {key: report[key] for key in ("windows", "defect", "energy", "damaged", "seconds")}
