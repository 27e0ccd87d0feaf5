"""FedGiA against plain NumPy loops of algorithm 1, and against its theorems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import ElasticNet

from clients import FedGiAClient
from fedtrellis import Callback, LocalGrid, RoundRecord
from fedtrellis.objectives import LeastSquares, Logistic, Objective
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import decode
from strategies import FedGiA
from tests.harness import Array, Stop, contexts, grid_of, memory_of, play
from tests.strategies.methods import EVERYTHING

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


# ------------------------------------------------------ σ of its own: it never diverges


def least_squares(
    m: int = 10, rows: int = 50, n: int = 20, *, scaled: float = 1.0, seed: int = 0
) -> list[Any]:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, rows, n)) * np.geomspace(1.0, scaled, n)
    b = A @ (rng.standard_normal(n) / np.geomspace(1.0, scaled, n))
    b += 0.5 * rng.standard_normal((m, rows))
    return [LeastSquares(*pair, scale="half-mean") for pair in zip(A, b, strict=True)]


def logistic(m: int = 8, n: int = 6, seed: int = 0) -> list[Any]:
    """One class a client, one client with one row, a column of zeros."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(m):
        A = rng.standard_normal((1 if i == 3 else 30, n)) * np.geomspace(1, 100, n)
        A[:, 2] = 0.0
        found.append(Logistic(A, np.full(len(A), i % 2), l2=0.01))
    return found


def mean(losses: list[Any], x: Array) -> tuple[float, Array]:
    pairs = [(f, x.reshape(f.shape)) for f in losses]
    value = float(np.mean([f.value(point) for f, point in pairs]))
    return value, np.mean([f.gradient(point) for f, point in pairs], axis=0).ravel()


def minimum(losses: list[Any]) -> float:
    diagonals = [np.asarray(f.hessian_bound()).diagonal() for f in losses]
    D = np.mean(diagonals, axis=0)
    root = np.sqrt(np.where(D > 0, D, 1.0))

    def scaled(u: Array) -> tuple[float, Array]:
        value, gradient = mean(losses, u / root)
        return value, gradient / root

    found = minimize(scaled, np.zeros(len(root)), jac=True, options={"gtol": 1e-11})
    return float(found.fun)


def error(losses: list[Any], x: Array, lowest: float) -> float:
    start = mean(losses, np.zeros_like(x))[0]
    return (mean(losses, x)[0] - lowest) / (start - lowest)


def run(losses: list[Any], rounds: int, **options: Any) -> tuple[FedGiA, Array]:
    grid = grid_of(
        options.pop("client", FedGiAClient), losses, **options.pop("grid", {})
    )
    start = options.pop("start", np.zeros(losses[0].shape))
    strategy = FedGiA(**({"tolerance": 0.0} | options))
    play(strategy, grid, start, rounds)
    return strategy, strategy.broadcast.model


@pytest.mark.parametrize("hessian", ["diagonal", "gram"])
@pytest.mark.parametrize(
    ("losses", "rounds"),
    # the two that a fixed default broke on: t = 0.15 diverges, and none arrives
    [(least_squares(rows=500), 8), (least_squares(scaled=1e3), 10), (logistic(), 30)],
    ids=["many rows", "scaled columns", "one class a client"],
)
def test_defaults_arrive(losses: list[Any], rounds: int, hessian: str) -> None:
    strategy, x = run(losses, rounds, hessian=hessian)
    assert error(losses, x, minimum(losses)) < 1e-6
    assert strategy.settled_sigma == pytest.approx(1.0 / len(losses))


@pytest.mark.parametrize("guess", [1e-4, 1.0, 1e4])
def test_a_curvature_that_is_wrong(guess: float) -> None:
    """What the clients say of their own H is only where σ starts."""
    losses = least_squares()
    r = max(f.lipschitz() for f in losses)
    client = partial(FedGiAClient, hessian=guess * r)
    strategy, x = run(losses, 40, client=client)
    assert error(losses, x, minimum(losses)) < 1e-6
    assert (strategy.settled_sigma > 1.01 / len(losses)) == (guess < 1.0)


