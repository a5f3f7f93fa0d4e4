"""``sheafstain her2``: can a HER2 grade be learned from translated images?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from sheafstain.studies.her2 import Protocol
    from sheafstain.studies.her2_report import Result
    from sheafstain.studies.her2_training import Epoch

_COMPARISON = "comparison"  # the stem of what --compare writes


def her2(
    data: Path | None = None,
    *,
    translated: Path | None = None,
    output: Annotated[Path, Parameter(alias="-o")] = Path("out/her2"),
    name: str | None = None,
    compare: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    epochs: int = 100,
    batch: int = 16,
    lr: float = 1e-4,
    size: int | None = None,
    backbone: Literal["resnet50", "resnet18"] = "resnet50",
    init: str = "imagenet",
    positive: Literal["High", "Low"] = "High",
    device: str | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    seed: int = 0,
    workers: int | None = None,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train a HER2 Low/High classifier on a method's translations and test it on real IHC.

    The paper's downstream protocol is the default. Writes NAME.json, NAME.csv (one row per test image), NAME.md, the
    ROC curve NAME.png and the classifier NAME.safetensors. A run that was stopped goes on after its last whole epoch
    when started again; one that is done is scored again without training.

    Give one run to each method and one without --translated, then put them into one table and one figure:
    sheafstain her2 --compare out/her2/sheafstain.json out/her2/unsb.json out/her2/real-ihc.json

    Parameters
    ----------
    data
        The folder of BCI, or of a set drawn with "sheafstain data phantom SET --layout bci": grades are read from its
        names, the test images are the real IHC of its test split.
    translated
        Folder of the method's translations of the training split, each under the name of its H&E image. Without it the
        real IHC of the training split is used, which gives the ceiling.
    output
        Folder to write into, shared by all runs.
    name
        What to call the run; the name of the folder of translations, or real-ihc, when not given.
    compare
        Train nothing; compare results (NAME.json) on the same test images, all with the first.
    epochs
        Passes over the training images. A finished run can be prolonged.
    batch
        Images in a step.
    lr
        Learning rate of Adam, constant.
    size
        Resize every image to this side in px. When not given images are used as they are, and must be of one size.
    backbone
        The network.
    init
        imagenet, random, or a safetensors file of the network.
    positive
        The class that F1, sensitivity and specificity are of.
    device
        cpu, cuda, cuda:1, mps; the first GPU when there is one.
    precision
        bfloat16 on an NVIDIA GPU, float32 elsewhere when not given.
    seed
        Draws the last layer, the order of the images and their flips.
    workers
        Threads that decode images; one for each core, at most 8, when not given.
    download
        Fetch the ImageNet weights if they are not here.
    """
    if compare:
        if data is not None or translated is not None:
            raise UsageError("--compare trains nothing: leave out the data set and --translated")
        _compare(compare, output)
        return
    if data is None:
        raise UsageError("name the folder of a BCI data set, or --compare with results")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers is at least 1, not {workers}")
    if name is None:
        name = re.sub(r"[^\w.+-]+", "-", translated.resolve().name).lstrip(".") if translated else "real-ihc"
    run = _name(name)
    from sheafstain.device import choose_device, cores
    from sheafstain.studies.her2 import Protocol

    place = choose_device(device)
    chosen = precision or ("bfloat16" if place.type == "cuda" else "float32")
    protocol = Protocol(backbone, init, epochs, batch, lr, chosen, seed)
    threads = workers or min(cores(), 8)
    _train(data, translated, output, run, protocol, place, size, positive, threads, download)


def _train(
    data: Path,
    translated: Path | None,
    output: Path,
    name: str,
    protocol: Protocol,
    place: torch.device,
    size: int | None,
    positive: str,
    threads: int,
    download: bool,
) -> None:
    from sheafstain.studies.her2 import build
    from sheafstain.studies.her2_cases import HIGH, LOW, list_cases, read_cases
    from sheafstain.studies.her2_report import Result
    from sheafstain.studies.her2_training import Training, score

    listed = list_cases(data, translated)
    network, weights = build(protocol, fetch=download)  # before anything is read: most often it is this that is missing
    with console.progress("reading", sum(map(len, listed)), "images") as advance:
        train, test = read_cases(*listed, size, workers=threads, advance=advance)
    for split, cases in (("train", train), ("test", test)):
        counts = cases.counts
        grades = ", ".join(f"{grade} {count}" for grade, count in counts.items() if grade not in (LOW, HIGH))
        classes = f"{counts[LOW]} Low, {counts[HIGH]} High ({grades})"
        console.line(f"{split}: {len(cases.cases)} images of {cases.size} px, {classes}, {cases.folder}")
    about = {"weights": weights, "size": [train.size.h, train.size.w], "images": train.sha256}
    training = Training(network, train, protocol, place, output / f"{name}.safetensors", about)
    if training.epoch:
        console.line(f"{training.checkpoint}: {training.epoch} of {protocol.epochs} epochs were trained before")
    left = max(protocol.epochs - training.epoch, 0)
    with console.progress("training", left * len(train.cases), "images") as advance:
        training.run(workers=threads, advance=advance, finished=_tell_epoch(protocol.epochs, training.epoch))
    with console.progress("testing", len(test.cases), "images") as advance:
        p_high = score(training.network, test, protocol, place, workers=threads, advance=advance)
    trained_on = "real IHC" if translated is None else "translated"
    result = Result.of(name, trained_on, positive, protocol, weights, train, test, training.losses, p_high)
    _write(result, output, training.checkpoint)


