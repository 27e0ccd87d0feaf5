"""How far and how fast FedFW goes: the LASSO of METHODS §1, and the theorems' rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from clients import FedFWClient
from fedtrellis.domains import BirkhoffPolytope, Domain, L1Ball
from fedtrellis.objectives import LeastSquares, QuadraticAssignment
from strategies import FedFW
from tests.harness import Array, grid_of, play


def trace(
    strategy: FedFW,
    objectives: Sequence[Any],
    domain: Domain,
    start: Array,
    rounds: int,
    measure: Callable[[Array], float],
) -> dict[int, float]:
    """Run, and return the measure of x̄ by round."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"measure": measure(arrays.to_numpy_ndarrays()[0])})

    grid = grid_of(FedFWClient, objectives, domain)
    play(strategy, grid, start, rounds, evaluate_fn=evaluate)
    return {
        record.round: record.evaluation["measure"]
        for record in strategy.history
        if record.evaluation
    }


def slope(points: dict[int, float]) -> float:
    """Of the straight line through log(value) against log(round)."""
    rounds, values = np.array(list(points)), np.array(list(points.values()))
    return float(np.polyfit(np.log(rounds), np.log(values), 1)[0])


# ------------------------------------------------------------------- LASSO, METHODS §1

CLIENTS, ROUNDS = 10, 5000


@lru_cache(maxsize=1)
def lasso() -> tuple[Array, Array, float]:
    """A, b and α; the seed is one with F(0) near 4 069, that of METHODS."""
    rng = np.random.default_rng(37)
    A = rng.standard_normal((200, 400)) * np.sqrt(rng.uniform(1.0, 2.0, 400))
    x = np.zeros(400)
    x[rng.choice(400, 20, replace=False)] = rng.standard_normal(20)
    return A, A @ x, float(np.abs(x).sum())


def lasso_value(x: Array) -> float:
    A, b, _ = lasso()
    return float(np.sum((A @ x - b) ** 2))


def lasso_run(rounds: int, **options: Any) -> tuple[FedFW, dict[int, float]]:
    A, b, alpha = lasso()
    parts = zip(np.split(A, CLIENTS), np.split(b, CLIENTS), strict=True)
    # f_i = n ‖A_i x − b_i‖², so that F = ‖Ax − b‖²
    objectives = [LeastSquares(a, c, weight=CLIENTS, scale="sum") for a, c in parts]
    domain = L1Ball(alpha)
    strategy = FedFW(domain, evaluate_every=50, **options)
    return strategy, trace(
        strategy, objectives, domain, np.zeros(400), rounds, lasso_value
    )


def averaged_atoms(
    sets: Sequence[Sequence[str]], penalty: float, p: float, augmented: bool
) -> float:
    """F after the server averages the participants' atoms, which is wrong."""
    A, b, alpha = lasso()
    As, bs = A.reshape(CLIENTS, -1, 400), b.reshape(CLIENTS, -1)
    x, y, x_bar = np.zeros((CLIENTS, 400)), np.zeros((CLIENTS, 400)), np.zeros(400)
    for t, names in enumerate(sets, start=1):
        if not names:
            continue
        root = p * (t - 1) + 2
        eta, lam, atoms = 2 / root, penalty * math.sqrt(root), np.zeros(400)
        for i in map(int, names):
            g = 2 * As[i].T @ (As[i] @ x[i] - bs[i]) + lam * (x[i] - x_bar)
            if augmented:
                y[i] += penalty * (x[i] - x_bar)
                g += y[i]
            j = np.argmax(np.abs(g))
            x[i] *= 1 - eta
            x[i, j] -= eta * alpha * np.sign(g[j])
            atoms[j] -= alpha * np.sign(g[j])
        x_bar = (1 - eta) * x_bar + eta * atoms / len(names)
    return lasso_value(x_bar)


@pytest.mark.slow
def test_lasso_half_participation() -> None:
    """The exact server step gets there too; averaging the atoms does not."""
    strategy, values = lasso_run(
        ROUNDS, variant="plain", penalty=5.0, participation=0.5
    )
    assert values[ROUNDS] < 20
    later = {t: value for t, value in values.items() if t >= 100}
    assert slope(later) <= -0.5
    sets = [strategy.sample(t) for t in range(1, ROUNDS + 1)]
    assert abs(np.mean([len(names) for names in sets]) - 5) < 0.1
    assert averaged_atoms(sets, 5.0, 0.5, augmented=False) > 500
    assert averaged_atoms(sets, 0.5, 0.5, augmented=True) > values[0]


@pytest.mark.parametrize(("p", "share"), [(1.0, 0.05), (0.5, 0.15)])
def test_lasso_augmented(p: float, share: float) -> None:
    """FedFW+, λ_0 = 0.5, for fewer rounds."""
    _, values = lasso_run(800, penalty=0.5, variant="augmented", participation=p)
    assert values[800] < share * values[0]
    assert slope({t: v for t, v in values.items() if t >= 100}) <= -0.5


# ---------------------------------------------------------------------- other theorems


@pytest.mark.slow
def test_nonconvex_rate() -> None:
    """Theorem 2: the smallest gap is O(T^(−1/3)), on relaxed quadratic assignments.

    The step is one number for a whole run, so that the rate shows over runs of several
    T; from where λ_T is large enough to bring the clients together at all.
    """
    horizons, gaps = (200, 400, 800, 1600), []
    domain = BirkhoffPolytope()
    for seed in (1, 3):
        rng = np.random.default_rng(seed)
        A, B = rng.random((8, 8)), rng.random((8, 8))
        A, B = A + A.T, B + B.T
        np.fill_diagonal(A, 0.0)
        np.fill_diagonal(B, 0.0)
        owner = rng.integers(0, 2, (8, 8))
        objectives = [
            QuadraticAssignment(A, B, mask=owner == i, weight=2.0) for i in range(2)
        ]
        whole = QuadraticAssignment(A, B)

        def gap(x: Array, whole: QuadraticAssignment = whole) -> float:
            return domain.gap(whole.gradient(x), x)

        best = []
        for horizon in horizons:
            strategy = FedFW(domain, penalty=5.0, schedule="nonconvex", variant="plain")
            start = np.full((8, 8), 1 / 8)
            values = trace(strategy, objectives, domain, start, horizon, gap)
            best.append(min(values.values()))
        gaps.append(best)
    means = np.exp(np.log(gaps).mean(axis=0))
    assert slope(dict(zip(horizons, means, strict=True))) <= -1 / 3
