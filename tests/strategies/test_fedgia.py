"""FedGiA against plain NumPy loops of algorithm 1, and against its theorems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from scipy.special import expit

from clients import FedGiAClient
from fedtrellis import Callback, LocalGrid, RoundRecord
from fedtrellis.objectives import LeastSquares, Logistic, Objective
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import decode
from strategies import FedGiA
from tests.harness import Array, contexts, grid_of, memory_of, play

M, N, SEED = 6, 8, 5


class Problem:
    """Objectives with their gradients and H_i written out, independent of ours."""

    def __init__(self, kind: str, rows: Sequence[int], n: int = N, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.A = [rng.standard_normal((d, n)) for d in rows]
        self.m, self.n, self.kind, self.l2 = len(rows), n, kind, 0.05
        self.objectives: list[Objective]
        if kind == "least-squares":
            self.b = [rng.standard_normal(d) for d in rows]
            self.objectives = [
                LeastSquares(A, b, scale="half-mean")
                for A, b in zip(self.A, self.b, strict=True)
            ]
        else:
            loss = Logistic if kind == "logistic" else NonconvexLogistic
            self.b = [(rng.random(d) < 0.5).astype(float) for d in rows]
            self.objectives = [
                loss(A, b, l2=self.l2) for A, b in zip(self.A, self.b, strict=True)
            ]

    def value(self, i: int, x: Array) -> float:
        A, b, d = self.A[i], self.b[i], len(self.b[i])
        if self.kind == "least-squares":
            return float(((A @ x - b) ** 2).sum()) / (2 * d)
        loss = float((np.logaddexp(0, A @ x) - b * (A @ x)).mean())
        if self.kind == "logistic":
            return loss + self.l2 / 2 * float(x @ x)
        return loss + self.l2 / 2 * float((x**2 / (1 + x**2)).sum())

    def gradient(self, i: int, x: Array) -> Array:
        A, b, d = self.A[i], self.b[i], len(self.b[i])
        if self.kind == "least-squares":
            return A.T @ (A @ x - b) / d
        gradient: Array = A.T @ (expit(A @ x) - b) / d
        if self.kind == "logistic":
            return gradient + self.l2 * x
        return gradient + self.l2 * x / (1 + x**2) ** 2

    def bound(self, i: int, hessian: str) -> Array:
        A, d = self.A[i], len(self.b[i])
        if self.kind == "least-squares":
            theta = A.T @ A / d
        else:
            theta = A.T @ A / (4 * d) + self.l2 * np.eye(self.n)
        if hessian == "diagonal":
            theta = np.linalg.eigvalsh(theta)[-1] * np.eye(self.n)
        return theta

    @property
    def r(self) -> float:
        bounds = [self.bound(i, "gram") for i in range(self.m)]
        return max(float(np.linalg.eigvalsh(bound)[-1]) for bound in bounds)

    def grid(self, client: Any = FedGiAClient, **options: Any) -> LocalGrid:
        return grid_of(client, self.objectives, **options)


class States(Callback):
    """Notes down every round's model, z_i and, out of the nodes, π_i."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid
        self.x: list[Array] = []
        self.z: list[Array] = []
        self.pi: list[Array] = []

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        if record.round == 0:
            return
        self.x.append(strategy.broadcast.model.copy())
        self.z.append(np.array([strategy.client_point(c) for c in strategy.clients]))
        pi = np.zeros((strategy.num_clients, self.x[-1].size))
        for index, context in contexts(self.grid).items():
            memory = memory_of(strategy, context)
            if "pi" in memory.provisional.arrays:
                pi[index] = decode(memory.provisional.arrays["pi"]).ravel()
        self.pi.append(pi)


