"""Checkpoints: one safetensors file each, all that a training needs to go on, whole or not there at all.

    RUN/checkpoints/step-00001000.safetensors      the last few
    RUN/checkpoints/best.safetensors               the one with the best held-out figure

Tensors are named ``parts.G.…`` (weights and buffers), ``optimiser.G.3.exp_avg`` (by turn and number of the parameter)
and ``average.…``; the header says how far the training is and with what configuration. There is no state of any random
generator, since everything that is drawn is a function of seed and step (``methods.batch.Draw``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sheafstain.errors import SheafStainError
from sheafstain.whole import whole

FORMAT = 1
FOLDER, BEST = "checkpoints", "best.safetensors"


@dataclass(frozen=True, slots=True)
class Header:
    """What a checkpoint says about itself.

    Parameters
    ----------
    step, samples
        Done so far, over all processes.
    config, facts
        The configuration with dotted keys, and what was found with it: data, encoder, versions.
    figures, best
        Of the last look at held-out images, and the best so far of the one that ``watch.best`` names.
    """

    step: int
    samples: int
    config: dict[str, Any]
    facts: dict[str, Any]
    figures: dict[str, float] = field(default_factory=dict)
    best: float | None = None


class Checkpoints:
    """The checkpoints of one run, of which the last ``keep`` stay."""

    def __init__(self, run: Path, keep: int = 2) -> None:
        self.folder, self.keep = run / FOLDER, keep

    def all(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    @property
    def best(self) -> Path:
        return self.folder / BEST

    def write(self, header: Header, tensors: Mapping[str, Tensor], *, is_best: bool = False) -> Path:
        """Write one, then remove those that are too old."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{header.step:08d}.safetensors"
        held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        about = {"sheafstain": json.dumps({"format": FORMAT, **asdict(header)}, ensure_ascii=False)}
        try:
            with whole(path) as part:
                save_file(held, part, about)
                _settle(part)
        except SafetensorError as error:  # the library's word for a full disk
            raise SheafStainError(f"{path}: could not be written ({error}); make room and --resume") from error
        if is_best:
            self._keep_best(path)
        for old in self.all()[: -self.keep]:
            old.unlink()
        return path

    def _keep_best(self, path: Path) -> None:
        with whole(self.best) as part:
            try:
                os.link(path, part)  # a second name costs no space
            except OSError:  # a file system without them
                shutil.copyfile(path, part)

    def tidy(self) -> None:
        """Remove what a killed process left half-written."""
        for part in self.folder.glob(".*.part"):
            with suppress(OSError):
                part.unlink()


def read_checkpoint(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors, on the CPU."""
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["sheafstain"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        if about.pop("format") != FORMAT:
            raise ValueError("another format")
        return Header(**about), tensors
    except FileNotFoundError as error:
        raise SheafStainError(f"{path}: no such checkpoint") from error
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        others = [other.name for other in sorted(path.parent.glob("step-*.safetensors")) if other != path]
        advice = f"remove it, and --resume goes on from {others[-1]}" if others else "train anew into another --output"
        raise SheafStainError(f"{path}: not a whole checkpoint ({error}); {advice}") from error


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors below a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def optimiser_tensors(prefix: str, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {f"{prefix}{number}.{name}": tensor for number, held in state.items() for name, tensor in held.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse; every moment is laid out in memory as its parameter is, which the fused step on a GPU insists on."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        like = parameters[int(number)]
        if tensor.shape == like.shape:
            tensor = torch.empty_like(like).copy_(tensor)
        state.setdefault(int(number), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _settle(path: Path) -> None:
    """Have the bytes on the disk before the name: a machine that stops must not leave a whole name on half a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
