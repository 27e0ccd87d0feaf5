"""The set and the loss of examples/own-domain."""

from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime
from scipy.special import huber

from owndomain.domain import GroupMaxBall
from owndomain.objective import Huber
from owndomain.task import TRUTH, load_objective, make_domain

Array = NDArray[np.float64]

RADIUS = 1.3
SIZES = pytest.mark.parametrize("size", [1, 2, 3, 6])


def solve(objective: cp.Expression, x: cp.Variable, size: int) -> Array:
    """The minimum over the ball, from its definition, by a convex solver."""
    groups = [cp.norm_inf(x[i : i + size]) for i in range(0, 6, size)]
    cp.Problem(cp.Minimize(objective), [sum(groups) <= RADIUS]).solve("CLARABEL")
    return np.asarray(x.value)


@SIZES
@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_finds_the_minimum(size: int, seed: int) -> None:
    domain = GroupMaxBall(size, RADIUS)
    g = np.random.default_rng(seed).normal(size=6)
    atom = domain.lmo(g)
    assert domain.norm(atom.dense()) == pytest.approx(RADIUS)
    best = float(g @ solve(g @ (x := cp.Variable(6)), x, size))
    assert atom.dense() @ g == pytest.approx(best, abs=1e-6)
    assert domain.gap(g, np.zeros(6)) == pytest.approx(-best, abs=1e-6)


def test_the_oracle_with_zeros_and_ties() -> None:
    domain = GroupMaxBall(2, RADIUS)
    for g in (np.zeros(6), np.array([0.0, 0, -2, 0, 1, 1]), np.ones(6)):
        atom = domain.lmo(g).dense()
        assert domain.contains(atom)
        # no extreme point is better: ±radius in one group
        signs = itertools.product((-RADIUS, RADIUS), repeat=2)
        others = [np.kron(e, pair) for pair in signs for e in np.eye(3)]
        assert atom @ g == pytest.approx(min(g @ other for other in others))


def test_the_oracle_of_a_matrix_is_that_of_its_entries() -> None:
    domain = GroupMaxBall(2, RADIUS)
    atom = domain.lmo(np.array([[0.1, -3.0], [2.0, 2.0]]))
    assert atom.shape == (2, 2)
    np.testing.assert_allclose(atom.dense(), [[0.0, 0.0], [-RADIUS, -RADIUS]])


def test_the_oracle_refuses_what_it_cannot_answer() -> None:
    domain = GroupMaxBall(2, RADIUS)
    with pytest.raises(ValueError, match="finite"):
        domain.lmo(np.array([1.0, np.nan, 0.0, 0.0]))
    with pytest.raises(ValueError, match="whole groups of 2"):
        domain.lmo(np.zeros(5))


@SIZES
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_projection_is_the_nearest_point(size: int, scale: float) -> None:
    domain = GroupMaxBall(size, RADIUS)
    rng = np.random.default_rng(3)
    for _ in range(5):
        point = scale * rng.normal(size=6)
        nearest = domain.project(point)
        assert domain.contains(nearest)
        theirs = solve(cp.sum_squares((x := cp.Variable(6)) - point), x, size)
        np.testing.assert_allclose(nearest, theirs, atol=1e-4)
        # of a convex set: ⟨point − nearest, s − nearest⟩ ≤ 0, for the worst s in it
        assert domain.gap(nearest - point, nearest) <= 1e-12 * (1 + scale) ** 2


def test_the_diameter_is_the_longest_distance_of_extreme_points() -> None:
    signs = [np.array(pair) for pair in itertools.product((-1.0, 1.0), repeat=2)]
    extreme = [np.kron(e, RADIUS * pair) for pair in signs for e in np.eye(3)]
    longest = max(float(np.linalg.norm(a - b)) for a in extreme for b in extreme)
    assert GroupMaxBall(2, RADIUS).diameter((6,)) == pytest.approx(longest)


@pytest.mark.parametrize(("size", "radius"), [(0, 1.0), (2, 0.0), (2, np.inf)])
def test_a_set_that_is_none_is_refused(size: int, radius: float) -> None:
    with pytest.raises(ValueError, match="group-max-ball"):
        GroupMaxBall(size, radius)


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
