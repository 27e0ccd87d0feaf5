"""Step sizes η_t, penalties λ_t and averaging weights ρ_t of federated Frank-Wolfe.

Source: Dadras, Stich, Yurtsever, "Federated Frank-Wolfe Algorithm", arXiv 2408.10090:
Theorem 1 (convex), Theorem 2 (non-convex), both with the participation probability p of
§4.2, and Theorem 3 (stochastic).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal

Schedule = Literal["convex", "nonconvex", "stochastic", "constant"]


@dataclass(frozen=True)
class FrankWolfeSchedule:
    """The numbers of step t.

    t counts steps from 1: rounds, or k times as many where a round has k local steps;
    or with ``participation=1`` the steps that one client has taken. It need not be
    whole where it is a mean over clients.

    ``name`` is a row of the table, ``penalty`` λ_0 ≥ 0, ``participation`` p in (0, 1],
    how likely a client is to take part in a round; T = ``num_rounds``, the rounds
    planned, counts for ``"nonconvex"`` only, and a run that goes on with more rounds
    keeps its T; ``step_size`` and ``averaging``, in (0, 1], are the constant schedule's
    η and ρ.
    """

    name: str
    penalty: float
    participation: float = 1.0
    num_rounds: int = 1
    step_size: float = 0.01
    averaging: float = 0.1

    def step(self, t: float) -> float:
        """η_t, t from 1."""
        return self._of(t)[0]

    def penalty_weight(self, t: float) -> float:
        """λ_t, t from 1."""
        return self.penalty * self._of(t)[1]

    def _of(self, t: float) -> tuple[float, float]:
        """η_t and λ_t/λ_0."""
        if self.name == "convex":
            # η_t = 2/s, λ_t = λ_0 √s with s = p (t − 1) + 2
            s = self.participation * (t - 1) + 2.0
            return 2.0 / s, sqrt(s)
        if self.name == "nonconvex":
            # η = s^(−2/3), λ = λ_0 s^(1/3) with s = p T + 1
            s = self.participation * self.num_rounds + 1.0
            return float(s ** (-2.0 / 3.0)), float(s ** (1.0 / 3.0))
        if self.name == "stochastic":
            # η_t = 9/s, λ_t = λ_0 √s with s = t + 8
            return 9.0 / (t + 8.0), sqrt(t + 8.0)
        return self.step_size, 1.0

    def averaging_weight(self, t: float) -> float:
        """ρ_t, t from 1; ρ_1 = 1 exactly."""
        if self.name == "constant":
            return 1.0 if t == 1 else self.averaging
        # ρ_t = 4 / (t + 7)^(2/3), at most 1
        return float(min(1.0, 4.0 / (t + 7.0) ** (2.0 / 3.0)))
