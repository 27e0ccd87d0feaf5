"""The loss of examples/numpy-fedgia."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from numpyfedgia.task import load_objective


def test_the_gradient_is_that_of_the_value() -> None:
    objective = load_objective(2, 10, 0.1)
    x = np.random.default_rng(0).normal(size=10)
    numerical = approx_fprime(x, objective.value, 1e-7)
    np.testing.assert_allclose(objective.gradient(x), numerical, atol=1e-5)


def test_the_bound_is_one() -> None:
    objective = load_objective(0, 4, 0.1)
    bound = objective.hessian_bound()
    assert objective.lipschitz() == pytest.approx(np.linalg.norm(bound, 2))
    rng = np.random.default_rng(1)
    for _ in range(20):
        x, y = rng.normal(size=(2, 10))
        step = y - x
        above = (
            objective.value(x)
            + objective.gradient(x) @ step
            + 0.5 * step @ bound @ step
        )
        assert objective.value(y) <= above + 1e-12
