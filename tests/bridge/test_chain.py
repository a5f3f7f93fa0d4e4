from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sheafstain.bridge.chain import forward_chain, predictions, translate_chain
from sheafstain.bridge.noise import CanvasNoise, noise_field
from sheafstain.bridge.schedule import TimeGrid
from sheafstain.nets.generator import BridgeGenerator
from sheafstain.window import Window

GRID = TimeGrid()
WINDOWS = [Window(0, 0, 16, 16), Window(0, 8, 16, 16), Window(32, 0, 16, 16)]
SEEDS = torch.tensor([4, 4, 9])
NOISE = CanvasNoise(SEEDS, WINDOWS, 8)


class Recorder:
    """A prediction that depends on all it is given, and remembers when it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, x: Tensor, t: Tensor, z: Tensor, M: Tensor | None, c_n: Tensor | None) -> Tensor:
        assert t.shape == (len(x),) and (t == t[0]).all() and not torch.is_grad_enabled()
        self.asked.append(int(t[0]))
        shift = 0.1 * z.mean(1) + (c_n.mean(1) if c_n is not None else 0) + (M.mean((1, 2, 3)) if M is not None else 0)
        return torch.tanh(0.5 * x + 0.1 * t[:, None, None, None] + shift[:, None, None, None])


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1


def by_hand(images: Tensor, until: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """x at t_until and all predictions before and at it, in NumPy, from the numbers of the fact sheet."""
    times = (0, 0.5, 0.74, 0.86, 0.94, 1)
    z = NOISE.latent(0).numpy().astype(float).mean(1)[:, None, None, None]
    x, found = images.numpy().astype(float), []
    for i in range(until + 1):
        if i:
            delta, left = times[i] - times[i - 1], 1 - times[i - 1]
            epsilon = noise_field(SEEDS, WINDOWS, i).numpy()
            std = np.sqrt(0.01 * delta * (1 - delta / left))
            x = (1 - delta / left) * x + delta / left * found[-1] + std * epsilon
        found.append(np.tanh(0.5 * x + 0.1 * i + 0.1 * z))
    return x, found


@pytest.mark.parametrize("until", range(5))
def test_the_forward_chain_by_hand_and_without_a_wasted_prediction(images: Tensor, until: int) -> None:
    predict = Recorder()
    x = forward_chain(predict, images, until, NOISE, GRID)
    np.testing.assert_allclose(x.numpy(), by_hand(images, until)[0], atol=1e-6)
    assert predict.asked == list(range(until))


def test_the_chain_starts_at_the_image(images: Tensor) -> None:
    assert torch.equal(forward_chain(Recorder(), images, 0, NOISE, GRID), images)


def test_each_chain_may_end_at_its_own_point(images: Tensor) -> None:
    mixed = forward_chain(Recorder(), images, torch.tensor([3, 0, 2]), NOISE, GRID)
    for n, until in enumerate((3, 0, 2)):
        assert torch.equal(mixed[n], forward_chain(Recorder(), images, until, NOISE, GRID)[n])
    assert torch.equal(
        forward_chain(Recorder(), images, torch.tensor(3), NOISE, GRID),
        forward_chain(Recorder(), images, 3, NOISE, GRID),
    )


def test_all_predictions_by_hand(images: Tensor) -> None:
    predict = Recorder()
    found = list(predictions(predict, images, NOISE, GRID))
    for got, expected in zip(found, by_hand(images, 4)[1], strict=True):
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)
    assert predict.asked == [0, 1, 2, 3, 4]
    assert torch.is_grad_enabled()


def test_the_output_is_the_last_prediction_or_that_of_fewer_evaluations(images: Tensor) -> None:
    found = list(predictions(Recorder(), images, NOISE, GRID))
    assert torch.equal(translate_chain(Recorder(), images, NOISE, GRID), found[-1])
    predict = Recorder()
    assert torch.equal(translate_chain(predict, images, NOISE, GRID, nfe=2), found[1])
    assert predict.asked == [0, 1]
    for nfe in (0, 6):
        with pytest.raises(ValueError, match="takes 1 to 5 evaluations"):
            translate_chain(predict, images, NOISE, GRID, nfe=nfe)


def test_conditioning_reaches_every_prediction(images: Tensor) -> None:
    M, c_n = torch.rand(3, 2, 1, 1), torch.rand(3, 2)
    asked: list[tuple[Tensor | None, Tensor | None]] = []

    def predict(x: Tensor, t: Tensor, z: Tensor, M: Tensor | None, c_n: Tensor | None) -> Tensor:
        asked.append((M, c_n))
        return x

    translate_chain(predict, images, NOISE, GRID, M, c_n)
    forward_chain(predict, images, 2, NOISE, GRID, M, c_n)
    assert len(asked) == 7 and all(given[0] is M and given[1] is c_n for given in asked)


def test_a_point_beyond_the_grid_is_refused(images: Tensor) -> None:
    with pytest.raises(ValueError, match="points 0 to 4, not 5"):
        forward_chain(Recorder(), images, 5, NOISE, GRID)


def test_several_chains_are_one_batch_of_the_generator(images: Tensor) -> None:
    """With the real network: three chains in one batch are three chains alone, for noise belongs to the place."""
    torch.manual_seed(0)
    generator = BridgeGenerator(8, 1)
    noise = CanvasNoise(SEEDS, WINDOWS, generator.latent_width)
    together = translate_chain(generator, images, noise, GRID)
    for n in range(3):
        own = CanvasNoise(SEEDS[n : n + 1], WINDOWS[n : n + 1], generator.latent_width)
        alone = translate_chain(generator, images[n : n + 1], own, GRID)
        torch.testing.assert_close(together[n : n + 1], alone, atol=1e-5, rtol=0)
