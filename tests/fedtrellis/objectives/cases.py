"""Small objectives of every kind, and what several tests do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
    Objective,
    QuadraticAssignment,
)
from fedtrellis.objectives.linear_models import NonconvexLogistic

Array = NDArray[np.float64]


def features(rows: int = 5, columns: int = 3, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, columns))
    dense[rng.random(dense.shape) < 0.3] = 0.0
    return dense


def csr(dense: Array) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix(dense)


TARGETS = np.array([0.5, -1.0, 2.0, 0.0, 1.5])
BITS = np.array([0, 1, 1, 0, 1])
LABELS = np.array([2, 0, 1, 1, 2])
ENTRIES: tuple[list[int], list[int], list[float]] = (
    [0, 2, 0, 1, 0],
    [1, 3, 1, 0, 2],
    [1.0, -2.0, 3.0, 0.5, 4.0],  # (0, 1) is observed twice, as 1 and as 3
)
FLOWS, DISTANCES = features(4, 4, 1), features(4, 4, 2)
MASK = np.random.default_rng(3).random((4, 4)) < 0.4

CASES: dict[str, Callable[[], Objective]] = {
    "least squares, sum": lambda: LeastSquares(features(), TARGETS, weight=3.0),
    "least squares, half mean, l2": lambda: LeastSquares(
        features(), TARGETS, scale="half-mean", l2=0.7, weight=2.0
    ),
    "least squares, wide": lambda: LeastSquares(features(5, 9), TARGETS, l2=0.1),
    "least squares, sparse": lambda: LeastSquares(csr(features()), TARGETS, l2=0.2),
    "logistic": lambda: Logistic(features(), BITS),
    "logistic, l2": lambda: Logistic(features(), BITS, l2=0.3, weight=4.0),
    "logistic, sparse": lambda: Logistic(csr(features()), BITS, l2=0.3),
    "logistic, sparse, wide": lambda: Logistic(csr(features(5, 8)), BITS),
    "logistic, nonconvex": lambda: NonconvexLogistic(features(), BITS, l2=0.4),
    "logistic, nonconvex, sparse": lambda: NonconvexLogistic(
        csr(features()), BITS, l2=0.7, weight=3.0
    ),
    "multinomial": lambda: MultinomialLogistic(features(), LABELS, 3),
    "multinomial, no intercept": lambda: MultinomialLogistic(
        features(), LABELS, 4, intercept=False, l2=0.1, weight=2.0
    ),
    "multinomial, sparse": lambda: MultinomialLogistic(
        csr(features(5, 7)), LABELS, 3, l2=0.2
    ),
    "matrix completion": lambda: MatrixCompletion(*ENTRIES, (3, 4), weight=2.0),
    "assignment": lambda: QuadraticAssignment(FLOWS, DISTANCES),
    "assignment, mask": lambda: QuadraticAssignment(
        FLOWS, DISTANCES, mask=MASK, weight=3.0
    ),
}
every_objective = pytest.mark.parametrize("name", CASES)


def point(objective: Objective, seed: int = 0, scale: float = 1.0) -> Array:
    rng = np.random.default_rng([seed, 77])
    return scale * rng.standard_normal(objective.shape)


def dense_bound(objective: Objective) -> Array:
    bound = objective.hessian_bound()
    assert isinstance(bound, np.ndarray)
    return bound


def finite_difference(
    value: Callable[[Array], float], x: Array, step: float = 1e-5
) -> Array:
    """Return the gradient by central differences, entry by entry."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (value(up) - value(down)) / (2 * step)
    return gradient


class FixedBatch(np.random.Generator):
    """A generator that draws the batch it was made with."""

    def __init__(self, batch: tuple[int, ...]) -> None:
        super().__init__(np.random.PCG64(0))
        self.batch = np.array(batch)

    def choice(self, *args: Any, **kwargs: Any) -> Any:
        return self.batch
