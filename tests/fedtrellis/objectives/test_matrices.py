"""Matrix completion, assignment and principal components, against their sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.objectives import MatrixCompletion, QuadraticAssignment
from fedtrellis.objectives.matrices import PrincipalComponents
from tests.fedtrellis.objectives.cases import (
    DISTANCES,
    ENTRIES,
    FLOWS,
    MASK,
    Array,
    point,
)


def test_matrix_completion_is_the_loop_over_observations() -> None:
    objective = MatrixCompletion(*ENTRIES, (3, 4), weight=2.0)
    x = point(objective)
    value, gradient = 0.0, np.zeros((3, 4))
    for i, j, rating in zip(*ENTRIES, strict=True):
        value += 2.0 / 5 * (x[i, j] - rating) ** 2
        gradient[i, j] += 2.0 / 5 * 2 * (x[i, j] - rating)
    assert objective.value(x) == pytest.approx(value, rel=1e-14)
    np.testing.assert_allclose(objective.gradient(x), gradient, rtol=1e-14)
    assert objective.metrics(x)["rmse"] == pytest.approx(np.sqrt(value / 2.0))
    # (0, 1) is observed twice: its second derivative is 2 · 2 · 2/5
    assert objective.lipschitz() == pytest.approx(8.0 / 5)


def four_fold(X: Array, chosen: NDArray[np.bool_]) -> float:
    """Return Σ A_ij B_kl X_ik X_jl over the (i, j) chosen and all k, l."""
    total = 0.0
    for i, j, k, m in itertools.product(range(4), repeat=4):
        if chosen[i, j]:
            total += FLOWS[i, j] * DISTANCES[k, m] * X[i, k] * X[j, m]
    return total


def test_assignment_is_the_four_fold_sum_and_the_trace() -> None:
    whole = QuadraticAssignment(FLOWS, DISTANCES)
    X = point(whole)
    assert not np.allclose(FLOWS, FLOWS.T)
    assert not np.allclose(DISTANCES, DISTANCES.T)
    expected = four_fold(X, np.ones((4, 4), dtype=bool))
    assert whole.value(X) == pytest.approx(expected, rel=1e-12)
    trace = np.trace(FLOWS @ X @ DISTANCES.T @ X.T)
    assert whole.value(X) == pytest.approx(trace, rel=1e-12)
    part = QuadraticAssignment(FLOWS, DISTANCES, mask=MASK, weight=3.0)
    assert part.value(X) == pytest.approx(3.0 * four_fold(X, MASK), rel=1e-12)
    assert part.num_examples == MASK.sum()


def components(d: int = 30, p: int = 7, r: int = 3, weight: float = 1.5) -> tuple:  # type: ignore[type-arg]
    A = np.random.default_rng(d).standard_normal((d, p))
    return A, PrincipalComponents(A, r, weight=weight)


# fewer examples than features, and more: the products differ
@pytest.mark.parametrize("d", [4, 30])
def test_components_are_those_of_the_sum(d: int) -> None:
    A, f = components(d)
    rng = np.random.default_rng(1)
    points = rng.standard_normal((6, 7, 3))
    # −(weight/2d) Σ_j Tr(xᵀ a_j a_jᵀ x), a loop over the examples
    expected = [
        -1.5 / (2 * d) * sum(np.trace(x.T @ np.outer(a, a) @ x) for a in A)
        for x in points
    ]
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-12)
    assert [f.value(x) for x in points] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("d", [4, 30])
def test_optimum_and_constant_are_eigenvalues(d: int) -> None:
    A, f = components(d)
    values, vectors = np.linalg.eigh(A.T @ A / d)
    assert f.optimum() == pytest.approx(-0.75 * values[-3:].sum(), rel=1e-12)
    assert f.lipschitz() == pytest.approx(1.5 * values[-1], rel=1e-9)
    x = vectors[:, :-4:-1]
    assert f.value(x) == pytest.approx(f.optimum(), rel=1e-12)
    # no random point with xᵀx = I is below
    rng = np.random.default_rng(0)
    others = np.linalg.qr(rng.standard_normal((200, 7, 3)))[0]
    assert (f.values(others) > f.optimum()).all()


def test_metrics_measure_gap_and_angle() -> None:
    A, f = components()
    V = np.linalg.eigh(A.T @ A)[1][:, ::-1]
    angle = 0.3
    x = V[:, :3].copy()
    x[:, 0] = np.cos(angle) * V[:, 0] + np.sin(angle) * V[:, 5]
    # another basis of the same space
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    metrics = f.metrics(x @ rotation)
    assert metrics["subspace-error"] == pytest.approx(np.sin(angle), rel=1e-9)
    gap = f.value(x) - f.optimum()
    assert gap > 0.01
    assert metrics["optimality-gap"] == pytest.approx(gap, rel=1e-9)
    best = f.metrics(V[:, :3])
    assert best["subspace-error"] < 1e-12
    assert abs(best["optimality-gap"]) < 1e-12


def test_components_that_are_refused() -> None:
    A, f = components()
    for number in (0, 8, 1.5):
        with pytest.raises(ValueError, match="from 1 to 7"):
            PrincipalComponents(A, number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight"):
        PrincipalComponents(A, 2, weight=0.0)
    with pytest.raises(ValueError, match="NaN"):
        PrincipalComponents(A * np.nan, 2)
    with pytest.raises(ValueError, match="must be"):
        f.value(np.zeros((7, 2)))
