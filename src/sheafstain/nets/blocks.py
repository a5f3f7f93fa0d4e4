"""Building blocks: anti-aliased resampling, embeddings of time and latent, residual blocks, initialisation.

Instance norm has no affine part and no running statistics, so every convolution before one carries a bias.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["instance", "batch"]

SLOPE = 0.2  # of every leaky ReLU
EPS = 1e-5  # of every instance norm


def norm_layer(kind: Norm, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else InstanceNorm()


class InstanceNorm(nn.Module):
    """Every channel of every image to mean 0 and variance 1, in float32 inside; no parameters, no statistics kept.

    On a GPU it is written out (``Normalise``): torch's own looks at an image with b·c channels, which costs a copy out
    of channels-last memory and one back for every norm. On a CPU torch's own is the faster one.
    """

    def forward(self, x: Tensor) -> Tensor:
        return Normalise.apply(x) if x.is_cuda else functional.instance_norm(x, eps=EPS)


class Normalise(torch.autograd.Function):
    """Instance norm with its gradient, every sum taken along rows first and then over the rows.

    Images are few and large: one sum over all pixels of a channel, as a compiler would make it, keeps half of a GPU
    waiting for the other.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        exact = _exact(x)
        variances, means = torch.var_mean(exact, -1, correction=0)
        variance, mean = variances.mean(-1) + means.var(-1, correction=0), means.mean(-1)
        mean, scale = mean[..., None, None], torch.rsqrt(variance + EPS)[..., None, None]
        ctx.save_for_backward(x, mean, scale)
        return ((exact - mean) * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, mean, scale = ctx.saved_tensors
        gradient, normal = _exact(gradients[0]), (_exact(x) - mean) * scale
        level, slope = (sums.mean(-1).mean(-1)[..., None, None] for sums in (gradient, gradient * normal))
        return ((gradient - level - normal * slope) * scale).to(x.dtype)


def _exact(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def reflect_pad(x: Tensor, margin: int = 1) -> Tensor:
    return functional.pad(x, (margin,) * 4, mode="reflect")


class BlurPool(nn.Module):
    """Half the size without aliasing: every channel blurred with [1, 2, 1] ⊗ [1, 2, 1] / 16, borders reflected.

    Written as sums of slices, one axis after the other: a compiler fuses them with what comes before, and a depthwise
    convolution it cannot.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[b, c, h, w] → [b, c, ⌈h/2⌉, ⌈w/2⌉]."""
        h, w = x.shape[-2:]
        x = reflect_pad(x)
        x = x[..., 0:h:2, :] + 2 * x[..., 1 : h + 1 : 2, :] + x[..., 2 : h + 2 : 2, :]
        return (x[..., 0:w:2] + 2 * x[..., 1 : w + 1 : 2] + x[..., 2 : w + 2 : 2]) / 16


class BlurUpsample(nn.Module):
    """Twice the size: the transposed convolution with [1, 3, 3, 1] ⊗ [1, 3, 3, 1] / 16, borders replicated.

    Each output is (3·near + far) / 4 along both axes, which is bilinear interpolation between pixel centres; the test
    computes the transposed convolution by hand. On a GPU it is written out, because the compiled gradient of torch's
    interpolation scatters pixel by pixel: a tenth of a training step.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[b, c, h, w] → [b, c, 2h, 2w]."""
        if x.is_cuda:
            return self.written_out(x)
        return functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

    def written_out(self, x: Tensor) -> Tensor:
        for axis in (-2, -1):
            last = x.shape[axis] - 1
            before = torch.cat((x.narrow(axis, 0, 1), x.narrow(axis, 0, last)), axis)
            after = torch.cat((x.narrow(axis, 1, last), x.narrow(axis, last, 1)), axis)
            both = torch.stack((3 * x + before, 3 * x + after), dim=3 if axis == -2 else 4)
            x = both.flatten(2, 3) if axis == -2 else both.flatten(3, 4)
        return x / 16


class TimeEmbedding(nn.Module):
    """A vector for the index of a time step: sines and cosines of ``width`` / 2 frequencies, then two layers.

    It is the integer index that is embedded, not the time t itself, as in UNSB.
    """

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        if width < 4 or width % 2:
            raise ValueError(f"a time embedding needs an even width of at least 4, not {width}")
        self.width = width
        self.layers = nn.Sequential(
            nn.Linear(width, out), nn.LeakyReLU(SLOPE), nn.Linear(out, out), nn.LeakyReLU(SLOPE)
        )

    def forward(self, index: Tensor) -> Tensor:
        """[b] → [b, out]."""
        half = self.width // 2
        exponent = torch.arange(half, device=index.device, dtype=torch.float32) / (half - 1)
        angle = index.float()[:, None] * torch.exp(-math.log(10000) * exponent)
        sinusoids = torch.cat((angle.sin(), angle.cos()), dim=1)
        return self.layers(sinusoids.to(next(self.layers.parameters()).dtype))


class StyleMapping(nn.Module):
    """The latent z on a sphere, then four layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [module for _ in range(4) for module in (nn.Linear(width, width), nn.LeakyReLU(SLOPE))]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        """[b, width] → [b, width]."""
        return self.layers(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))


class ResidualBlock(nn.Module):
    """x + (pad, conv, norm, ReLU, pad, conv, norm)(x): the unconditioned block of CycleGAN and CUT."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3)
        self.second = nn.Conv2d(channels, channels, 3)
        self.norm = InstanceNorm()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(reflect_pad(x))).relu()
        return x + self.norm(self.second(reflect_pad(h)))


class BridgeBlock(nn.Module):
    """The residual block that sees time, latent and tissue (paper, Eq. 3; D10).

        h = norm(conv(x));  h = h + W_time e_t + W_spatial M↑ + W_cls c_n;  x + norm(conv(relu(γ(z)·h + β(z))))

    The three terms enter after the norm, which would subtract a vector that is added before it. ``as_released`` is the
    block of UNSB's released code instead: its first convolution and its time term reach nothing, and a second style
    layer is never called.

    Parameters
    ----------
    channels
        Of the features, and of e_t and of the mapped z.
    width
        d of M and c_n; 0 for a block without them.
    """

    def __init__(self, channels: int, width: int = 0, as_released: bool = False) -> None:
        super().__init__()
        self.as_released = as_released
        self.first = nn.Conv2d(channels, channels, 3)
        self.second = nn.Conv2d(channels, channels, 3)
        self.norm = InstanceNorm()
        self.time = nn.Linear(channels, channels)
        self.style = nn.Linear(channels, 2 * channels)
        if as_released:
            self.never_called = nn.Linear(channels, 2 * channels)
        if width:
            self.spatial = nn.Conv2d(width, channels, 1)
            self.cls = nn.Linear(width, channels)

    def start(self) -> None:
        """What must hold at step 0 and would not survive ``initialise`` in a constructor (D11).

        M and c_n are a no-op (paper, below Eq. 3), and γ is about 1.
        """
        if hasattr(self, "spatial"):
            for parameter in (*self.spatial.parameters(), *self.cls.parameters()):
                nn.init.zeros_(parameter)
        if not self.as_released:
            nn.init.ones_(self.style.bias[: self.style.out_features // 2].detach())

    def forward(self, x: Tensor, time: Tensor, style: Tensor, M: Tensor | None, c_n: Tensor | None) -> Tensor:
        """``x`` [b, c, h, w], ``time`` and ``style`` [b, c], ``M`` [b, d, m, n], ``c_n`` [b, d] → [b, c, h, w]."""
        if self.as_released:
            h = self.norm(x)
        else:
            h = self.norm(self.first(reflect_pad(x))) + self.time(time)[:, :, None, None]
        if M is not None:
            # A 1×1 convolution and an interpolation commute; on the 16-px cells it costs a sixteenth.
            h = h + functional.interpolate(self.spatial(M), h.shape[-2:], mode="bilinear", align_corners=False)
        if c_n is not None:
            h = h + self.cls(c_n)[:, :, None, None]
        gamma, beta = self.style(style)[:, :, None, None].chunk(2, dim=1)
        h = (gamma * h + beta).relu()
        return x + self.norm(self.second(reflect_pad(h)))


def encoder_layers(channels: int, ngf: int, antialias: bool) -> list[nn.Module]:
    """Stem and two halvings, [b, channels, h, w] → [b, 4·ngf, h/4, w/4]; 12 modules with ``antialias``."""
    layers: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(channels, ngf, 7), InstanceNorm(), nn.ReLU()]
    for width in (ngf, 2 * ngf):
        layers += [nn.Conv2d(width, 2 * width, 3, stride=1 if antialias else 2, padding=1)]
        layers += [InstanceNorm(), nn.ReLU()]
        layers += [BlurPool()] if antialias else []
    return layers


def decoder_layers(channels: int, ngf: int, antialias: bool) -> list[nn.Module]:
    """Two doublings and the last convolution, [b, 4·ngf, h/4, w/4] → [b, channels, h, w], before its tanh."""
    layers: list[nn.Module] = []
    for width in (4 * ngf, 2 * ngf):
        if antialias:
            layers += [BlurUpsample(), nn.Conv2d(width, width // 2, 3, padding=1)]
        else:
            layers += [nn.ConvTranspose2d(width, width // 2, 3, stride=2, padding=1, output_padding=1)]
        layers += [InstanceNorm(), nn.ReLU()]
    return [*layers, nn.ReflectionPad2d(3), nn.Conv2d(ngf, channels, 7)]


def squash(h: Tensor) -> Tensor:
    """tanh in float32 or better, also under autocast: eight significant bits would show in a smooth background."""
    return torch.tanh(h if h.dtype == torch.float64 else h.float())


def initialise_embedding(layers: nn.Sequential) -> None:
    """Weights that keep the scale of their input through leaky ReLUs.

    After ``initialise`` four layers shrink z by about 10⁷ and two shrink the time by 10⁴: neither would reach the image
    within float32, nor its gradient Adam's 10⁻⁸.
    """
    for module in layers:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, SLOPE)


def initialise(net: nn.Module, scheme: Literal["xavier", "normal"] = "xavier", gain: float = 0.02) -> None:
    """Weights of every convolution and linear layer drawn anew, every bias 0; batch norm around 1.

    ``xavier`` as CUT and UNSB, ``normal`` as pix2pix and CycleGAN. Whatever must start at another value is set after
    this pass, never in a constructor before it (D11).
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            if scheme == "xavier":
                nn.init.xavier_normal_(module.weight, gain)
            else:
                nn.init.normal_(module.weight, 0.0, gain)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, gain)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
