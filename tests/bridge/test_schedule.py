from __future__ import annotations

import numpy as np
import pytest

from sheafstain.bridge.schedule import TimeGrid


def test_five_steps_by_hand() -> None:
    grid = TimeGrid()
    assert grid.times == pytest.approx((0, 0.5, 0.74, 0.86, 0.94, 1.0), abs=1e-12)
    assert [grid.share(i) for i in range(1, 6)] == pytest.approx((0.5, 0.48, 6 / 13, 4 / 7, 1), abs=1e-12)
    assert [round(grid.noise(i), 4) for i in range(1, 6)] == [0.05, 0.0353, 0.0254, 0.0185, 0]


@pytest.mark.parametrize("T", [2, 3, 5, 9])
def test_the_published_recipe(T: int) -> None:
    steps = np.cumsum([0] + [1 / (i + 1) for i in range(T - 1)])
    times = np.concatenate([[0], 0.5 + 0.5 * steps / steps[-1]])
    assert TimeGrid(T).times == pytest.approx(times)


@pytest.mark.parametrize("T", [1, 2, 5, 12])
def test_time_runs_forward_and_every_step_stays_between(T: int) -> None:
    grid = TimeGrid(T, 0.3)
    assert len(grid.times) == T + 1
    assert grid.times[0] == 0 and grid.times[-1] == pytest.approx(1)
    assert all(a < b for a, b in zip(grid.times, grid.times[1:], strict=False))
    for i in range(1, T + 1):
        # A Brownian bridge from t_{i−1} to 1, seen at t_i: variance τ (t_i − t_{i−1}) (1 − t_i) / (1 − t_{i−1}).
        before, after = grid.times[i - 1 : i + 1]
        assert 0 < grid.share(i) <= 1
        assert grid.noise(i) ** 2 == pytest.approx(0.3 * (after - before) * (1 - after) / (1 - before))


def test_what_is_no_grid() -> None:
    for T, tau in ((0, 0.01), (5, -1.0), (5, float("nan"))):
        with pytest.raises(ValueError, match="needs T ≥ 1 and τ ≥ 0"):
            TimeGrid(T, tau)
    with pytest.raises(ValueError, match="steps of this grid are 1 to 5, not 0"):
        TimeGrid().share(0)
