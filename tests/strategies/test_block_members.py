"""Which methods' sums say something of a single member of a block, and which do not.

Three real clients have losses f_i(x) = xᵀH_i x/2 − c_iᵀx that the server does not know.
Are the sums that it takes out of their messages enough to find H_i and c_i? The rank
of the derivative of all sums by all unknowns says so. Run as

    python -m tests.strategies.test_block_members > docs/measured/block-members.csv
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.spatial import cKDTree

import clients
import strategies
from clients import FedAvgGDClient
from fedtrellis import SecureSum
from fedtrellis.domains import L1Ball
from fedtrellis.encryption.cipher import write_key_pair
from fedtrellis.manifolds import Sphere
from fedtrellis.objectives import LeastSquares, Logistic
from strategies import FedAvgGD
from tests.harness import Array, grid_of, in_part, play, refused

P, MEMBERS = 2, 3
_UPPER = np.triu_indices(P)
#: Numbers that are unknown of each client: H_i is symmetric.
UNKNOWN = P * (P + 1) // 2 + P

CASES: dict[str, dict[str, Any]] = {
    "FedAvgGD one step": {"local_steps": 1},
    "FedAvgGD constant steps": {"local_steps": 5, "step_schedule": "constant"},
    "FedAvgGD falling steps": {"local_steps": 5},
    "LocalSGD": {},
    "FedProx": {"proximal_weight": 0.5},
    "FedOpt": {"optimizer": "adam"},
    "Scaffold one step": {"local_steps": 1},
    "Scaffold": {"local_steps": 5},
    "FedDR": {"proximal_step": 1.0},
    "ProjectedFedAvg": {},
    "FedGiA": {},
    "FedGiA fixed σ": {"sigma": 1.0},
    "FirstOrderRFL": {},
    "CompressedSGD": {"kept_fraction": 0.3},
    "FedLMO": {"batch_size": 0},
    "FedLMO averaged": {"variant": "averaged"},
    "FedLMO server": {"variant": "server"},
    "FedLMO ef21": {"variant": "ef21"},
    "ZerothOrderSGD": {"step_size": 0.02, "samples": 6, "batch_size": 0},
}


#: Steps that are set: those of its own a run finds from the losses' constants.
STEPS: dict[str, dict[str, Any]] = {
    **{m: {"step_size": 0.01} for m in ("FedAvgGD", "FedProx", "FedOpt", "Scaffold")},
    **{m: {"step_size": 0.005} for m in ("LocalSGD", "CompressedSGD")},
    **{m: {"local_step_size": 0.1} for m in ("ProjectedFedAvg", "FedDR")},
}


class Quadratic:
    """f(x) = xᵀHx/2 − cᵀx."""

    num_examples = 10

    def __init__(self, unknown: Array) -> None:
        self.h = np.zeros((P, P))
        self.h[_UPPER] = unknown[:-P]
        self.h = np.triu(self.h) + np.triu(self.h, 1).T
        self.c = unknown[-P:]

    def value(self, x: Array) -> float:
        return float(x @ self.h @ x / 2 - self.c @ x)

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.h @ x - self.c)

    def stochastic_gradient(self, x: Array, rng: Any, size: int) -> Array:
        return self.gradient(x)

    def hessian_bound(self) -> Array:
        return self.h

    def lipschitz(self) -> float:
        return float(np.linalg.eigvalsh(self.h)[-1])


def secret(seed: int = 0) -> Array:
    rng, parts = np.random.default_rng(seed), []
    for _ in range(MEMBERS):
        a = rng.standard_normal((P, P))
        h = a @ a.T / P + 0.5 * np.eye(P)
        parts += [h[_UPPER], rng.standard_normal(P)]
    return np.concatenate(parts)


class Server:
    """What it saw; it goes on with what it saw first, so that models stay those."""

    def __init__(self, case: str, rounds: int) -> None:
        self.case, self.rounds = case, rounds
        self.went_on_with: list[Array] = []

    def sums(self, unknown: Array) -> Array:
        name, seen = self.case.partition(" ")[0], list[Array]()
        went_on_with = self.went_on_with
        first, rng = not went_on_with, np.random.default_rng(5)

        class Sums(SecureSum):
            def total(self, members: Any, least: int) -> Array:
                found = super().total(members, least)
                seen.append(found)
                if first:
                    # models that go back and forth tell more than those that settle
                    moved = 0.3 * rng.standard_normal(found.size)
                    went_on_with.append(found + (moved if found.size == P else 0.0))
                return went_on_with[len(seen) - 1].copy()

        more: list[Any] = [Sphere((P,))] if name == "FirstOrderRFL" else []
        domain = [L1Ball(1.0)] if name in ("ProjectedFedAvg", "FedDR") else more
        losses = [Quadratic(part) for part in unknown.reshape(MEMBERS, -1)]
        grid = grid_of(getattr(clients, f"{name}Client"), losses, *more)
        settings = {**STEPS.get(name, {}), **CASES[self.case]}
        settings |= {"seed": 3, "aggregation": Sums()}
        strategy = getattr(strategies, name)(*domain, **settings)
        try:
            play(strategy, grid, np.full(P, 0.1), self.rounds)
        except RuntimeError as error:  # the models were moved, after all
            if "diverged" not in str(error):
                raise
        return np.concatenate(seen)


def derivative(sums: Callable[[Array], Array], at: Array, step: float = 1e-4) -> Array:
    sums(at)
    columns = [
        (sums(at + step * e) - sums(at - step * e)) / (2 * step)
        for e in np.eye(at.size)
    ]
    return np.array(columns).T


def rank(matrix: NDArray[Any]) -> int:
    """Singular values well above what rounding to the fixed point makes."""
    values = np.linalg.svd(matrix, compute_uv=False)
    return int(np.sum(values > 1e-6 * max(values[0], 1e-3)))


def determined(matrix: Array) -> tuple[int, int]:
    """Its rank, and how many numbers of a single member it determines, at most.

    What is determined is a combination of rows; of member i alone it is one that is
    zero at the others' unknowns.
    """
    whole, alone = rank(matrix), []
    for member in range(MEMBERS):
        own = slice(member * UNKNOWN, (member + 1) * UNKNOWN)
        alone.append(whole - rank(np.delete(matrix, own, axis=1)))
    return whole, max(alone)


def solver_error(server: Server, steps: int = 6) -> float:
    """How far Gauss and Newton's method ends from the unknowns; it starts near them.

    Of what the sums do not determine it keeps its start.
    """
    truth = secret()
    server.sums(truth)
    target = server.sums(truth)
    x = truth + 0.03 * np.random.default_rng(1).standard_normal(truth.size)
    for _ in range(steps):
        jacobian, residual = derivative(server.sums, x), server.sums(x) - target
        x = x - np.linalg.lstsq(jacobian, residual, rcond=1e-7)[0]
    return float(np.abs(x - truth).max())


MEASURED = Path(__file__).parents[2] / "docs" / "measured" / "block-members.csv"
ROUNDS = 9
# answers that are affine in H_i and c_i: all that is known are Σ H_i and Σ c_i
AFFINE = {
    *("FedAvgGD one step", "FedAvgGD constant steps", "FedOpt", "Scaffold one step"),
    *("ProjectedFedAvg", "FedGiA fixed σ", "FedLMO server", "ZerothOrderSGD"),
}


@pytest.mark.parametrize("case", in_part(CASES))
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


@pytest.mark.slow
def test_a_solver_finds_members_where_the_rank_says_so_and_nowhere_else() -> None:
    assert solver_error(Server("FedDR", ROUNDS), 5) < 1e-6
    assert solver_error(Server("FedAvgGD one step", 5), 2) > 0.01


def averages(
    grid: Any, start: Array, rounds: int, size: float, rule: Any = None, **more: Any
) -> Array:
    """The start and the model after every round of one gradient step, by sums."""
    how: Any = {"local_steps": 1, "step_schedule": "constant", "step_size": size}
    strategy = FedAvgGD(aggregation=rule or SecureSum(), **how, **more)
    return np.array([start, *play(strategy, grid, start, rounds).models])


def test_rows_of_logistic_losses_are_found_whatever_the_method() -> None:
    """Nine rows, times their labels, of sums that determine no quadratic member."""
    rng = np.random.default_rng(0)
    data = [
        (2.0 * rng.standard_normal((3, 3)), np.where(rng.random(3) < 0.5, 1, 0))
        for _ in range(MEMBERS)
    ]
    grid = grid_of(FedAvgGDClient, [Logistic(*one) for one in data])
    models = averages(grid, np.zeros(3), 60, 3.0)

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


def test_sums_over_mini_batches_single_out_rows_whatever_draws_them() -> None:
    """Affine answers, too: differences of sums that come often are of two rows."""
    rng, size, step = np.random.default_rng(5), 6, 1e-8
    data = [(rng.standard_normal((size, P)), np.ones(size)) for _ in range(MEMBERS)]
    losses = [LeastSquares(*one, scale="half-mean") for one in data]
    grid = grid_of(FedAvgGDClient, losses)
    models = averages(grid, np.zeros(P), 700, step, batch_fraction=1 / size)
    # a sum of a row's gradient of each client: 6³ of them
    sums = np.unique(np.round(-np.diff(models, axis=0) * MEMBERS / step, 3), axis=0)
    apart = (sums[:, None] - sums).reshape(-1, P)
    often = cKDTree(apart).query_ball_point(apart, 2e-3, return_length=True)
    # two rows' of a client come 6² times, a sum of such differences 6 times
    found = apart[(often > 12) & (np.abs(apart).max(axis=1) > 2e-3)]
    true = np.concatenate([(A - A[:, None]).reshape(-1, P) for A, _ in data])
    true = true[true.any(axis=1)]  # ∇f(0) = −x, as y = 1
    away = np.abs(true[:, None] - found).max(axis=2)
    assert max(away.min(axis=k).max() for k in (0, 1)) < 3e-3  # all, and no other


def test_a_node_with_a_key_refuses_mini_batches_in_sums(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key", tmp_path / "context", "stream")
    losses = [LeastSquares(np.eye(4), np.ones(4), scale="half-mean")] * MEMBERS

    def played(part: float, rule: Any = None, **more: Any) -> Array:
        node = {"key-file": str(tmp_path / "key"), **more}
        grid = grid_of(FedAvgGDClient, losses, node_configs=[node] * MEMBERS)
        return averages(grid, np.zeros(4), 2, 0.1, rule, batch_fraction=part)

    refused("mini-batches single out rows", lambda: played(0.5))
    played(0.5, **{"mini-batches": "accept"})
    played(0.5, SecureSum(clip=1.0, noise_multiplier=1.0))
    played(1.0)


def main() -> None:
    print("case,unknowns,rank,determined of one member,solver's error")
    for case in CASES:
        matrix = derivative(Server(case, 60).sums, secret())
        whole, alone = determined(matrix)
        error = solver_error(Server(case, 60))
        print(f"{case},{MEMBERS * UNKNOWN},{whole},{alone},{error:.1e}", flush=True)


if __name__ == "__main__":
    main()
