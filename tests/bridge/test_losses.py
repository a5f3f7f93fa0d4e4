"""Losses against NumPy (and SciPy's logsumexp) in double precision."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import Tensor
from torch.autograd import gradcheck

from sheafstain.bridge.losses import Form, bridge_loss, critic_loss, energy_loss, fooling_loss, info_nce
from sheafstain.bridge.schedule import TimeGrid

GRID = TimeGrid()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def logits(b: int = 3) -> tuple[Tensor, Tensor]:
    return random(b, 1, 4, 5, seed=1), random(b, 1, 4, 5, seed=2)


def pixels(b: int = 3) -> tuple[Tensor, Tensor]:
    return random(b, 3, 6, 7, seed=3), random(b, 3, 6, 7, seed=4)


def test_least_squares_adversaries() -> None:
    fake, real = (value.numpy() for value in logits())
    expected = 0.5 * ((fake**2).mean() + ((real - 1) ** 2).mean())
    assert critic_loss(*logits()).item() == pytest.approx(expected)
    assert fooling_loss(logits()[0]).item() == pytest.approx(((fake - 1) ** 2).mean())
    assert critic_loss(torch.zeros(2, 1, 3, 3), torch.ones(2, 1, 3, 3)).item() == 0
    assert fooling_loss(torch.ones(2, 1, 3, 3)).item() == 0


def test_energy_loss_as_released() -> None:
    joint, crossed = logits()
    partition = logsumexp(crossed.numpy().reshape(-1))
    expected = -joint.numpy().mean() + partition + partition**2
    assert energy_loss(joint, crossed).item() == pytest.approx(expected)


def test_energy_loss_of_the_paper() -> None:
    joint, crossed = logits()
    expected = -joint.numpy().mean() + np.log(np.exp(crossed.numpy()).mean())
    assert energy_loss(joint, crossed, "paper").item() == pytest.approx(expected)
    constant = torch.full((2, 1, 3, 3), 4.0)
    assert energy_loss(constant, constant, "paper").item() == pytest.approx(0, abs=1e-6)  # a constant E knows nothing


@pytest.mark.parametrize("index", range(5))
def test_bridge_loss_as_released(index: int) -> None:
    (joint, crossed), (x, y) = logits(), pixels()
    entropy = joint.numpy().mean() - logsumexp(crossed.numpy().reshape(-1))
    expected = -(5 - index) / 5 * 0.01 * entropy + 0.01 * ((x - y).numpy() ** 2).mean()
    assert bridge_loss(x, y, joint, crossed, torch.tensor(index), GRID).item() == pytest.approx(expected)


@pytest.mark.parametrize(("index", "left"), list(enumerate((1, 0.5, 0.26, 0.14, 0.06))))
def test_bridge_loss_of_the_paper(index: int, left: float) -> None:
    (joint, crossed), (x, y) = logits(), pixels()
    entropy = joint.numpy().mean() - np.log(np.exp(crossed.numpy()).mean())
    expected = ((x - y).numpy() ** 2).mean() - 2 * 0.01 * left * entropy
    assert bridge_loss(x, y, joint, crossed, torch.tensor(index), GRID, "paper").item() == pytest.approx(expected)


@pytest.mark.parametrize("form", ["released", "paper"])
def test_per_sample_is_the_mean_over_batches_of_one(form: Form) -> None:
    (joint, crossed), (x, y) = logits(), pixels()
    index = torch.tensor([0, 2, 4])
    one = [slice(n, n + 1) for n in range(3)]
    energies = [energy_loss(joint[n], crossed[n], form) for n in one]
    assert energy_loss(joint, crossed, form, per_sample=True).item() == pytest.approx(
        torch.stack(energies).mean().item()
    )
    bridges = [bridge_loss(x[n], y[n], joint[n], crossed[n], index[n][0], GRID, form) for n in one]
    together = bridge_loss(x, y, joint, crossed, index, GRID, form, per_sample=True)
    assert together.item() == pytest.approx(torch.stack(bridges).mean().item())
    same = bridge_loss(x, y, joint, crossed, torch.tensor(1), GRID, form, per_sample=True)
    each = bridge_loss(x, y, joint, crossed, torch.tensor([1, 1, 1]), GRID, form, per_sample=True)
    assert same.item() == pytest.approx(each.item())
    if form == "released":
        assert together.item() != pytest.approx(bridge_loss(x, y, joint, crossed, torch.tensor(1), GRID).item())


def test_one_index_each_needs_per_sample() -> None:
    (joint, crossed), (x, y) = logits(), pixels()
    with pytest.raises(ValueError, match="per_sample"):
        bridge_loss(x, y, joint, crossed, torch.tensor([0, 1, 2]), GRID)


def test_gradients() -> None:
    inputs = [value[:1, :, :3, :3].clone().requires_grad_() for value in (*pixels(), *logits())]
    for form in ("released", "paper"):
        loss = partial(bridge_loss, index=torch.tensor(1), grid=GRID, form=form)
        assert gradcheck(loss, inputs)
        assert gradcheck(partial(energy_loss, form=form), inputs[2:])


def unit(*shape: int, seed: int) -> Tensor:
    return torch.nn.functional.normalize(random(*shape, seed=seed), dim=-1)


def test_info_nce_as_the_released_code_writes_it() -> None:
    """Positives beside negatives, the diagonal of the negatives filled with −10, cross entropy with class 0."""
    queries, keys = unit(2, 6, 8, seed=1), unit(2, 6, 8, seed=2)
    losses = []
    for q, k in zip(queries.numpy(), keys.numpy(), strict=True):
        negatives = q @ k.T
        np.fill_diagonal(negatives, -10)
        scores = np.concatenate([(q * k).sum(1, keepdims=True), negatives], axis=1) / 0.07
        losses.append(logsumexp(scores, axis=1) - scores[:, 0])
    assert info_nce(queries, keys).item() == pytest.approx(np.mean(losses))


def test_info_nce_prefers_the_same_position_and_stops_at_the_keys() -> None:
    queries, keys = unit(2, 256, 8, seed=1).requires_grad_(), unit(2, 256, 8, seed=2).requires_grad_()
    loss = info_nce(queries, keys)
    loss.backward()
    assert keys.grad is None and queries.grad is not None
    assert info_nce(keys, keys) < loss
    assert info_nce(0 * queries, keys).item() == pytest.approx(np.log(256))


def test_half_precision_is_computed_in_float32() -> None:
    queries, keys = unit(2, 64, 32, seed=1).float(), unit(2, 64, 32, seed=2).float()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(info_nce(queries, keys), info_nce(queries.double(), keys.double()).float())
    joint, crossed = (value.bfloat16() for value in logits())
    assert energy_loss(joint, crossed).dtype == critic_loss(joint, crossed).dtype == torch.float32
