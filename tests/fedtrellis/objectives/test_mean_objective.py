"""The mean of objectives, against sums written out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
    Objective,
)
from fedtrellis.objectives.base import MeanObjective

Array = NDArray[np.float64]

RNG = np.random.default_rng(0)
SIZES = (2, 5, 9)
MATRICES = [RNG.standard_normal((d, 4)) for d in SIZES]
LABELS = [RNG.integers(0, 2, d) for d in SIZES]
PARTS = [Logistic(A, b, l2=0.1) for A, b in zip(MATRICES, LABELS, strict=True)]
X = np.array([0.3, -1.0, 2.0, 0.0])


class Cubic(Objective):
    """A loss with a constant and no bound."""

    def __init__(self, constant: float) -> None:
        self.shape, self.num_examples, self.constant = (2,), 1, constant

    def value(self, x: Array) -> float:
        return float(np.sum(x**3))

    def gradient(self, x: Array) -> Array:
        return 3 * x**2

    def lipschitz(self) -> float:
        return self.constant


def test_value_and_gradient_are_means_of_clients_not_of_examples() -> None:
    f = MeanObjective(PARTS)
    losses = []
    for A, b in zip(MATRICES, LABELS, strict=True):
        scores = A @ X
        loss = np.mean(np.log1p(np.exp(scores)) - b * scores)
        losses.append(loss + 0.05 * X @ X)
    assert f.value(X) == pytest.approx(np.mean(losses), rel=1e-13)
    expected = np.mean([p.gradient(X) for p in PARTS], axis=0)
    np.testing.assert_allclose(f.gradient(X), expected, rtol=1e-13)
    assert f.shape == (4,)
    assert f.num_examples == 16


def test_the_gradient_is_the_caller_s() -> None:
    part = LeastSquares(np.eye(2), [1.0, 2.0])
    f = MeanObjective([part])
    gradient = f.gradient(np.zeros(2))
    gradient[:] = 7.0
    np.testing.assert_array_equal(f.gradient(np.zeros(2)), [-2.0, -4.0])


def test_values_of_a_batch_of_points() -> None:
    f = MeanObjective(PARTS)
    points = np.random.default_rng(1).standard_normal((6, 4))
    expected = [f.value(x) for x in points]
    np.testing.assert_allclose(f.values(points), expected, rtol=1e-13)
    with pytest.raises(NotImplementedError):
        f.values(points, np.random.default_rng(0), batch_size=2)
    with pytest.raises(ValueError, match="points has shape"):
        f.values(points[:, :3])


def test_the_bound_is_the_mean_of_the_bounds() -> None:
    f = MeanObjective(PARTS)
    expected = np.mean(
        [A.T @ A / (4 * len(A)) + 0.1 * np.eye(4) for A in MATRICES], axis=0
    )
    bound = f.hessian_bound()
    assert isinstance(bound, np.ndarray)
    np.testing.assert_allclose(bound, expected, rtol=1e-12)
    assert f.lipschitz() == pytest.approx(np.linalg.eigvalsh(expected)[-1], rel=1e-12)
    # the parts' own are as they were
    np.testing.assert_array_equal(PARTS[0].hessian_bound(), PARTS[0].hessian_bound())


@pytest.mark.parametrize("dense_first", [False, True])
def test_bounds_that_are_operators(dense_first: bool) -> None:
    class Dense(Objective):
        shape, num_examples = (2100,), 1

        def value(self, x: Array) -> float:
            return float(x @ x)

        def gradient(self, x: Array) -> Array:
            return 2 * x

        def hessian_bound(self) -> Array:
            return 2 * np.eye(2100)

    A = np.random.default_rng(0).standard_normal((3, 2100))
    parts = [Dense(), LeastSquares(A, np.zeros(3)), LeastSquares(2 * A, np.zeros(3))]
    f = MeanObjective(parts if dense_first else parts[::-1])
    bound = f.hessian_bound()
    assert isinstance(bound, LinearOperator)
    v = np.random.default_rng(1).standard_normal(2100)
    expected = (2 * v + 2 * A.T @ (A @ v) + 8 * A.T @ (A @ v)) / 3
    np.testing.assert_allclose(bound @ v, expected, rtol=1e-10, atol=1e-12)
    largest = (2 + 10 * np.linalg.norm(A, 2) ** 2) / 3
    assert f.lipschitz() == pytest.approx(largest, rel=1e-8)


def test_without_bounds_the_constants_are_averaged() -> None:
    f = MeanObjective([Cubic(1.0), Cubic(4.0)])
    with pytest.raises(NotImplementedError):
        f.hessian_bound()
    assert f.lipschitz() == 2.5


def test_metrics_are_those_of_all_examples() -> None:
    f = MeanObjective(PARTS)
    whole = Logistic(np.vstack(MATRICES), np.concatenate(LABELS))
    assert f.metrics(X)["accuracy"] == pytest.approx(whole.metrics(X)["accuracy"])
    mixed = MeanObjective([PARTS[0], LeastSquares(MATRICES[1], np.zeros(5))])
    assert mixed.metrics(X) == {}


def test_points_of_any_shape() -> None:
    parts: list[Objective] = [
        MultinomialLogistic(MATRICES[1], [0, 1, 2, 0, 1], 3, intercept=False),
        MatrixCompletion([0, 1], [2, 0], [1.0, 2.0], (4, 3)),
    ]
    f = MeanObjective(parts)
    W = np.random.default_rng(0).standard_normal((4, 3))
    expected = (parts[0].gradient(W) + parts[1].gradient(W)) / 2
    np.testing.assert_allclose(f.gradient(W), expected, rtol=1e-13)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="empty"):
        MeanObjective([])
    with pytest.raises(ValueError, match=r"\(2,\), \(4,\)"):
        MeanObjective([PARTS[0], Cubic(1.0)])
