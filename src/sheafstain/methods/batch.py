"""What a training step is given: windows with their place on a canvas, and where its randomness comes from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafstain.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class Views:
    """n H&E windows as a generator sees them, each on its canvas: windows of one canvas share noise and z (D12).

    ``images`` [n, 3, h, w] in [−1, 1], ``canvas`` [n] int64 the seeds that name the canvases, on the same device, and
    the section restricted to each window, ``M`` [n, d, h/16, w/16] and ``c_n`` [n, d], or neither.
    """

    images: Tensor
    windows: Sequence[Window]
    canvas: Tensor
    M: Tensor | None = None
    c_n: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def part(self, at: slice) -> Views:
        """Some of the windows."""
        M, c_n = (None if t is None else t[at] for t in (self.M, self.c_n))
        return Views(self.images[at], self.windows[at], self.canvas[at], M, c_n)

    @classmethod
    def joined(cls, parts: Sequence[Views]) -> Views:
        """One after the other."""
        return cls(
            torch.cat([part.images for part in parts]),
            [window for part in parts for window in part.windows],
            torch.cat([part.canvas for part in parts]),
            _joined([part.M for part in parts]),
            _joined([part.c_n for part in parts]),
        )


def _joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
    there = [tensor for tensor in tensors if tensor is not None]
    if there and len(there) != len(tensors):
        raise ValueError("either all windows are conditioned or none is")
    return torch.cat(there) if there else None


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """b samples of one training step.

    ``ref`` [b] reference windows; ``ihc`` [b, 3, h, w] the registered IHC of the same windows, in [−1, 1];
    ``adjacent`` [2b] their neighbours, all first ones (above or below), then all second ones (left or right; D5);
    ``second`` [b] windows of other images. The last two are there for methods that ask for them (``Needs``).
    """

    ref: Views
    ihc: Tensor
    adjacent: Views | None = None
    second: Views | None = None

    def __len__(self) -> int:
        return len(self.ref)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a method wants in its batches beyond reference windows and their IHC."""

    adjacent: bool = False
    second: bool = False
    sections: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """The randomness of one step: a pure function of its coordinates, so that a resumed run needs no generator's state.

    Parameters
    ----------
    seed
        Of the run.
    step
        Number of the step, from 0.
    first
        Number of this process's first sample in the batch of all processes: what is drawn for each sample is the same
        whatever the number of processes; what is drawn once a step is the same on all of them.
    epoch
        Counted from 1, for weights that change during training.
    """

    seed: int
    step: int
    first: int = 0
    epoch: int = 1

    def integer(self, name: str, stop: int) -> int:
        """Uniform in 0 … stop − 1, once a step."""
        return self._number(name) % stop

    def seeds(self, name: str, count: int, device: torch.device | None = None) -> Tensor:
        """A seed for each sample [count], int64, without a wait for the device."""
        numbers = [self._number(name, self.first + k) >> 1 for k in range(count)]
        return _moved(torch.tensor(numbers, dtype=torch.int64), device)

    def generator(self, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """A generator of its own for whatever else is drawn once a step."""
        return torch.Generator(device).manual_seed(self._number(name) >> 1)

    def _number(self, *names: str | int) -> int:
        """64 bits that depend on seed, step and names; so many that no remainder of a division is favoured."""
        text = " ".join(map(str, (self.seed, self.step, *names)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _moved(tensor: Tensor, device: torch.device | None) -> Tensor:
    if device is None or device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