def test_stop_rule_is_that_of_the_gradient() -> None:
    """At the point that is returned, ‖∇f(x)‖² ≤ n · tolerance, as in (30)."""
    for losses in (least_squares(m=6, rows=15), logistic()):
        for hessian in ("diagonal", "gram"):
            strategy, x = run(losses, 200, tolerance=1e-10, hessian=hessian)
            assert strategy.history[-1].round < 200
            gradient = mean(losses, x)[1]
            assert gradient @ gradient <= x.size * 1e-10
            said = strategy.history[-1].train["stop-residual"]
            assert said == pytest.approx(float(gradient @ gradient), rel=1e-4)


def test_everything_goes_wrong_and_it_arrives() -> None:
    losses, grid = logistic(), {**EVERYTHING, "encode": True}
    for hessian in ("gram", "diagonal"):
        _, x = run(losses, 120, hessian=hessian, grid=grid)
        assert error(losses, x, minimum(losses)) < 1e-6


def test_a_resumed_run_keeps_how_its_sigma_was_found(tmp_path: Path) -> None:
    losses = least_squares(m=4)
    grid = grid_of(FedGiAClient, losses)
    for sigma, other in ((0.5, None), (None, 1.0)):
        file = tmp_path / f"{sigma}.npz"
        options: dict[str, Any] = {"tolerance": 0.0, "checkpoint": file}
        first = FedGiA(sigma=sigma, callbacks=[Stop(4)], **options)
        play(first, grid, np.zeros(20), 9)
        again = FedGiA(resume=file, **options)
        play(again, grid, np.zeros(20), 9)
        _, whole = run(losses, 9, sigma=sigma)
        np.testing.assert_array_equal(again.broadcast.model, whole)
        assert sigma in (None, again.settled_sigma)
        if other:
            with pytest.raises(SettingsError, match="the run to go on with adapts it"):
                play(FedGiA(resume=file, sigma=other), grid, np.zeros(20), 9)


def test_one_liar_does_not_choose_sigma() -> None:
    class Liar(FedGiAClient):
        def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
            told = super().get_properties(config)
            if self.client_id == "2":
                told["majoriser"] = np.full(20, 1e12).tobytes()
            return told

    losses = least_squares(m=5, rows=100)
    _, x = run(losses, 60, client=Liar, aggregation="median")
    assert error(losses, x, minimum(losses)) < 0.1
    for told in (b"123", np.full(20, np.nan).tobytes(), np.ones(3).tobytes()):

        class Confused(FedGiAClient):
            def get_properties(
                self, config: dict[str, Any], told: bytes = told
            ) -> dict[str, Any]:
                return {**super().get_properties(config), "majoriser": told}

        with pytest.raises(SettingsError, match="gives no diagonal of 20 numbers"):
            run(losses, 3, client=Confused)


# ------------------------------------------------------------- what the server adds


@pytest.mark.parametrize(("l1", "l2", "scaled"), [(0.2, 0.0, 100.0), (0.1, 0.3, 1.0)])
def test_lasso_and_elastic_net_are_scikit_learns(
    l1: float, l2: float, scaled: float
) -> None:
    losses = least_squares(m=6, scaled=scaled)
    A = np.concatenate([f.hessian_factor()[0] for f in losses])
    b = np.concatenate([f._labels for f in losses])
    # 1/(2d) ‖Ax − b‖² + α r ‖x‖₁ + α (1 − r)/2 ‖x‖²
    found = ElasticNet(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), fit_intercept=False)
    expected = found.set_params(tol=1e-14, max_iter=10**6).fit(A, b).coef_
    for grid in ({}, {"reply_loss": 0.2, "seed": 1}):
        _, x = run(
            losses, 200 if grid else 60, l1=l1, l2=l2, grid=grid, tolerance=1e-18
        )
        lengths = np.linalg.norm(A, axis=0) / np.sqrt(len(A))
        assert np.abs((x - expected) * lengths).max() < 1e-6
        np.testing.assert_array_equal(x == 0.0, expected == 0.0)
    if scaled == 1.0:  # a fixed σ arrives there too
        _, x = run(losses, 400, l1=l1, l2=l2, sigma_scale=0.5)
        assert np.abs(x - expected).max() < 1e-6


