"""FedGiA against a plain NumPy loop of algorithm 1, its theorems and solvers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import ElasticNet

from clients import FedGiAClient
from fedtrellis.objectives import LeastSquares, Logistic
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.settings import SettingsError
from strategies import FedGiA
from tests.harness import (
    Array,
    Distance,
    Recorder,
    app_of,
    distance,
    grid_of,
    node_states,
    play,
)
from tests.strategies.methods import EVERYTHING

M, N = 6, 8


def problem(kind: str, rows: Sequence[int] = (14,) * M) -> list[Any]:
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((d, N)) for d in rows]
    if kind == "least-squares":
        b = [rng.standard_normal(d) for d in rows]
        pairs = zip(A, b, strict=True)
        return [LeastSquares(*pair, scale="half-mean") for pair in pairs]
    loss = Logistic if kind == "logistic" else NonconvexLogistic
    b = [(rng.random(d) < 0.5).astype(float) for d in rows]
    return [loss(*pair, l2=0.05) for pair in zip(A, b, strict=True)]


def bounds_of(losses: Sequence[Any], hessian: str) -> list[Array]:
    """H_i, or its largest eigenvalue for every entry."""
    found = [np.asarray(loss.hessian_bound()) for loss in losses]
    if hessian == "gram":
        return found
    return [float(np.linalg.eigvalsh(H)[-1]) * np.eye(len(H)) for H in found]


def check_algorithm_1(
    losses: Sequence[Any],
    bounds: Sequence[Array],
    rounds: int,
    *,
    client: Any = FedGiAClient,
    wiped: int = 0,
    **settings: Any,
) -> FedGiA:
    """METHODS and the paper's algorithm 1, with an explicit inverse; x, Z, Π."""
    grid, x = Recorder(app_of(client, losses), M), np.linspace(-0.2, 0.3, N)
    grid.wiped = {(wiped, 2)}
    how: Any = {"seed": 5, "tolerance": 0.0, "sigma_scale": 1.0, **settings}
    run = play(FedGiA(**how), grid, x, rounds)
    strategy = run.strategy
    sigma, k0 = strategy.settled_sigma, strategy.local_steps
    inverse = [np.linalg.inv(H / M + sigma * np.eye(N)) for H in bounds]
    Z, pi = np.tile(x, (M, 1)), np.zeros((M, N))
    for t, found in enumerate(run.models, start=1):
        # who lost its state takes a gradient step, though it is in C
        C = strategy.selected(t) - ({"2"} if t == wiped else set())
        for i, loss in enumerate(losses):
            g = loss.gradient(x) / M
            if str(i) in C:
                for _ in range(k0):
                    x_i = x - inverse[i] @ (g + pi[i])
                    pi[i] = pi[i] + sigma * (x_i - x)
                    Z[i] = x_i + pi[i] / sigma
            else:
                pi[i] = -g
                Z[i] = x - g / sigma
        x = Z.mean(axis=0)
        near = 1e-10 * max(1.0, float(np.abs(Z).max()))
        assert distance(found, x) < near
    states = node_states(strategy, grid)
    assert distance(strategy._z, Z) < near
    assert distance([states[str(i)]["pi"] for i in range(M)], pi) < near
    return strategy


@pytest.mark.parametrize(
    ("s", "k0", "wiped"), [(1.0, 1, 0), (0.5, 5, 0), (0.1, 10, 0), (1.0, 5, 4)]
)
@pytest.mark.parametrize("hessian", ["gram", "diagonal"])
@pytest.mark.parametrize("kind", ["least-squares", "logistic", "nonconvex"])
def test_is_algorithm_1(kind: str, hessian: str, s: float, k0: int, wiped: int) -> None:
    """Also where a client's π_i is lost, and the round after that is as any other."""
    losses = problem(kind, [3, 5, 4, 9, 6, 30])
    how: dict[str, Any] = {"local_steps": k0, "selected_fraction": s, "wiped": wiped}
    how["hessian"] = hessian
    # the smaller t of the experiments lets some of these problems grow without bound
    strategy = check_algorithm_1(losses, bounds_of(losses, hessian), 25, **how)
    r = max(H[0, 0] for H in bounds_of(losses, "diagonal"))
    assert strategy.settled_sigma == pytest.approx(r / M, rel=1e-10)
    sizes = {len(strategy.selected(t)) for t in range(1, 26)}
    assert sizes == {math.ceil(s * M - 1e-9)}