def played(
    problem: Problem,
    rounds: int,
    *,
    start: Array | None = None,
    client: dict[str, Any] | None = None,
    grid: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[FedGiA, States]:
    local = problem.grid(partial(FedGiAClient, **(client or {})), **(grid or {}))
    states = States(local)
    settings = {"seed": SEED, "tolerance": 0.0} | settings
    callbacks = [states, *settings.pop("callbacks", [])]
    strategy = FedGiA(callbacks=callbacks, **settings)
    play(strategy, local, np.zeros(problem.n) if start is None else start, rounds)
    return strategy, states


def algorithm_1(
    problem: Problem,
    sets: Sequence[frozenset[str]],
    sigma: float,
    k0: int,
    bounds: Sequence[Array],
    start: Array,
) -> tuple[list[Array], list[Array], list[Array]]:
    """METHODS and the paper's algorithm 1, with an explicit inverse; x, Z, Π."""
    m, n = problem.m, problem.n
    inverse = [np.linalg.inv(H / m + sigma * np.eye(n)) for H in bounds]
    Z, pi = np.tile(start, (m, 1)), np.zeros((m, n))
    xs, zs, pis = [], [], []
    x = Z.mean(axis=0)
    for C in sets:
        for i in range(m):
            g = problem.gradient(i, x) / m
            if str(i) in C:
                for _ in range(k0):
                    x_i = x - inverse[i] @ (g + pi[i])
                    pi[i] = pi[i] + sigma * (x_i - x)
                    Z[i] = x_i + pi[i] / sigma
            else:
                pi[i] = -g
                Z[i] = x - g / sigma
        x = Z.mean(axis=0)
        xs.append(x)
        zs.append(Z.copy())
        pis.append(pi.copy())
    return xs, zs, pis


# ------------------------------------------------------------------------- iterates


@pytest.mark.parametrize(("s", "k0"), [(1.0, 1), (0.5, 5), (0.1, 10)])
@pytest.mark.parametrize("hessian", ["gram", "diagonal"])
@pytest.mark.parametrize("kind", ["least-squares", "logistic", "nonconvex"])
def test_every_iterate_is_that_of_algorithm_1(
    kind: str, hessian: str, s: float, k0: int
) -> None:
    problem = Problem(kind, [3, 5, 4, 9, 6, 30])
    start = np.linspace(-0.2, 0.3, N)
    # the smaller t of the experiments lets some of these problems grow without bound
    strategy, states = played(
        problem,
        25,
        start=start,
        sigma_scale=1.0,
        local_steps=k0,
        selected_fraction=s,
        hessian=hessian,
    )
    assert strategy.settled_sigma == pytest.approx(problem.r / M, rel=1e-10)
    sets = [strategy.selected(t) for t in range(1, 26)]
    assert {len(C) for C in sets} == {math.ceil(s * M - 1e-9)}
    xs, zs, pis = algorithm_1(
        problem,
        sets,
        strategy.settled_sigma,
        k0,
        [problem.bound(i, hessian) for i in range(M)],
        start,
    )
    for t in range(25):
        scale = max(1.0, np.abs(zs[t]).max())
        assert np.abs(states.x[t] - xs[t]).max() < 1e-10 * scale
        assert np.abs(states.z[t] - zs[t]).max() < 1e-10 * scale
        assert np.abs(states.pi[t] - pis[t]).max() < 1e-10 * scale


def test_who_lost_its_state_takes_a_gradient_step() -> None:
    """Though it is in C: its π_i is gone, and the round after it is as any other."""
    problem, wiped = Problem("least-squares", [12] * M), 4
    local = problem.grid(FedGiAClient)
    states = States(local)

    class Wipe(Callback):
        def on_round(self, strategy: Any, record: RoundRecord) -> None:
            if record.round == wiped:
                contexts(local)[2].state = RecordDict()

    strategy = FedGiA(
        sigma_scale=1.0, selected_fraction=1.0, callbacks=[states, Wipe()]
    )
    play(strategy, local, np.zeros(N), 8)
    sets = [strategy.selected(t) for t in range(1, 9)]
    sets[wiped] -= {"2"}
    bounds = [problem.bound(i, "diagonal") for i in range(M)]
    sigma = strategy.settled_sigma
    xs, _, _ = algorithm_1(problem, sets, sigma, 5, bounds, np.zeros(N))
    assert np.abs(np.array(states.x) - np.array(xs)).max() < 1e-10


def test_a_hessian_of_ones_own() -> None:
    """A number, a diagonal, an object with a solve; each client's r_i from it."""

    class Solver:
        def __init__(self, H: Array) -> None:
            self.H, self.lipschitz = H, float(np.linalg.eigvalsh(H)[-1])

        def solve(self, v: Array, shift: float) -> Array:
            M = self.H + shift * np.eye(N)
            return np.asarray(np.linalg.solve(M, v), dtype=np.float64)

    problem = Problem("least-squares", [20] * M)
    H = problem.bound(0, "gram") + np.diag(np.arange(1.0, N + 1))
    diagonal = np.arange(4.0, 4.0 + N)
    for given, dense, r in (
        (7.5, 7.5 * np.eye(N), 7.5),
        (diagonal, np.diag(diagonal), 3.0 + N),
        (Solver(H), H, float(np.linalg.eigvalsh(H)[-1])),
    ):
        for k0 in (1, 6):
            strategy, states = played(
                problem,
                10,
                client={"hessian": given},
                local_steps=k0,
                sigma_scale=1.0,
            )
            assert strategy.settled_sigma == pytest.approx(r / M)
            sets = [strategy.selected(t) for t in range(1, 11)]
            xs, _, _ = algorithm_1(
                problem, sets, strategy.settled_sigma, k0, [dense] * M, np.zeros(N)
            )
            assert np.abs(np.array(states.x) - np.array(xs)).max() < 1e-10


# --------------------------------------------------------------------------- theory


@pytest.mark.parametrize(("k0", "seed"), [(1, 0), (4, 1)])
@pytest.mark.parametrize("hessian", ["gram", "diagonal"])
@pytest.mark.parametrize("kind", ["least-squares", "logistic", "nonconvex"])
def test_augmented_lagrangian_never_rises(
    kind: str, hessian: str, k0: int, seed: int
) -> None:
    """Lemma B.3 with H_i = Θ_i and σ > 6r/m, at every communication.

    Its proof uses (34) for two iterations in a row, which π_i = 0 does not fulfil: the
    first round may rise (and does in some of these), no later one.
    """
    rng = np.random.default_rng(seed)
    problem = Problem(kind, rng.integers(2, 25, M).tolist(), seed=seed)
    start = 3.0 * rng.standard_normal(N)
    strategy, states = played(
        problem,
        40,
        start=start,
        sigma_scale=6.01,
        local_steps=k0,
        hessian=hessian,
        selected_fraction=float(rng.uniform(0.1, 1.0)),
    )
    sigma, before = strategy.settled_sigma, start
    values = []
    for x_next, z, pi in zip(states.x, states.z, states.pi, strict=True):
        # L(x^τ, X, Π), (8), at the x that the round started from
        x_i = z - pi / sigma
        values.append(
            sum(
                problem.value(i, x_i[i]) / M
                + float((x_i[i] - before) @ pi[i])
                + sigma / 2 * float(((x_i[i] - before) ** 2).sum())
                for i in range(M)
            )
        )
        before = x_next
    assert (np.diff(values) <= 1e-12 * max(map(abs, values))).all()
    assert values[-1] < values[0]


@pytest.mark.parametrize("fault", [{"reply_loss": 0.2}, {"wipe": 0.03}])
def test_what_is_lost_changes_the_way_and_not_the_end(fault: dict[str, float]) -> None:
    problem = Problem("least-squares", [14] * M)
    best = np.linalg.lstsq(np.concatenate(problem.A), np.concatenate(problem.b))[0]
    settings: dict[str, Any] = {"hessian": "gram", "sigma_scale": 1.0, "grid": fault}
    _, states = played(problem, 150, local_steps=3, **settings)
    assert np.abs(states.x[-1] - best).max() < 1e-8
    # a change that nobody heard of is not a change of zero
    _, states = played(problem, 400, tolerance=1e-9, **settings)
    assert len(states.x) < 400
    gradients = [problem.gradient(i, states.x[-1]) for i in range(M)]
    g = np.mean(gradients, axis=0)
    assert float(g @ g) <= N * 1e-9


def test_without_anybody_selected_it_is_gradient_descent() -> None:
    """x ← x − ∇f(x)/(σm), and the server reads every ḡ_i off the z_i."""
    problem = Problem("logistic", [12] * M)
    node_configs = [{"slow": True}] * M
    strategy, states = played(
        problem, 5, sigma_scale=2.0, grid={"node_configs": node_configs}
    )
    x = np.zeros(N)
    for x_next, z in zip(states.x, states.z, strict=True):
        gradients = np.array([problem.gradient(i, x) for i in range(M)]) / M
        # for i outside C: ḡ_i = σ (x − z_i)
        assert np.abs(strategy.settled_sigma * (x - z) - gradients).max() < 1e-12
        x = x - gradients.sum(axis=0) / (strategy.settled_sigma * M)
        assert np.abs(x - x_next).max() < 1e-12


# ------------------------------------------------------------- σ, and who is selected


def test_slow_clients_are_never_selected() -> None:
    problem = Problem("least-squares", [12] * M)
    node_configs = [{"slow": i in (1, 4)} for i in range(M)]
    strategy, _ = played(
        problem,
        3,
        sigma_scale=1.0,
        selected_fraction=0.5,
        grid={"node_configs": node_configs},
    )
    sets = [strategy.selected(t) for t in range(1, 400)]
    assert {len(C) for C in sets} == {3}
    counts = [sum(name in C for C in sets) for name in strategy.clients]
    assert counts[1] == counts[4] == 0
    assert all(count > 230 for i, count in enumerate(counts) if i not in (1, 4))
    assert strategy.selected(7) == sets[6]
    # more than there are that may be selected: all of those
    strategy.selected_fraction = 1.0
    assert strategy.selected(1) == {"0", "2", "3", "5"}


class NoBound:
    """½‖x‖², and no word of its curvature."""

    num_examples = 1

    def gradient(self, x: Array) -> Array:
        return x


def test_a_loss_without_a_bound() -> None:
    def grid(**client: Any) -> LocalGrid:
        return grid_of(partial(FedGiAClient, **client), [NoBound()] * 2)

    start = np.ones(3)
    with pytest.raises(SettingsError, match=r"client 0 gives no Lipschitz.*set sigma"):
        play(FedGiA(), grid(), start, 2)
    strategy = FedGiA(sigma_scale=1.0, local_steps=3, tolerance=0.0)
    assert np.abs(play(strategy, grid(hessian=1.0), start, 60).model).max() < 1e-8
    # σ alone does not help those in C, who need an H_i
    with pytest.raises(RuntimeError, match="NoBound has no"):
        play(FedGiA(sigma=1.0, selected_fraction=1.0), grid(), start, 9)
