"""The losses inherited from UNSB (paper, appendix "Training Procedure": L_GAN, L_SB, L_NCE), each a pure function.

Logits and features may come in half precision; every loss is computed in float32 or better.

The energy network E bounds the entropy of the bridge as a mutual information (Donsker and Varadhan): with pairs
P = (x_t, x̂₁) and P' = (x'_t, x̂'₁) of another image,

    H ≥ mean E(P, P) − log mean exp E(P, P').

Two forms of the losses that use it (D13):

``released``
    UNSB's code: the logarithm of a *sum* of exponentials over all logits of the batch, the square of that logarithm in
    E's loss, weights (T − i) / T by index, and τ before the transport term too.
``paper``
    Eq. 10 as printed, with the bound as above.

A logarithm of a sum is no mean over samples: over n processes the mean of n such losses is not the loss of the whole
batch. ``per_sample`` takes it over the logits of each sample alone; then it is, and each sample may have its own index.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from sheafstain.bridge.schedule import TimeGrid

Form = Literal["released", "paper"]


def critic_loss(fake: Tensor, real: Tensor) -> Tensor:
    """Least-squares loss of D from its logits, any shape: ½ (mean D(fake)² + mean (D(real) − 1)²)."""
    return 0.5 * (_exact(fake).square().mean() + (_exact(real) - 1).square().mean())


def fooling_loss(fake: Tensor) -> Tensor:
    """L_GAN of the generator: mean (D(fake) − 1)²."""
    return (_exact(fake) - 1).square().mean()


def energy_loss(joint: Tensor, crossed: Tensor, form: Form = "released", per_sample: bool = False) -> Tensor:
    """The loss of E, from its logits on (P, P) and on (P, P'), both [b, 1, h, w].

    ``released``: −mean E(P, P) + L + L² with L = log Σ exp E(P, P'); the square keeps L near −½.
    ``paper``: the negative bound on the entropy ("contrastive divergence").
    """
    own, across = _mean(joint, per_sample), _log_partition(crossed, form, per_sample)
    anchor = across.square() if form == "released" else 0.0
    return (across - own + anchor).mean()


def bridge_loss(
    x_t: Tensor,
    prediction: Tensor,
    joint: Tensor,
    crossed: Tensor,
    index: Tensor,
    grid: TimeGrid,
    form: Form = "released",
    per_sample: bool = False,
) -> Tensor:
    """L_SB: transport cost minus the entropy H that E measures (paper, Eq. 10).

    ``x_t`` and ``prediction`` x̂₁ [b, c, h, w], E's logits as in ``energy_loss``, ``index`` i of the time step [], or
    [b] with ``per_sample``. The squared distance is a mean over pixels and channels in both forms (D6): as a sum it
    would outweigh every other loss a hundred thousand times.

    ``released``: τ ‖x_t − x̂₁‖² − τ (T − i) / T · H.   ``paper``: ‖x_t − x̂₁‖² − 2 τ (1 − t_i) H.
    """
    if index.ndim and not per_sample:
        raise ValueError("one index for each sample needs per_sample: the entropy of a batch is that of one time")
    entropy = _mean(joint, per_sample) - _log_partition(crossed, form, per_sample)
    distance = _mean((_exact(x_t) - _exact(prediction)).square(), per_sample)
    if form == "released":
        return (grid.tau * distance - grid.tau * (grid.T - index) / grid.T * entropy).mean()
    times = torch.tensor(grid.times, dtype=entropy.dtype, device=index.device)
    return (distance - 2 * grid.tau * (1 - times[index]) * entropy).mean()


def info_nce(queries: Tensor, keys: Tensor, temperature: float = 0.07) -> Tensor:
    """L_NCE of one feature layer: unit vectors [b, p, c] at the same p positions of two images; ``keys`` is detached.

    Position i of the keys is the positive of query i, the p − 1 others of the same image are its negatives (CUT).
    """
    with torch.autocast(queries.device.type, enabled=False):  # bfloat16 would be off by up to 0.04
        similarity = torch.bmm(_exact(queries), _exact(keys.detach()).transpose(1, 2)) / temperature
    target = torch.arange(similarity.shape[1], device=similarity.device).expand(similarity.shape[:2])
    return functional.cross_entropy(similarity.flatten(0, 1), target.flatten())


def _log_partition(logits: Tensor, form: Form, per_sample: bool) -> Tensor:
    """log Σ exp, or log mean exp in the paper's form: [b], or [1] over the whole batch."""
    rows = _rows(logits, per_sample)
    return rows.logsumexp(1) - (math.log(rows.shape[1]) if form == "paper" else 0.0)


def _mean(values: Tensor, per_sample: bool) -> Tensor:
    return _rows(values, per_sample).mean(1)


def _rows(values: Tensor, per_sample: bool) -> Tensor:
    return _exact(values).flatten(1) if per_sample else _exact(values).reshape(1, -1)


def _exact(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
