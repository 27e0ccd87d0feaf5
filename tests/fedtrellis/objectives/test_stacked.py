"""Linear models of many clients as one: the same gradients as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic
from fedtrellis.objectives.base import stack
from fedtrellis.objectives.linear_models import StackedLinear

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


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("scale", [30.0, 1e3, 1e5])
def test_scores_may_be_beyond_what_exp_can_hold(scale: float, dtype: str) -> None:
    each = [model.of_dtype(dtype) for model in models("multinomial", [7, 7], scale)]
    points = np.random.default_rng(7).standard_normal((2, *each[0].shape)).astype(dtype)
    expected = [model.gradient(x) for model, x in zip(each, points, strict=True)]
    with np.errstate(all="raise", under="ignore"):
        found = StackedLinear(each).gradients(points)
    size = np.abs(expected).max()
    tolerance = 1e-12 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size)


def test_the_last_stacks_are_kept() -> None:
    each = models("squares", [4, 4])
    first = stack(each)
    assert first is not None
    assert stack(each) is first
    assert stack(each[::-1]) is not first
    for _ in range(8):
        stack(models("squares", [4, 4]))
    assert stack(each) is not first
