"""Processes that train together: one per GPU, started by ``torchrun``, or one alone (D18).

Every process holds the same weights and a part of the batch. Gradients are averaged once a turn, in one piece, so that
all take the same step; nothing else is exchanged but one word a step on whether somebody wants to stop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from sheafstain.device import choose_device
from sheafstain.errors import UsageError


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among ``size``; the first one writes files and speaks."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch: int) -> int:
        """This process's samples of a batch."""
        if batch % self.size:
            raise UsageError(f"a batch of {batch} cannot be shared by {self.size} processes; choose a multiple")
        return batch // self.size

    def average(self, tensors: Iterable[Tensor | None]) -> None:
        """Replace tensors by their mean over all processes, in one exchange. What is None is None for all."""
        there = [tensor for tensor in tensors if tensor is not None]
        if self.size == 1 or not there:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in there])
        dist.all_reduce(flat)
        flat /= self.size
        parts = flat.split([tensor.numel() for tensor in there])
        torch._foreach_copy_(  # type: ignore[reportPrivateImportUsage]
            there, [part.view_as(tensor) for part, tensor in zip(parts, there, strict=True)]
        )

    def any(self, wish: bool) -> bool:
        """Whether any process wishes it; asked at the same step by all. No process waits for its GPU."""
        if self.size == 1:
            return wish
        flag = torch.tensor(int(wish))  # on the CPU: gloo carries it, and the GPU goes on
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def wait(self) -> None:
        """Until all are here."""
        self.any(False)


@contextmanager
def world(device: str | None = None) -> Iterator[World]:
    """The processes that ``torchrun`` started, or this one alone; on GPUs each takes the one of its local number."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device=choose_device(device))
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    place = choose_device(device)
    if place.type == "cuda":
        if local >= torch.cuda.device_count():
            raise UsageError(
                f"process {local} of this machine has no GPU of its own: there are {torch.cuda.device_count()}; "
                "lower --nproc-per-node"
            )
        place = torch.device("cuda", local)
        torch.cuda.set_device(place)
    # Tensors on GPUs travel by NCCL, the words between the processes by gloo.
    dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo", rank=rank, world_size=size)
    try:
        yield World(rank, size, place)
    finally:
        dist.destroy_process_group()
