"""Models and encoders that can be computed by hand, for tests of what lies around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.methods.method import Tiling
from sheafstain.methods.model import ModelConfig
from sheafstain.sheaf.encoders import Tokens

REFINED = Tiling(side=256, stride=192, refine=True, free=True)
CONFIG = ModelConfig(name="double", method="unsb", stain="HER2", mpp=0.5, settings={})


@dataclass
class Identity:
    """Gives back what it gets."""

    tiling: Tiling = REFINED
    conditioning: str = "none"
    config: ModelConfig = CONFIG
    hash: str = "0" * 64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    latent_width: int = 4
    evaluations: int = 5
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def translate(
        self,
        he: Tensor,
        noise: CanvasNoise,
        M: Tensor | None = None,
        c_n: Tensor | None = None,
        *,
        nfe: int | None = None,
    ) -> Tensor:
        self.shapes.append(tuple(he.shape))
        return he


class Wobbling(Identity):
    """Depends on everything that a real model depends on, pixel by pixel: on z, on the canvas noise, on M, c_n, nfe,
    and on where in its window a pixel lies, so that windows disagree."""

    def translate(
        self,
        he: Tensor,
        noise: CanvasNoise,
        M: Tensor | None = None,
        c_n: Tensor | None = None,
        *,
        nfe: int | None = None,
    ) -> Tensor:
        self.shapes.append(tuple(he.shape))
        h, w = he.shape[-2:]
        place = torch.linspace(-0.05, 0.05, w) + torch.linspace(0.05, -0.02, h)[:, None]
        out = he * 0.7 + 0.1 * noise.field(1) + 0.05 * noise.latent(0)[:, :3, None, None] + place
        if M is not None and c_n is not None:
            out = out + 0.2 * M[:, :3].repeat_interleave(16, 2).repeat_interleave(16, 3)
            out = out + 0.2 * c_n[:, :3, None, None]
        return (out + 0.01 * (nfe or 0)).clamp(-1, 1)


@dataclass
class MeanEncoder:
    """A token is the mean colour of its 16-px cell, CLS that of the crop; counts what it encodes."""

    width: int = 3
    pitch: int = 16
    crop: int = 224
    id: str = "mean"
    weights_hash: str = "1" * 64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    ahead: int = 3  # groups
    encoded: int = 0

    def encode(self, crops: Iterable[Any]) -> Iterator[Tokens]:
        waiting: list[Tokens] = []
        for group in crops:
            self.encoded += len(group)
            # Sums of integers below 2²⁴ are exact in float32, in any order.
            values = torch.as_tensor(np.asarray(group)).permute(0, 3, 1, 2).float()
            cells = avg_pool2d(values, 16, divisor_override=1).flatten(2).transpose(1, 2)
            waiting.append(Tokens(cells / (256 * 255), cells.sum(1) / (224**2 * 255)))
            if len(waiting) > self.ahead:
                yield waiting.pop(0)
        yield from waiting
