"""How near each translated image is to the real one of the same place: PSNR, SSIM, LPIPS and DISTS.

Images are float tensors [b, 3, h, w], RGB in [0, 1]; every measure gives a float64 tensor [b]. Sections that were cut
one after the other do not agree pixel for pixel, so no output can reach the best value of any of these, and PSNR and
SSIM prefer a blur to a sharp picture that is displaced: read them beside the seams and the chromogen, never alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sheafstain.metrics.weights import by_id, load

_SIDE, _SIGMA = 11, 1.5  # px: the Gaussian window of SSIM (Wang et al. 2004)
_C1, _C2 = 0.01**2, 0.03**2
_BAND = 32  # rows of an image that SSIM works on at a time: what it makes of them fits into a processor's cache

# Modules of torchvision's ``features`` that end a stage: the rectified outputs that LPIPS and DISTS compare.
_STAGES = {"alex": (2, 5, 8, 10, 12), "vgg": (4, 9, 16, 23, 30)}
_WIDTHS = {"alex": (64, 192, 384, 256, 256), "vgg": (64, 128, 256, 512, 512)}
_BACKBONE = {"alex": "alexnet", "vgg": "vgg16"}
_SMALLEST = {"alex": 31, "vgg": 16}  # px: what is left of a smaller image does not fill the last pooling window


def psnr(pred: Tensor, real: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, data range 1, over pixels and channels; infinite for equal images."""
    _same_shape(pred, real)
    return -10 * (pred.double() - real.double()).square().mean((1, 2, 3)).log10()


def ssim(pred: Tensor, real: Tensor) -> Tensor:
    """Structural similarity: Gaussian 11×11, σ 1.5, K 0.01 and 0.03, data range 1, mean over pixels and channels.

    The image is mirrored at its border (without repeating the border pixel), so that every pixel counts: what
    torchmetrics does, and not scikit-image, which leaves a 5-px frame out. Undefined (NaN) for "an image smaller than
    the 11-px window".
    """
    _same_shape(pred, real)
    if min(pred.shape[-2:]) < _SIDE:
        return _undefined(pred)
    return torch.stack([_ssim(p, r) for p, r in zip(pred.double(), real.double(), strict=True)])


