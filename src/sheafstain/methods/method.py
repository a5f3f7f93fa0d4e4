"""The protocol: what a training step is, and what a translation is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.methods.batch import Batch, Draw, Needs


@dataclass(frozen=True, slots=True)
class Turn:
    """One optimiser phase: the networks of these ``parts`` are stepped together, the others are frozen meanwhile."""

    name: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a method was meant to cover an image (D24).

    Windows of ``side`` px every ``stride`` px, overlapping ones glued, with the extra windows of the open cover where
    ``refine`` is set. ``multiple`` divides the sides of every window the network takes; a method that is ``free`` of a
    fixed side can also translate a whole image at once.
    """

    side: int = 256
    stride: int = 192
    refine: bool = False
    multiple: int = 4
    free: bool = False


class Method(Protocol):
    """One method in training on one device.

    The trainer calls ``begin`` once a step and ``losses`` once a turn, in the order of ``turns``; it sums the terms,
    averages the gradients over processes and steps the optimiser of the turn.
    """

    parts: Mapping[str, nn.Module]
    turns: Sequence[Turn]
    needs: Needs

    @property
    def generator(self) -> nn.Module:
        """What translates, and is exported."""
        ...

    def begin(self, batch: Batch, draw: Draw) -> Any:
        """The step's state: chains walked without gradient, then the passes that are graded."""
        ...

    def losses(self, turn: str, state: Any) -> dict[str, Tensor]:
        """The weighted terms of a turn, by name; their sum is what is minimised."""
        ...

    def translate(
        self,
        he: Tensor,
        noise: CanvasNoise,
        M: Tensor | None = None,
        c_n: Tensor | None = None,
        *,
        nfe: int | None = None,
    ) -> Tensor:
        """H&E windows [n, 3, h, w] in [−1, 1] → virtual IHC, float32 in [−1, 1], without gradient."""
        ...
