"""The loop: one step after another, for any method (``methods.method.Method``).

A step draws its batch, begins, and gives every turn its part: only its networks learn, the terms are summed, gradients
averaged over the processes once, and its optimiser steps. Nothing on the way waits for the GPU: losses are added up
where they are, and read when a report is asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sheafstain.errors import SheafStainError
from sheafstain.methods.batch import Batch, Draw, Views
from sheafstain.methods.method import Method, Turn
from sheafstain.training.average import Average
from sheafstain.training.batches import Batches
from sheafstain.training.checkpoint import load_optimiser, optimiser_tensors, under
from sheafstain.training.config import TrainConfig
from sheafstain.training.parallel import World
from sheafstain.whole import whole


@dataclass(frozen=True, slots=True)
class Report:
    """The steps since the last report: the mean of each term by turn and name, weighted as it is minimised."""

    step: int
    epoch: int
    samples: int
    of_samples: int
    lr: float
    losses: dict[str, float]
    images_per_second: float  # samples, over all processes
    memory: float  # GiB: the most that was in use on the GPU, or of this process on a CPU
    seconds_left: float


class Loop:
    """A method in training: its optimisers, and how far it is."""

    def __init__(self, config: TrainConfig, method: Method, batches: Batches, world: World) -> None:
        self.config, self.method, self.batches, self.world = config, method, batches, world
        self.share = world.share(config.batch)
        self.step = 0
        self.seen = 0  # samples, over all processes
        self.total = config.schedule.epochs * batches.sampler.epoch
        self._parameters = {turn.name: _parameters(method, turn) for turn in method.turns}
        fused = True if world.device.type == "cuda" else None
        self.optimisers = {
            name: torch.optim.Adam(parameters, config.optimiser.lr, config.optimiser.betas, fused=fused)
            for name, parameters in self._parameters.items()
        }
        self.average = Average(method.generator, config.optimiser.ema) if config.optimiser.ema else None
        self._forget()
        self._started: tuple[float, int] | None = None  # time and samples when the first report was made

    @property
    def epoch(self) -> int:
        return self._epoch(self.seen)

    @property
    def lr(self) -> float:
        return self.config.optimiser.lr * self.config.schedule.factor(self.epoch)

    @property
    def done(self) -> bool:
        return self.seen >= self.total or (self.config.steps is not None and self.step >= self.config.steps)

    def take_step(self) -> None:
        """One step of every turn."""
        batch, draw = self._batch(self.step, self.seen)
        self._learn(self.method.parts)
        state = self.method.begin(batch, draw)
        for turn in self.method.turns:
            self._learn(turn.parts)
            terms = self.method.losses(turn.name, state)
            if not terms:
                continue
            total = torch.stack(list(terms.values())).sum()
            optimiser = self.optimisers[turn.name]
            for group in optimiser.param_groups:
                group["lr"] = self.lr
            optimiser.zero_grad()
            total.backward()
            self.world.average(parameter.grad for parameter in self._parameters[turn.name])
            optimiser.step()
            self._note({f"{turn.name}.{name}": term.detach() for name, term in terms.items()}, total.detach())
        self.step += 1
        self.seen += self.config.batch
        if self.average is not None:
            self.average.update(self.config.batch, self.seen)

    def _batch(self, step: int, seen: int) -> tuple[Batch, Draw]:
        draw = Draw(self.config.seed, step, self.world.rank * self.share, self._epoch(seen))
        return self.batches.batch(seen, draw.first, self.share), draw

    def _epoch(self, seen: int) -> int:
        return self.config.schedule.epoch(seen, self.batches.sampler.epoch)

    def _learn(self, parts: tuple[str, ...] | Mapping[str, nn.Module]) -> None:
        """Only these networks gather gradients."""
        for name, part in self.method.parts.items():
            part.requires_grad_(name in parts)

    # -- what happened -----------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._bad = torch.full((), -1, device=self.world.device)  # the first step with a loss that is not finite
        self._since = time.monotonic(), self.seen

    def _note(self, terms: dict[str, Tensor], total: Tensor) -> None:
        for name, term in terms.items():
            self._sums[name] = self._sums[name] + term if name in self._sums else term
            self._counts[name] = self._counts.get(name, 0) + 1
        first = (self._bad < 0) & ~torch.isfinite(total)
        self._bad = torch.where(first, self.step, self._bad)

    def report(self, folder: Path) -> Report:
        """The means since the last report, over all processes; waits for the device.

        If one was not finite the training cannot go on: the batch of the first such step is written into ``folder``.
        """
        names = list(self._sums)
        means = torch.stack([self._sums[name].float() / self._counts[name] for name in names])
        self.world.average([means])
        bad = int(self._bad)
        losses = dict(zip(names, means.tolist(), strict=True))
        if self.world.any(bad >= 0):
            raise SheafStainError(self._post_mortem(bad, losses, folder))
        now = time.monotonic()
        then, before = self._since
        pace = (self.seen - before) / max(now - then, 1e-9)
        start = self._started or (then, before)
        if self._started is None:
            self._started = now, self.seen  # what comes first also compiles, and says little about what follows
        left = (self.end - self.seen) * (now - start[0]) / max(self.seen - start[1], 1)
        memory = _memory(self.world.device)
        report = Report(self.step, self.epoch, self.seen, self.total, self.lr, losses, pace, memory, max(left, 0.0))
        self._forget()
        return report

    def resume_clock(self) -> None:
        """What was done since the last report besides training does not count against its pace."""
        seconds, seen = self._since
        self._since = time.monotonic() if seen == self.seen else seconds, seen

    @property
    def end(self) -> int:
        """The samples after which this run ends."""
        if self.config.steps is None:
            return self.total
        return min(self.total, self.seen + (self.config.steps - self.step) * self.config.batch)

    def _post_mortem(self, bad: int, losses: dict[str, float], folder: Path) -> str:
        wrong = ", ".join(name for name, value in losses.items() if not math.isfinite(value)) or "a loss"
        if bad < 0:
            return f"{folder}: not finite in another process, which says more: {wrong}"
        batch, _ = self._batch(bad, self.seen - (self.step - bad) * self.config.batch)
        path = folder / f"not-finite-step-{bad}-process-{self.world.rank}.safetensors"
        with whole(path) as part:
            save_file(_tensors_of(batch), part)
        return (
            f"{path}: not finite since step {bad + 1}: {wrong}; this is its batch. Look at it, lower --optimiser.lr or "
            "use --engine.precision float32, and --resume from the last checkpoint"
        )

    # -- state -------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint holds."""
        held = {
            f"parts.{part}.{name}": tensor
            for part, net in self.method.parts.items()
            for name, tensor in net.state_dict().items()
        }
        for turn, optimiser in self.optimisers.items():
            held |= optimiser_tensors(f"optimiser.{turn}.", optimiser)
        if self.average is not None:
            held |= {f"average.{name}": tensor for name, tensor in self.average.tensors.items()}
        return held

    def load(self, step: int, seen: int, tensors: Mapping[str, Tensor]) -> None:
        for name, part in self.method.parts.items():
            part.load_state_dict(under(f"parts.{name}.", tensors))
        for turn, optimiser in self.optimisers.items():
            load_optimiser(optimiser, under(f"optimiser.{turn}.", tensors))
        if self.average is not None:
            self.average.load(under("average.", tensors))
        self.step, self.seen = step, seen
        self._forget()


def _parameters(method: Method, turn: Turn) -> list[nn.Parameter]:
    return [parameter for name in turn.parts for parameter in method.parts[name].parameters()]


def _tensors_of(batch: Batch) -> dict[str, Tensor]:
    """A batch as named tensors; windows as [n, 4], y, x, h, w."""
    held: dict[str, Tensor] = {"ihc": batch.ihc}
    for name, views in (("ref", batch.ref), ("adjacent", batch.adjacent), ("second", batch.second)):
        if isinstance(views, Views):
            windows = torch.tensor([(w.y, w.x, w.h, w.w) for w in views.windows])
            parts = {"images": views.images, "canvas": views.canvas, "windows": windows, "M": views.M, "c_n": views.c_n}
            held |= {f"{name}.{key}": tensor for key, tensor in parts.items() if tensor is not None}
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in held.items()}


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


@contextmanager
def enough_memory(config: TrainConfig, world: World) -> Iterator[None]:
    """Says which setting to lower where memory runs out."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and "can't allocate memory" not in str(error):
            raise
        raise SheafStainError(
            f"out of memory on {world.device} with {config.batch // world.size} samples of {config.data.window} px a "
            "process: lower --batch, then --settings.ngf"
        ) from error
