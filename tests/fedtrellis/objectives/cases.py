"""Small objectives of every kind, and what several tests do with them."""

from collections.abc import Callable
from itertools import pairwise
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
from fedtrellis.objectives.demonstrations import (
    LowRankPerceptron,
    PerceptronClassifier,
    UniversalPerturbation,
)
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.objectives.matrices import PrincipalComponents

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


def perceptron(**options: Any) -> LowRankPerceptron:
    return LowRankPerceptron(features(), LABELS, 3, 4, **options)


def classifier() -> PerceptronClassifier:
    rng = np.random.default_rng(0)
    sizes = [6, 9, 8, 4]
    return PerceptronClassifier(
        [rng.standard_normal(pair) for pair in pairwise(sizes)],
        [rng.standard_normal(outputs) for outputs in sizes[1:]],
    )


def perturbation(**options: Any) -> UniversalPerturbation:
    images = np.random.default_rng(1).uniform(size=(5, 2, 3))
    return UniversalPerturbation(classifier(), images, 2, balance=0.3, **options)


def torch_objective(**options: Any) -> Objective:
    torch = pytest.importorskip("torch")
    from fedtrellis.objectives.torch_objective import TorchObjective

    nn = torch.nn
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5)
    norm.running_mean.copy_(torch.linspace(-1, 1, 5))
    norm.running_var.copy_(torch.linspace(0.5, 2, 5))
    layers = nn.Linear(3, 5), norm, nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)
    model = nn.Sequential(*layers).double()
    loss, data = nn.functional.cross_entropy, (features(), LABELS)
    return TorchObjective(model, loss, data, weight=2.0, **options)


#: Those with a bound on the Hessian.
BOUNDED: dict[str, Callable[[], Objective]] = {
    "least squares, sum": lambda: LeastSquares(features(), TARGETS, weight=3.0),
    "least squares, half mean, l2": lambda: LeastSquares(
        features(), TARGETS, scale="half-mean", l2=0.7, weight=2.0
    ),
    "least squares, sparse": lambda: LeastSquares(csr(features()), TARGETS, l2=0.2),
    "logistic, l2": lambda: Logistic(features(), BITS, l2=0.3, weight=4.0),
    "logistic, sparse": lambda: Logistic(csr(features()), BITS, l2=0.3),
    "logistic, sparse, wide": lambda: Logistic(csr(features(5, 8)), BITS),
    "logistic, nonconvex, sparse": lambda: NonconvexLogistic(
        csr(features()), BITS, l2=0.7, weight=3.0
    ),
    "logistic, intercept": lambda: Logistic(features(), BITS, l2=0.3, intercept=True),
    "logistic, nonconvex, intercept": lambda: NonconvexLogistic(
        csr(features()), BITS, l2=0.7, intercept=True
    ),
    "multinomial, free intercept": lambda: MultinomialLogistic(
        features(), LABELS, 3, l2=0.3, weight=2.0, free_intercept=True
    ),
    "multinomial, no intercept": lambda: MultinomialLogistic(
        features(), LABELS, 4, intercept=False, l2=0.1, weight=2.0
    ),
    "multinomial, sparse": lambda: MultinomialLogistic(
        csr(features(5, 7)), LABELS, 3, l2=0.2
    ),
    "matrix completion": lambda: MatrixCompletion(*ENTRIES, (3, 4), weight=2.0),
    "assignment, mask": lambda: QuadraticAssignment(
        FLOWS, DISTANCES, mask=MASK, weight=3.0
    ),
}
#: Those with curvatures along directions.
CURVED: dict[str, Callable[[], Objective]] = {
    **BOUNDED,
    "logistic, many columns": lambda: Logistic(features(5, 90), BITS, l2=0.1),
    "multinomial, many columns": lambda: MultinomialLogistic(
        features(5, 90), LABELS, 3, weight=2.0
    ),
    "principal components": lambda: PrincipalComponents(features(), 2, weight=3.0),
    "principal components, wide": lambda: PrincipalComponents(features(4, 6), 2),
    "torch": lambda: torch_objective(l2=0.3, batch_size_limit=2),
    "torch, two points a pass": lambda: torch_objective(batch_size_limit=12),
    "torch, one by one": lambda: torch_objective(vectorize=False, batch_size_limit=4),
}
#: All of them.
CASES: dict[str, Callable[[], Objective]] = {
    **CURVED,
    "perceptron, factored": lambda: perceptron(rank=2, weight=1.7),
    "perceptron, matrix": lambda: perceptron(rank=2, factored=False),
    "perceptron, full": lambda: perceptron(rank=None, weight=0.4),
    "perturbation": lambda: perturbation(weight=1.4),
}


def point(objective: Objective, seed: int = 0, scale: float = 1.0) -> Array:
    rng = np.random.default_rng([seed, 77])
    return scale * rng.standard_normal(objective.shape)


def finite_difference(
    value: Callable[[Array], float], x: Array, step: float = 1e-5
) -> Array:
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (value(up) - value(down)) / (2 * step)
    return gradient


class FixedBatch(np.random.Generator):
    def __init__(self, batch: tuple[int, ...]) -> None:
        super().__init__(np.random.PCG64(0))
        self.batch = np.array(batch)

    def choice(self, *args: Any, **kwargs: Any) -> Any:
        return self.batch
