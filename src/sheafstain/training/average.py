"""A running average of the generator's weights, which is smoother than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

RAMP = 0.05  # the half-life is at most this share of what was seen: the first weights are forgotten soon


class Average:
    """Of everything floating in a network; ``half_life`` in samples, so that it does not depend on the batch."""

    def __init__(self, net: nn.Module, half_life: int) -> None:
        self.half_life = half_life
        self._of = {name: tensor for name, tensor in net.state_dict().items() if tensor.is_floating_point()}
        self.tensors = {name: tensor.detach().clone() for name, tensor in self._of.items()}

    @torch.no_grad()
    def update(self, batch: int, seen: int) -> None:
        """After a step with ``batch`` samples, the last of ``seen``."""
        keep = 0.5 ** (batch / min(self.half_life, RAMP * seen))
        held, own = list(self.tensors.values()), list(self._of.values())
        torch._foreach_lerp_(held, own, 1 - keep)  # type: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, held in self.tensors.items():
            held.copy_(tensors[name])

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within the block the network has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, held in self.tensors.items():
            own = self._of[name].clone()
            self._of[name].copy_(held)
            held.copy_(own)
