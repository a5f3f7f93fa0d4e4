from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sheafstain.nets.blocks import InstanceNorm
from sheafstain.nets.critics import PatchCritic, TimedCritic


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: TimedCritic(3), 3_143_041),
        (lambda: TimedCritic(12), 3_152_257),
        (lambda: PatchCritic(3), 2_764_737),
        (lambda: PatchCritic(3, antialias=True), 2_764_737),
        (lambda: PatchCritic(6, norm="batch"), 2_768_705),
    ],
)
def test_parameters_and_logits(make: Callable[[], nn.Module], expected: int) -> None:
    with torch.device("meta"):
        critic = make()
        assert sum(parameter.numel() for parameter in critic.parameters()) == expected
        channels = next(p for p in critic.parameters() if p.ndim == 4).shape[1]
        images = torch.empty(2, channels, 256, 256)
        logits = critic(torch.empty(()), images) if isinstance(critic, TimedCritic) else critic(images)
    assert logits.shape == (2, 1, 30, 30)


def small(channels: int = 3) -> TimedCritic:
    torch.manual_seed(0)
    critic = TimedCritic(channels, 8).double()
    for parameter in critic.parameters():
        nn.init.normal_(parameter, std=0.3)
    return critic


def test_time_matters_and_may_differ_between_samples() -> None:
    critic, x = small(), torch.randn(2, 3, 40, 56, dtype=torch.float64)
    early, late = (critic(torch.tensor(index), x) for index in (0, 4))
    assert (early - late).abs().max() > 1e-3
    mixed = critic(torch.tensor([0, 4]), x)
    torch.testing.assert_close(mixed, torch.stack((early[0], late[1])))


def test_only_the_time_term_before_no_norm_survives() -> None:
    critic, x = small(), torch.randn(1, 3, 40, 40, dtype=torch.float64)
    whole = critic(torch.tensor(3), x)
    for block in list(critic.blocks)[1:]:
        nn.init.zeros_(block.time.weight)
        nn.init.zeros_(block.time.bias)
    torch.testing.assert_close(critic(torch.tensor(3), x), whole)
    nn.init.zeros_(critic.blocks[0].time.weight)
    nn.init.zeros_(critic.blocks[0].time.bias)
    assert (critic(torch.tensor(3), x) - whole).abs().max() > 1e-3


def test_the_energy_network_takes_pairs_apart_or_together() -> None:
    critic = small(12)
    parts = [torch.randn(2, 3, 32, 32, dtype=torch.float64) for _ in range(4)]
    assert torch.equal(critic(torch.tensor(1), *parts), critic(torch.tensor(1), torch.cat(parts, dim=1)))


def test_a_logit_of_the_patch_critic_sees_70_pixels() -> None:
    torch.manual_seed(0)
    critic = PatchCritic(3, 4).double()
    critic.layers = nn.Sequential(*(m for m in critic.layers if not isinstance(m, InstanceNorm)))  # it sees all
    x = torch.randn(1, 3, 128, 128, dtype=torch.float64, requires_grad=True)
    logits = critic(x)
    (gradient,) = torch.autograd.grad(logits[0, 0, 7, 7], x)
    rows = gradient[0].abs().sum((0, 2)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == 70


def test_critics_run_in_bfloat16_channels_last() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 64, 64).to(memory_format=torch.channels_last)
    for critic in (TimedCritic(3, 8), PatchCritic(3, 8), PatchCritic(3, 8, antialias=True)):
        critic.to(memory_format=torch.channels_last)
        arguments = (torch.tensor(0), x) if isinstance(critic, TimedCritic) else (x,)
        with torch.autocast("cpu", torch.bfloat16):
            half = critic(*arguments)
        torch.testing.assert_close(half.float(), critic(*arguments), atol=0.02, rtol=0.1)
