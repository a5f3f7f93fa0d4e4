"""The chromogen of translated against real images: correlation, divergence, optical densities and masks of DAB.

DAB maps are ``stain.chromogen`` in the convention ``H_DAB``: three stains, OD = −ln((I + 1)/256), clipped at 0. Images
are float tensors [b, 3, h, w], RGB in [0, 1]; every measure gives float64 [b]. In the place of images each also takes
the maps that ``dab`` makes, [b, h, w], so that many numbers cost one unmixing; and the divergences take the
``histograms`` of a pair, [b, 256], so that three of them cost one count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sheafstain.stain import H_DAB, chromogen, top_tenth_mean

POSITIVE = 0.1  # DAB: a pixel above it counts as stained
BINS = 256
_FLOOR = 1e-10  # added to every bin's density


def dab(images: Tensor) -> Tensor:
    """The DAB maps [b, h, w] of images [b, 3, h, w]."""
    if images.ndim != 4:
        raise ValueError(f"images are [b, 3, h, w], not {list(images.shape)}")
    return chromogen(images, H_DAB).squeeze(1)


def histograms(pred: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The DAB histograms [b, 256] of both, each adding up to 1; two that are histograms already stay as they are.

    256 equal bins on [0, the largest DAB of the two images], as densities, + 1e-10, renormalised.
    """
    if pred.ndim == real.ndim == 2:
        return pred, real
    maps = _maps(pred, real)
    top = torch.maximum(*(values.amax((1, 2)) for values in maps))
    top = torch.where(top > 0, top, 1.0)  # no DAB in either: all of both lies in the first bin
    p, r = (_histogram(values.flatten(1), top) for values in maps)
    return p, r


def dab_r(pred: Tensor, real: Tensor) -> Tensor:
    """Pearson's r over the pixels of one image; 0 by definition where either map is constant.

    Not to be confused with one correlation over the images of a set, of their ``dab_p90``.
    """
    p, r = (values.flatten(1) for values in _maps(pred, real))
    constant = (p.amax(1) == p.amin(1)) | (r.amax(1) == r.amin(1))
    p, r = (values - values.mean(1, keepdim=True) for values in (p, r))
    correlation = (p * r).sum(1) / (p.norm(dim=1) * r.norm(dim=1))
    return torch.where(constant, 0.0, correlation)


def dab_kl(pred: Tensor, real: Tensor) -> Tensor:
    """KL(pred‖real) of the DAB histograms, natural logarithm.

    Bins that are empty in ``real`` dominate it, and an output without any DAB scores well: read it with the reverse.
    """
    p, r = histograms(pred, real)
    return _divergence(p, r)


def dab_kl_reverse(pred: Tensor, real: Tensor) -> Tensor:
    """KL(real‖pred) of the same histograms: bins that are empty in ``pred`` dominate."""
    p, r = histograms(pred, real)
    return _divergence(r, p)


def dab_jsd(pred: Tensor, real: Tensor) -> Tensor:
    """Jensen–Shannon divergence of the same histograms: symmetric, from 0 to ln 2."""
    p, r = histograms(pred, real)
    middle = (p + r) / 2
    return (_divergence(p, middle) + _divergence(r, middle)) / 2


def iod(images: Tensor, threshold: float = POSITIVE) -> Tensor:
    """Integrated optical density: the sum of DAB over positive pixels."""
    (values,) = _maps(images)
    return torch.where(values > threshold, values, 0.0).sum((1, 2))


def miod(images: Tensor, threshold: float = POSITIVE) -> Tensor:
    """Mean optical density: the mean of DAB over positive pixels, 0 without any."""
    (values,) = _maps(images)
    return iod(values, threshold) / (values > threshold).sum((1, 2)).clamp(min=1)


def fod(images: Tensor, threshold: float = POSITIVE) -> Tensor:
    """Fractional optical density: the share of positive pixels."""
    (values,) = _maps(images)
    return (values > threshold).double().mean((1, 2))


def dab_dice(pred: Tensor, real: Tensor, threshold: float = POSITIVE) -> Tensor:
    """Dice of the masks of positive pixels; undefined (NaN), as 0/0 is, where "neither image has a positive pixel"."""
    p, r = (values > threshold for values in _maps(pred, real))
    return 2 * (p & r).sum((1, 2)).double() / (p.sum((1, 2)) + r.sum((1, 2)))


def dab_iou(pred: Tensor, real: Tensor, threshold: float = POSITIVE) -> Tensor:
    """Intersection over union of the same masks; undefined (NaN) in the same case."""
    p, r = (values > threshold for values in _maps(pred, real))
    return (p & r).sum((1, 2)).double() / (p | r).sum((1, 2))


def dab_p90(images: Tensor) -> Tensor:
    """The strength of the stain in one image: the mean of the top tenth of its DAB, capped at the 99th percentile."""
    (values,) = _maps(images)
    return top_tenth_mean(values)


def _maps(*images: Tensor) -> list[Tensor]:
    """DAB maps of images, or the maps themselves, as float64 [b, h, w]."""
    maps = [(values if values.ndim == 3 else dab(values)).double() for values in images]
    if any(values.shape != maps[0].shape for values in maps):
        raise ValueError(f"images differ in size: {[list(values.shape) for values in maps]}")
    return maps


def _histogram(values: Tensor, top: Tensor) -> Tensor:
    """[b, n] and the upper ends [b] → [b, 256], which add up to 1."""
    count, pixels = values.shape
    bins = (values * (BINS / top)[:, None]).long().clamp_(max=BINS - 1)  # the last bin holds its upper end
    bins += BINS * torch.arange(count, device=values.device)[:, None]
    counts = torch.bincount(bins.flatten(), minlength=count * BINS).view(count, BINS)
    density = counts / (pixels * top / BINS)[:, None] + _FLOOR
    return density / density.sum(1, keepdim=True)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(1).clamp(min=0.0)  # never negative but for rounding
