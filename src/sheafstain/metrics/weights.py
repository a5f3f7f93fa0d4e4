"""Which published weights the metrics need, where they are looked for and how they come here; nothing is ever fetched.

A metric whose weights are missing is left out and named, never computed with another network (design D22). So what is
loaded is compared with what was published: a pickle by the SHA-256 of the file, and tensors by their content wherever
that is known.

Several of these files exist only as pickles, and no pickle is ever loaded (design D20): one with the SHA-256 of the
published file is known data, every byte of it, and any other is refused unopened. The known ones go through PyTorch's
restricted unpickler all the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sheafstain.errors import SheafStainError
from sheafstain.hub import PICKLES, check_fit, hash_of, load_tensors, weights_folder

if TYPE_CHECKING:
    from torch import Tensor


class MissingWeights(SheafStainError):  # noqa: N818  says what is wrong, as the message does
    """What a metric needs is not on this machine; a suite leaves the metric out and names this reason."""


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
    sha256: str | None = None  # of the published pickle
    content: str | None = None  # ``hub.hash_of`` the tensors that the metrics use, however they are stored


METRIC_WEIGHTS: tuple[MetricWeights, ...] = (
    MetricWeights(
        id="fid-inception",
        metrics="FID, KID",
        names=(
            "fid-inception.safetensors",
            "pt_inception-2015-12-05-6726825d.pth",
            "weights-inception-2015-12-05-6726825d.pth",  # torch-fidelity's name for the same file
        ),
        licence="Apache-2.0",
        url="https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
        sha256="6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
    ),
    MetricWeights(
        id="alexnet",
        metrics="LPIPS (AlexNet)",
        names=("alexnet_features_imagenet_torchvision.safetensors", "alexnet-owt-7be5be79.pth"),
        licence="BSD-3-Clause",
        url="https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
        sha256="7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02",
        content="38bef532a24cecd8e12fdb096e7ca22a73bd5643b5588d21ea6d510bbd2381a5",
    ),
    MetricWeights(
        id="vgg16",
        metrics="DISTS, LPIPS (VGG)",
        names=("vgg16_features_imagenet_torchvision.safetensors", "vgg16-397923af.pth"),
        licence="BSD-3-Clause",
        url="https://download.pytorch.org/models/vgg16-397923af.pth",
        sha256="397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
        content="1e6e01557d7b04adf648fda03ffdc7df74c19dcf0bb4a499f3707342bd0ed7e6",
    ),
    MetricWeights(
        id="lpips-alex",
        metrics="LPIPS (AlexNet)",
        names=("lpips-alex.safetensors", "lpips_lin/alex.pth"),
        licence="BSD-2-Clause",
        packaged="torchmetrics/functional/image/lpips_models/alex.pth",
        extra="score",
        sha256="df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0",
        content="b52132f088e823a99c03d6de79faf972a0db579e5e9757ebe8c15b410ebe33ee",
    ),
    MetricWeights(
        id="lpips-vgg",
        metrics="LPIPS (VGG)",
        names=("lpips-vgg.safetensors", "lpips_lin/vgg.pth"),
        licence="BSD-2-Clause",
        packaged="torchmetrics/functional/image/lpips_models/vgg.pth",
        extra="score",
        sha256="a78928a0af1e5f0fcb1f3b9e8f8c3a2a5a3de244d830ad5c1feddc79b8432868",
        content="b442faf755a97b47a92226ffc8db97a7a382aae55a8e2f4caf2368abad56fe07",
    ),
    MetricWeights(
        id="dists",
        metrics="DISTS",
        names=("dists.safetensors", "dists/weights.pt"),
        licence="MIT",
        packaged="torchmetrics/functional/image/dists_models/weights.pt",
        extra="score",
        sha256="f5e65c96230b7f6ca995691647d482237e4cab8a50c5c4a5784f219ef0748218",
        content="cfbe8c1f7905269f5d0cb688d9d7d0cc2d15985754b8357c81d1efd95243b8e7",
    ),
)


def folders() -> tuple[Path, ...]:
    """Where weights are looked for: our own folder (``$SHEAFSTAIN_WEIGHTS``), then the cache of torch.hub."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    torch_home = Path(os.environ.get("TORCH_HOME") or cache / "torch").expanduser()
    return weights_folder(), torch_home / "hub" / "checkpoints"


def by_id(name: str) -> MetricWeights:
    """The entry of that id."""
    return next(weights for weights in METRIC_WEIGHTS if weights.id == name)


def locate(weights: MetricWeights, folder: Path | None = None) -> Path | None:
    """The file on this machine, or None; a folder that is stated is looked into before ``folders()``."""
    for place in _places(folder):
        for name in weights.names:
            if (file := place / name).is_file():
                return file
    return _in_package(weights.packaged) if weights.packaged else None


def load(
    weights: MetricWeights, wanted: Mapping[str, tuple[int, ...]], folder: Path | None = None
) -> dict[str, Tensor]:
    """The tensors of these names and shapes, on the CPU; others that the file holds are left aside."""
    if (path := locate(weights, folder)) is None:
        raise MissingWeights(
            f"{weights.metrics}: {weights.names[-1]} is not in {', '.join(map(str, _places(folder)))}; "
            f"{how_to_get(weights)}"
        )
    pickled = path.suffix in PICKLES
    state = _known_pickle(path, weights) if pickled else load_tensors(path)
    state = {name: tensor for name, tensor in state.items() if name in wanted}
    check_fit(path, {name: tuple(tensor.shape) for name, tensor in state.items()}, wanted)
    if not pickled and weights.content and hash_of(state) != weights.content:
        raise SheafStainError(
            f"{path}: other values than the published {weights.names[-1]}, so {weights.metrics} would be another "
            f"measure under the same name; {how_to_get(weights)}"
        )
    return state


def how_to_get(weights: MetricWeights) -> str:
    """What a user has to do to have the file here."""
    if weights.extra:
        return f'pip install "sheafstain[{weights.extra}]", which carries it'
    return f"fetch {weights.url} into {weights_folder()}"


def _places(folder: Path | None) -> tuple[Path, ...]:
    return (*([folder] if folder else ()), *folders())


def _known_pickle(path: Path, weights: MetricWeights) -> Mapping[str, Tensor]:
    """Only the bytes that were hashed are read: the file is not opened a second time."""
    import io

    import torch

    data = path.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != weights.sha256:
        raise SheafStainError(
            f"{path}: a pickle that is not the published one (its SHA-256 begins with {found[:8]}), so it is not "
            f"opened; {how_to_get(weights)}"
        )
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _in_package(path: str) -> Path | None:
    package, _, inside = path.partition("/")
    found = find_spec(package)  # finds the folder of a top-level package without importing it
    for place in (found.submodule_search_locations or ()) if found else ():
        if (file := Path(place) / inside).is_file():
            return file
    return None
