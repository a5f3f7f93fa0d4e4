"""The protocol that a report carries: what each of its numbers means (design D22).

Two numbers under one name must have been computed in one way. So the protocol names definition, library and version,
resizer, direction and weights of every metric, and ``compare`` refuses reports that do not agree on them.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from sheafstain.errors import UsageError
from sheafstain.hub import PICKLES, content_hash
from sheafstain.metrics.catalogue import BY_KEY, CATALOGUE, GROUPS, Metric
from sheafstain.metrics.weights import by_id, locate


def resizer_of(key: str) -> Literal["pytorch-fid", "torch-fidelity", "clean-fid"]:
    """The name of the resizer of a distance of FID-Inception features."""
    if key.endswith("-clean"):
        return "clean-fid"
    return "torch-fidelity" if key.endswith("-fidelity") else "pytorch-fid"


def choose(wanted: Sequence[str], given: Iterable[str]) -> tuple[Metric, ...]:
    """The metrics to measure, in the order of the catalogue.

    ``wanted`` holds keys and names of groups; empty means all that are not extra. ``given`` holds what there is to
    measure with ("encoder", "borders", "windows"): asking by name for a metric that needs more is an error.
    """
    have = {"", *given}
    if not wanted:
        return tuple(metric for metric in CATALOGUE if metric.needs in have and not metric.extra)
    keys: set[str] = set()
    for word in wanted:
        if word in BY_KEY:
            if (need := BY_KEY[word].needs) not in have:
                raise UsageError(f"--metrics {word}: needs --{need}")
            keys.add(word)
        elif word in GROUPS:
            keys |= {m.key for m in CATALOGUE if m.group == word and m.needs in have and not m.extra}
        else:
            near = get_close_matches(word, [*BY_KEY, *GROUPS], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"--metrics {word}: no such metric{hint} There are {', '.join([*BY_KEY, *GROUPS])}")
    if "dab-p90-r" in keys:
        keys.add("dab-p90")  # what it is the correlation of
    return tuple(metric for metric in CATALOGUE if metric.key in keys)


def entry(metric: Metric, *, encoder: str = "", borders: str = "", folder: Path | None = None) -> dict[str, Any]:
    """What the protocol says of one metric: all that two numbers must share to stand in one column."""
    said: dict[str, Any] = {
        "definition": metric.definition.format(borders=borders),
        "library": ", ".join(f"{name} {version_of(name)}" for name in metric.library.split()),
        "resizer": metric.resizer,
    }
    if metric.direction:
        said["direction"] = metric.direction
    if metric.needs == "encoder":
        said["encoder"] = encoder
    if metric.weights:
        said["weights"] = {name: weights_of(name, folder) for name in metric.weights}
    return said


def weights_of(name: str, folder: Path | None = None) -> str:
    """Names published weights by their content, in whatever file they are stored; "missing" where there are none.

    What is loaded is held against these hashes when it is loaded.
    """
    known = by_id(name)
    if (file := locate(known, folder)) is None:
        return "missing"
    if known.content:
        return known.content[:16]
    return (known.sha256 or "" if file.suffix in PICKLES else content_hash(file))[:16]


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def versions() -> dict[str, str]:
    """Of all that the numbers went through."""
    packages = ("sheafstain", "torch", "torchvision", "torch-fidelity", "numpy", "scipy", "pillow", "openslide-python")
    return {"python": platform.python_version()} | {name: version_of(name) for name in packages}
