"""``sheafstain doctor``: what works here, what is missing and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from sheafstain import __version__
from sheafstain.cli.console import console
from sheafstain.errors import SheafStainError

_MARKS = {"ok": "✓", "missing": "–", "broken": "✗"}


@dataclass(frozen=True, slots=True)
class Finding:
    """``broken`` stops everything; ``missing`` only what needs it, and ``advice`` says how to get it."""

    part: str
    name: str
    state: Literal["ok", "missing", "broken"]
    text: str
    advice: str = ""


def doctor() -> None:
    """Say what is installed here, what is missing, and how to get it.

    Looks at Python, torch and its devices, image codecs, slide readers, memory and disk, the encoders and metric
    weights on this machine and the optional extras. Uses no network. Exit code 1 if something essential is broken.
    """
    findings: list[Finding] = []
    for part, look in _PARTS.items():
        console.line(part)
        for finding in look(part):
            findings.append(finding)
            console.event("finding", **asdict(finding))
            console.line(f"  {_MARKS[finding.state]} {finding.name:<18} {finding.text}".rstrip())
            if finding.advice:
                console.line(f"      → {finding.advice}")
    broken = [f"{finding.name} ({finding.text})" for finding in findings if finding.state == "broken"]
    console.event("doctor", broken=len(broken), missing=sum(finding.state == "missing" for finding in findings))
    if broken:
        raise SheafStainError(f"broken here: {'; '.join(broken)}; install SheafStain again in a fresh environment")
    console.line("Nothing essential is missing.")


def _guarded(part: str, name: str, look: Callable[[], str], optional: str = "") -> Finding:
    """A finding from a trial: whatever it raises is wrong. ``optional`` says how to get what one can do without."""
    try:
        return Finding(part, name, "ok", look())
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Finding(part, name, "missing" if optional else "broken", text, optional)


def _python(part: str) -> Iterator[Finding]:
    right = (3, 11) <= sys.version_info < (3, 14)
    version = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    text = version if right else f"{version}; 3.11, 3.12 or 3.13 is needed"
    yield Finding(part, "Python", "ok" if right else "broken", text)
    yield Finding(part, "SheafStain", "ok", f"{__version__}, {Path(__file__).parents[1]}")
    free = shutil.disk_usage(Path.cwd()).free
    yield Finding(part, "disk", "ok", f"{free / 1e9:.0f} GB free at {Path.cwd()}")
    yield Finding(part, "memory", "ok", _memory())


def _memory() -> str:
    page = os.sysconf("SC_PAGE_SIZE")
    total = f"{os.sysconf('SC_PHYS_PAGES') * page / 1e9:.0f} GB"
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:  # macOS
        return total
    return f"{total}, {os.sysconf('SC_AVPHYS_PAGES') * page / 1e9:.0f} GB of it unused"


def _torch(part: str) -> Iterator[Finding]:
    yield (first := _guarded(part, "torch", _torch_on_the_cpu))
    if first.state == "broken":
        return
    import torch

    for k in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        yield _guarded(part, f"CUDA device {k}", lambda k=k: _cuda(k), "a driver that fits this build of torch")
    if torch.backends.mps.is_available():
        yield Finding(part, "Apple GPU", "ok", "Metal (mps)")
    elif not torch.cuda.is_available():
        text = "none that torch sees; a CPU runs everything, a full-size encoder at minutes an image"
        yield Finding(part, "accelerator", "missing", text)


def _torch_on_the_cpu() -> str:
    import torch

    product = torch.ones(4, 4, dtype=torch.bfloat16) @ torch.ones(4, 4, dtype=torch.bfloat16)
    if product.sum().item() != 64:
        raise ArithmeticError("a product of two small matrices is wrong")
    return f"{torch.__version__}, {torch.get_num_threads()} CPU threads"


def _cuda(device: int) -> str:
    import torch

    facts = torch.cuda.get_device_properties(device)
    torch.ones(1, device=f"cuda:{device}").item()  # a driver too old shows here
    bf16 = "bf16" if facts.major >= 8 else "no bf16: float32 is used"
    return f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, {bf16}"


def _codecs(part: str) -> Iterator[Finding]:
    for name, codec, need in (
        ("JPEG", "jpeg8", ""),
        ("LZW", "lzw", ""),
        ("deflate", "zlib", ""),
        ("JPEG 2000", "jpeg2k", "a build of imagecodecs with it; slides compressed with JPEG 2000 need it"),
        ("Zstandard", "zstd", "a build of imagecodecs with it; Zarr output needs it"),
    ):
        yield _guarded(part, name, lambda codec=codec: _round_trip(codec), need)


def _round_trip(codec: str) -> str:
    import imagecodecs
    import numpy as np

    ramp = np.arange(48, dtype=np.uint8)
    picture = np.stack([np.add.outer(ramp, ramp)] * 3, -1)
    coded = getattr(imagecodecs, f"{codec}_encode")(picture)
    decoded = getattr(imagecodecs, f"{codec}_decode")(coded)
    if isinstance(decoded, bytes | bytearray):  # the lossless byte codecs know of no shape
        decoded = np.frombuffer(decoded, np.uint8)
    decoded = decoded.reshape(picture.shape).astype(int)
    worst = int(np.abs(decoded - picture).max())
    if worst > (8 if codec == "jpeg8" else 0):
        raise ValueError(f"a picture came back changed by {worst}")
    return f"imagecodecs {imagecodecs.__version__}"


def _slides(part: str) -> Iterator[Finding]:
    yield _guarded(part, "OpenSlide", _openslide)
    yield _guarded(part, "tifffile", _tifffile)


def _openslide() -> str:
    """Reads back a slide written here, so that a library that loads and cannot decode is found out."""
    import tempfile

    import numpy as np
    import openslide

    from sheafstain.slides.write import open_writer
    from sheafstain.window import Resolution, Size

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slide.tif"
        with open_writer(path, Size(128, 128), Resolution(0.5), description={}, tile=64) as slide:
            slide.rows(np.full((128, 128, 3), 200, np.uint8))
        with openslide.OpenSlide(path) as slide:
            if slide.level_count != 2 or slide.read_region((0, 0), 1, (1, 1)).getpixel((0, 0)) != (200, 200, 200, 255):
                raise ValueError("a slide written here is read wrongly")
    return f"library {openslide.__library_version__}, openslide-python {openslide.__version__}"


def _tifffile() -> str:
    from importlib import import_module

    return import_module("tifffile").__version__


def _encoders(part: str) -> Iterator[Finding]:
    from sheafstain.sheaf.registry import how_to_get, list_encoders, weights_of

    for entry in list_encoders():
        if entry.random:
            continue
        if (path := weights_of(entry)) is not None:
            yield Finding(part, entry.id, "ok", f"{path} ({entry.licence})")
        else:
            yield Finding(part, entry.id, "missing", entry.licence, how_to_get(entry))


def _weights(part: str) -> Iterator[Finding]:
    from sheafstain.metrics.weights import METRIC_WEIGHTS, how_to_get, locate

    for weights in METRIC_WEIGHTS:
        what = f"for {weights.metrics} ({weights.licence})"
        if (path := locate(weights)) is not None:
            yield Finding(part, weights.id, "ok", f"{what}: {path}")
        else:
            yield Finding(part, weights.id, "missing", what, how_to_get(weights))


def _extras(part: str) -> Iterator[Finding]:
    """What the package itself declares, so that no list of extras is kept twice."""
    from importlib.metadata import PackageNotFoundError, metadata, requires, version

    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in requires("sheafstain") or ()]
    for extra in metadata("sheafstain").get_all("Provides-Extra") or ():
        found, absent = [], []
        for requirement in requirements:
            if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
                continue
            try:
                found.append(f"{requirement.name} {version(requirement.name)}")
            except PackageNotFoundError:
                absent.append(requirement.name)
        if absent:
            yield Finding(part, extra, "missing", f"no {', '.join(absent)}", f'pip install "sheafstain[{extra}]"')
        else:
            yield Finding(part, extra, "ok", ", ".join(found))


_PARTS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "Machine": _python,
    "Compute": _torch,
    "Codecs": _codecs,
    "Slides": _slides,
    "Encoders": _encoders,
    "Metric weights": _weights,
    "Extras": _extras,
}
