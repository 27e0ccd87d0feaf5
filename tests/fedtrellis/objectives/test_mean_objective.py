"""The mean of objectives, against sums written out."""

from __future__ import annotations

import numpy as np
import pytest

from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
    Objective,
)
from fedtrellis.objectives.base import MeanObjective

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


def test_the_gradient_is_the_caller_s() -> None:
    part = LeastSquares(np.eye(2), [1.0, 2.0])
    f = MeanObjective([part])
    gradient = f.gradient(np.zeros(2))
    gradient[:] = 7.0
    np.testing.assert_array_equal(f.gradient(np.zeros(2)), [-2.0, -4.0])


def test_values_of_a_batch_of_points() -> None:
    f = MeanObjective(PARTS)
    points = np.random.default_rng(1).standard_normal((6, 4))
    np.testing.assert_array_equal(f.values(points), [f.value(x) for x in points])


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
    with pytest.raises(ValueError, match=r"shapes \[\]"):
        MeanObjective([])
    with pytest.raises(ValueError, match=r"\(2,\), \(4,\)"):
        MeanObjective([PARTS[0], LeastSquares(np.eye(2), [1.0, 2.0])])
