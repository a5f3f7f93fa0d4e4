"""HER2 Low against High: does a translation keep what a grade is read from? (paper, paragraph "HER2 Low/High
classification" and appendix "Downstream HER2 Classification Details")

A ResNet-50 from ImageNet weights is trained on a method's translations of the training split and tested on real IHC.
Where the paper is silent this is decided here, and every result says so: Adam with its usual constants, a constant
learning rate, flips, one logit with binary cross-entropy, no class weights, the weights after the last epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.hub import check_fit, download, hash_of, load_tensors, locate, resolve
from sheafstain.metrics.weights import MetricWeights, MissingWeights, load
from sheafstain.studies.her2_cases import HIGH, LOW, CaseSet

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Backbone = Literal["resnet50", "resnet18"]
Precision = Literal["float32", "bfloat16"]

# What the protocol fixes and no option changes.
FIXED = {
    "optimiser": "Adam, β (0.9, 0.999), no weight decay, constant learning rate (not stated in the paper)",
    "loss": "binary cross-entropy of one logit, classes not weighted (not stated in the paper)",
    "augmentation": "horizontal and vertical flips, each with probability ½ (not stated in the paper)",
    "normalisation": "ImageNet mean and standard deviation",
    "selection": "none: the weights after the last epoch",
    "threshold": "High from a probability of 0.5 on",
}
TEST_OF_PAPER = {LOW: 273, HIGH: 704}
TRAIN_OF_PAPER = 3896
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_IMAGENET: dict[Backbone, tuple[str, MetricWeights]] = {
    # The name of the same tensors in timm, which publishes them as safetensors, and torchvision's own file.
    "resnet50": (
        "resnet50.tv2_in1k",
        MetricWeights(
            id="resnet50-imagenet",
            metrics="the HER2 classifier",
            names=("resnet50-11ad3fa6.pth",),
            licence="BSD-3-Clause",
            url="https://download.pytorch.org/models/resnet50-11ad3fa6.pth",
            sha256="11ad3fa62ca79e40addfd354a8ec4b7c75143b3038b8d2a807fbc68deab379ca",
        ),
    ),
    "resnet18": (
        "resnet18.tv_in1k",
        MetricWeights(
            id="resnet18-imagenet",
            metrics="the HER2 classifier",
            names=("resnet18-f37072fd.pth",),
            licence="BSD-3-Clause",
            url="https://download.pytorch.org/models/resnet18-f37072fd.pth",
            sha256="f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Protocol:
    """What decides a training besides its images; the defaults are the paper's."""

    backbone: Backbone = "resnet50"
    init: str = "imagenet"  # or "random", or a safetensors file
    epochs: int = 100
    batch: int = 16
    lr: float = 1e-4
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for option, value, least in (
            ("--epochs", self.epochs, 1),
            ("--batch", self.batch, 2),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                raise UsageError(f"{option} is at least {least}, not {value}")
        if not 0 < self.lr < 1:
            raise UsageError(f"--lr is between 0 and 1, not {self.lr:g}")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def deviations(self, train: CaseSet, test: CaseSet) -> list[str]:
        """What differs from the paper, so that no one takes the result for a row of its table."""
        paper = Protocol()
        said = [
            f"{name} {getattr(self, name):{spec}}, the paper has {getattr(paper, name):{spec}}"
            for name, spec in (("backbone", ""), ("epochs", ""), ("batch", ""), ("lr", "g"))
            if getattr(self, name) != getattr(paper, name)
        ]
        if self.init != paper.init:
            said.append(f"starts from {self.init} weights, the paper from ImageNet's")
        if (train.size.h, train.size.w) != (1024, 1024):
            said.append(f"images of {train.size} px, the paper has 1024×1024")
        if resized := train.resized + test.resized:
            said.append(f"{resized} images were resized, the paper's are whole")
        if len(train.cases) != TRAIN_OF_PAPER:
            said.append(f"{len(train.cases)} training images, the paper has {TRAIN_OF_PAPER}")
        counts = {name: test.counts[name] for name in (LOW, HIGH)}
        if counts != TEST_OF_PAPER:
            low, high = counts.values()
            said.append(f"{low} Low and {high} High test images, the paper has 273 and 704: not the BCI test set")
        return said


def build(protocol: Protocol, *, fetch: bool = False) -> tuple[nn.Module, str]:
    """The network in float32 on the CPU, and the hash of the weights it starts from ("random" where there are none).

    It maps float32 [n, 3, h, w], normalised, to logits of High [n, 1]. Only the backbone is loaded; the last layer is
    new and drawn by the seed, as the whole of a random start is. ``fetch`` downloads ImageNet weights not found here.
    """
    import torch
    from torchvision.models import resnet18, resnet50

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(protocol.seed)
        network = {"resnet50": resnet50, "resnet18": resnet18}[protocol.backbone](weights=None)
        network.fc = torch.nn.Linear(network.fc.in_features, 1)
    if protocol.init == "random":
        return network, "random"
    own: dict[str, Tensor] = network.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in own.items() if _is_backbone(name)}
    state = _backbone_weights(protocol, wanted, fetch)
    network.load_state_dict({**own, **state})
    return network, hash_of(state)


def _is_backbone(name: str) -> bool:
    """Not the classes of ImageNet, nor the count of batches, which some files lack and nothing here reads."""
    return not name.startswith("fc.") and not name.endswith(".num_batches_tracked")


def _backbone_weights(protocol: Protocol, wanted: Mapping[str, tuple[int, ...]], fetch: bool) -> Mapping[str, Tensor]:
    name, published = _IMAGENET[protocol.backbone]
    repo = f"timm/{name}"
    if protocol.init != "imagenet":
        path = resolve(Path(protocol.init).expanduser())
    elif (path := locate(name, repo)) is None:
        try:
            return load(published, wanted)  # torchvision's file, which is known by its hash
        except MissingWeights as error:
            if not fetch:
                raise SheafStainError(
                    f"{error}; or --download, or --init FILE with a safetensors file of this network, or --init "
                    "random, which is another protocol than the paper's"
                ) from error
        path = download(name, repo, "model.safetensors")
    state = {key: tensor for key, tensor in load_tensors(path).items() if _is_backbone(key)}
    check_fit(path, {key: tuple(tensor.shape) for key, tensor in state.items()}, wanted)
    return {key: tensor.float() for key, tensor in state.items()}


@contextmanager
def enough_memory(device: torch.device, batch: int, size: object) -> Iterator[None]:
    """Says what to lower when memory runs out, on a GPU or off it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # OutOfMemoryError is CUDA's; the CPU and Apple's GPU raise a RuntimeError that says it in words.
        words = str(error).lower()
        if not isinstance(error, MemoryError) and "out of memory" not in words and "can't allocate memory" not in words:
            raise
        raise SheafStainError(
            f"{device}: out of memory with batches of {batch} images of {size} px; lower --batch, or --size, or take "
            "--precision bfloat16, and start again: the result will name it as a departure from the paper's protocol"
        ) from error
