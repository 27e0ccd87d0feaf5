"""The loss of examples/numpy-fedgia."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from numpyfedgia.task import LogCosh, load_objective, load_patients


def test_the_gradient_is_that_of_the_value() -> None:
    objective = load_objective(2, 10, 0.1)
    x = np.random.default_rng(0).normal(size=10)
    numerical = approx_fprime(x, objective.value, 1e-7)
    np.testing.assert_allclose(objective.gradient(x), numerical, atol=1e-5)


def test_the_value_by_hand_and_far_out() -> None:
    objective = LogCosh(np.array([[2.0]]), np.array([1.0]), 0.5)
    # log cosh(2·1 − 1) + 0.25
    assert objective.value(np.ones(1)) == pytest.approx(np.log(np.cosh(1.0)) + 0.25)
    # log cosh r → |r| − log 2, where cosh itself overflows
    far = objective.value(np.array([1e4])) - 0.25e8
    assert far == pytest.approx(19_999.0 - np.log(2.0))


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


@pytest.mark.parametrize("nodes", [2, 7, 10])
def test_the_nodes_share_out_all_patients(nodes: int) -> None:
    parts = [load_objective(i, nodes, 0.1) for i in range(nodes)]
    features, targets = load_patients()
    assert np.array_equal(np.vstack([part.features for part in parts]), features)
    assert np.array_equal(np.concatenate([part.targets for part in parts]), targets)