def test_a_hessian_of_ones_own() -> None:
    """A number, a diagonal, an object with a solve; each client's r_i from it."""
    losses = problem("least-squares", [20] * M)
    H = bounds_of(losses, "gram")[0] + np.diag(np.arange(1.0, N + 1))

    class Solver:
        lipschitz = float(np.linalg.eigvalsh(H)[-1])

        def solve(self, v: Array, shift: float) -> Array:
            return np.asarray(np.linalg.solve(H + shift * np.eye(N), v))

    diagonal = np.arange(4.0, 4.0 + N)
    for given, dense, r in (
        (7.5, 7.5 * np.eye(N), 7.5),
        (diagonal, np.diag(diagonal), 3.0 + N),
        (Solver(), H, Solver.lipschitz),
    ):
        own: Any = {"client": partial(FedGiAClient, hessian=given), "local_steps": 6}
        strategy = check_algorithm_1(losses, [dense] * M, 10, **own)
        assert strategy.settled_sigma == pytest.approx(r / M)


def test_slow_clients_are_never_selected() -> None:
    losses = problem("least-squares")
    configs = [{"slow": i in (1, 4)} for i in range(M)]
    strategy = FedGiA(sigma_scale=1.0, selected_fraction=0.5)
    play(strategy, grid_of(FedGiAClient, losses, node_configs=configs), np.zeros(N), 3)
    sets = [strategy.selected(t) for t in range(1, 400)]
    assert {len(C) for C in sets} == {3}
    counts = [sum(name in C for C in sets) for name in strategy.clients]
    assert counts[1] == counts[4] == 0
    assert all(count > 230 for i, count in enumerate(counts) if i not in (1, 4))


def test_a_loss_without_a_bound() -> None:
    losses: list[Any] = [Distance(np.zeros(3))] * 2
    with pytest.raises(SettingsError, match=r"client 0 gives no Lipschitz.*set sigma"):
        run(losses, 2, start=np.ones(3))
    # σ alone does not help those in C, who need an H_i
    with pytest.raises(RuntimeError, match="Distance has no"):
        run(losses, 9, start=np.ones(3), sigma=1.0, selected_fraction=1.0)


def least_squares(
    m: int = 10, rows: int = 50, n: int = 20, *, scaled: float = 1.0
) -> list[Any]:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((m, rows, n)) * np.geomspace(1.0, scaled, n)
    b = A @ (rng.standard_normal(n) / np.geomspace(1.0, scaled, n))
    b += 0.5 * rng.standard_normal((m, rows))
    return [LeastSquares(*pair, scale="half-mean") for pair in zip(A, b, strict=True)]