@pytest.mark.parametrize("loss", ["least squares", "logistic"])
def test_bounds(loss: str) -> None:
    losses = least_squares(m=5) if loss == "least squares" else logistic()
    lower, upper = (-0.05, 0.2) if loss == "least squares" else (0.0, 0.01)
    strategy, x = run(
        losses,
        100,
        lower=lower,
        upper=upper,
        tolerance=1e-16,
        start=np.full(losses[0].shape, 3.0),
    )
    assert strategy.history[-1].round < 100
    bounds: Any = [(lower, upper)] * x.size
    found = minimize(
        partial(mean, losses),
        np.zeros(x.size),
        jac=True,
        bounds=bounds,
        options={"ftol": 0.0, "gtol": 1e-11, "maxiter": 10**4, "maxfun": 10**5},
    )
    assert (x >= lower).all()
    assert (x <= upper).all()
    assert (np.abs(x - lower) == 0.0).any()
    assert mean(losses, x)[0] <= found.fun + 1e-9
    with pytest.raises(
        SettingsError, match=r"lower = 1\.0 must be less than upper = 1"
    ):
        FedGiA(lower=1.0, upper=1.0)


def test_how_good_the_end_is() -> None:
    """‖∇F‖ and the bound on F − F* are those of the model that is returned."""
    losses = logistic()
    lowest = minimum(losses)
    for tolerance in (1e-4, 1e-8):
        strategy, x = run(losses, 200, tolerance=tolerance)
        last = strategy.history[-1].train
        value, gradient = mean(losses, x)
        assert last["gradient-norm"] == pytest.approx(
            float(np.linalg.norm(gradient)), rel=1e-6
        )
        bound = last["suboptimality"]
        assert bound == pytest.approx(float(gradient @ gradient) / (2 * 0.01), rel=1e-6)
        assert -1e-12 <= value - lowest <= bound
    # with an elastic net the modulus is ρ, and the bound that of f + h
    losses = least_squares(m=4)
    strategy, x = run(losses, 60, tolerance=1e-3, l1=0.2, l2=0.3)
    _, end = run(losses, 60, tolerance=1e-20, l1=0.2, l2=0.3)

    def whole(z: Array) -> float:
        return mean(losses, z)[0] + 0.2 * float(np.abs(z).sum()) + 0.15 * float(z @ z)

    last = strategy.history[-1].train
    assert 0.0 < whole(x) - whole(end) <= last["suboptimality"]
    assert last["penalty"] == pytest.approx(whole(x) - mean(losses, x)[0])
    # nobody knows of a modulus
    strategy, _ = run(least_squares(m=4), 60, tolerance=1e-9)
    assert "suboptimality" not in strategy.history[-1].train


# ------------------------------------------------------------------ where a run ends


def test_a_run_that_diverged_is_not_completed() -> None:
    """The paper's t = 0.15 with 500 rows a client."""
    losses = least_squares(rows=500)
    ended: list[str] = []

    class Ends(Callback):
        def on_failure(self, strategy: Any, error: BaseException) -> None:
            ended.append(str(error))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        (x,) = arrays.to_numpy_ndarrays()
        return MetricRecord({"loss": mean(losses, x)[0]})

    for fn in (evaluate, None):
        grid = grid_of(FedGiAClient, losses)
        strategy = FedGiA(sigma_scale=0.15, tolerance=0.0, callbacks=[Ends()])
        start = ArrayRecord([np.zeros(20)])
        with pytest.raises(RuntimeError, match="the run diverged"):
            strategy.start(grid, start, num_rounds=40, evaluate_fn=fn)
    assert [text.split(" ended")[0] for text in ended] == [
        "the run diverged: its loss",
        "the run diverged: its stop-residual",
    ]
