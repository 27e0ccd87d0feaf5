"""The zeroth-order estimators against known gradients, closed forms and replays."""

from collections.abc import Callable
from copy import deepcopy
from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedtrellis.manifolds import (
    Euclidean,
    FixedRank,
    Manifold,
    Oblique,
    Sphere,
    Stiefel,
)
from fedtrellis.objectives import LeastSquares
from fedtrellis.wire.arrays import Layout
from fedtrellis.zeroth_order import (
    Estimate,
    combine,
    directions,
    evaluator,
    projection_estimate,
    step_curvature,
)
from tests.harness import Array

Function = Callable[[Array], Array]

_drawn = np.random.default_rng([1, 5]).standard_normal((5, 5))
H, TARGET = _drawn + _drawn.T, np.random.default_rng(2).standard_normal((5, 4))


def trace(points: Array) -> Array:
    """½ Tr(xᵀ H x) of each point."""
    x = points.reshape(len(points), 5, -1)
    return np.asarray(0.5 * np.einsum("mij,ik,mkj->m", x, H, x))


def away(points: Array) -> Array:
    """½‖x − TARGET‖² of each point."""
    return np.asarray(0.5 * np.square(points - TARGET).sum(axis=(1, 2)))


def on_sphere(x: Array) -> Array:
    """Hx − x (xᵀHx)/ρ², in each column."""
    return np.asarray(H @ x - x * np.sum(x * (H @ x), axis=0) / np.sum(x * x, axis=0))


def on_stiefel(x: Array) -> Array:
    """(I − xxᵀ) Hx + x skew(xᵀHx), and xᵀHx is symmetric."""
    return np.asarray((np.eye(len(x)) - x @ x.T) @ H @ x)


def on_fixed_rank(x: Array) -> Array:
    """G − (I − UUᵀ) G (I − VVᵀ)."""
    u, _, vt = np.linalg.svd(x)
    left, right = u[:, :2] @ u[:, :2].T, vt[:2].T @ vt[:2]
    g = x - TARGET
    return np.asarray(g - (np.eye(5) - left) @ g @ (np.eye(4) - right))


CASES: dict[str, tuple[Manifold, Function, Callable[[Array], Array]]] = {
    "sphere": (Sphere((5,), 2.0), trace, on_sphere),
    "stiefel": (Stiefel((5, 2)), trace, on_stiefel),
    "oblique": (Oblique((5, 3)), trace, on_sphere),
    "fixed-rank": (FixedRank((5, 4), 2), away, on_fixed_rank),
}


def a_point(manifold: Manifold) -> Array:
    return manifold.random_point(np.random.default_rng(3))


@pytest.mark.parametrize("case", CASES)
def test_the_mean_over_many_draws_is_the_riemannian_gradient(case: str) -> None:
    manifold, function, gradient = CASES[case]
    x, how = a_point(manifold), dict[str, Any](samples=1000, smoothing=1e-4)
    rngs = [np.random.default_rng([5, group]) for group in range(40)]
    estimates = [projection_estimate(function, manifold, x, r, **how) for r in rngs]
    groups = np.array([estimate.gradient for estimate in estimates])
    deviation = groups.std(axis=0, ddof=1) / sqrt(len(groups))
    # the bias is below 1e-6; 4.5 standard errors, in each of ≤ 20 entries
    error = np.abs(groups.mean(axis=0) - gradient(x))
    assert np.all(error <= 4.5 * deviation + 1e-6)
    # the bounds say something: the gradient is far above them
    assert np.linalg.norm(gradient(x)) > 20 * np.linalg.norm(deviation)


def spiky(points: Array) -> Array:
    values = np.square(points).sum(axis=(1, 2)) + points[:, 0, 0]
    values[points[:, 0, 0] > 0.05] = np.nan
    values[points[:, 1, 1] > 0.08] = np.inf
    return np.asarray(values)


@pytest.mark.parametrize("block", [1, 30, 12 * 50])
@pytest.mark.parametrize("function", [spiky, lambda p: np.sin(p).sum(axis=(1, 2))])
def test_combine_rebuilds_the_gradient_whatever_the_blocks(
    monkeypatch: pytest.MonkeyPatch, block: int, function: Function
) -> None:
    def run() -> tuple[Estimate, float]:
        rng, flat = np.random.default_rng(15), Euclidean((3, 4))
        how: Any = {"samples": 50, "smoothing": 0.3}
        return projection_estimate(function, flat, np.zeros((3, 4)), rng, **how), (
            rng.random()
        )

    whole, after_whole = run()
    monkeypatch.setattr("fedtrellis.zeroth_order._BLOCK_ENTRIES", block)
    estimate, after = run()
    assert (whole.dropped > 0) == (function is spiky)
    rebuilt = combine(estimate.scalars, np.random.default_rng(15), (3, 4))
    np.testing.assert_array_equal(estimate.gradient, rebuilt)
    near = 1e-14 * float(np.linalg.norm(whole.gradient))
    assert np.abs(estimate.gradient - whole.gradient).max() <= near
    np.testing.assert_array_equal(estimate.scalars, whole.scalars)
    # what else is drawn from the generator does not depend on the blocks either
    assert after == after_whole


