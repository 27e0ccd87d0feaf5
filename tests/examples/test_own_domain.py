"""The set and the loss of examples/own-domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import huber

from owndomain.domain import GroupMaxBall
from owndomain.task import TRUTH, load_objective
from tests.fedtrellis.domains import test_domains as contract

RADIUS = 1.3
CONTRACT = (
    contract.test_the_oracle_against_every_vertex_or_else_cvxpy,
    contract.test_many_gradients_have_the_atoms_of_each,
    contract.test_projection_and_membership_against_cvxpy,
    contract.test_enormous_and_tiny_entries,
    contract.test_the_diameter_is_the_largest_distance,
    contract.test_what_the_oracle_returns_is_a_member_and_a_multiple_is_not,
)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("size", "shape"), [(1, (5,)), (2, (6,)), (3, (2, 3))])
def test_the_contract_of_every_set(check: Any, size: int, shape: Any) -> None:
    check(GroupMaxBall(size, RADIUS), shape)


@pytest.mark.parametrize(("size", "radius"), [(0, 1.0), (2, 0.0), (2, np.inf)])
def test_a_set_that_is_none_is_refused(size: int, radius: float) -> None:
    with pytest.raises(ValueError, match="group-max-ball"):
        GroupMaxBall(size, radius)


def test_the_loss_is_hubers() -> None:
    objective = load_objective(1)
    x = np.random.default_rng(0).normal(size=TRUTH.size)
    residuals = objective.features @ x - objective.targets
    assert objective.value(x) == pytest.approx(huber(1.0, residuals).mean())
    numerical = approx_fprime(x, objective.value, 1e-7)
    np.testing.assert_allclose(objective.gradient(x), numerical, atol=1e-5)
    outside = float((np.abs(residuals) > 1.0).mean())
    assert objective.metrics(x) == {"outliers": outside}
