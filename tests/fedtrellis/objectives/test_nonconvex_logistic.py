"""The logistic loss with the bounded regulariser, against formulas and differences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from fedtrellis.objectives import Logistic
from fedtrellis.objectives.linear_models import NonconvexLogistic

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


class FixedBatch(np.random.Generator):
    """A generator that draws the batch it was made with."""

    def __init__(self, batch: tuple[int, ...]) -> None:
        super().__init__(np.random.PCG64(0))
        self.batch = np.array(batch)

    def choice(self, *args: Any, **kwargs: Any) -> Any:
        return self.batch


@pytest.mark.parametrize("matrix", [A, scipy.sparse.csr_array(A)], ids=["dense", "csr"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_the_value_is_the_formula_and_the_gradient_its_derivative(
    matrix: Any, scale: float
) -> None:
    f = objective(matrix)
    x = scale * np.random.default_rng(1).standard_normal(4)
    kept = x.copy()
    assert f.value(x) == pytest.approx(formula(x), rel=1e-13)
    gradient = f.gradient(x)
    steps = 1e-5 * np.eye(4)
    expected = [(formula(x + s) - formula(x - s)) / 2e-5 for s in steps]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(x, kept)


def test_values_of_a_batch_of_points() -> None:
    points = np.random.default_rng(2).standard_normal((5, 4)) * 3
    expected = [formula(x) for x in points]
    np.testing.assert_allclose(objective().values(points), expected, rtol=1e-13)
    values = objective().values(points, FixedBatch((0, 4)), batch_size=2)
    expected = [formula(x, [0, 4]) for x in points]
    np.testing.assert_allclose(values, expected, rtol=1e-13)


def test_mini_batches_average_to_the_gradient() -> None:
    f, x = objective(), np.array([0.5, -2.0, 0.0, 1.0])
    batches = itertools.combinations(range(7), 3)
    gradients = [f.stochastic_gradient(x, FixedBatch(b), 3) for b in batches]
    assert np.std(gradients, axis=0).max() > 1e-2
    np.testing.assert_allclose(np.mean(gradients, axis=0), f.gradient(x), rtol=1e-12)


def test_the_bound_majorises_and_its_constant_is_met_at_zero() -> None:
    f = objective()
    bound = f.hessian_bound()
    assert isinstance(bound, np.ndarray)
    expected = WEIGHT * (A.T @ A / (4 * 7) + L2 * np.eye(4))
    np.testing.assert_allclose(bound, expected, rtol=1e-13)
    assert f.lipschitz() == pytest.approx(np.linalg.eigvalsh(expected)[-1], rel=1e-12)
    rng = np.random.default_rng(3)
    for _ in range(300):
        z = rng.standard_normal(4) * 10 ** rng.uniform(-2, 1)
        x = z + rng.standard_normal(4) * 10 ** rng.uniform(-2, 1)
        step = x - z
        model = f.value(z) + f.gradient(z) @ step + step @ bound @ step / 2
        assert f.value(x) <= model + 1e-9
    # at zero the second derivatives of loss and regulariser are the bound's
    h = 1e-4
    differences = [
        (f.gradient(h * e) - f.gradient(-h * e)) / (2 * h) for e in np.eye(4)
    ]
    np.testing.assert_allclose(differences, bound, rtol=1e-5, atol=1e-6)


def test_the_factor_is_that_of_the_bound() -> None:
    f = objective()
    matrix, scale, shift = f.hessian_factor()
    expected = scale * matrix.T @ matrix + shift * np.eye(4)
    bound = f.hessian_bound()
    assert isinstance(bound, np.ndarray)
    np.testing.assert_allclose(bound, expected, rtol=1e-13)
    assert shift == WEIGHT * L2


def test_the_curvature_of_the_regulariser_lies_between_minus_a_quarter_and_one() -> (
    None
):
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


def test_a_wide_matrix_has_an_operator_for_its_bound() -> None:
    wide = scipy.sparse.random_array((3, 3000), density=0.01, random_state=0)
    f = NonconvexLogistic(wide, [0, 1, 1], l2=0.5)
    bound = f.hessian_bound()
    assert isinstance(bound, LinearOperator)
    v = np.random.default_rng(0).standard_normal(3000)
    dense = wide.toarray()
    expected = dense.T @ (dense @ v) / 12 + 0.5 * v
    np.testing.assert_allclose(bound @ v, expected, rtol=1e-12)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="l2"):
        NonconvexLogistic(A, B, l2=-1.0)
    with pytest.raises(ValueError, match="b has the entry"):
        NonconvexLogistic(A, B + 1)
