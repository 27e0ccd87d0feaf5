"""Which methods' sums say something of a single member of a block, and which do not."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares

from clients import FedAvgGDClient
from fedtrellis import SecureSum
from fedtrellis.encryption import block_sum
from fedtrellis.objectives import LeastSquares, Logistic
from fedtrellis.random import generator
from strategies import FedAvgGD
from tests.harness import Array, grid_of, play
from tests.strategies.block_members import (
    CASES,
    MEMBERS,
    UNKNOWN,
    Server,
    derivative,
    determined,
    secret,
    solver_error,
)

MEASURED = Path(__file__).parents[2] / "docs" / "measured" / "block-members.csv"
ROUNDS = 9
# answers that are affine in H_i and c_i: all that is known are Σ H_i and Σ c_i
AFFINE = {
    *("FedAvgGD one step", "FedAvgGD constant steps", "FedOpt", "Scaffold one step"),
    *("ProjectedFedAvg", "FedGiA fixed σ", "FedLMO server", "ZerothOrderSGD"),
}


@pytest.mark.parametrize("case", CASES)
def test_sums_of_affine_answers_determine_no_member(case: str) -> None:
    """And whether others do, as the page's table says."""
    whole, alone = determined(derivative(Server(case, ROUNDS).sums, secret()))
    with MEASURED.open(encoding="utf-8") as file:
        stated = {row["case"]: row for row in csv.DictReader(file)}[case]
    assert int(stated["unknowns"]) == MEMBERS * UNKNOWN
    if case in AFFINE:
        assert (whole, alone) == (UNKNOWN, 0)
        assert int(stated["rank"]) == UNKNOWN
    assert (alone > 0) == (int(stated["determined of one member"]) > 0)
    assert whole <= int(stated["rank"])


def test_a_solver_finds_members_where_the_rank_says_so_and_nowhere_else() -> None:
    assert solver_error(Server("FedDR", ROUNDS), 5) < 1e-6
    assert solver_error(Server("FedAvgGD one step", 5), 2) > 0.01


def averages(
    losses: list[Any], start: Array, rounds: int, size: float, **more: Any
) -> Array:
    """The start and the model after every round of one gradient step, by sums."""
    how: Any = {"local_steps": 1, "step_schedule": "constant", "step_size": size}
    strategy = FedAvgGD(aggregation=SecureSum(), **how, **more)
    run = play(strategy, grid_of(FedAvgGDClient, losses), start, rounds)
    return np.array([start, *run.models])


def test_rows_of_logistic_losses_are_found_whatever_the_method() -> None:
    """Nine rows, times their labels, of sums that determine no quadratic member."""
    rng = np.random.default_rng(0)
    data = [
        (2.0 * rng.standard_normal((3, 3)), np.where(rng.random(3) < 0.5, 1, 0))
        for _ in range(MEMBERS)
    ]
    models = averages([Logistic(*one) for one in data], np.zeros(3), 60, 3.0)

    def sums(rows: Array) -> Array:
        found: Array = -(1.0 / (1.0 + np.exp(models[:-1] @ rows.T))) @ rows / len(rows)
        return found

    true = np.concatenate([A * (2 * b - 1)[:, None] for A, b in data])
    seen = -np.diff(models, axis=0) / 3.0
    assert np.abs(seen - sums(true)).max() < 1e-9

    def missed(rows: Array) -> Array:
        return 1e3 * (sums(rows.reshape(true.shape)) - seen).reshape(-1)

    for start in range(100, 130):
        guess = 2.0 * np.random.default_rng(start).standard_normal(true.size)
        close: Any = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15)
        solved = least_squares(missed, guess, max_nfev=400, **close)
        if solved.cost < 1e-14:
            break
    away = np.linalg.norm(solved.x.reshape(true.shape)[:, None] - true, axis=2)
    assert away.min(axis=0).max() < 1e-3


def test_mini_batches_of_a_known_seed_tell_rows_apart() -> None:
    """Affine answers, too: every row's x xᵀ and x y, less its client's mean of them."""
    rng, (members, size, p, drawn, rounds) = np.random.default_rng(5), (3, 8, 2, 3, 200)
    data = [(rng.standard_normal((size, p)), np.ones(size)) for _ in range(members)]
    losses = [LeastSquares(*one, scale="half-mean") for one in data]
    part: Any = {"batch_fraction": drawn / size, "seed": 0}
    models = averages(losses, np.zeros(p), rounds, 1.0, **part)
    sums = -np.diff(models, axis=0) * members * drawn
    # ∇f of a row: x xᵀw − x y, whose unknowns are two by two numbers and two
    matrix = np.zeros((rounds, p, members, size, p + 1, p))
    for r, w in enumerate(models[:-1]):
        for k in range(members):
            coins = generator(0, "mini-batch", str(k), r + 1)
            for i in coins.choice(size, size=drawn, replace=False, shuffle=False):
                matrix[r, :, k, i] = np.append(w, -1.0)[:, None] * np.eye(p)[:, None]
    found = np.linalg.lstsq(
        matrix.reshape(rounds * p, -1), sums.reshape(-1), rcond=1e-11
    )[0].reshape(members, size, p + 1, p)
    for (A, b), own in zip(data, found, strict=True):
        true = np.stack([np.outer([*x, y], x) for x, y in zip(A, b, strict=True)])
        assert np.abs(own - own.mean(0) - true + true.mean(0)).max() < 1e-6


def test_terms_without_masks_determine_every_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_sum, "_mask", lambda *_, **more: None)
    server = Server("FedAvgGD one step", ROUNDS, apart=True)
    matrix = derivative(server.sums, secret())
    assert determined(matrix) == (MEMBERS * UNKNOWN, UNKNOWN)
