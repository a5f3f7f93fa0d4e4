"""What a step does, on a method made up so that every number can be worked out by hand; and real methods going on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sheafstain.errors import SheafStainError
from sheafstain.methods.batch import Batch, Draw, Needs
from sheafstain.methods.method import Turn
from sheafstain.training import data
from sheafstain.training.config import TrainConfig
from sheafstain.training.loop import Loop, enough_memory
from sheafstain.training.parallel import World

Configured = Callable[..., TrainConfig]


class Weights(nn.Module):
    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))


class Quadratic:
    """G falls to the mean grey of its samples, D to three times the first number of G; each turn sees who may learn."""

    turns = (Turn("D", ("D",)), Turn("G", ("G", "F")))
    needs = Needs()

    def __init__(self, scale: float = 1.0) -> None:
        self.parts: Mapping[str, nn.Module] = {"G": Weights(0.5, -0.5), "D": Weights(0.0), "F": Weights(1.0)}
        self.scale = scale
        self.heard: list[tuple[str, set[str]]] = []
        self.draws: list[Draw] = []

    @property
    def generator(self) -> nn.Module:
        return self.parts["G"]

    def learning(self) -> set[str]:
        return {name for name, part in self.parts.items() if all(p.requires_grad for p in part.parameters())}

    def begin(self, batch: Batch, draw: Draw) -> Tensor:
        self.heard.append(("begin", self.learning()))
        self.draws.append(draw)
        return batch.ref.images.mean()

    def losses(self, turn: str, state: Tensor) -> dict[str, Tensor]:
        self.heard.append((turn, self.learning()))
        g, d = self.parts["G"].w, self.parts["D"].w
        if turn == "D":
            return {"far": self.scale * (d - 3 * g[0]).square().sum()}
        return {"near": (g - state).square().sum(), "d": 0.1 * d.sum() * g.sum(), "f": self.parts["F"].w.sum()}


def quadratic(config: TrainConfig, method: Quadratic | None = None) -> tuple[Loop, Quadratic]:
    method = method or Quadratic()
    batches = data.read_batches(config, data.select(config, "train"), method.needs, None, World())
    return Loop(config, method, batches, World()), method  # type: ignore[arg-type]


def adam(w: np.ndarray, gradients: list[np.ndarray], lrs: list[float]) -> np.ndarray:
    """Kingma and Ba, Algorithm 1, with β = (0.5, 0.999), ε = 1e-8."""
    m = v = np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(gradients, lrs, strict=True), 1):
        m, v = 0.5 * m + 0.5 * g, 0.999 * v + 0.001 * g * g
        w = w - lr * (m / (1 - 0.5**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def test_two_steps_by_hand(configured: Configured):
    loop, method = quadratic(configured(**{"optimiser.lr": 0.1}))
    g, d = np.array([0.5, -0.5]), np.array([0.0])
    g_gradients, d_gradients = [], []
    for step in range(2):
        grey = float(loop.batches.batch(loop.seen, 0, 2).ref.images.double().mean())
        d_gradients.append(2 * (d - 3 * g[0]))
        loop.take_step()
        d = adam(np.array([0.0]), d_gradients, [0.1] * (step + 1))  # D steps first, G sees the new one
        g_gradients.append(2 * (g - grey) + 0.1 * d.sum())
        g = adam(np.array([0.5, -0.5]), g_gradients, [0.1] * (step + 1))
    np.testing.assert_allclose(method.parts["D"].w.detach().numpy(), d, rtol=1e-5)
    np.testing.assert_allclose(method.parts["G"].w.detach().numpy(), g, rtol=1e-5)
    np.testing.assert_allclose(method.parts["F"].w.detach().numpy(), [0.8], rtol=1e-5)  # gradient 1, twice


def test_only_the_parts_of_a_turn_learn(configured: Configured):
    loop, method = quadratic(configured())
    loop.take_step()
    assert method.heard == [("begin", {"G", "D", "F"}), ("D", {"D"}), ("G", {"G", "F"})]


def test_the_learning_rate_falls_by_epochs(configured: Configured):
    config = configured(**{"optimiser.lr": 0.3, "batch": 12})  # 3 images, 4 windows each: one step an epoch
    loop, method = quadratic(config)
    seen = []
    while not loop.done:
        seen.append((loop.epoch, loop.lr))
        loop.take_step()
    assert seen == [(1, 0.3), (2, 0.3), (3, pytest.approx(0.2)), (4, pytest.approx(0.1))]  # 1 − n / (2 + 1)
    assert [draw.epoch for draw in method.draws] == [1, 2, 3, 4]
    assert loop.optimisers["G"].param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_batch_that_does_not_divide_an_epoch(configured: Configured):
    loop, method = quadratic(configured(batch=7))
    while not loop.done:
        loop.take_step()
    assert loop.step == 7 and loop.seen == 49  # 48 samples are four epochs of twelve
    assert [draw.epoch for draw in method.draws] == [1, 1, 2, 2, 3, 3, 4]


def test_a_report_is_the_mean_since_the_last(configured: Configured, tmp_path: Path):
    loop, method = quadratic(configured(**{"optimiser.lr": 0.1}))
    expected = []
    for _ in range(3):
        before = float(method.parts["D"].w.detach()), float(method.parts["G"].w[0].detach())
        expected.append((before[0] - 3 * before[1]) ** 2)
        loop.take_step()
    report = loop.report(tmp_path)
    assert report.losses["D.far"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert set(report.losses) == {"D.far", "G.near", "G.d", "G.f"}
    assert (report.step, report.samples, report.of_samples) == (3, 6, 48)
    d, g = float(method.parts["D"].w.detach()), float(method.parts["G"].w[0].detach())
    loop.take_step()
    assert loop.report(tmp_path).losses["D.far"] == pytest.approx((d - 3 * g) ** 2, rel=1e-5)


def test_the_average_by_hand(configured: Configured):
    loop, method = quadratic(configured(**{"optimiser.lr": 0.1, "optimiser.ema": 100}))
    assert loop.average is not None
    average = np.array([0.5, -0.5])
    for seen in (2, 4, 6):
        loop.take_step()
        keep = 0.5 ** (2 / min(100, 0.05 * seen))
        average = keep * average + (1 - keep) * method.parts["G"].w.detach().numpy()
    np.testing.assert_allclose(loop.average.tensors["w"].numpy(), average, rtol=1e-5)
    own = method.parts["G"].w.detach().clone()
    with loop.average.shown():
        np.testing.assert_allclose(method.parts["G"].w.detach().numpy(), average, rtol=1e-5)
    assert torch.equal(method.parts["G"].w, own)
    np.testing.assert_allclose(loop.average.tensors["w"].numpy(), average, rtol=1e-5)


class Breaks(Quadratic):
    def losses(self, turn: str, state: Tensor) -> dict[str, Tensor]:
        terms = super().losses(turn, state)
        if turn == "D" and self.draws[-1].step == 3:
            terms["far"] = terms["far"] * torch.nan
        return terms


def test_what_is_not_finite_stops_with_its_batch(configured: Configured, tmp_path: Path):
    config = configured()
    loop, _ = quadratic(config, Breaks())
    expected = [loop.batches.batch(2 * step, 0, 2) for step in range(5)]
    for _ in range(5):
        loop.take_step()
    with pytest.raises(SheafStainError, match=r"not finite since step 4: D.far") as caught:
        loop.report(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    assert str(caught.value).startswith(str(path))
    saved = load_file(path)
    assert torch.equal(saved["ref.images"], expected[3].ref.images.contiguous())
    assert torch.equal(saved["ihc"], expected[3].ihc.contiguous())
    assert saved["ref.windows"].shape == (2, 4)


def run_of(loop: Loop, steps: int) -> dict[str, Tensor]:
    for _ in range(steps):
        loop.take_step()
    return {name: tensor.clone() for name, tensor in loop.tensors().items()}


SMALLEST: dict[str, dict[str, Any]] = {
    "unsb": {"optimiser.ema": 8, "settings.as_released": True},
    "sheafstain": {"settings.conditioning": "none", "settings.stain_align": 0, "settings.positions": 16},
    "cyclegan": {"settings.pool": 2},
    "pix2pix": {"settings.depth": 5},  # dropout draws by itself
}


@pytest.mark.parametrize("method", SMALLEST)
def test_going_on_is_the_same_bit_for_bit(configured: Configured, loop_of: Callable[..., Loop], method: str):
    changes = {"method": method, **SMALLEST[method]}
    config = configured(**changes)
    whole = run_of(loop_of(config), 4)
    first = loop_of(config)
    held = {name: tensor.clone() for name, tensor in run_of(first, 2).items()}
    torch.manual_seed(99)  # nothing may hang on it
    second = loop_of(config)
    second.load(first.step, first.seen, held)
    torch.manual_seed(98)
    again = run_of(second, 2)
    assert whole.keys() == again.keys()
    assert [name for name in whole if not torch.equal(whole[name], again[name])] == []
    assert any(not torch.equal(whole[name], held[name]) for name in whole)


def test_the_same_seed_repeats_and_another_does_not(configured: Configured, loop_of: Callable[..., Loop]):
    one, same, other = (run_of(loop_of(configured(seed=seed)), 1) for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_memory_that_runs_out(configured: Configured):
    config = configured(batch=4)
    said = r"out of memory on cpu with 4 samples of 96 px.*--batch"
    with pytest.raises(SheafStainError, match=said), enough_memory(config, World()):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
    with pytest.raises(SheafStainError, match="--batch"), enough_memory(config, World()):
        torch.empty(2**50)
    with pytest.raises(RuntimeError, match="another"), enough_memory(config, World()):
        raise RuntimeError("another thing")
