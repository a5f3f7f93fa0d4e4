"""How long to train and how fast to learn, in epochs counted from 1 (paper, appendix Training Procedure).

An epoch is a number of samples (four of every image, see ``sampling``) and not of steps: the state of a training is how
many samples it has seen, and batch and number of processes may change whenever it is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """The paper's by default: 400 epochs, the second half of them with a falling learning rate.

    Parameters
    ----------
    constant, decay
        Epochs with the full learning rate, and with one that falls in equal steps: in the n-th of them it is
        1 − n / (decay + 1) of the full one, as in the code of pix2pix, CycleGAN and UNSB, so never 0.
    """

    constant: int = 200
    decay: int = 200

    def __post_init__(self) -> None:
        if self.constant < 0 or self.decay < 0 or self.epochs < 1:
            raise ValueError("a schedule has one epoch or more")

    @property
    def epochs(self) -> int:
        return self.constant + self.decay

    def epoch(self, seen: int, of: int) -> int:
        """The epoch, from 1, of the sample after ``seen`` others, ``of`` an epoch; after the end it is the last."""
        return min(seen // of + 1, self.epochs)

    def factor(self, epoch: int) -> float:
        """Share of the full learning rate in an epoch."""
        return 1 - max(epoch - self.constant, 0) / (self.decay + 1)
