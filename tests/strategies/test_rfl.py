"""Riemannian FL, zeroth and first order, against a plain NumPy loop of algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from clients import FirstOrderRFLClient, ZerothOrderRFLClient
from fedtrellis.manifolds import (
    Euclidean,
    FixedRank,
    Manifold,
    Oblique,
    Sphere,
    Stiefel,
)
from fedtrellis.objectives import LeastSquares
from fedtrellis.objectives.matrices import PrincipalComponents
from fedtrellis.random import generator
from fedtrellis.zeroth_order import directions
from strategies import FirstOrderRFL, ZerothOrderRFL
from tests.harness import Array, Distance, grid_of, play
from tests.strategies.methods import Matrices

N, P, R, SEED = 4, 7, 3, 11


class Quadratic(Matrices):
    """Counts the values it was asked for, some of which are none."""

    bad, asked = 0.0, 0

    def values(
        self, points: Array, rng: Any = None, *, batch_size: Any = None
    ) -> Array:
        assert batch_size is None
        self.asked += len(points)
        result = np.array([self.value(x) for x in points])
        # what a simulator may do anywhere but at the point itself
        wrong = np.abs(np.sin(1e6 * result)) < self.bad
        wrong[result == self.value(points[0])] = False
        result[wrong] = np.nan
        return result


MANIFOLDS: list[Manifold] = [
    *(Sphere((P, R), 2.0), Oblique((P, R)), Stiefel((P, R))),
    *(FixedRank((P, R), 2), Euclidean((P, R))),
]


class Run:
    """A run of either method, and algorithm 1 on the answers that were used."""

    def __init__(
        self,
        manifold: Manifold,
        rounds: int,
        *,
        order: int = 0,
        bad: float = 0.0,
        grid: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.manifold, self.order = manifold, order
        self.losses = [Quadratic(i, manifold.shape) for i in range(N)]
        for loss in self.losses:
            loss.bad = bad
        options: dict[str, Any] = {"step_size": 0.01, "local_steps": 3, "seed": SEED}
        client: Any = FirstOrderRFLClient if order else ZerothOrderRFLClient
        make: Any = FirstOrderRFL if order else ZerothOrderRFL
        options |= {} if order else {"samples": 6, "smoothing": 1e-3}
        self.strategy = make(manifold, **(options | settings))
        self.start = manifold.random_point(np.random.default_rng(5))
        local = grid_of(client, self.losses, manifold, **(grid or {}))
        run = play(self.strategy, local, self.start, rounds)
        self.model, self.used, self.models = run.model, run.used, run.models
        self.told = [record.train for record in self.strategy.history]

    def estimate(self, i: int, z: Array, rng: np.random.Generator) -> Array:
        loss = self.losses[i]
        if self.order:
            return self.manifold.project_tangent(z, loss.gradient(z))
        mu, m = self.strategy.smoothing, self.strategy.samples
        u = directions(rng, m, z.shape)
        points = [z, *(self.manifold.project(z + mu * one) for one in u)]
        asked = loss.asked
        f = loss.values(np.array(points))
        loss.asked = asked
        good = np.flatnonzero(np.isfinite(f[1:]))
        slopes = (f[1 + good] - f[0]) / mu
        return np.asarray(z.size / len(good) * np.tensordot(slopes, u[good], 1))

    def check_loop(self) -> None:
        """METHODS §3, with explicit c_i; the x^k and the c_i of every client.

        And how many values were asked for.
        """
        s, project = self.strategy, self.manifold.project
        eta, tau = s.step_size, s.local_steps
        x, c = self.start, np.zeros((N, *self.start.shape))
        for t, used in enumerate(self.used, start=1):
            z0 = project(x)
            hats, means = [], {}
            for i in used:
                rng = generator(SEED, "directions", str(i), t)
                z, z_hat, G_sum = z0, z0.copy(), np.zeros_like(z0)
                for _ in range(tau):
                    G = self.estimate(i, z, rng)
                    G_sum += G
                    z_hat = z_hat - eta * (G + c[i])
                    z = project(z_hat)
                hats.append(z_hat)
                means[i] = G_sum / tau
            # n of the theory's √n is the number averaged
            eta_g = s.server_step_size or math.sqrt(len(used) or N)
            if used:
                x = z0 + eta_g * (np.mean(hats, axis=0) - z0)
            if s.correction:
                for i, mean in means.items():
                    c[i] = (z0 - x) / (eta_g * eta * tau) - mean
            near = 1e-9 * max(1.0, float(np.abs(x).max()))
            assert np.abs(x - self.models[t - 1]).max() < near
        for i in range(N):
            assert np.abs(s._corrections[str(i)] - c[i]).max() < 1e-6
        assert np.abs(project(x) - self.model).max() < near
        if not self.order:
            told = sum(train.get("evaluations", 0) for train in self.told)
            each = 1 + s.samples if s.shared_samples else 2 * s.samples
            assert told == sum(map(len, self.used)) * tau * each
            if s.shared_samples:
                assert told == sum(loss.asked for loss in self.losses)


@pytest.mark.parametrize("manifold", MANIFOLDS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("order", [0, 1])
def test_is_algorithm_1(order: int, manifold: Manifold) -> None:
    run = Run(manifold, 20, order=order, participation=0.5)
    assert any(len(used) < N for used in run.used)
    run.check_loop()
    assert manifold.contains(run.model, 1e-9)


@pytest.mark.parametrize(
    ("order", "settings"),
    [
        *((order, {"server_step_size": 1.0}) for order in (0, 1)),
        *((order, {"correction": False}) for order in (0, 1)),
        (0, {"upload": "dense", "bad": 0.3}),
        (0, {"upload": "scalars", "bad": 0.3}),
        (0, {"shared_samples": False, "samples": 7}),
    ],
)
def test_variants(order: int, settings: dict[str, Any]) -> None:
    """Scalars are as good as points, and are sent where they are fewer.

    Values that are not finite are left out and counted.
    """
    run = Run(Stiefel((P, R)), 12, order=order, **settings)
    run.check_loop()
    if not order:
        dense = settings.get("upload") == "dense" or "samples" in settings
        assert run.strategy.sends_scalars != dense
        dropped = [train.get("dropped-values", 0) for train in run.told]
        # 12 rounds of 4 clients with 3 steps of 6 samples, about a fifth of them bad
        assert (100 < sum(dropped) < 300) == ("bad" in settings)


def test_an_upload_of_scalars_is_small() -> None:
    """p·r = 20 000, m = 50, τ = 1: below 1 kB a node and round, envelope and all."""
    sizes, manifold = [], Sphere((20_000, 1))
    losses = [Distance(np.linspace(-1.0, 1.0, 20_000)[:, None])] * 2
    for upload in ("scalars", "dense"):
        how: Any = {
            "samples": 50,
            "local_steps": 1,
            "smoothing": 1e-2,
            "step_size": 0.1,
        }
        strategy = ZerothOrderRFL(manifold, upload=upload, **how)
        grid = grid_of(ZerothOrderRFLClient, losses, manifold, encode=True)
        play(strategy, grid, np.eye(20_000, 1), 2)
        sizes.append(strategy.history[-1].bytes_up / 2)
    assert sizes[0] < 1000
    assert sizes[1] > 160_000


@pytest.mark.parametrize("order", [0, 1])
def test_in_float32_the_mean_of_the_corrections_stays_zero(order: int) -> None:
    """But for one rounding of x over the step, and not for one a round."""
    upload: dict[str, Any] = {} if order else {"upload": "dense"}
    run = Run(Stiefel((P, R)), 120, order=order, dtype="float32", **upload)
    assert run.strategy.broadcast.model.dtype == np.float32
    corrections = [run.strategy._corrections[str(i)] for i in range(N)]
    bound = float(np.finfo(np.float32).eps) / run.strategy.total_step
    assert np.abs(np.mean(corrections, axis=0)).max() <= bound


@pytest.mark.parametrize("correction", [True, False])
def test_critical_points_are_the_fixed_points_of_the_corrected_method_only(
    correction: bool,
) -> None:
    """Principal components of clients with different covariances, by eigenvalues."""
    rng, manifold = np.random.default_rng(0), Stiefel((10, 2))
    spread = np.linspace(1, 2, 10)
    tables = [rng.standard_normal((30, 10)) * spread ** (1 + i) for i in range(N)]
    C = np.mean([A.T @ A / 30 for A in tables], axis=0)
    scale = float(np.linalg.eigvalsh(C)[-1])
    C /= scale
    losses = [PrincipalComponents(A, 2, weight=1.0 / scale) for A in tables]
    how: dict[str, Any] = {} if correction else {"server_step_size": 1.0}
    how |= {"step_size": 0.02, "local_steps": 5, "correction": correction}
    how["tolerance"] = 0.0
    start = manifold.random_point(np.random.default_rng(1))
    grid = grid_of(FirstOrderRFLClient, losses, manifold)
    x = play(FirstOrderRFL(manifold, **how), grid, start, 400).model
    gap = 0.5 * float(np.linalg.eigvalsh(C)[-2:].sum() - np.vdot(x, C @ x))
    norm = float(np.linalg.norm(manifold.project_tangent(x, -C @ x)))
    assert (norm < 1e-8, norm > 1e-4) == (correction, not correction)
    assert (abs(gap) < 1e-10, gap > 1e-8) == (correction, not correction)
    # iterates stay on the manifold
    assert np.abs(x.T @ x - np.eye(2)).max() < 1e-10


def test_the_stop_rule_is_the_projected_step() -> None:
    run = Run(Stiefel((P, R)), 400, order=1, tolerance=1e-3, step_size=0.02)
    assert len(run.models) < 400
    z = [run.start, *(run.manifold.project(x) for x in run.models)]
    steps = np.linalg.norm(np.diff(z, axis=0), axis=(1, 2)) / run.strategy.total_step
    assert steps[-1] <= 1e-3 * steps.max() < min(steps[:-1])
    assert [train["step-norm"] for train in run.told] == pytest.approx(
        list(steps), abs=1e-8
    )


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_a_rest_that_solves_nothing_is_not_converged(rule: Any) -> None:
    """Of a client that died after round 1 its part stays; a median has its own rest."""
    losses: list[Any] = [Distance(np.zeros(1)), Distance(np.zeros(1))]
    losses += [LeastSquares(np.array([[2.0]]), np.array([6.0]), scale="half-mean")]
    strategy: Any = FirstOrderRFL(Euclidean((1,)), local_steps=1, aggregation=rule)
    last = {"mean": 2, "median": 3}[rule]
    strategy.sample = lambda t: [*"012"[: 3 if t == 1 else last]]
    grid = grid_of(FirstOrderRFLClient, losses, strategy.manifold)
    x = play(strategy, grid, np.array([9.0]), 200).model
    assert strategy.history[-1].train["step-norm"] < 1e-9
    assert abs(x[0] - 2.0) > 0.5  # the minimum of all three
    assert strategy.ending == "round limit"


def test_by_default_steps_find_themselves_and_a_run_ends_where_it_is_solved() -> None:
    rng, manifold = np.random.default_rng(4), Stiefel((8, 2))
    tables = rng.standard_normal((3, 20, 8)) * np.linspace(1.0, 30.0, 8)  # any units
    losses = [PrincipalComponents(table, 2) for table in tables]
    C = np.mean([table.T @ table / 20 for table in tables], axis=0)
    strategy = FirstOrderRFL(manifold)
    grid = grid_of(FirstOrderRFLClient, losses, manifold)
    x = play(strategy, grid, manifold.random_point(rng), 1000).model
    r = max(np.linalg.norm(table.T @ table / 20, 2) for table in tables)
    assert strategy.total_step == pytest.approx(1.0 / r)
    assert strategy.ending == "converged"
    best = np.linalg.eigvalsh(C)[-2:].sum()
    assert np.vdot(x, C @ x) == pytest.approx(best, rel=1e-10)
    # along a sphere a gradient far longer than r curves f more than r does
    far = 100.0 * np.array([0.6, 0.8, 0.0])
    grid = grid_of(FirstOrderRFLClient, [Distance(far)] * 2, Sphere((3,)))
    strategy = FirstOrderRFL(Sphere((3,)))
    x = play(strategy, grid, np.ones(3), 300).model
    assert strategy.ending == "converged"
    assert x == pytest.approx(far / 100.0, abs=1e-6)
    # biased or random steps come to rest nowhere
    assert FirstOrderRFL(manifold, correction=False).tolerance == 0.0
    assert FirstOrderRFL(manifold, batch_size=5).tolerance == 0.0
