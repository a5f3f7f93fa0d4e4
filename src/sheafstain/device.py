"""What to compute on: which device, how many cores, and how numbers get there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sheafstain.errors import UsageError

if TYPE_CHECKING:
    import torch


def cores() -> int:
    """Those this process may use, which in a container or a batch job are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_device(name: str | torch.device | None) -> torch.device:
    """The named device, or the first GPU when there is one and none is named."""
    import torch

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        return torch.empty(0, device=device).device  # with its number: "cuda" is not equal to "cuda:0"
    except (RuntimeError, AssertionError) as error:  # an unknown word; a device this build or machine does not have
        raise UsageError(f"there is no device {str(name)!r} here ({str(error).splitlines()[0]})") from error


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on its way: a GPU that is still busy with what came before is not waited for."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
