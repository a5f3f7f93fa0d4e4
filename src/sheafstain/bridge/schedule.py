"""The time grid of the bridge: when the generator is asked, and how far each step goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """T predictions at t₀ … t_{T−1}; t_T = 1 is the end, where nothing is predicted any more.

        x_i = (1 − a_i) x_{i−1} + a_i x̂₁ + √(τ (t_i − t_{i−1}) (1 − a_i)) ε,   a_i = (t_i − t_{i−1}) / (1 − t_{i−1})

    is how x moves from t_{i−1} to t_i towards the prediction x̂₁ (UNSB; paper, appendix "Theoretical Positioning").

    Parameters
    ----------
    T
        Number of predictions; the network knows them by their index 0 … T − 1.
    tau
        Diffusion coefficient τ (paper, Eq. 10).
    """

    T: int = 5
    tau: float = 0.01

    def __post_init__(self) -> None:
        if self.T < 1 or not (math.isfinite(self.tau) and self.tau >= 0):
            raise ValueError(f"a time grid needs T ≥ 1 and τ ≥ 0, not T = {self.T} and τ = {self.tau}")

    @property
    def times(self) -> tuple[float, ...]:
        """t₀ … t_T: 0, then from ½ to 1 by steps that shrink as 1, ½, ⅓, …; (0, 1) for T = 1."""
        if self.T == 1:
            return 0.0, 1.0
        reached = list(accumulate(1 / k for k in range(1, self.T)))
        return 0.0, 0.5, *(0.5 + 0.5 * length / reached[-1] for length in reached)

    def share(self, i: int) -> float:
        """a_i: which part of the way to the prediction the step from t_{i−1} to t_i goes; 1 for the last."""
        before, after = self._step(i)
        return (after - before) / (1 - before)

    def noise(self, i: int) -> float:
        """Standard deviation of what the step from t_{i−1} to t_i adds, on the [−1, 1] scale."""
        before, after = self._step(i)
        return math.sqrt(self.tau * (after - before) * (1 - self.share(i)))

    def _step(self, i: int) -> tuple[float, float]:
        if not 1 <= i <= self.T:
            raise ValueError(f"the steps of this grid are 1 to {self.T}, not {i}")
        times = self.times
        return times[i - 1], times[i]