def _write(result: Result, output: Path, checkpoint: Path) -> None:
    from sheafstain.studies.her2_report import CAVEATS
    from sheafstain.whole import write_whole

    texts = {".json": result.to_text(), ".csv": result.to_csv(), ".md": result.to_markdown()}
    for suffix, text in texts.items():
        write_whole(output / f"{result.name}{suffix}", text.encode())
    written = [output / f"{result.name}{suffix}" for suffix in texts]
    written += [*_figure([result], output / f"{result.name}.png"), checkpoint]
    console.table(result.heading, result.rows(), title=f"{result.name}: {result.test['images']} images of real IHC")
    counts = result.confusion
    other = "Low" if result.positive == "High" else "High"
    console.line(
        f"{result.positive}: {counts.tp} found, {counts.fn} missed; "
        f"{other}: {counts.tn} found, {counts.fp} taken for {result.positive}"
    )
    for caveat in CAVEATS:
        console.line(f"· {caveat}")
    for departure in result.deviations:
        console.line(f"departs from the paper: {departure}")
    for path in written:
        console.line(f"written: {path}")
    shown = {key: value for key, value in result.as_json().items() if key not in ("images", "roc", "losses")}
    console.event("her2", files=[str(path) for path in written], **shown)


def _compare(files: Sequence[Path], output: Path) -> None:
    from sheafstain.studies.her2_comparison import Comparison
    from sheafstain.studies.her2_report import CAVEATS, read_result
    from sheafstain.whole import write_whole

    if len(files) < 2:
        raise UsageError("--compare takes two results or more")
    comparison = Comparison.of([read_result(path) for path in files])
    output.mkdir(parents=True, exist_ok=True)
    table = output / f"{_COMPARISON}.md"
    write_whole(table, comparison.to_markdown().encode())
    written = [table, *_figure(comparison.results, output / f"{_COMPARISON}.png")]
    console.table(comparison.heading, comparison.rows(), title="HER2 Low against High, real IHC")
    for line in (*CAVEATS, *comparison.notes()):
        console.line(f"· {line}")
    for path in written:
        console.line(f"written: {path}")
    console.event("her2-comparison", files=[str(path) for path in written], caveats=CAVEATS, **comparison.as_json())


def _figure(results: Sequence[Result], path: Path) -> list[Path]:
    from sheafstain.studies.her2_comparison import draw_roc

    try:
        import matplotlib  # noqa: F401
    except ImportError:
        console.warn(
            "no ROC figure: matplotlib is missing; pip install 'sheafstain[plots]' and start again, nothing is lost"
        )
        return []
    return [draw_roc(results, path)]


def _tell_epoch(epochs: int, before: int) -> Callable[[Epoch], None]:
    """A line an epoch, with the time that is left at the mean pace so far."""
    spent = 0.0

    def tell(epoch: Epoch) -> None:
        nonlocal spent
        spent += epoch.seconds
        left = spent / (epoch.number - before) * (epochs - epoch.number)
        console.line(f"epoch {epoch.number}/{epochs}: loss {epoch.loss:.4f}, {epoch.seconds:.1f} s, {_time(left)} left")
        console.event(
            "epoch",
            epoch=epoch.number,
            epochs=epochs,
            loss=epoch.loss,
            seconds=round(epoch.seconds, 3),
            left=round(left, 1),
        )

    return tell


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _name(text: str) -> str:
    if re.fullmatch(r"[\w+-][\w.+-]*", text) is None:
        raise UsageError(f"--name {text!r}: letters, digits, and . + - _ make a file name everywhere")
    if text.casefold() == _COMPARISON:
        raise UsageError(f"--name {text}: is what --compare writes; choose another")
    return text
