"""Means and stacks of objectives, and the largest eigenvalue."""

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


def test_metrics_are_those_of_all_examples() -> None:
    f = MeanObjective(PARTS)
    whole = Logistic(np.vstack(MATRICES), np.concatenate(LABELS))
    assert f.metrics(X)["accuracy"] == pytest.approx(whole.metrics(X)["accuracy"])
    mixed = MeanObjective([PARTS[0], LeastSquares(MATRICES[1], np.zeros(5))])
    assert mixed.metrics(X) == {}


Model = Any
KINDS = ("squares", "logistic", "multinomial")


def models(kind: str, sizes: list[int], scale: float = 1.0) -> list[Model]:
    """One of each size, on seeded data, with an intercept where the class has one."""
    rng = np.random.default_rng(5)
    made: list[Model] = []
    for size in sizes:
        A = scale * rng.standard_normal((size, 6))
        if kind == "squares":
            made.append(LeastSquares(A, rng.standard_normal(size), l2=0.1 * size))
        elif kind == "logistic":
            made.append(Logistic(A, rng.integers(2, size=size)))
        else:
            made.append(MultinomialLogistic(A, rng.integers(4, size=size), 4))
    return made


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sizes", [[7, 7, 7], [9, 5, 8]])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_each(kind: str, sizes: list[int], dtype: str) -> None:
    rng = np.random.default_rng(6)
    each = [model.of_dtype(dtype) for model in models(kind, sizes)]
    points = rng.standard_normal((3, *each[0].shape)).astype(dtype)
    stacked = StackedLinear(each)
    expected = [model.gradient(x) for model, x in zip(each, points, strict=True)]
    tolerance = 1e-13 if dtype == "float64" else 2e-6
    np.testing.assert_allclose(
        stacked.gradients(points), expected, rtol=tolerance, atol=tolerance
    )
    batches = [rng.permutation(size)[: size - k] for k, size in enumerate(sizes)]
    expected = [
        model._gradient(x, rows)
        for model, x, rows in zip(each, points, batches, strict=True)
    ]
    np.testing.assert_allclose(
        stacked.gradients(points, batches), expected, rtol=tolerance, atol=tolerance
    )