def _ssim(pred: Tensor, real: Tensor) -> Tensor:
    """[3, h, w], twice → a number."""
    p, r = (functional.pad(image, (_SIDE // 2,) * 4, mode="reflect") for image in (pred, real))
    bands = [slice(y, y + _BAND + _SIDE - 1) for y in range(0, pred.shape[1], _BAND)]
    return torch.stack([_likeness(p[:, band], r[:, band]).sum() for band in bands]).sum() / pred.numel()


def _likeness(p: Tensor, r: Tensor) -> Tensor:
    """[3, h + 10, w + 10], twice → the similarity at every pixel, [3, h, w]."""
    mean_p, mean_r = _blur(p), _blur(r)
    product, squares = mean_p * mean_r, mean_p.square() + mean_r.square()
    covariance = _blur(p * r) - product
    variances = _blur(p.square() + r.square()) - squares
    return (2 * product + _C1) * (2 * covariance + _C2) / ((squares + _C1) * (variances + _C2))


def _blur(planes: Tensor) -> Tensor:
    """[3, h + 10, w + 10] → [3, h, w]: shifted sums, which on a CPU cost a third of a convolution."""
    weights = [math.exp(-((i - _SIDE // 2) ** 2) / (2 * _SIGMA**2)) for i in range(_SIDE)]
    for axis in (-2, -1):
        length = planes.shape[axis] - _SIDE + 1
        blurred = planes.narrow(axis, 0, length) * (weights[0] / sum(weights))
        for i, weight in enumerate(weights[1:], start=1):
            blurred.add_(planes.narrow(axis, i, length), alpha=weight / sum(weights))
        planes = blurred
    return planes


class Lpips(nn.Module):
    """Learned perceptual distance (LPIPS v0.1 of Zhang et al. 2018), at full size: (pred, real) → [b], 0 for equal.

    Undefined (NaN) for "an image too small for the network": a side below 31 px (AlexNet) or 16 px (VGG16).

    Parameters
    ----------
    net
        ``"alex"`` for AlexNet, which most publications report, or ``"vgg"`` for VGG16.
    folder
        Looked into for the weights before the usual places.
    """

    _shift: Tensor
    _scale: Tensor

    def __init__(self, net: Literal["alex", "vgg"] = "alex", folder: Path | None = None) -> None:
        super().__init__()
        self.net = net
        self._stages = nn.ModuleList(_stages(net, folder))
        names = [f"lin{i}.model.1.weight" for i in range(len(_WIDTHS[net]))]
        wanted = {name: (1, width, 1, 1) for name, width in zip(names, _WIDTHS[net], strict=True)}
        heads = load(by_id(f"lpips-{net}"), wanted, folder)
        self._heads = nn.ParameterList(nn.Parameter(heads[name], requires_grad=False) for name in names)
        # Of images in [−1, 1]; nearly, but not quite, the mean and standard deviation of ImageNet.
        self.register_buffer("_shift", _per_channel(-0.030, -0.088, -0.188), persistent=False)
        self.register_buffer("_scale", _per_channel(0.458, 0.448, 0.450), persistent=False)

    @torch.no_grad()
    def forward(self, pred: Tensor, real: Tensor) -> Tensor:
        _same_shape(pred, real)
        if min(pred.shape[-2:]) < _SMALLEST[self.net]:
            return _undefined(pred)
        # One after the other: at 1024 px the first features of one image are 268 MB.
        p, r = ((images.float() * 2 - 1 - self._shift) / self._scale for images in (pred, real))
        total = torch.zeros(len(pred), dtype=torch.float64, device=pred.device)
        for stage, head in zip(self._stages, self._heads, strict=True):
            p, r = stage(p), stage(r)
            difference = p / (p.norm(dim=1, keepdim=True) + 1e-10) - r / (r.norm(dim=1, keepdim=True) + 1e-10)
            total += functional.conv2d(difference.square_(), head).double().mean((1, 2, 3))
        return total


class Dists(nn.Module):
    """Deep image structure and texture similarity (DISTS of Ding et al. 2020), at full size: (pred, real) → [b].

    It compares means (texture) and covariances (structure) of features over the whole image. 0 for equal images;
    defined for every image.

    Parameters
    ----------
    folder
        Looked into for the weights before the usual places.
    """

    _shift: Tensor
    _scale: Tensor

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        first, *others = _stages("vgg", folder)
        pools = map(_L2Pool, _WIDTHS["vgg"])  # each in the place of a maximum, which aliases
        others = (nn.Sequential(pool, *stage[1:]) for pool, stage in zip(pools, others, strict=False))
        self._stages = nn.ModuleList([first, *others])
        channels = (3, *_WIDTHS["vgg"])
        shape = (1, sum(channels), 1, 1)
        heads = load(by_id("dists"), {"alpha": shape, "beta": shape}, folder)
        both = torch.stack([heads["alpha"], heads["beta"]]).flatten(1).double()
        weights = (both / both.sum()).split(channels, dim=1)  # for each stage [2, channels]: of means, of covariances
        self._heads = nn.ParameterList(nn.Parameter(weight, requires_grad=False) for weight in weights)
        self.register_buffer("_shift", _per_channel(0.485, 0.456, 0.406), persistent=False)
        self.register_buffer("_scale", _per_channel(0.229, 0.224, 0.225), persistent=False)

    @torch.no_grad()
    def forward(self, pred: Tensor, real: Tensor) -> Tensor:
        _same_shape(pred, real)
        p, r = pred.float(), real.float()
        total = _unlike(p, r, self._heads[0])
        p, r = ((images - self._shift) / self._scale for images in (p, r))
        for stage, head in zip(self._stages, self._heads[1:], strict=True):
            p, r = stage(p), stage(r)
            total += _unlike(p, r, head)
        return total


def _unlike(p: Tensor, r: Tensor, weights: Tensor) -> Tensor:
    """What one stage adds to DISTS: features [b, c, h, w] of pred and real, weights [2, c] → [b].

    The published form is 1 minus a weighted sum of similarities; as the weights add up to 1, that is a weighted sum of
    what each lacks of 1, and in this form equal images give 0 and not a rounding error:
    1 − (2·m·n + c)/(m² + n² + c) = (m − n)²/(m² + n² + c), and likewise with the variance of the difference.
    """
    c = 1e-6
    (var_p, mean_p), (var_r, mean_r) = (torch.var_mean(part, (2, 3), correction=0) for part in (p, r))
    var_difference = torch.var(p - r, (2, 3), correction=0)
    texture = (mean_p - mean_r).square() / (mean_p.square() + mean_r.square() + c)
    structure = var_difference / (var_p + var_r + c)
    return (torch.stack([texture, structure], dim=1).double() * weights).sum((1, 2))


class _L2Pool(nn.Module):
    """Halves both sides: the root of the squares' mean under a 3×3 Hann window."""

    _window: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        row = torch.tensor([0.25, 0.5, 0.25])
        self.register_buffer("_window", (row[:, None] * row).expand(width, 1, 3, 3).contiguous(), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        means = functional.conv2d(features.square(), self._window, stride=2, padding=1, groups=len(self._window))
        return (means + 1e-12).sqrt()


def _stages(net: Literal["alex", "vgg"], folder: Path | None) -> list[nn.Sequential]:
    """The convolutions of torchvision's network with the ImageNet weights, cut where LPIPS and DISTS look."""
    from torchvision import models

    with torch.device("meta"):  # nothing is drawn at random, and the classifier costs no memory
        network = models.alexnet(weights=None) if net == "alex" else models.vgg16(weights=None, init_weights=False)
    features = network.features
    assert isinstance(features, nn.Sequential)
    wanted = {f"features.{name}": tuple(value.shape) for name, value in features.state_dict().items()}
    state: Mapping[str, Tensor] = load(by_id(_BACKBONE[net]), wanted, folder)
    features.load_state_dict({name.removeprefix("features."): value for name, value in state.items()}, assign=True)
    features.eval().requires_grad_(False)
    return [features[start:stop] for start, stop in pairwise((0, *_STAGES[net]))]


def _per_channel(*values: float) -> Tensor:
    return torch.tensor(values).view(1, 3, 1, 1)


def _same_shape(pred: Tensor, real: Tensor) -> None:
    if pred.shape != real.shape or pred.ndim != 4 or pred.shape[1] != 3:
        raise ValueError(f"both are [b, 3, h, w], not {list(pred.shape)} and {list(real.shape)}")
    if not (pred.is_floating_point() and real.is_floating_point()):
        raise ValueError(f"images are floats in [0, 1], not {pred.dtype} and {real.dtype}: divide 8-bit values by 255")


def _undefined(images: Tensor) -> Tensor:
    return torch.full((len(images),), math.nan, dtype=torch.float64, device=images.device)
