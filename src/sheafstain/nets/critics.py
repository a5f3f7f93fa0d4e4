"""Critics: networks that score patches of an image, with and without time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sheafstain.nets.blocks import SLOPE, BlurPool, InstanceNorm, Norm, TimeEmbedding, initialise, norm_layer


class TimedBlock(nn.Module):
    """conv 4×4 → + time → norm → leaky ReLU → blur-pool."""

    def __init__(self, channels: int, out: int, time: int, *, norm: bool = True, pool: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 4, padding=1)
        self.time = nn.Linear(time, out)
        tail: list[nn.Module] = [InstanceNorm()] if norm else []
        self.tail = nn.Sequential(*tail, nn.LeakyReLU(SLOPE), *([BlurPool()] if pool else []))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.tail(self.conv(x) + self.time(time)[:, :, None, None])


class TimedCritic(nn.Module):
    """UNSB's critic that knows the time step: the discriminator D (3 channels) and the energy network E (12).

    E scores two pairs (x_t, x₁) of images, concatenated. Only the first block's time term has an effect, the others are
    subtracted by the norm that follows: kept as released, because the first one suffices for time to matter.
    """

    def __init__(self, channels: int = 3, ndf: int = 64) -> None:
        super().__init__()
        inner = 4 * ndf
        self.time = TimeEmbedding(inner, inner)
        self.blocks = nn.ModuleList(
            (
                TimedBlock(channels, ndf, inner, norm=False),
                TimedBlock(ndf, 2 * ndf, inner),
                TimedBlock(2 * ndf, 4 * ndf, inner),
                TimedBlock(4 * ndf, 8 * ndf, inner, pool=False),
            )
        )
        self.last = nn.Conv2d(8 * ndf, 1, 4, padding=1)
        initialise(self)

    def forward(self, t: Tensor, image: Tensor, *more: Tensor) -> Tensor:
        """Images [b, c, h, w], concatenated along their channels, → logits [b, 1, h', w'] (256² → 30²).

        ``t`` is the index of the time step, one for the batch [] or one each [b].
        """
        h = torch.cat((image, *more), dim=1) if more else image
        time = self.time(t.expand(len(h)))
        for block in self.blocks:
            h = block(h, time)
        return self.last(h)


class PatchCritic(nn.Module):
    """The PatchGAN of pix2pix (6 channels, batch norm) and CycleGAN (3, instance norm): each logit sees 70×70 pixels.

    ``antialias`` gives CUT's: no stride, blur-pool after the non-linearity.
    """

    def __init__(self, channels: int = 3, ndf: int = 64, norm: Norm = "instance", antialias: bool = False) -> None:
        super().__init__()
        biased = norm == "instance"  # batch norm has a bias of its own
        stride = 1 if antialias else 2
        pool = [BlurPool()] if antialias else []
        layers: list[nn.Module] = [nn.Conv2d(channels, ndf, 4, stride=stride, padding=1), nn.LeakyReLU(SLOPE), *pool]
        for width in (ndf, 2 * ndf, 4 * ndf):
            last = width == 4 * ndf
            layers += [
                nn.Conv2d(width, 2 * width, 4, stride=1 if last else stride, padding=1, bias=biased),
                norm_layer(norm, 2 * width),
                nn.LeakyReLU(SLOPE),
                *([] if last else pool),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(8 * ndf, 1, 4, padding=1))
        initialise(self, "xavier" if antialias else "normal")

    def forward(self, image: Tensor) -> Tensor:
        """[b, c, h, w] → logits [b, 1, h', w'] (256² → 30²)."""
        return self.layers(image)
