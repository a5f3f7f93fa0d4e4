"""Checkpoints are whole or not there, hold every bit, and say what is wrong with one that cannot be used."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sheafstain.errors import SheafStainError
from sheafstain.training.checkpoint import (
    Checkpoints,
    Header,
    load_optimiser,
    optimiser_tensors,
    read_checkpoint,
    under,
)


def header(step: int) -> Header:
    return Header(step, 10 * step, {"batch": 10, "optimiser.betas": [0.5, 0.9]}, {"stain": "ER"}, {"psnr": 1.5}, 1.5)


TENSORS = {"parts.G.w": torch.arange(6.0).view(2, 3).t(), "average.w": torch.zeros(2), "count": torch.tensor(3)}


def test_there_and_back(tmp_path: Path):
    path = Checkpoints(tmp_path).write(header(7), TENSORS)
    assert path.name == "step-00000007.safetensors"
    found, tensors = read_checkpoint(path)
    assert found == header(7)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert under("parts.G.", tensors).keys() == {"w"}


def test_the_last_ones_and_the_best_stay(tmp_path: Path):
    held = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 10, 11):
        held.write(header(step), {"w": torch.tensor(float(step))}, is_best=step in (2, 3))
    assert [path.name for path in held.all()] == ["step-00000010.safetensors", "step-00000011.safetensors"]
    assert load_file(held.best)["w"] == 3  # though step 3 itself is gone
    held.write(header(11), {"w": torch.tensor(0.0)}, is_best=True)  # the same step again
    assert load_file(held.best)["w"] == 0
    assert sorted(path.name for path in held.folder.iterdir()) == [
        "best.safetensors", "step-00000010.safetensors", "step-00000011.safetensors",
    ]  # fmt: skip


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    held = Checkpoints(tmp_path)
    held.write(header(1), TENSORS, is_best=True)
    assert held.best.read_bytes() == held.all()[0].read_bytes()


def test_a_write_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held = Checkpoints(tmp_path, keep=1)
    held.write(header(1), TENSORS)

    def half(tensors: object, path: Path, about: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sheafstain.training.checkpoint.save_file", half)
    with pytest.raises(OSError, match="No space") as caught:
        held.write(header(2), TENSORS)
    assert caught.value.filename.endswith("step-00000002.safetensors")
    assert [path.name for path in held.folder.iterdir()] == ["step-00000001.safetensors"]


def test_what_a_killed_process_leaves_is_removed(tmp_path: Path):
    held = Checkpoints(tmp_path)
    path = held.write(header(1), TENSORS)
    (held.folder / ".step-00000002.safetensors.abc.part").write_bytes(b"half")
    held.tidy()
    assert list(held.folder.iterdir()) == [path]


def test_damage_is_named(tmp_path: Path):
    held = Checkpoints(tmp_path)
    held.write(header(1), TENSORS)
    path = held.write(header(2), TENSORS)
    content = path.read_bytes()
    for damaged in (content[:-1], content[:5], b"", content[:8] + b"x" + content[9:]):
        path.write_bytes(damaged)
        with pytest.raises(SheafStainError, match=r"00000002.*not a whole checkpoint.*from step-00000001") as caught:
            read_checkpoint(path)
        assert "\n" not in str(caught.value)
    save_file({"w": torch.zeros(1)}, path)  # something else
    with pytest.raises(SheafStainError, match="not a whole checkpoint"):
        read_checkpoint(path)
    save_file({"w": torch.zeros(1)}, path, {"sheafstain": json.dumps({"format": 99})})
    with pytest.raises(SheafStainError, match="another format"):
        read_checkpoint(path)
    with pytest.raises(SheafStainError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "none.safetensors")


def test_an_optimiser_goes_on_as_if_nothing_had_been(tmp_path: Path):
    def start() -> tuple[nn.Conv2d, torch.optim.Adam]:
        torch.manual_seed(0)
        net = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net, torch.optim.Adam(net.parameters(), 0.1)

    def step(net: nn.Conv2d, optimiser: torch.optim.Adam) -> None:
        optimiser.zero_grad()
        net(torch.ones(1, 2, 5, 5)).square().sum().backward()
        optimiser.step()

    one, its = start()
    for _ in range(2):
        step(one, its)
    other, theirs = start()
    other.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    held = {name: tensor.clone().contiguous() for name, tensor in optimiser_tensors("optimiser.G.", its).items()}
    load_optimiser(theirs, under("optimiser.G.", held))
    moment = theirs.state[other.weight]["exp_avg"]
    assert moment.stride() == other.weight.stride() == one.weight.stride() != held["optimiser.G.0.exp_avg"].stride()
    for _ in range(2):
        step(one, its)
        step(other, theirs)
    assert torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)  # type: ignore[arg-type]


def test_parameters_without_a_gradient_have_no_state():
    net = nn.Linear(2, 2)
    optimiser = torch.optim.Adam(net.parameters(), 0.1)
    net.weight.sum().backward()
    optimiser.step()
    held = optimiser_tensors("", optimiser)
    assert {name.split(".")[0] for name in held} == {"0"}
    again = torch.optim.Adam(net.parameters(), 0.1)
    load_optimiser(again, held)
    assert len(again.state) == 1