def logistic(m: int = 8, n: int = 6) -> list[Any]:
    """One class a client, one client with one row, a column of zeros."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(m):
        A = rng.standard_normal((1 if i == 3 else 30, n)) * np.geomspace(1, 100, n)
        A[:, 2] = 0.0
        found.append(Logistic(A, np.full(len(A), i % 2), l2=0.01))
    return found


def mean(losses: list[Any], x: Array) -> tuple[float, Array]:
    value = float(np.mean([f.value(x) for f in losses]))
    return value, np.mean([f.gradient(x) for f in losses], axis=0)


def error(losses: list[Any], x: Array) -> float:
    """F(x) − F* of F(0) − F*."""
    D = np.mean([np.asarray(f.hessian_bound()).diagonal() for f in losses], axis=0)
    root = np.sqrt(np.where(D > 0, D, 1.0))

    def scaled(u: Array) -> tuple[float, Array]:
        value, gradient = mean(losses, u / root)
        return value, gradient / root

    found = minimize(scaled, np.zeros(len(root)), jac=True, options={"gtol": 1e-11})
    start = mean(losses, np.zeros_like(x))[0]
    return float((mean(losses, x)[0] - found.fun) / (start - found.fun))


def run(
    losses: list[Any],
    rounds: int,
    client: Any = FedGiAClient,
    grid: Any = (),
    start: Array | None = None,
    **options: Any,
) -> tuple[FedGiA, Array]:
    strategy = FedGiA(**({"tolerance": 0.0} | options))
    start = np.zeros(losses[0].shape) if start is None else start
    play(strategy, grid_of(client, losses, **dict(grid)), start, rounds)
    return strategy, strategy.broadcast.model


@pytest.mark.parametrize("hessian", ["diagonal", "gram"])
@pytest.mark.parametrize(
    ("losses", "rounds", "grid"),
    [
        # the two that a fixed default broke on: t = 0.15 diverges, and none arrives
        (least_squares(rows=500), 8, {}),
        (least_squares(scaled=1e3), 10, {}),
        (logistic(), 30, {}),
        (logistic(), 120, {**EVERYTHING, "encode": True}),
    ],
    ids=["many rows", "scaled columns", "one class a client", "all faults"],
)
def test_defaults_arrive(losses: Any, rounds: int, grid: Any, hessian: str) -> None:
    strategy, x = run(losses, rounds, hessian=hessian, grid=grid)
    assert error(losses, x) < 1e-6
    assert strategy.settled_sigma == pytest.approx(1.0 / len(losses))


@pytest.mark.parametrize("hessian", ["diagonal", "gram"])
@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_stop_rule_is_that_of_the_gradient(hessian: str, lost: float) -> None:
    """At the point that is returned, ‖∇f(x)‖² ≤ n · tolerance, as in (30).

    A change that nobody heard of is not a change of zero.
    """
    for losses in (least_squares(m=6, rows=15), logistic()):
        how: Any = {"hessian": hessian, "grid": {"reply_loss": lost}}
        strategy, x = run(losses, 400, tolerance=1e-10, **how)
        last, gradient = strategy.history[-1], mean(losses, x)[1]
        square = float(gradient @ gradient)
        assert last.round < 400
        assert square <= x.size * 1e-10
        assert lost or last.train["stop-residual"] == pytest.approx(square, rel=1e-4)


def test_one_liar_does_not_choose_sigma() -> None:
    def liar(told: bytes, name: str) -> Any:
        class Liar(FedGiAClient):
            def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
                found = super().get_properties(config)
                return found | ({"majoriser": told} if self.client_id == name else {})

        return Liar

    losses = least_squares(m=5, rows=100)
    huge = liar(np.full(20, 1e12).tobytes(), "2")
    _, x = run(losses, 60, huge, aggregation="median")
    assert error(losses, x) < 0.1
    # there the z_i of a fixed σ come to rest where ∇F is not small
    ended, _ = run(losses, 400, aggregation="median", sigma_scale=1.0, tolerance=1e-9)
    assert (ended.residual() < 2e-8, ended.ending) == (True, "round limit")
    for told in (b"123", np.full(20, np.nan).tobytes(), np.ones(3).tobytes()):
        with pytest.raises(SettingsError, match="gives no diagonal of 20 numbers"):
            run(losses, 3, liar(told, "0"))


@pytest.mark.parametrize(("l1", "l2", "scaled"), [(0.2, 0.0, 100.0), (0.1, 0.3, 1.0)])
def test_lasso_and_net_are_scikit_learns(l1: float, l2: float, scaled: float) -> None:
    losses = least_squares(m=6, scaled=scaled)
    A = np.concatenate([f.hessian_factor()[0] for f in losses])
    b = np.concatenate([f._labels for f in losses])
    # 1/(2d) ‖Ax − b‖² + α r ‖x‖₁ + α (1 − r)/2 ‖x‖²
    found = ElasticNet(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), fit_intercept=False)
    expected = found.set_params(tol=1e-14, max_iter=10**6).fit(A, b).coef_
    lengths = np.linalg.norm(A, axis=0) / np.sqrt(len(A))
    for grid, rounds in (({}, 60), ({"reply_loss": 0.2, "seed": 1}, 200)):
        _, x = run(losses, rounds, l1=l1, l2=l2, grid=grid, tolerance=1e-18)
        assert np.abs((x - expected) * lengths).max() < 1e-6
        np.testing.assert_array_equal(x == 0.0, expected == 0.0)


@pytest.mark.parametrize(
    ("losses", "lower", "upper"),
    [(least_squares(m=5), -0.05, 0.2), (logistic(), 0.0, 0.01)],
    ids=["least squares", "logistic"],
)
def test_bounds(losses: list[Any], lower: float, upper: float) -> None:
    start = np.full(losses[0].shape, 3.0)
    box: Any = {"lower": lower, "upper": upper, "start": start}
    strategy, x = run(losses, 100, tolerance=1e-16, **box)
    assert strategy.history[-1].round < 100
    bounds: Any = [(lower, upper)] * x.size
    options: Any = {"ftol": 0.0, "gtol": 1e-11, "maxiter": 10**4, "maxfun": 10**5}
    fun, zero = partial(mean, losses), np.zeros(x.size)
    found = minimize(fun, zero, jac=True, bounds=bounds, options=options)
    assert lower <= x.min() <= x.max() <= upper
    assert (np.abs(x - lower) == 0.0).any()
    assert mean(losses, x)[0] <= found.fun + 1e-9
    # float32 rounds 0.01 inwards
    how: Any = {"dtype": "float32", "tolerance": 1e-9, **box}
    assert run(losses, 300, **how)[0].ending == "converged"


def test_how_good_the_end_is() -> None:
    """‖∇F‖ and the bound on F − F* are those of the model that is returned."""
    losses = logistic()
    strategy, x = run(losses, 200, tolerance=1e-4)
    last, (value, gradient) = strategy.history[-1].train, mean(losses, x)
    square = float(gradient @ gradient)
    assert last["gradient-norm"] == pytest.approx(math.sqrt(square), rel=1e-6)
    assert last["suboptimality"] == pytest.approx(square / (2 * 0.01), rel=1e-6)
    away = error(losses, x) * (mean(losses, np.zeros_like(x))[0] - value)
    assert -1e-12 <= away <= last["suboptimality"]
    # with an elastic net the modulus is ρ, and the bound that of f + h
    losses, whole = least_squares(m=4), []
    for tolerance in (1e-20, 1e-3):
        strategy, x = run(losses, 60, tolerance=tolerance, l1=0.2, l2=0.3)
        penalty = 0.2 * float(np.abs(x).sum()) + 0.15 * float(x @ x)
        whole.append(mean(losses, x)[0] + penalty)
    last = strategy.history[-1].train
    assert 0.0 < whole[1] - whole[0] <= last["suboptimality"]
    assert last["penalty"] == pytest.approx(penalty)
    # nobody knows of a modulus
    strategy, _ = run(losses, 60, tolerance=1e-9)
    assert "suboptimality" not in strategy.history[-1].train


@pytest.mark.parametrize("seed", range(6))
def test_a_first_step_to_the_minimum_is_the_last(seed: int) -> None:
    losses = [Distance(c) for c in np.random.default_rng(seed).standard_normal((3, 5))]
    grid, strategy = grid_of(partial(FedGiAClient, hessian=1.0), losses), FedGiA()
    assert play(strategy, grid, np.zeros(5), 20).strategy.ending == "converged"


def test_a_run_that_diverged_is_not_completed() -> None:
    """The paper's t = 0.15 with 500 rows a client."""
    with pytest.raises(RuntimeError, match="the run diverged: its stop-residual"):
        run(least_squares(rows=500), 40, sigma_scale=0.15)


def test_where_nobody_has_a_number_to_answer_with_x_goes_back() -> None:
    class Overflowing(FedGiAClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            arrays, *rest = super().fit(parameters, config)
            if config["server-round"] == 4:
                arrays = [np.full_like(array, np.inf) for array in arrays]
            return arrays, *rest

    losses = logistic()
    played = play(FedGiA(), grid_of(Overflowing, losses), np.zeros(6), 200)
    assert played.used[3] == []
    assert not np.array_equal(played.models[3], played.models[2])
    assert played.strategy.ending == "converged"
    assert error(losses, played.model) < 1e-6
