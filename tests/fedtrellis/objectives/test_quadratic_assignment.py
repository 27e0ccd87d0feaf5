"""Quadratic assignment against the four-fold sum and enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.objectives import (
    QuadraticAssignment,
)
from tests.fedtrellis.objectives.cases import DISTANCES, FLOWS, MASK, Array, point


def four_fold(X: Array, chosen: NDArray[np.bool_]) -> float:
    """Return Σ A_ij B_kl X_ik X_jl over the (i, j) chosen and all k, l."""
    total = 0.0
    for i, j, k, m in itertools.product(range(4), repeat=4):
        if chosen[i, j]:
            total += FLOWS[i, j] * DISTANCES[k, m] * X[i, k] * X[j, m]
    return total


def test_assignment_is_the_four_fold_sum_and_the_trace() -> None:
    whole = QuadraticAssignment(FLOWS, DISTANCES)
    X = point(whole)
    assert not np.allclose(FLOWS, FLOWS.T)
    assert not np.allclose(DISTANCES, DISTANCES.T)
    expected = four_fold(X, np.ones((4, 4), dtype=bool))
    assert whole.value(X) == pytest.approx(expected, rel=1e-12)
    trace = np.trace(FLOWS @ X @ DISTANCES.T @ X.T)
    assert whole.value(X) == pytest.approx(trace, rel=1e-12)
    part = QuadraticAssignment(FLOWS, DISTANCES, mask=MASK, weight=3.0)
    assert part.value(X) == pytest.approx(3.0 * four_fold(X, MASK), rel=1e-12)
    assert part.num_examples == MASK.sum()


def test_assignment_at_permutations_is_the_cost_of_assigning() -> None:
    objective = QuadraticAssignment(FLOWS, DISTANCES)
    for p in itertools.permutations(range(4)):
        cost = sum(
            FLOWS[i, j] * DISTANCES[p[i], p[j]] for i in range(4) for j in range(4)
        )
        X = np.eye(4)[list(p)]  # X[i, p(i)] = 1
        assert objective.value(X) == pytest.approx(cost, rel=1e-12)


@pytest.mark.parametrize("clients", [2, 3, 8, 16])
def test_parts_of_a_partition_add_up(clients: int) -> None:
    whole = QuadraticAssignment(FLOWS, DISTANCES)
    X = point(whole)
    owner = np.random.default_rng(0).permutation(16).reshape(4, 4) % clients
    parts = [
        QuadraticAssignment(FLOWS, DISTANCES, mask=owner == i) for i in range(clients)
    ]
    value = sum(part.value(X) for part in parts)
    gradient = np.sum([part.gradient(X) for part in parts], axis=0)
    assert value == pytest.approx(whole.value(X), rel=1e-12)
    np.testing.assert_allclose(gradient, whole.gradient(X), rtol=1e-12, atol=1e-13)
    assert sum(part.num_examples for part in parts) == 16
