"""Two processes are one: the same steps as one process with the whole batch, to rounding."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from sheafstain.errors import UsageError
from sheafstain.training.checkpoint import Checkpoints, read_checkpoint
from sheafstain.training.config import TrainConfig
from sheafstain.training.loop import Loop
from sheafstain.training.parallel import World, world
from sheafstain.training.run import train
from sheafstain.training.settings import as_yaml


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"cyclopts", "openslide", "imagecodecs", "tifffile", "zarr", "tensorboard"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
"""


def together(count: int, arguments: list[str], bare: Path) -> list[subprocess.CompletedProcess[str]]:
    """The processes that torchrun would start, where the packages of the command line and of slides are missing."""
    (bare / "sitecustomize.py").write_text(BARE)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    common["PYTHONPATH"] = str(bare)
    command = [sys.executable, "-m", "sheafstain.training", *arguments]
    started = [
        subprocess.Popen(
            command,
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    ends = [(process, *process.communicate(timeout=240)) for process in started]
    return [subprocess.CompletedProcess(command, process.returncode, out, err) for process, out, err in ends]


def losses(config: TrainConfig) -> list[dict[str, float]]:
    lines = (json.loads(line) for line in (Path(config.output) / "log.jsonl").read_text().splitlines())
    return [line["losses"] for line in lines if line["event"] == "step"]


def test_two_processes_learn_what_one_does(
    configured: Callable[..., TrainConfig], loop_of: Callable[..., Loop], tmp_path: Path
):
    """L over samples and not over the batch (``per_sample``): a logarithm of a sum over a batch cannot be shared out.

    Tolerances after four steps: losses to 1 part in 10⁵; weights, as a part of the way from the first ones, to 10⁻⁴ in
    G and F and 10⁻² in the critics. Found: 10⁻⁷, 4·10⁻⁶ and 2·10⁻³. Adam divides a gradient by its size, so what has a
    gradient of rounding alone (a bias before an instance norm, which changes nothing) walks anywhere and is left out.
    """
    changes = {"settings.per_sample": True, "batch": 4, "steps": 4, "watch.images": 0, "optimiser.lr": 1e-4}
    alone = configured(**changes)
    train(alone)
    paired = configured(**changes, output=str(tmp_path / "pair"))
    (tmp_path / "pair.yaml").write_text(as_yaml(paired))
    ends = together(2, [str(tmp_path / "pair.yaml")], tmp_path)
    assert [end.returncode for end in ends] == [0, 0], ends[0].stderr + ends[1].stderr
    assert "2 × cpu" in ends[0].stdout and ends[1].stdout == ""
    (header, one), (other_header, two) = (
        read_checkpoint(Checkpoints(Path(config.output)).all()[-1]) for config in (alone, paired)
    )
    assert (header.step, header.samples) == (other_header.step, other_header.samples) == (4, 16)
    assert one.keys() == two.keys()
    start = loop_of(alone).tensors()
    for part in ("G", "D", "E", "F"):
        names = [name for name in start if name.startswith(f"parts.{part}.") and start[name].ndim > 1]
        way, apart = (
            torch.cat([(held[name] - base[name]).flatten() for name in names]).norm()
            for held, base in ((one, start), (one, two))
        )
        assert float(apart / way) < (1e-4 if part in "GF" else 1e-2)
    for mine, theirs in zip(losses(alone), losses(paired), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-5)


def test_what_a_process_gets(monkeypatch: pytest.MonkeyPatch):
    with world("cpu") as here:
        assert here == World(0, 1, torch.device("cpu")) and here.first
        assert not here.any(False) and here.any(True)
        gradient = torch.ones(3)
        here.average([gradient, None])
        assert torch.equal(gradient, torch.ones(3))
    assert World(1, 4).share(192) == 48
    with pytest.raises(UsageError, match="batch of 6 cannot be shared by 4 processes"):
        World(1, 4).share(6)


def test_one_exchange_whatever_the_number_of_tensors(monkeypatch: pytest.MonkeyPatch):
    exchanged: list[int] = []

    def pretend(flat: torch.Tensor) -> None:  # the other process has zeros
        exchanged.append(flat.numel())

    monkeypatch.setattr(dist, "all_reduce", pretend)
    tensors = [
        torch.full((2, 3), 4.0),
        torch.full((5,), 2.0),
        torch.ones(2, 2, 2, 2).to(memory_format=torch.channels_last),
    ]
    World(0, 2).average([tensors[0], None, *tensors[1:]])
    assert exchanged == [27]
    assert [float(tensor.mean()) for tensor in tensors] == [2.0, 1.0, 0.5]
    assert tensors[2].is_contiguous(memory_format=torch.channels_last)
