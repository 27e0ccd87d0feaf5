"""The losses and the set of the examples."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from numpyfedgia.task import load_objective
from owndomain.domain import GroupMaxBall
from tests.fedtrellis.domains import test_domains as contract

RADIUS = 1.3
CONTRACT = (
    contract.test_the_oracle_against_cvxpy,
    contract.test_many_gradients_have_the_atoms_of_each,
    contract.test_projection_and_membership_against_cvxpy,
    contract.test_enormous_and_tiny_entries,
    contract.test_the_diameter_is_the_largest_distance,
    contract.test_members_and_others,
)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("size", "shape"), [(1, (5,)), (2, (6,)), (3, (2, 3))])
def test_the_contract_of_every_set(check: Any, size: int, shape: Any) -> None:
    check(GroupMaxBall(size, RADIUS), shape)


@pytest.mark.parametrize(("size", "radius"), [(0, 1.0), (2, 0.0), (2, np.inf)])
def test_a_set_that_is_none_is_refused(size: int, radius: float) -> None:
    with pytest.raises(ValueError, match="group-max-ball"):
        GroupMaxBall(size, radius)


def test_the_bound_is_one_and_the_gradient_is_that_of_the_value() -> None:
    objective = load_objective(2, 10, 0.1)
    rng = np.random.default_rng(0)
    bound = objective.hessian_bound()
    assert objective.lipschitz() == pytest.approx(np.linalg.norm(bound, 2))
    for x, y in rng.normal(size=(20, 2, 10)):
        numerical = approx_fprime(x, objective.value, 1e-7)
        np.testing.assert_allclose(objective.gradient(x), numerical, atol=1e-5)
        step = y - x
        above = objective.value(x) + objective.gradient(x) @ step
        assert objective.value(y) <= above + 0.5 * step @ bound @ step + 1e-12
