"""The set and the loss of examples/own-domain."""

from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime
from scipy.special import huber

from owndomain.domain import OWLBall
from owndomain.objective import Huber
from owndomain.task import TRUTH, load_objective, make_domain

Array = NDArray[np.float64]

WEIGHTS = {
    "falling": np.array([2.0, 1.5, 0.7, 0.2]),
    "with zeros": np.array([1.0, 0.5, 0.0, 0.0]),
    "l1": np.ones(4),
    "largest": np.array([1.0, 0.0, 0.0, 0.0]),
}
RADIUS = 1.3


def owl_norm(x: cp.Variable, weights: Array) -> cp.Expression:
    """Σ w_i |x|_[i] = Σ_k (w_k − w_{k+1}) · (the k largest |x_j| added up)."""
    n = weights.size
    steps = weights - np.append(weights[1:], 0.0)
    sums = [cp.sum_largest(cp.abs(x), k) for k in range(1, n)] + [cp.norm1(x)]
    return sum(step * total for step, total in zip(steps, sums, strict=True))


def linear_minimum(g: Array, weights: Array) -> float:
    """min ⟨g, s⟩ over the ball, by a convex solver."""
    s = cp.Variable(g.size)
    problem = cp.Problem(cp.Minimize(g @ s), [owl_norm(s, weights) <= RADIUS])
    return float(problem.solve(solver="CLARABEL"))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_finds_the_minimum(name: str, seed: int) -> None:
    domain = OWLBall(WEIGHTS[name], RADIUS)
    g = np.random.default_rng(seed).normal(size=4)
    atom = domain.lmo(g)
    assert domain.norm(atom.dense()) == pytest.approx(RADIUS)
    assert atom.dense() @ g == pytest.approx(linear_minimum(g, WEIGHTS[name]), abs=1e-6)
    assert domain.gap(g, np.zeros(4)) == pytest.approx(-atom.dense() @ g)


@pytest.mark.parametrize(
    "g", [np.zeros(4), np.array([0.0, 0.0, -2.0, 0.0]), np.array([1.0, -1.0, 1.0, 1.0])]
)
def test_the_oracle_with_zeros_and_ties(g: Array) -> None:
    domain = OWLBall(WEIGHTS["falling"], RADIUS)
    atom = domain.lmo(g).dense()
    assert domain.contains(atom)
    assert atom @ g == pytest.approx(linear_minimum(g, domain.weights), abs=1e-6)


def test_the_oracle_of_a_matrix_is_that_of_its_entries() -> None:
    domain = OWLBall(WEIGHTS["falling"], RADIUS)
    g = np.array([[0.1, -3.0], [2.9, 0.0]])
    atom = domain.lmo(g)
    assert atom.shape == (2, 2)
    assert np.array_equal(atom.dense().ravel(), domain.lmo(g.ravel()).dense())
    # the two large ones share a level, 1.3 / (2 + 1.5)
    np.testing.assert_allclose(atom.dense(), [[0.0, 1.3 / 3.5], [-1.3 / 3.5, 0.0]])


def test_the_oracle_refuses_what_it_cannot_answer() -> None:
    domain = OWLBall(WEIGHTS["falling"], RADIUS)
    with pytest.raises(ValueError, match="finite"):
        domain.lmo(np.array([1.0, np.nan, 0.0, 0.0]))
    with pytest.raises(ValueError, match="4 entries"):
        domain.lmo(np.zeros(5))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_projection_is_the_nearest_point(name: str, scale: float) -> None:
    domain = OWLBall(WEIGHTS[name], RADIUS)
    rng = np.random.default_rng(3)
    for _ in range(5):
        point = scale * rng.normal(size=4)
        nearest = domain.project(point)
        assert domain.contains(nearest)
        # of a convex set: ⟨point − nearest, s − nearest⟩ ≤ 0, for the worst s in it
        worst = -linear_minimum(nearest - point, domain.weights)
        assert worst - (point - nearest) @ nearest <= 1e-6 * (1.0 + scale)


def test_the_diameter_is_the_longest_distance_of_extreme_points() -> None:
    domain = OWLBall(WEIGHTS["falling"], RADIUS)
    extreme = [
        domain.levels[k - 1] * np.array(signs)
        for signs in itertools.product((-1.0, 0.0, 1.0), repeat=4)
        if (k := int(np.abs(signs).sum()))
    ]
    longest = max(float(np.linalg.norm(a - b)) for a in extreme for b in extreme)
    assert domain.diameter((4,)) == pytest.approx(longest)


@pytest.mark.parametrize(
    ("weights", "radius"),
    [([1.0, 2.0], 1.0), ([1.0, -1.0], 1.0), ([0.0], 1.0), ([], 1.0), ([1.0], 0.0)],
)
def test_a_set_that_is_none_is_refused(weights: list[float], radius: float) -> None:
    with pytest.raises(ValueError, match="owl-ball"):
        OWLBall(weights, radius)


def test_the_truth_lies_on_the_edge_of_the_examples_set() -> None:
    domain = make_domain()
    assert domain.norm(TRUTH) == pytest.approx(domain.radius)


def test_the_loss_is_hubers() -> None:
    objective = load_objective(1)
    x = np.random.default_rng(0).normal(size=TRUTH.size)
    residuals = objective.features @ x - objective.targets
    assert objective.value(x) == pytest.approx(huber(1.0, residuals).mean())
    numerical = approx_fprime(x, objective.value, 1e-7)
    np.testing.assert_allclose(objective.gradient(x), numerical, atol=1e-5)
    outside = float((np.abs(residuals) > 1.0).mean())
    assert objective.metrics(x) == {"outliers": outside}


def test_hubers_loss_by_hand() -> None:
    # residuals 0.5, -3 and 1 with δ = 1: 1/8, 3 − 1/2, 1/2
    objective = Huber(np.array([[1.0], [2.0], [1.0]]), np.array([0.5, 5.0, 0.0]))
    assert objective.value(np.ones(1)) == pytest.approx((0.125 + 2.5 + 0.5) / 3)
    assert objective.gradient(np.ones(1)) == pytest.approx((0.5 - 2.0 + 1.0) / 3)
