"""The logistic loss with the bounded regulariser, against its formula.

What every objective has to hold, such as its gradient, is in ``test_objectives.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from fedtrellis.objectives import Logistic
from fedtrellis.objectives.linear_models import NonconvexLogistic
from tests.fedtrellis.objectives.cases import FixedBatch, dense_bound

Array = NDArray[np.float64]

RNG = np.random.default_rng(0)
A = RNG.standard_normal((7, 4)) * (RNG.random((7, 4)) < 0.8)
B = np.array([0, 1, 1, 0, 1, 0, 1])
L2, WEIGHT = 0.7, 3.0


def objective(matrix: Any = A, l2: float = L2) -> NonconvexLogistic:
    return NonconvexLogistic(matrix, B, l2=l2, weight=WEIGHT)


def formula(x: Array, rows: Any = slice(None), l2: float = L2) -> float:
    scores = A[rows] @ x
    loss = np.mean(np.log1p(np.exp(scores)) - B[rows] * scores)
    return float(WEIGHT * (loss + l2 / 2 * np.sum(x**2 / (1 + x**2))))


@pytest.mark.parametrize("matrix", [A, scipy.sparse.csr_array(A)], ids=["dense", "csr"])
def test_values_are_the_formula(matrix: Any) -> None:
    points = np.random.default_rng(2).standard_normal((5, 4)) * 3
    expected, f = [formula(x) for x in points], objective(matrix)
    assert [f.value(x) for x in points] == pytest.approx(expected, rel=1e-13)
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-13)
    values = f.values(points, FixedBatch((0, 4)), batch_size=2)
    expected = [formula(x, [0, 4]) for x in points]
    np.testing.assert_allclose(values, expected, rtol=1e-13)


def test_the_bound_is_met_at_zero() -> None:
    f, h = objective(), 1e-4
    bound = WEIGHT * (A.T @ A / (4 * 7) + L2 * np.eye(4))
    np.testing.assert_allclose(dense_bound(f), bound, rtol=1e-13)
    slopes = [(f.gradient(h * e) - f.gradient(-h * e)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(slopes, bound, rtol=1e-5, atol=1e-6)


def test_the_regulariser_bends_by_minus_a_quarter_to_one() -> None:
    # one example of zeros: the loss is constant, the regulariser alone is left
    f = NonconvexLogistic(np.zeros((1, 1)), [0], l2=1.0)
    x = np.linspace(-20, 20, 4001)
    slopes = np.array([f.gradient(np.array([v]))[0] for v in x])
    curvature = np.gradient(slopes, x)
    expected = (1 - 3 * x**2) / (1 + x**2) ** 3
    np.testing.assert_allclose(curvature, expected, atol=1e-3)
    assert curvature.min() == pytest.approx(-0.25, abs=1e-3)
    assert curvature.max() == pytest.approx(1.0, abs=1e-3)


def test_without_regulariser_it_is_the_logistic_loss() -> None:
    f, g = objective(l2=0.0), Logistic(A, B, weight=WEIGHT)
    x = np.array([0.5, -2.0, 0.1, 1.0])
    assert f.value(x) == g.value(x)
    np.testing.assert_array_equal(f.gradient(x), g.gradient(x))
    assert f.metrics(x) == g.metrics(x)
    np.testing.assert_array_equal(f.predict(x), g.predict(x))


@pytest.mark.parametrize("size", [0.0, 1e-160, 1e80, 1e160, 1e300])
def test_extreme_points_do_not_overflow(size: float) -> None:
    f = NonconvexLogistic(np.zeros((1, 2)), [0], l2=2.0)
    x = np.array([size, -size])
    with np.errstate(all="raise", under="ignore"):
        value, gradient = f.value(x), f.gradient(x)
    assert value == pytest.approx(np.log(2) + (2.0 if size > 1 else 0.0))
    assert np.abs(gradient).max() <= 1e-79
