"""Beer–Lambert colour: optical density, stain concentrations, the chromogen (DAB) map and images made from them.

Images are float tensors [..., 3, h, w], RGB in [0, 1]; everything is batched, differentiable and the same on every
device. Half precision is computed and returned in float32 (an optical density near white is smaller than a bfloat16
step, and its three digits are too few for a loss); float64 stays float64. No value and no gradient is NaN or infinite,
black and white included.

Two DAB conventions are in use in the field and give different numbers, so both are here under a name and every function
takes the one it should use::

    chromogen(rgb)                    # H_DAB: what the metrics report; white is 0
    chromogen(rgb, H_DAB_SOFTPLUS)    # what published losses use; white is 0.1386 and still has a gradient
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Row = tuple[float, float, float]

# Optical density of one unit of stain in R, G, B (Ruifrok and Johnston 2001).
HAEMATOXYLIN: Row = (0.650, 0.704, 0.286)
EOSIN: Row = (0.072, 0.990, 0.105)
DAB: Row = (0.268, 0.570, 0.776)
RESIDUAL: Row = (0.7110, 0.4245, 0.5609)  # whatever brown and blue do not explain, in the three-stain convention


@dataclass(frozen=True, slots=True)
class Density:
    """OD = −log_base((max(I, floor) + offset) / (1 + offset)): 0 at white, finite at black."""

    base: float
    floor: float
    offset: float

    @property
    def scale(self) -> float:
        """Natural logarithms per unit of this density."""
        return math.log(self.base)


NATURAL = Density(math.e, 0.0, 1 / 255)  # −ln((I + 1) / 256) on 8-bit values
DECADIC = Density(10.0, 1e-6, 1e-6)


@dataclass(frozen=True, slots=True)
class Stains:
    """A stain matrix with all that its concentrations depend on.

    ``rows`` [k][3] are the optical densities of one unit of each of the k ``names``; ``softplus`` is the sharpness β of
    the rectifier of negative concentrations, or None to clip them at zero.
    """

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    density: Density = NATURAL
    softplus: float | None = None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.rows) or np.linalg.matrix_rank(self.rows) < len(self.rows):
            raise ValueError(f"the stains {self.names} need as many linearly independent rows, not {self.rows}")

    def index(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"no {name} among {', '.join(self.names)}")
        return self.names.index(name)


def _unit(row: Row) -> Row:
    length = math.hypot(*row)
    return row[0] / length, row[1] / length, row[2] / length


H_E = Stains(("haematoxylin", "eosin"), (_unit(HAEMATOXYLIN), _unit(EOSIN)))
H_DAB = Stains(("haematoxylin", "DAB", "residual"), (_unit(HAEMATOXYLIN), _unit(DAB), _unit(RESIDUAL)))
_DAB_ALONE = Stains(("DAB",), (_unit(DAB),))
H_DAB_SOFTPLUS = Stains(("DAB", "haematoxylin"), (DAB, HAEMATOXYLIN), DECADIC, softplus=5.0)


def optical_density(rgb: Tensor, density: Density = NATURAL) -> Tensor:
    """How much light is missing: [..., 3, h, w] → [..., 3, h, w], 0 where the glass is white."""
    seen = _as_rgb(rgb).clamp(density.floor, 1.0)
    return ((seen + density.offset) / (1 + density.offset)).log() * (-1 / density.scale)


def light(od: Tensor, density: Density = NATURAL) -> Tensor:
    """The inverse of ``optical_density``: [..., 3, h, w] → RGB in [0, 1]."""
    seen = (od * -density.scale).exp() * (1 + density.offset) - density.offset
    return seen.clamp(0.0, 1.0)


def unmix(rgb: Tensor, stains: Stains = H_DAB) -> Tensor:
    """How much of each stain: [..., 3, h, w] → concentrations [..., k, h, w], least squares, rectified."""
    return _rectify(_combine(optical_density(rgb, stains.density), _weights(stains)), stains)


def mix(concentrations: Tensor, stains: Stains = H_DAB) -> Tensor:
    """What an eye sees of that much stain on white: concentrations [..., k, h, w] → RGB [..., 3, h, w]."""
    if concentrations.shape[-3] != len(stains.names):
        raise ValueError(f"{len(stains.names)} stains make {tuple(concentrations.shape)}: the third-last axis differs")
    by_channel = tuple(zip(*stains.rows, strict=True))
    return light(_combine(_exact(concentrations), by_channel), stains.density)


def chromogen(rgb: Tensor, stains: Stains = H_DAB) -> Tensor:
    """The DAB map: [..., 3, h, w] → [..., 1, h, w]."""
    weights = _weights(stains)[stains.index("DAB")]
    return _rectify(_combine(optical_density(rgb, stains.density), (weights,)), stains)


def chromogen_on_white(rgb: Tensor) -> Tensor:
    """The image with its DAB alone, on white glass: [..., 3, h, w] → [..., 3, h, w] (design D14).

    Nothing is normalised per image: white stays white and a stronger stain stays stronger, which the paper's rendering
    (appendix "Cross-Stain VFM Alignment") divides away.
    """
    return mix(chromogen(rgb, H_DAB), _DAB_ALONE)


def top_tenth_mean(chromogen: Tensor) -> Tensor:
    """p90 of the paper's DAB intensity loss: [b, ...] → [b], the mean of the strongest tenth of each image.

    Values above the 99th percentile count as that percentile, then all values ≥ the 90th are averaged (percentiles as
    NumPy's, linear between neighbours). With ≥ a flat image has its own value; where more than nine tenths of an image
    share one value, all of it is averaged.
    """
    values = _exact(chromogen).flatten(1)
    last = values.shape[1] - 1
    if last < 0:
        raise ValueError("an image without pixels has no strongest tenth")
    strongest = values.topk(last + 1 - math.floor(0.9 * last), dim=1).values

    def percentile(share: float) -> Tensor:
        below = math.floor(share * last)
        low, high = strongest[:, last - below], strongest[:, max(last - below - 1, 0)]
        return (low + (high - low) * (share * last - below)).unsqueeze(1)

    chosen = values.detach() >= percentile(0.9).detach()
    capped = torch.minimum(values, percentile(0.99))
    return torch.where(chosen, capped, 0.0).sum(1) / chosen.sum(1)


def _as_rgb(rgb: Tensor) -> Tensor:
    if rgb.ndim < 3 or rgb.shape[-3] != 3:
        raise ValueError(f"RGB images are [..., 3, h, w], not {tuple(rgb.shape)}")
    return _exact(rgb)


def _exact(values: Tensor) -> Tensor:
    if not values.is_floating_point():
        raise ValueError(f"colour maths takes floats in [0, 1], not {values.dtype}: divide 8-bit values by 255")
    return values if values.dtype == torch.float64 else values.float()


def _combine(planes: Tensor, weights: tuple[tuple[float, ...], ...]) -> Tensor:
    """[..., n, h, w] and m rows of n numbers → [..., m, h, w].

    Written out rather than as a product of matrices: autocast would take that to half precision, and plain numbers need
    no copy to the device.
    """
    channels = planes.unbind(-3)
    return torch.stack([_dot(row, channels) for row in weights], dim=-3)


def _dot(row: tuple[float, ...], channels: tuple[Tensor, ...]) -> Tensor:
    total = channels[0] * row[0]
    for weight, channel in zip(row[1:], channels[1:], strict=True):
        total = total + channel * weight
    return total


def _rectify(concentrations: Tensor, stains: Stains) -> Tensor:
    if stains.softplus is None:
        return concentrations.clamp(min=0.0)
    return functional.softplus(concentrations, beta=stains.softplus)


@functools.cache
def _weights(stains: Stains) -> tuple[Row, ...]:
    """Rows [k][3] that take an optical density to concentrations: the pseudo-inverse, transposed."""
    inverse = np.linalg.pinv(np.array(stains.rows, dtype=np.float64))
    return tuple((float(r), float(g), float(b)) for r, g, b in inverse.T)