def test_a_sample_without_a_finite_value_is_dropped_and_counted() -> None:
    manifold, function, _ = CASES["oblique"]

    def broken(points: Array) -> Array:
        values = function(points)
        values[[2, 5]] = np.nan, -np.inf
        return values

    x, start = a_point(manifold), np.random.default_rng(17)
    whole, estimate = (
        projection_estimate(f, manifold, x, deepcopy(start), samples=8, smoothing=1e-3)
        for f in (function, broken)
    )
    assert (whole.dropped, estimate.dropped) == (0, 2)
    # the mean over the six that are left
    left = np.delete(np.arange(8), [1, 4])
    u = directions(start, 8, x.shape)
    expected = x.size * np.tensordot(whole.scalars[left], u[left], 1) / 6
    np.testing.assert_allclose(estimate.gradient, expected, rtol=1e-12, atol=1e-12)
    assert np.all(estimate.scalars[[1, 4]] == 0.0)
    np.testing.assert_allclose(estimate.scalars[left], whole.scalars[left] * 8 / 6)


# -- objectives


class Spy(LeastSquares):
    """Remembers the calls, and the state of the generator before each."""

    def __init__(self) -> None:
        rng = np.random.default_rng(18)
        self.data = rng.standard_normal((30, 4)), rng.standard_normal(30)
        super().__init__(*self.data)
        self.calls: list[tuple[int, Any]] = []

    def values(self, points: Array, rng: Any = None, **batch: Any) -> Array:
        self.calls.append((len(points), deepcopy(rng)))
        return super().values(points, rng, **batch)


def test_one_batch_is_shared_by_all_points_of_a_call() -> None:
    spy, rng = Spy(), np.random.default_rng(19)
    values = evaluator(spy, Layout(((4,),)), batch_size=5, rng=rng)
    manifold, x = Sphere((4,)), np.array([0.5, 0.5, -0.5, 0.5])
    options: dict[str, Any] = {"samples": 12, "smoothing": 1e-3}
    first, second = (
        projection_estimate(values, manifold, x, np.random.default_rng(20), **options)
        for _ in range(2)
    )
    # another batch in the second call: the same directions, another estimate
    assert np.abs(first.gradient - second.gradient).max() > 0.1
    # every value of the first call is that of the loss on the one batch drawn
    (count, before), _ = spy.calls
    assert count == 13
    chosen = before.choice(30, size=5, replace=False, shuffle=False)
    problem = LeastSquares(*(part[chosen] for part in spy.data), weight=30 / 5)
    u = directions(np.random.default_rng(20), 12, (4,))
    points = (x + 1e-3 * u) / np.linalg.norm(x + 1e-3 * u, axis=1, keepdims=True)
    s = [(problem.value(y) - problem.value(x)) / 1e-3 for y in points]
    np.testing.assert_allclose(first.scalars, s, rtol=1e-9, atol=1e-8)


class OnlyValue:
    def value(self, x: Any) -> float:
        if isinstance(x, list):
            assert [layer.shape for layer in x] == [(2, 3), (2,)]
            return float(np.sum(x[0]) * np.sum(x[1]))
        return float(np.square(x).sum())


def test_an_objective_with_only_a_value() -> None:
    points = np.random.default_rng(22).standard_normal((4, 8))
    matrices, rest = points[:, :6].reshape(4, 2, 3), points[:, 6:]
    found = evaluator(OnlyValue(), Layout(((2, 3), (2,))))(points)
    expected = matrices.sum(axis=(1, 2)) * rest.sum(axis=1)
    np.testing.assert_allclose(found, expected)
    single = evaluator(OnlyValue(), Layout(((2, 3),)))
    np.testing.assert_allclose(single(matrices), np.square(matrices).sum(axis=(1, 2)))
    batches: Any = {"batch_size": 5, "rng": np.random.default_rng(0)}
    with pytest.raises(ValueError, match=r"only has value\(x\)"):
        evaluator(OnlyValue(), Layout(((8,),)), **batches)


def test_a_network_in_float32_is_as_curved_as_in_float64() -> None:
    torch = pytest.importorskip("torch")
    from fedtrellis.objectives.torch_forward import TorchForward

    torch.manual_seed(0)
    data = torch.rand(40, 6), torch.rand(40, 1) + 1.0
    config = {"samples": 5, "batch-size": 0, "seed": 0}
    found = []
    for dtype in ("float32", "float64"):
        model = torch.nn.Linear(6, 1).to(getattr(torch, dtype))
        loss = TorchForward(model, torch.nn.functional.mse_loss, data, dtype=dtype)
        client = SimpleNamespace(objective=loss, client_id="0")
        layout = Layout(tuple(loss.shapes))
        found.append(step_curvature(client, np.zeros(layout.size), layout, config))
    assert found[0] == pytest.approx(found[1], rel=0.2)
