"""Means and stacks of objectives, and the largest eigenvalue."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MultinomialLogistic,
)
from fedtrellis.objectives.base import (
    MeanObjective,
)
from fedtrellis.objectives.linear_models import StackedLinear

RNG = np.random.default_rng(0)
SIZES = (2, 5, 9)
MATRICES = [RNG.standard_normal((d, 4)) for d in SIZES]
LABELS = [RNG.integers(0, 2, d) for d in SIZES]
PARTS = [Logistic(A, b, l2=0.1) for A, b in zip(MATRICES, LABELS, strict=True)]
X = np.array([0.3, -1.0, 2.0, 0.0])


def test_the_mean_is_of_clients_and_metrics_are_of_all_examples() -> None:
    f = MeanObjective(PARTS)
    losses = []
    for A, b in zip(MATRICES, LABELS, strict=True):
        scores = A @ X
        loss = np.mean(np.log1p(np.exp(scores)) - b * scores)
        losses.append(loss + 0.05 * X @ X)
    assert f.value(X) == pytest.approx(np.mean(losses), rel=1e-13)
    expected = np.mean([p.gradient(X) for p in PARTS], axis=0)
    np.testing.assert_allclose(f.gradient(X), expected, rtol=1e-13)
    assert (f.shape, f.num_examples) == ((4,), 16)
    whole = Logistic(np.vstack(MATRICES), np.concatenate(LABELS))
    assert f.metrics(X)["accuracy"] == pytest.approx(whole.metrics(X)["accuracy"])
    mixed = MeanObjective([PARTS[0], LeastSquares(MATRICES[1], np.zeros(5))])
    assert mixed.metrics(X) == {}


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "squares": lambda A, rng: LeastSquares(A, rng.normal(size=len(A)), l2=0.1 * len(A)),
    "logistic": lambda A, rng: Logistic(A, rng.integers(2, size=len(A))),
    "multinomial": lambda A, rng: MultinomialLogistic(
        A, rng.integers(4, size=len(A)), 4
    ),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sizes", [[7, 7, 7], [9, 5, 8]])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_each(kind: str, sizes: list[int], dtype: str) -> None:
    rng = np.random.default_rng(6)
    models = [KINDS[kind](rng.standard_normal((size, 6)), rng) for size in sizes]
    each = [model.of_dtype(dtype) for model in models]
    points = rng.standard_normal((3, *each[0].shape)).astype(dtype)
    stacked = StackedLinear(each)
    tolerance = 1e-13 if dtype == "float64" else 2e-6
    rows = [rng.permutation(size)[: size - k] for k, size in enumerate(sizes)]
    none: list[Any] = [None] * 3
    for batches in (None, rows):
        expected = [
            model._gradient(x, some)
            for model, x, some in zip(each, points, batches or none, strict=True)
        ]
        found = stacked.gradients(points, batches)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
