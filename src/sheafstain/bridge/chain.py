"""Chains: walking the bridge with the generator, in training up to one point of it, in inference to its end.

Every chain is one element of a batch, so that chains from the reference window, its neighbours, a second sample and the
identity branch are one batch of one walk. Nothing here is differentiated.

    x₀ = the image;   x̂₁ = G(x_i, i, z | M, c_n);   x_{i+1} = (1 − a) x_i + a x̂₁ + σ ε        (``schedule``)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from sheafstain.bridge.schedule import TimeGrid

# G(x, t, z, M, c_n) → the prediction of x₁, all [n, …]
Predictor = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


class NoiseSource(Protocol):
    """Noise for n chains: z of the prediction at t_i, [n, width], and ε of the step that leads to t_i, [n, c, h, w].

    The first latent is that of 0, the first field that of 1.
    """

    def latent(self, step: int) -> Tensor: ...

    def field(self, step: int) -> Tensor: ...


def step(grid: TimeGrid, i: int, x: Tensor, prediction: Tensor, noise: Tensor) -> Tensor:
    """x at t_i from x at t_{i−1}, the prediction of x₁ made there, and ε ~ N(0, I); all [n, c, h, w]."""
    share = grid.share(i)
    return (1 - share) * x + share * prediction + grid.noise(i) * noise


@torch.no_grad()
def forward_chain(
    predict: Predictor,
    images: Tensor,
    until: int | Tensor,
    noise: NoiseSource,
    grid: TimeGrid,
    M: Tensor | None = None,
    c_n: Tensor | None = None,
) -> Tensor:
    """The point x_i of each chain from ``images`` [n, c, h, w], for training: i predictions, none at i itself.

    ``until`` is i for all chains, or one for each, [n], on the CPU; then all are walked to the largest, and each is
    kept as it was at its own.
    """
    last = until if isinstance(until, int) else int(until.max())
    if not 0 <= last < grid.T:
        raise ValueError(f"a chain of {grid.T} predictions has the points 0 to {grid.T - 1}, not {last}")
    x = images
    for i in range(1, last + 1):
        after = step(grid, i, x, _predict(predict, x, i - 1, noise, M, c_n), noise.field(i))
        x = after if isinstance(until, int) else torch.where((until >= i).view(-1, 1, 1, 1).to(x.device), after, x)
    return x


@torch.no_grad()
def predictions(
    predict: Predictor,
    images: Tensor,
    noise: NoiseSource,
    grid: TimeGrid,
    M: Tensor | None = None,
    c_n: Tensor | None = None,
) -> Iterator[Tensor]:
    """The predictions of x₁ one after the other, T of them: the k-th is the output at NFE k (D15).

    Stop early for fewer evaluations; what is not asked for is not computed.
    """
    x = images
    for i in range(grid.T):
        prediction = _predict(predict, x, i, noise, M, c_n)
        yield prediction
        if i + 1 < grid.T:
            x = step(grid, i + 1, x, prediction, noise.field(i + 1))


def translate_chain(
    predict: Predictor,
    images: Tensor,
    noise: NoiseSource,
    grid: TimeGrid,
    M: Tensor | None = None,
    c_n: Tensor | None = None,
    *,
    nfe: int | None = None,
) -> Tensor:
    """The last prediction [n, c, h, w], or that after ``nfe`` evaluations of the generator: the translated windows."""
    evaluations = grid.T if nfe is None else nfe
    if not 1 <= evaluations <= grid.T:
        raise ValueError(f"a grid of {grid.T} predictions takes 1 to {grid.T} evaluations, not {evaluations}")
    walk = predictions(predict, images, noise, grid, M, c_n)
    for _ in range(evaluations - 1):
        next(walk)
    return next(walk)


def _predict(predict: Predictor, x: Tensor, i: int, noise: NoiseSource, M: Tensor | None, c_n: Tensor | None) -> Tensor:
    index = torch.full((len(x),), i, device=x.device)
    return predict(x, index, noise.latent(i), M, c_n)
