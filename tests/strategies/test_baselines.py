"""ProjectedFedAvg, FedDR and NaiveFrankWolfe against plain NumPy loops and optima."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cvxpy
import numpy as np
import pytest
from numpy.typing import NDArray

from clients import FedDRClient, NaiveFrankWolfeClient, ProjectedFedAvgClient
from fedtrellis.domains import Box, Domain, L1Ball, L2Ball
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from strategies import FedDR, NaiveFrankWolfe, ProjectedFedAvg
from tests.harness import grid_of, play

Array = NDArray[np.float64]
cp: Any = cvxpy  # its functions are not typed

N, ROWS, P, RADIUS, SEED, BATCH = 5, 12, 6, 1.5, 3, 4
_rng = np.random.default_rng(0)
A = _rng.standard_normal((N, ROWS, P))
# every client has its own idea of x, so that F's minimum is nobody's
B = np.einsum("nij,nj->ni", A, 2.0 * _rng.standard_normal((N, P)))
OBJECTIVES = [
    LeastSquares(a, b, scale="half-mean", l2=0.1) for a, b in zip(A, B, strict=True)
]
LIPSCHITZ = max(float(np.linalg.norm(a, 2)) ** 2 / ROWS for a in A) + 0.1
START = np.full(P, 0.1)


def played(
    make: Any,
    client: Any,
    domain: Domain,
    rounds: int,
    *,
    faults: Mapping[str, Any] | None = None,
    last_fault: int | None = None,
    **options: Any,
) -> tuple[Any, Array, list[list[int]]]:
    more = [domain] if client is NaiveFrankWolfeClient else []
    grid = grid_of(client, OBJECTIVES, *more, **(faults or {}))
    strategy = make(domain, seed=SEED, max_failed_rounds=1000, **options)
    run = play(strategy, grid, START, rounds, last_fault=last_fault)
    return strategy, run.model, run.used


def project_l1(v: Array) -> Array:
    """Bisection on the threshold θ with Σ max(|v_j| − θ, 0) = radius."""
    if np.abs(v).sum() <= RADIUS:
        return v.copy()
    low, high = 0.0, float(np.abs(v).max())
    for _ in range(200):
        theta = 0.5 * (low + high)
        if np.maximum(np.abs(v) - theta, 0.0).sum() > RADIUS:
            low = theta
        else:
            high = theta
    shrunk: Array = np.sign(v) * np.maximum(np.abs(v) - high, 0.0)
    return shrunk


DOMAINS: list[tuple[Domain, Callable[[Array], Array]]] = [
    (L1Ball(RADIUS), project_l1),
    (Box(-0.3, 0.4), lambda v: np.minimum(np.maximum(v, -0.3), 0.4)),
    (L2Ball(RADIUS), lambda v: v * min(1.0, RADIUS / float(np.sqrt(v @ v)))),
]


def gradient(i: int, x: Array) -> Array:
    g: Array = A[i].T @ (A[i] @ x - B[i]) / ROWS + 0.1 * x
    return g


def local_gradient(i: int, t: int, batch: int) -> Callable[[Array], Array]:
    """Of client i in round t; its batches are drawn one after the other."""
    if not batch:
        return lambda x: gradient(i, x)
    rng = generator(SEED, "mini-batch", str(i), t)
    return lambda x: OBJECTIVES[i].stochastic_gradient(x, rng, batch)


CASES = pytest.mark.parametrize(
    "options",
    [
        {},
        {"participation": 0.5},
        {"participation": 0.5, "sampling": "fixed"},
        {"participation": 0.6, "batch_size": BATCH},
    ],
    ids=["everybody", "bernoulli", "fixed", "batches"],
)


def optimum(domain: Domain) -> Array:
    """argmin over D of F = (1/n) Σ f_i, by CVXPY."""
    x = cp.Variable(P)
    losses = [cp.sum_squares(a @ x - b) / (2 * ROWS) for a, b in zip(A, B, strict=True)]
    objective = cp.sum(losses) / N + 0.05 * cp.sum_squares(x)
    if isinstance(domain, L1Ball):
        constraint = cp.norm1(x) <= domain.radius
    elif isinstance(domain, L2Ball):
        constraint = cp.norm2(x) <= domain.radius
    else:
        assert isinstance(domain, Box)
        constraint = cp.norm_inf(x - 0.05) <= 0.35
    problem = cp.Problem(cp.Minimize(objective), [constraint])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12)
    return np.asarray(x.value, dtype=np.float64)


# ---------------------------------------------------------------------- ProjectedFedAvg


@CASES
@pytest.mark.parametrize(("domain", "project"), DOMAINS, ids=["l1", "box", "l2"])
def test_projected_fedavg_equals_loop(
    domain: Domain,
    project: Callable[[Array], Array],
    options: dict[str, Any],
) -> None:
    _, model, sets = played(
        ProjectedFedAvg,
        ProjectedFedAvgClient,
        domain,
        30,
        local_steps=3,
        local_step_size=0.2,
        **options,
    )
    x_bar = START
    for t, S in enumerate(sets, start=1):
        local = []
        for i in S:
            x, g = x_bar, local_gradient(i, t, options.get("batch_size", 0))
            for _ in range(3):
                x = x - 0.2 * g(x)
            local.append(x)
        if local:
            x_bar = project(np.mean(local, axis=0))
    assert np.abs(model - x_bar).max() < 1e-10
    check_sets(sets, options)


def check_sets(sets: Sequence[Sequence[int]], options: dict[str, Any]) -> None:
    sizes = {len(S) for S in sets}
    if not options:
        assert sizes == {N}
    elif options.get("sampling") == "fixed":
        assert sizes == {3}
    else:
        assert min(sizes) < max(sizes)


def test_one_local_step_is_projected_gradient_descent() -> None:
    domain = L1Ball(RADIUS)
    _, model, _ = played(
        ProjectedFedAvg,
        ProjectedFedAvgClient,
        domain,
        400,
        local_steps=1,
        local_step_size=1 / LIPSCHITZ,
    )
    x = START
    for _ in range(400):
        x = project_l1(
            x - np.mean([gradient(i, x) for i in range(N)], axis=0) / LIPSCHITZ
        )
    assert np.abs(model - x).max() < 1e-10
    assert np.abs(model - optimum(domain)).max() < 1e-6


# -------------------------------------------------------------------------------- FedDR


@CASES
@pytest.mark.parametrize(("domain", "project"), DOMAINS, ids=["l1", "box", "l2"])
def test_feddr_equals_loop(
    domain: Domain,
    project: Callable[[Array], Array],
    options: dict[str, Any],
) -> None:
    alpha, eta, gamma, steps = 1.7, 2.0, 0.15, 4
    strategy, model, sets = played(
        FedDR,
        FedDRClient,
        domain,
        30,
        relaxation=alpha,
        proximal_step=eta,
        local_steps=steps,
        local_step_size=gamma,
        **options,
    )
    x, y = [START] * N, [START] * N
    reflected = np.tile(START, (N, 1))
    x_bar = START
    for t, S in enumerate(sets, start=1):
        for i in S:
            g = local_gradient(i, t, options.get("batch_size", 0))
            y[i] = y[i] + alpha * (x_bar - x[i])
            for _ in range(steps):
                x[i] = x[i] - gamma * (g(x[i]) + (x[i] - y[i]) / eta)
            reflected[i] = 2 * x[i] - y[i]
        if S:
            x_bar = project(reflected.mean(axis=0))
    assert np.abs(model - x_bar).max() < 1e-10
    for i in range(N):
        assert np.abs(strategy.state()[str(i)] - reflected[i]).max() < 1e-10
    check_sets(sets, options)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("domain", [domain for domain, _ in DOMAINS], ids=repr)
def test_feddr_finds_the_constrained_optimum(
    domain: Domain, participation: float
) -> None:
    eta = 1.0
    _, model, _ = played(
        FedDR,
        FedDRClient,
        domain,
        300,
        participation=participation,
        relaxation=1.0,
        proximal_step=eta,
        local_steps=60,
        local_step_size=1 / (LIPSCHITZ + 1 / eta),
    )
    assert domain.contains(model)
    assert np.abs(model - optimum(domain)).max() < 1e-5


# ---------------------------------------------------------------------- NaiveFrankWolfe


@pytest.mark.parametrize("schedule", ["convex", "nonconvex", "stochastic", "constant"])
@pytest.mark.parametrize(
    ("asked", "sampling", "p"),
    # 3 of 5 clients in every round, where half of them are asked for
    [(1.0, "bernoulli", 1.0), (0.5, "bernoulli", 0.5), (0.5, "fixed", 0.6)],
)
def test_naive_equals_loop(
    schedule: str, asked: float, sampling: str, p: float
) -> None:
    rounds = 40
    _, model, sets = played(
        NaiveFrankWolfe,
        NaiveFrankWolfeClient,
        L1Ball(RADIUS),
        rounds,
        schedule=schedule,
        step_size=0.1,
        participation=asked,
        sampling=sampling,
    )
    x_bar = START
    for t, S in enumerate(sets, start=1):
        eta = {
            "convex": 2 / (p * (t - 1) + 2),
            "nonconvex": (p * rounds + 1) ** (-2 / 3),
            "stochastic": 9 / (t + 8),
            "constant": 0.1,
        }[schedule]
        atoms = np.zeros(P)
        for i in S:
            g = gradient(i, x_bar)
            j = np.argmax(np.abs(g))
            atoms[j] -= RADIUS * np.sign(g[j])
        if S:
            x_bar = (1 - eta) * x_bar + eta * atoms / len(S)
    assert np.abs(model - x_bar).max() < 1e-10
