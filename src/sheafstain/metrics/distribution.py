"""How far the translated images as a set are from the real ones: Fréchet and kernel distances of features.

With the features of the FID Inception the distances are FID and KID; with those of a pathology encoder they have names
of their own (design D22): pathology Fréchet distance and pathology kernel distance. All sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from sheafstain.errors import UsageError
from sheafstain.metrics.inception import Inception, Resizer

__all__ = ["EncoderFeatures", "Features", "Inception", "Resizer", "fid", "kid", "kid_subsets"]

_ROWS = 1024  # of a kernel matrix held at once


class Features:
    """The features of one set of images, added in batches of any size; the batches leave no trace in any distance.

    All are kept, as float32: 8 MB for 1000 images of 2048 features, which the kernel distance needs and from which the
    Fréchet distance is exact where a covariance is singular.
    """

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, features: Tensor) -> None:
        """[n, d], n ≥ 0."""
        if features.ndim != 2 or (self._parts and features.shape[1] != self.width):
            expected = f"[n, {self.width}]" if self._parts else "[n, d]"
            raise ValueError(f"features are {expected}, not {list(features.shape)}")
        if not features.isfinite().all():
            raise ValueError("features are not finite: no distance could be computed from them")
        self._parts.append(features.detach().to("cpu", torch.float32, copy=True))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def width(self) -> int:
        """d, 0 before any were added."""
        return self._parts[0].shape[1] if self._parts else 0

    @property
    def singular(self) -> bool:
        """The covariance has no full rank, as it cannot where n ≤ d: a Fréchet distance then compares only with others
        of the same n."""
        return len(self) <= self.width

    @property
    def rows(self) -> Tensor:
        """All features in the order in which they were added, float32 [n, d]."""
        if len(self._parts) != 1:
            self._parts = [torch.cat(self._parts)] if self._parts else [torch.empty(0, 0)]
        return self._parts[0]


def fid(a: Features, b: Features) -> float:
    """The Fréchet distance ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½) of Gaussians with the moments of the two sets.

    With Σ = FᵀF the last term is −2‖F₁F₂ᵀ‖, the sum of singular values: F₂Σ₁F₂ᵀ has the same non-zero eigenvalues as
    Σ₁Σ₂, and they are squares. So no root of a matrix is taken, which for singular covariances would have imaginary
    parts and errors of 1e-8; the result is exact to float64 and never negative.

    Undefined (NaN) for "fewer than two images" in either set.
    """
    _same_width(a, b)
    if min(len(a), len(b)) < 2:
        return math.nan
    (mean_a, root_a), (mean_b, root_b) = _moments(a), _moments(b)
    shared = torch.linalg.svdvals(root_a @ root_b.T).sum()
    traces = root_a.square().sum() + root_b.square().sum()
    return max(float((mean_a - mean_b).square().sum() + traces - 2 * shared), 0.0)


def _moments(features: Features) -> tuple[Tensor, Tensor]:
    """The mean [d], and F [min(n, d), d] with FᵀF the covariance."""
    rows = features.rows.double()
    mean = rows.mean(0)
    centred = (rows - mean) / math.sqrt(len(rows) - 1)
    return mean, centred if features.singular else torch.linalg.qr(centred, mode="r").R


def kid(a: Features, b: Features) -> float:
    """The unbiased squared maximum mean discrepancy with the kernel (x·y/d + 1)³, of all images at once.

    Nothing is drawn, so it has no spread of its own. Being unbiased, it is negative for sets that are closer than
    chance. Not scaled: tables usually show it × 1000. Undefined (NaN) for "fewer than two images" in either set.
    """
    _same_width(a, b)
    if min(len(a), len(b)) < 2:
        return math.nan
    return float(_discrepancies(a, b, *(torch.ones(1, len(x), dtype=torch.float64) for x in (a, b))))


def kid_subsets(a: Features, b: Features, subsets: int, size: int, seed: int) -> tuple[float, float]:
    """Mean and (population) standard deviation of the kernel distance over random subsets, drawn without replacement.

    What most publications report. The spread tells how far ``size`` images determine the distance, and shrinks to 0 as
    ``size`` nears the number of images; it is no confidence interval.
    """
    _same_width(a, b)
    if not 2 <= size <= min(len(a), len(b)):
        raise UsageError(
            f"no kernel distance of subsets of {size} from {len(a)} and {len(b)} images: "
            f"a subset has at least 2 and at most {min(len(a), len(b))}"
        )
    if subsets < 1:
        raise UsageError(f"no kernel distance of {subsets} subsets: draw at least one")
    generator = torch.Generator().manual_seed(seed)
    drawn = [[torch.randperm(len(x), generator=generator)[:size] for x in (a, b)] for _ in range(subsets)]
    chosen = [torch.zeros(subsets, len(x), dtype=torch.float64) for x in (a, b)]
    for i, pair in enumerate(drawn):
        for table, indices in zip(chosen, pair, strict=True):
            table[i, indices] = 1
    values = _discrepancies(a, b, *chosen)
    return float(values.mean()), float(values.std(correction=0))


def _discrepancies(a: Features, b: Features, in_a: Tensor, in_b: Tensor) -> Tensor:
    """For each of s subsets, told by the ones in [s, n] and [s, m]: its discrepancy, [s].

    Every entry of a kernel matrix is computed once, however many subsets it is part of.
    """
    x, y = a.rows.double(), b.rows.double()
    m, n = in_a.sum(1), in_b.sum(1)
    own = torch.tensor(0.0, dtype=torch.float64)
    for rows, members, count in ((x, in_a, m), (y, in_b, n)):
        diagonal = (rows.square().mean(1) + 1) ** 3
        own = own + (_kernel_sums(rows, rows, members, members) - members @ diagonal) / (count * (count - 1))
    return own - 2 * _kernel_sums(x, y, in_a, in_b) / (m * n)


def _kernel_sums(x: Tensor, y: Tensor, in_x: Tensor, in_y: Tensor) -> Tensor:
    """Σ k(xᵢ, yⱼ) over the members i, j of each subset: [s]."""
    sums = torch.zeros(len(in_x), dtype=torch.float64)
    for start in range(0, len(x), _ROWS):
        block = slice(start, start + _ROWS)
        kernel = (x[block] @ y.T / x.shape[1] + 1) ** 3
        sums += (in_x[:, block] @ kernel * in_y).sum(1)
    return sums


def _same_width(a: Features, b: Features) -> None:
    if len(a) and len(b) and a.width != b.width:
        raise ValueError(f"features of {a.width} and of {b.width} numbers are not of one network")


class Encoder(Protocol):
    """What is needed of an encoder: groups of uint8 crops [n, crop, crop, 3] in, their tokens out, group by group."""

    @property
    def crop(self) -> int: ...

    def encode(self, crops: Iterable[Any]) -> Iterator[Any]: ...


class EncoderFeatures:
    """Images [b, 3, h, w], uint8 or floats in [0, 1] → [b, d] float32: the CLS token of a pathology encoder.

    The encoder sees the image at its own pixel size, in crops side by side, the last row and column snapped to the
    border; the feature is the mean of their CLS tokens. An image smaller than a crop is mirrored beyond its border.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def __call__(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images are [b, 3, h, w], not {list(images.shape)}")
        pixels = images if images.dtype == torch.uint8 else (images.clamp(0, 1) * 255).round().byte()
        tokens = self.encoder.encode(self._crops(image) for image in pixels.permute(0, 2, 3, 1))
        return torch.stack([of_image.cls.float().mean(0) for of_image in tokens])

    def _crops(self, image: Tensor) -> Tensor:
        """[h, w, 3] → [n, crop, crop, 3]."""
        side = self.encoder.crop
        for axis in (0, 1):
            image = _mirrored(image, side, axis)
        ys, xs = (_starts(length, side) for length in image.shape[:2])
        return torch.stack([image[y : y + side, x : x + side] for y in ys for x in xs])


def _starts(length: int, side: int) -> tuple[int, ...]:
    return (*range(0, length - side, side), length - side)


def _mirrored(image: Tensor, least: int, axis: int) -> Tensor:
    """The image, mirrored beyond its end where it is shorter than ``least`` along that axis."""
    length = image.shape[axis]
    if length >= least:
        return image
    index = torch.arange(least, device=image.device) % (2 * length)
    return image.index_select(axis, torch.minimum(index, 2 * length - 1 - index))
