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
        p, T = self.participation, self.num_rounds
        if self.name == "convex":
            # η_t = 2 / (p (t − 1) + 2)
            return 2.0 / (p * (t - 1) + 2.0)
        if self.name == "nonconvex":
            # η = (p T + 1)^(−2/3)
            return float((p * T + 1.0) ** (-2.0 / 3.0))
        if self.name == "stochastic":
            # η_t = 9 / (t + 8)
            return 9.0 / (t + 8.0)
        return self.step_size

    def penalty_weight(self, t: float) -> float:
        """λ_t, t from 1."""
        p, T, lambda_0 = self.participation, self.num_rounds, self.penalty
        if self.name == "convex":
            # λ_t = λ_0 √(p (t − 1) + 2)
            return lambda_0 * sqrt(p * (t - 1) + 2.0)
        if self.name == "nonconvex":
            # λ = λ_0 (p T + 1)^(1/3)
            return float(lambda_0 * (p * T + 1.0) ** (1.0 / 3.0))
        if self.name == "stochastic":
            # λ_t = λ_0 √(t + 8)
            return lambda_0 * sqrt(t + 8.0)
        return lambda_0

    def averaging_weight(self, t: float) -> float:
        """ρ_t, t from 1; ρ_1 = 1 exactly."""
        if self.name == "constant":
            return 1.0 if t == 1 else self.averaging
        # ρ_t = 4 / (t + 7)^(2/3), at most 1
        return float(min(1.0, 4.0 / (t + 7.0) ** (2.0 / 3.0)))
