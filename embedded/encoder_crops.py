"""What the encoder is shown in training: crops of a store, turned and dyed anew, and what is hidden of them.

Everything happens where the store lies, which is the GPU where there is one: no crop waits for another processor.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sheafstain.datasets.phantom.architecture import Tissue
from sheafstain.datasets.phantom.nuclei import Nucleus
from sheafstain.sheaf.registry import CROP
from sheafstain.stain import DAB, EOSIN, HAEMATOXYLIN, chromogen_on_white, light, optical_density

CLASSES = (len(Tissue), 1 + len(Nucleus))  # 9 tissues; no nucleus and 7 kinds of it
UNMASKED, MASKED = 0.25, 0.75  # the share of crops shown whole; the most that is hidden of the others
DYES = functional.normalize(torch.tensor([HAEMATOXYLIN, EOSIN, DAB]), dim=1)
UNDO = torch.linalg.inv(DYES)
ALONE = 0.06  # the share of IHC crops shown as their DAB alone on white, as the stain-align loss does


class Store:
    """The blocks on the device, and crops from them."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        images, labels, traits = (np.load(folder / f"{name}.npy") for name in ("images", "labels", "traits"))
        self.images, self.labels = torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)
        spread = traits.std(0) + 1e-6
        self.traits = torch.from_numpy((traits - traits.mean(0)) / spread).to(device)
        self.said = json.loads((folder / "store.json").read_text())

    def weights(self) -> list[Tensor]:
        """What each class counts in the loss: by the inverse root of how common it is, one on average over pixels."""
        weights = []
        for plane, classes in enumerate(CLASSES):
            share = self.labels[:: max(len(self.labels) // 512, 1), plane].flatten().long().bincount(minlength=classes)
            share = share.float() / share.sum()
            weight = share.clamp(min=5e-3).rsqrt()
            weights.append(weight / (weight * share).sum())
        return weights

    def crops(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images uint8 [n, 224, 224, 3], every second one IHC, labels uint8 [n, 2, 112, 112], traits [n, t]."""
        device, side = self.images.device, self.images.shape[2]
        block = torch.randint(len(self.images), (count,), device=device)
        stain = torch.arange(count, device=device) % 2
        rows, columns = (self._line(count, side) for _ in range(2))
        at = (block[:, None, None], stain[:, None, None], rows[:, :, None], columns[:, None, :])
        images = self.images[at]
        rows, columns = (line[:, ::2].div(2, rounding_mode="floor") for line in (rows, columns))
        labels = self.labels[block[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [n, 112, 112, 2]
        half = count // 2  # rows and columns of half the crops change places: with the flips, all eight positions
        images = torch.cat([images[:half], images[half:].transpose(1, 2)])
        labels = torch.cat([labels[:half], labels[half:].transpose(1, 2)])
        return images, labels.permute(0, 3, 1, 2), self.traits[block]

    def _line(self, count: int, side: int) -> Tensor:
        """Pixels of a block from an even place on, forwards or backwards: [count, 224]."""
        device = self.images.device
        first = 2 * torch.randint((side - CROP) // 2 + 1, (count, 1), device=device)
        line = torch.arange(CROP, device=device).expand(count, -1)
        return first + torch.where(torch.rand(count, 1, device=device) < 0.5, line, CROP - 1 - line)


def pictures(images: Tensor) -> Tensor:
    """uint8 [n, 224, 224, 3] → float [n, 3, 224, 224] in [0, 1]; of the first few IHC crops the DAB alone."""
    rgb = images.permute(0, 3, 1, 2).float() / 255
    alone = slice(1, round(ALONE * len(rgb)), 2)
    rgb[alone] = chromogen_on_white(rgb[alone])
    return rgb


def recolour(rgb: Tensor) -> Tensor:
    """[n, 3, h, w] in [0, 1], each dyed, lit and focused in another way."""
    n, device = len(rgb), rgb.device

    def each(*shape: int) -> Tensor:
        return torch.randn(n, *shape, device=device)

    dyes, undo = DYES.to(device), UNDO.to(device)
    other = functional.normalize(dyes + 0.08 * each(3, 3), dim=2)
    strength = (0.25 * each(3) + 0.15 * each(1)).exp()
    change = undo @ (strength[:, :, None] * other)  # from densities to dyes, and back with other dyes
    rgb = light(torch.einsum("nihw,nij->njhw", optical_density(rgb), change))
    white = 1 + 0.06 * each(1, 1, 1) + 0.02 * each(3, 1, 1)
    soft = functional.avg_pool2d(rgb, 3, 1, 1, count_include_pad=False)
    rgb = torch.lerp(rgb, soft, torch.rand(n, 1, 1, 1, device=device).square()) * white
    grain = 0.02 * torch.rand(n, 1, 1, 1, device=device)
    return (rgb + grain * torch.randn_like(rgb)).clamp(0, 1)


def hide(count: int, grid: int, device: torch.device) -> Tensor:
    """Which patches are hidden: [count, grid²] bool, in squares of 2 × 2 patches."""
    half = -(-grid // 2)
    score = torch.rand(count, half, half, device=device).repeat_interleave(2, 1).repeat_interleave(2, 2)
    share = MASKED * torch.rand(count, 1, 1, device=device)
    share = torch.where(torch.rand(count, 1, 1, device=device) < UNMASKED, 0.0, share)
    return (score[:, :grid, :grid] < share).flatten(1)


def shares(labels: Tensor) -> list[Tensor]:
    """Labels [n, 2, 112, 112] → the share of each class in each 4-px cell: two [n, classes, 56, 56]."""
    planes = (functional.one_hot(labels[:, i].long(), c).permute(0, 3, 1, 2) for i, c in enumerate(CLASSES))
    return [functional.avg_pool2d(plane.float(), 2) for plane in planes]


def scales(share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shares [n, c, 56, 56] → the same, those in the 112 px around each token, as far as the crop reaches
    [n, c, 14, 14], and those in the crop [n, c, 1, 1]."""
    tokens = functional.avg_pool2d(share, 4)
    return share, functional.avg_pool2d(tokens, 7, 1, 3, count_include_pad=False), share.mean((2, 3), keepdim=True)
