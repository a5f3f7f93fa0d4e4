"""Generators: the conditioned one of the bridge, the plain ResNet of CycleGAN and CUT, the U-Net of pix2pix.

Images are [b, 3, h, w] in [−1, 1]; outputs are float32 also under autocast.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sheafstain.nets.blocks import (
    SLOPE,
    BridgeBlock,
    ResidualBlock,
    StyleMapping,
    TimeEmbedding,
    decoder_layers,
    encoder_layers,
    initialise,
    initialise_embedding,
    squash,
)


class BridgeGenerator(nn.Module):
    """G(x_t, t, z | M, c_n): the prediction of x₁ from a point of the bridge (UNSB's ResNet, repaired; D10).

    Parameters
    ----------
    ngf
        Channels after the stem; the residual blocks have four times as many.
    blocks
        Number of residual blocks.
    width
        d of the spatial map M and of the class token c_n; 0 for a generator without conditioning.
    as_released
        The residual block of UNSB's released code, with the parameters that never get a gradient.
    """

    def __init__(self, ngf: int = 64, blocks: int = 9, width: int = 0, as_released: bool = False) -> None:
        super().__init__()
        inner = 4 * ngf
        self.latent_width = inner
        self.width = width
        self.as_released = as_released
        self.encoder = nn.ModuleList(encoder_layers(3, ngf, antialias=True))
        residual = [BridgeBlock(inner, width, as_released) for _ in range(blocks)]
        self.blocks = nn.ModuleList(residual)
        self.decoder = nn.Sequential(*decoder_layers(3, ngf, antialias=True))
        self.time = TimeEmbedding(ngf, inner)
        self.mapping = StyleMapping(inner)
        initialise(self)
        for block in residual:
            block.start()  # after the pass above, which would undo it (D11)
        if not as_released:
            initialise_embedding(self.time.layers)
            initialise_embedding(self.mapping.layers)

    def forward(self, x: Tensor, t: Tensor, z: Tensor, M: Tensor | None = None, c_n: Tensor | None = None) -> Tensor:
        """[b, 3, h, w] → [b, 3, h, w], float32.

        ``t`` is the index of the time step, one for the batch [] or one each [b]; ``z`` [b, latent_width] ~ N(0, I);
        ``M`` [b, d, h/16, w/16] and ``c_n`` [b, d], either or both may be missing. h and w are multiples of 4.
        """
        self._check(x, M, c_n)
        h = x
        for layer in self.encoder:
            h = layer(h)
        time, style = self._embed(t, z, len(x))
        for block in self.blocks:
            h = block(h, time, style, M, c_n)
        return squash(self.decoder(h))

    def encode(
        self,
        x: Tensor,
        t: Tensor,
        z: Tensor,
        M: Tensor | None = None,
        c_n: Tensor | None = None,
        *,
        layers: Sequence[int] = (0, 4, 8, 12, 16),
    ) -> list[Tensor]:
        """The features [b, c, h', w'] that PatchNCE compares, one for each of ``layers``; it stops after the last.

        Layers 0–11 are the modules of the encoder (0 the padded image, 4 and 8 the outputs of its second and third
        convolution), 12 onwards the residual blocks.
        """
        self.feature_widths(layers)
        self._check(x, M, c_n)
        found: dict[int, Tensor] = {}
        last = max(layers)
        h = x
        for number, layer in enumerate(self.encoder):
            h = layer(h)
            if number in layers:
                found[number] = h
            if number == last:
                return [found[layer] for layer in layers]
        time, style = self._embed(t, z, len(x))
        for number, block in enumerate(self.blocks, len(self.encoder)):
            h = block(h, time, style, M, c_n)
            if number in layers:
                found[number] = h
            if number == last:
                break
        return [found[layer] for layer in layers]

    def feature_widths(self, layers: Sequence[int]) -> list[int]:
        """Channels of the features of each layer: what the PatchNCE heads are built for."""
        widths: list[int] = []
        channels = 3
        for layer in self.encoder:
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
            widths.append(channels)
        widths += [channels] * len(self.blocks)
        if not layers or not all(0 <= layer < len(widths) for layer in layers):
            raise ValueError(f"this generator has feature layers 0 to {len(widths) - 1}, not {list(layers)}")
        return [widths[layer] for layer in layers]

    def _embed(self, t: Tensor, z: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        return self.time(t.expand(batch)), self.mapping(z)

    def _check(self, x: Tensor, M: Tensor | None, c_n: Tensor | None) -> None:
        if x.shape[-2] % 4 or x.shape[-1] % 4:
            raise ValueError(f"a generator with two halvings takes sides that are multiples of 4, not {x.shape[-2:]}")
        for name, given in (("M", M), ("c_n", c_n)):
            if given is not None and given.shape[1] != self.width:
                raise ValueError(f"{name} has {given.shape[1]} channels; this generator was built for {self.width}")


class ResnetGenerator(nn.Module):
    """The unconditioned ResNet generator of CycleGAN; with ``antialias`` that of CUT.

    CycleGAN halves with strided convolutions and doubles with transposed ones, CUT blurs (``BlurPool``).
    """

    def __init__(self, ngf: int = 64, blocks: int = 9, antialias: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *encoder_layers(3, ngf, antialias),
            *(ResidualBlock(4 * ngf) for _ in range(blocks)),
            *decoder_layers(3, ngf, antialias),
        )
        initialise(self, "xavier" if antialias else "normal")

    def forward(self, x: Tensor) -> Tensor:
        """[b, 3, h, w] → [b, 3, h, w], float32; h and w multiples of 4."""
        return squash(self.layers(x))


class UnetGenerator(nn.Module):
    """The U-Net of pix2pix for sides that are multiples of 2 to the power ``depth``.

    Batch norm, and dropout in the three innermost blocks of the decoder whose two sides have 8·ngf channels; pix2pix
    keeps both in training mode at test time.
    """

    def __init__(self, ngf: int = 64, depth: int = 8) -> None:
        super().__init__()
        if depth < 5:
            raise ValueError(f"this U-Net has at least five halvings, not {depth}")
        self.multiple = 2**depth
        widths = [ngf * min(2**level, 8) for level in range(depth)]
        self.down = nn.ModuleList([nn.Conv2d(3, ngf, 4, stride=2, padding=1, bias=False)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * ngf, 3, 4, stride=2, padding=1)])
        for level in range(1, depth):
            outer, inner = widths[level - 1], widths[level]
            innermost = level == depth - 1
            down: list[nn.Module] = [nn.LeakyReLU(SLOPE), nn.Conv2d(outer, inner, 4, stride=2, padding=1, bias=False)]
            up: list[nn.Module] = [
                nn.ReLU(),
                nn.ConvTranspose2d(inner if innermost else 2 * inner, outer, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(outer),
            ]
            if not innermost:
                down.append(nn.BatchNorm2d(inner))
                up += [nn.Dropout(0.5)] if outer == inner else []
            self.down.append(nn.Sequential(*down))
            self.up.append(nn.Sequential(*up))
        initialise(self, "normal")

    def forward(self, x: Tensor) -> Tensor:
        """[b, 3, h, w] → [b, 3, h, w], float32."""
        if x.shape[-2] % self.multiple or x.shape[-1] % self.multiple:
            raise ValueError(f"this U-Net takes sides that are multiples of {self.multiple}, not {x.shape[-2:]}")
        skips: list[Tensor] = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        h = self.up[-1](skips.pop())
        for layer in reversed(self.up[1:-1]):
            h = layer(torch.cat((skips.pop(), h), dim=1))
        return squash(self.up[0](torch.cat((skips.pop(), h), dim=1).relu()))
