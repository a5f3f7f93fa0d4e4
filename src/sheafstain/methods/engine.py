"""How the networks of a method are run: where, in which precision, compiled or not (D17)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from sheafstain.device import choose_device

Net = TypeVar("Net", bound=nn.Module)
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Engine:
    """``dtype`` is that of the matrix products under autocast; weights, norms and losses stay float32."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    compile: bool = False

    @classmethod
    def on(
        cls,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        compile: bool | None = None,  # noqa: A002  torch's own word for it
    ) -> Engine:
        """What is not said is chosen by the machine: bfloat16 and compiled on a GPU, float32 and eager elsewhere."""
        place = choose_device(device)
        gpu = place.type == "cuda"
        triton = importlib.util.find_spec("triton") is not None
        return cls(
            place, dtype or (torch.bfloat16 if gpu else torch.float32), gpu and triton if compile is None else compile
        )

    def place(self, net: Net) -> Net:
        """The network on the device, its convolutions laid out for the GPU."""
        torch.backends.cudnn.benchmark = True  # windows come in few shapes: let it try its algorithms once for each
        return net.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload]

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.device.type == "cuda" else torch.contiguous_format

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def compiled(self, function: Function) -> Function:
        """The function compiled for the fixed shapes it will meet, or as it is.

        Layouts are forced because inductor takes a decoder, which halves its channels, as a reason to leave a whole
        network channels first, against its weights: then every convolution copies its input.
        """
        if not self.compile:
            return function
        return torch.compile(function, dynamic=False, options={"force_layout_optimization": True})  # type: ignore[return-value]
