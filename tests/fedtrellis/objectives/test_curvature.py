"""Curvatures along a direction, against differences of gradients and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MultinomialLogistic,
    Objective,
    QuadraticAssignment,
)
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.objectives.losses import (
    CrossEntropy,
    LogisticLoss,
    ScoreLoss,
    Squared,
)
from fedtrellis.objectives.matrices import PrincipalComponents
from tests.fedtrellis.objectives.cases import (
    BITS,
    DISTANCES,
    FLOWS,
    TARGETS,
    csr,
    features,
    point,
)


def test_closed_forms() -> None:
    d = np.array([1.0, -2.0, 0.5])
    A, weight = features(), 3.0
    f: Objective = LeastSquares(A, TARGETS, weight=weight, l2=0.2)
    expected = weight * (2 * np.sum((A @ d) ** 2) + 0.2 * d @ d)
    assert f.curvature(0 * d, d) == pytest.approx(expected, rel=1e-14)
    # at 0 every σ′ is 1/4, and softmax's Hessian Böhning's half
    f = Logistic(A, BITS)
    assert f.curvature(0 * d, d) == pytest.approx(np.mean((A @ d) ** 2) / 4)
    f = MultinomialLogistic(A, np.array([0, 1, 1, 0, 1]), 2, intercept=False)
    D = np.stack([d, -d], axis=1)
    bound = D.ravel() @ f.hessian_bound() @ D.ravel()
    assert f.curvature(0 * D, D) == pytest.approx(bound)
    f = PrincipalComponents(A, 1, weight=2.0)
    assert f.curvature(0 * d[:, None], d[:, None]) == pytest.approx(
        -2.0 * np.mean((A @ d) ** 2)
    )


def test_an_assignment_bends_either_way() -> None:
    f = QuadraticAssignment(FLOWS, DISTANCES)
    # ∇²f = A ⊗ B + Aᵀ ⊗ Bᵀ over entries in C order
    hessian = np.kron(FLOWS, DISTANCES) + np.kron(FLOWS.T, DISTANCES.T)
    values, vectors = np.linalg.eigh(hessian)
    assert values[0] < 0.0 < values[-1]
    for k in (0, -1):
        D = vectors[:, k].reshape(4, 4)
        assert f.curvature(point(f), D) == pytest.approx(values[k])


LOSSES: list[ScoreLoss] = [LogisticLoss(), Squared(), CrossEntropy()]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_loss_s_curvature_is_the_derivative_of_its_slope(loss: ScoreLoss) -> None:
    rng = np.random.default_rng(0)
    shape = (400, 3) if isinstance(loss, CrossEntropy) else (400,)
    z, change = 3.0 * rng.standard_normal((2, *shape))
    y = rng.integers(0, 3, 400) if len(shape) == 2 else rng.choice([-1.0, 1.0], 400)
    difference = loss.slope(z + 1e-6 * change, y) - loss.slope(z - 1e-6 * change, y)
    expected = (difference * change / 2e-6).reshape(400, -1).sum(axis=1)
    found = loss.curvature_along(z, y, change)
    assert found.shape == (400,)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1e-200, 1e3, 1e200])
def test_extreme_points_do_not_overflow(size: float) -> None:
    x, d = size * np.array([1.0, -1.0, 0.5]), np.array([1.0, 2.0, -1.0])
    with np.errstate(all="raise", under="ignore"):
        curvature = NonconvexLogistic(np.eye(3), [0, 1, 1], l2=0.4).curvature(x, d)
    # of the loss nothing is left far out, and a quarter at 0; of the regulariser
    # nothing and its 1
    expected = (1 / 12 + 0.4) * 6.0 if size < 1.0 else 0.0
    assert curvature == pytest.approx(expected, abs=1e-9)


def test_few_columns_of_sparse_data_are_a_product_all_the_same() -> None:
    dense, sparse = (Logistic(A, BITS) for A in (features(5, 90), csr(features(5, 90))))
    x, few = point(dense), np.zeros(90)
    few[[1, -2]] = 0.5, -2.0
    assert sparse.curvature(x, few) == pytest.approx(dense.curvature(x, few))
