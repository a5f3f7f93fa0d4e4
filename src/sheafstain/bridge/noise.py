"""The noise of the bridge as a field over the whole canvas, of which every window cuts its own part (D12).

The field is a pure function of (seed, step, y, x, channel): Philox4x32-10 (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3") turns the position into four 32-bit words and Box and Muller's transform turns these into
normal numbers. There is no state, so any tiling, batch size, order or number of machines sees the same field. The words
are integers and exact on every device; the transform is computed in float64 and rounded once, so that devices and
shapes differ in the last bit of a float32 at most, and hardly ever.

    counter = (x, y, step, channel // 4)     one block of four words holds four channels of a pixel
    counter = (i // 4, draw, 0, 2³¹)         the latent z, one vector per image
    key     = seed, its low and high half
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sheafstain.device import upload
from sheafstain.window import Window

Words = tuple[Tensor, Tensor, Tensor, Tensor]

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # golden ratio, √3 − 1: what the key grows by each round
ROUNDS = 10
WORD = 0xFFFFFFFF
LATENT = 1 << 31  # no image has so many channels: latent and field never share a counter


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox4x32-10: four words for each counter; all are int64 tensors of values below 2³², broadcast together.

    A product of two words needs 64 bits and wraps in a signed one, which keeps every bit. Words are cut to 32 bits only
    where the next product needs it.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for turn in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = ((p1 >> 32) ^ c1 ^ (k0 + turn * WEYL[0])) & WORD
        c2 = ((p0 >> 32) ^ c3 ^ (k1 + turn * WEYL[1])) & WORD
        c1, c3 = p1, p0
    return c0, c1 & WORD, c2, c3 & WORD


def noise_field(
    seeds: Tensor, windows: Sequence[Window], step: int, channels: int = 3, device: torch.device | str | None = None
) -> Tensor:
    """Standard normal noise on n canvases under a window of each, all of one size: [n, channels, h, w], float32.

    ``seeds`` [n], int64, name the canvases. Coordinates may be negative or beyond an image; they are taken modulo 2³².
    """
    sizes = {window.size for window in windows}
    if len(sizes) != 1 or len(windows) != len(seeds):
        raise ValueError(
            f"{len(seeds)} seeds need as many windows of one size, not {len(windows)} of {len(sizes)} sizes"
        )
    size = sizes.pop()
    device = torch.device(device) if device is not None else seeds.device
    corners = upload(torch.tensor([(window.y, window.x) for window in windows]), device)
    place = torch.full((), step & WORD, device=device)
    seeds = seeds.to(device)
    if device.type == "cuda":
        return _fused()(corners, seeds, place, size.h, size.w, channels)
    # On a CPU window by window: the words of one then stay in the processor's cache.
    out = torch.empty(len(seeds), channels, size.h, size.w, device=device)
    for k in range(len(seeds)):
        out[k] = _field(corners[k : k + 1], seeds[k : k + 1], place, size.h, size.w, channels)[0]
    return out


def _field(corners: Tensor, seeds: Tensor, step: Tensor, h: int, w: int, channels: int) -> Tensor:
    y = corners[:, :1, None] + torch.arange(h, device=corners.device)[:, None]  # [n, h, 1]
    x = corners[:, 1:, None] + torch.arange(w, device=corners.device)  # [n, 1, w]
    key = _key(seeds[:, None, None])
    made: list[Tensor] = []
    for block in range(0, channels, 4):
        words = philox(_counter(x, y, step, block // 4), key)
        made += [values.float() for values in _normal(words, min(channels - block, 4))]
    return torch.stack(made, 1)


@cache
def _fused() -> Callable[..., Tensor]:
    """The field as one kernel where a GPU's compiler is there: in single operations it mostly waits for memory."""
    return torch.compile(_field, dynamic=False) if importlib.util.find_spec("triton") else _field


def latent(seeds: Tensor, width: int, draw: int = 0, device: torch.device | str | None = None) -> Tensor:
    """The latent z ~ N(0, I) of each image: seeds [n] → [n, width], float32; another ``draw`` is another vector."""
    device = torch.device(device) if device is not None else seeds.device
    place = torch.arange(-(-width // 4), device=device)
    which, zero = (torch.full((), number, device=device) for number in (draw, 0))
    words = philox(_counter(place, which, zero, LATENT), _key(seeds.to(device)[:, None]))
    return torch.stack(_normal(words, 4), dim=-1).float().flatten(1)[:, :width]


@dataclass(frozen=True, slots=True, eq=False)
class CanvasNoise:
    """Where a chain of n windows gets its noise from: the field of each window's canvas, one z for each image (D12).

    ``seeds`` [n] names the canvas of each window: windows of one image share a seed, and with it z and the field on
    their overlaps. Lives where ``seeds`` lives.
    """

    seeds: Tensor
    windows: Sequence[Window]
    latent_width: int
    channels: int = 3

    def latent(self, step: int) -> Tensor:  # the same for all of them
        return latent(self.seeds, self.latent_width)

    def field(self, step: int) -> Tensor:
        return noise_field(self.seeds, self.windows, step, self.channels)


@dataclass(frozen=True, slots=True, eq=False)
class FreshNoise:
    """Independent noise for every window, step and call, as in UNSB's released code; ``shape`` is [n, c, h, w]."""

    generator: torch.Generator
    shape: tuple[int, int, int, int]
    latent_width: int

    def latent(self, step: int) -> Tensor:
        return self._draw(self.shape[0], self.latent_width)

    def field(self, step: int) -> Tensor:
        return self._draw(*self.shape)

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.generator.device)


def _counter(x: Tensor, y: Tensor, step: Tensor, block: int) -> Words:
    return x & WORD, y & WORD, step, torch.full((), block, device=x.device)


def _key(seeds: Tensor) -> tuple[Tensor, Tensor]:
    return seeds & WORD, (seeds >> 32) & WORD


def _normal(words: Words, count: int) -> list[Tensor]:
    """Box and Muller: ``count`` ≤ 4 standard normal tensors, float64, from four words."""
    values: list[Tensor] = []
    for first, second in ((words[0], words[1]), (words[2], words[3]))[: -(-count // 2)]:
        # Half a step away from 0, whose logarithm would be infinite, and from 1.
        radius = ((first.double() + 0.5) * 2.0**-32).log_().mul_(-2).sqrt_()
        angle = second.double() * (2 * math.pi * 2.0**-32)
        values.append(radius * angle.cos())
        if len(values) < count:
            values.append(radius * angle.sin())
    return values
