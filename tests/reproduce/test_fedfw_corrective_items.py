"""What the items about corrective steps are made of, against something independent."""

from __future__ import annotations

import numpy as np
import pytest

from fedtrellis.corrective import Entries, Form, LocalProblem, Vertices
from fedtrellis.domains import L1Ball, Simplex
from fedtrellis.objectives import LeastSquares
from fedtrellis.objectives.reference import certified_minimum
from fedtrellis.wire.arrays import Layout
from reproduce.fedfw import inner_steps, problems
from reproduce.fedfw.problems import made, solve

SMALL = "least squares, box"


@pytest.mark.parametrize("name", ["logistic, ℓ2", "portfolio, simplex"])
def test_the_minimum_is_the_other_solvers(name: str) -> None:
    problem = made(name)
    found = problem.minimum
    assert 0.0 <= found.gap <= 1e-12 * abs(found.value)
    other = certified_minimum(problem.mean, problem.domain, problem.start, 1e-9)
    assert found.value - found.gap <= other.value
    assert other.value - other.gap <= found.value


def test_the_loop_without_messages_is_the_strategy() -> None:
    problem = made(SMALL)
    for form, correction in ((Entries, "projected"), (Vertices, "pairwise")):
        bare, sent = inner_steps.converge(problem, form, 5, 6, 0.0)
        run = solve(
            problem, 6, 0.0, variant="corrective", local_steps=5, correction=correction
        )
        np.testing.assert_allclose(bare, run.error, rtol=1e-9)
        assert 0.0 < sent < run.up


@pytest.mark.parametrize("seed", range(5))
def test_weights_by_the_active_set_are_the_minimisers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((6, 9))  # singular
    gram, linear = half.T @ half, rng.standard_normal(9)
    start = np.zeros(9)
    start[rng.integers(9)] = 1.0
    w = inner_steps.minimiser(gram, linear, start)
    assert Simplex(1.0).contains(w)
    slopes = gram @ w + linear
    # complementary slackness: only the smallest slopes have weight
    assert float(w @ slopes) - slopes.min() <= 1e-9


@pytest.mark.parametrize("kind", ["blended pairwise", "fully corrective"])
def test_other_kinds_of_steps_find_the_local_minimiser(kind: str) -> None:
    rng = np.random.default_rng(0)
    A, y, z = rng.standard_normal((6, 9)), rng.standard_normal(9), np.zeros(9)
    objective = LeastSquares(A, A @ rng.standard_normal(9))
    domain = L1Ball(1.5)
    local = LocalProblem(objective, Layout.of([z]), 3, y, z, 0.7)
    iterate = inner_steps.FORMS[kind].at(z, Form(domain))
    arrays = iterate.corrections(local, domain, 200)
    x = iterate.changed(arrays, domain, 200).dense()
    best = problems.central(local, domain, z)
    assert best.gap <= 1e-12 * abs(best.value)
    assert local.value(x) == pytest.approx(best.value, abs=1e-9)
    assert np.abs(x - z).max() > 0.1
