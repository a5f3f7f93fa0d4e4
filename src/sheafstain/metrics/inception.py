"""The 2015 Inception of FID and KID, with the three ways in which the field shrinks an image to its 299 px.

Its published weights are the only ones that make these numbers comparable, so without them there is no network. How an
image is resized changes the distances as much as a method does, at 1024 px above all: numbers of different resizers
never belong into one column.
"""

from __future__ import annotations

from collections import OrderedDict
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from sheafstain.errors import UsageError
from sheafstain.metrics.weights import MissingWeights, by_id, load

Resizer = Literal["pytorch-fid", "torch-fidelity", "clean-fid"]

SIDE = 299  # px: what the network sees
WIDTH = 2048  # features: the last pooling layer


class Inception(nn.Module):
    """Images [b, 3, h, w], uint8 or floats in [0, 1] → features [b, 2048], float32.

    Parameters
    ----------
    folder
        Looked into for the weights before the usual places.
    resizer
        ``pytorch-fid``: bilinear between pixel centres, not antialiased. ``torch-fidelity``: bilinear as TensorFlow 1
        did it, in even steps from the first pixel, not antialiased. ``clean-fid``: bicubic and antialiased, as Pillow
        does it in floating point. The last two are defined on 8-bit values, to which floats are rounded.
    """

    width = WIDTH

    def __init__(self, folder: Path | None = None, resizer: Resizer = "pytorch-fid") -> None:
        super().__init__()
        if resizer not in get_args(Resizer):
            raise UsageError(f"no resizer {resizer!r}; there are {', '.join(get_args(Resizer))}")
        self.resizer: Resizer = resizer
        self._network = _network()
        # Batch normalisation counts batches in training: not part of what the network computes.
        wanted = {
            name: tuple(value.shape)
            for name, value in self._network.state_dict().items()
            if not name.endswith("num_batches_tracked")
        }
        self._network.load_state_dict(load(by_id("fid-inception"), wanted, folder), strict=False, assign=True)
        for module in self._network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.num_batches_tracked = None
        self.eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images are [b, 3, h, w], not {list(images.shape)}")
        return self._network(shrink(images, self.resizer)).flatten(1)


def shrink(images: Tensor, resizer: Resizer) -> Tensor:
    """What the network sees: [b, 3, h, w], uint8 or floats in [0, 1] → [b, 3, 299, 299] in about [−1, 1]."""
    size = (SIDE, SIDE)
    if resizer == "pytorch-fid":
        unit = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        return functional.interpolate(unit, size, mode="bilinear", align_corners=False) * 2 - 1
    bytes_ = images.float() if images.dtype == torch.uint8 else (images.float() * 255).round()
    if resizer == "clean-fid":
        small = functional.interpolate(bytes_, size, mode="bicubic", align_corners=False, antialias=True).clamp(0, 255)
    else:
        resize = _torch_fidelity("interpolate_compat_tensorflow").interpolate_bilinear_2d_like_tensorflow1x
        small = resize(bytes_, size, align_corners=False)
    return (small - 128) / 128


def _network() -> nn.Module:
    """The layers under their published names, without values; the pooling differs from torchvision's Inception."""
    b = _torch_fidelity("feature_extractor_inceptionv3")
    with torch.device("meta"):
        return nn.Sequential(
            OrderedDict(
                Conv2d_1a_3x3=b.BasicConv2d(3, 32, kernel_size=3, stride=2),
                Conv2d_2a_3x3=b.BasicConv2d(32, 32, kernel_size=3),
                Conv2d_2b_3x3=b.BasicConv2d(32, 64, kernel_size=3, padding=1),
                MaxPool_1=nn.MaxPool2d(3, stride=2),
                Conv2d_3b_1x1=b.BasicConv2d(64, 80, kernel_size=1),
                Conv2d_4a_3x3=b.BasicConv2d(80, 192, kernel_size=3),
                MaxPool_2=nn.MaxPool2d(3, stride=2),
                Mixed_5b=b.InceptionA(192, pool_features=32),
                Mixed_5c=b.InceptionA(256, pool_features=64),
                Mixed_5d=b.InceptionA(288, pool_features=64),
                Mixed_6a=b.InceptionB(288),
                Mixed_6b=b.InceptionC(768, channels_7x7=128),
                Mixed_6c=b.InceptionC(768, channels_7x7=160),
                Mixed_6d=b.InceptionC(768, channels_7x7=160),
                Mixed_6e=b.InceptionC(768, channels_7x7=192),
                Mixed_7a=b.InceptionD(768),
                Mixed_7b=b.InceptionE_1(1280),
                Mixed_7c=b.InceptionE_2(2048),
                AvgPool=nn.AdaptiveAvgPool2d(1),
            )
        )


def _torch_fidelity(module: str) -> Any:
    """One of its modules; the package belongs to the extra ``score``."""
    try:
        return import_module(f"torch_fidelity.{module}")
    except ImportError as error:
        raise MissingWeights(
            f'FID, KID: {error.name or "torch-fidelity"} is not installed; pip install "sheafstain[score]"'
        ) from error
