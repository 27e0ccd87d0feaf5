"""What the items about corrective steps are made of, against something independent."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedtrellis.corrective import Entries, Form, LocalProblem, Vertices
from fedtrellis.domains import L1Ball, Simplex
from fedtrellis.objectives import LeastSquares
from fedtrellis.objectives.reference import certified_minimum
from fedtrellis.wire.arrays import Layout
from reproduce.fedfw import corrective, corrective_penalty, inner_steps, problems
from reproduce.fedfw.problems import HELD_OUT, PROBLEMS, made, reached, solve

SMALL = "least squares, box"


@pytest.mark.parametrize("name", ["logistic, ℓ2", "portfolio, simplex"])
def test_the_minimum_is_the_other_solvers(name: str) -> None:
    problem = made(name)
    found = problem.minimum
    assert 0.0 <= found.gap <= 1e-12 * abs(found.value)
    other = certified_minimum(problem.mean, problem.domain, problem.start, 1e-9)
    assert found.value - found.gap <= other.value
    assert other.value - other.gap <= found.value


def test_problems_are_ten_and_six_that_nobody_used() -> None:
    assert not set(PROBLEMS) & set(HELD_OUT)
    assert len(corrective.RATED) == 10
    used = {*corrective_penalty.MADE_ON, *HELD_OUT}
    assert set(corrective_penalty.MADE_ON) <= set(PROBLEMS)
    assert len(used) == 10


def test_every_objective_has_the_gradient_and_the_curvature_of_its_values() -> None:
    rng = np.random.default_rng(0)
    for name in ("portfolio, simplex", "least squares, Birkhoff"):
        problem = made(name)
        objective, x = problem.objectives[0], problem.start
        d = 1e-3 * rng.standard_normal(x.shape)
        # of a quadratic: the differences are exact
        up, here, down = (objective.value(x + s * d) for s in (1.0, 0.0, -1.0))
        slope = float(np.vdot(objective.gradient(x), d))
        assert 0.5 * (up - down) == pytest.approx(slope, rel=1e-6)
        assert up + down - 2.0 * here == pytest.approx(objective.curvature(x, d), 1e-5)


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


def test_weights_of_more_atoms_than_dimensions_end_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At such a minimum rounding lets an atom in, and out again, without end."""
    solved: list[int] = []
    solver = np.linalg.lstsq

    def counted(system: Any, right: Any, rcond: float) -> Any:
        solved.append(len(right))
        return solver(system, right, rcond=rcond)

    monkeypatch.setattr(np.linalg, "lstsq", counted)
    corners = [np.eye(4)[list(p)].ravel() for p in itertools.permutations(range(4))]
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = rng.dirichlet(np.ones(24)) @ corners
        A = rng.standard_normal((12, 16))
        images = np.array(corners) @ A.T
        gram, linear = images @ images.T, -(images @ (A @ x))
        solved.clear()
        w = inner_steps.minimiser(gram, linear, np.eye(24)[0])
        assert len(solved) <= 3 * len(corners)
        # the residual of what can be fitted exactly
        assert np.abs(w @ images - A @ x).max() <= 1e-6


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


def test_splitting_ends_at_the_minimum() -> None:
    problem = made(SMALL)
    eta = 1.0 / (len(problem.objectives) * 100.0)
    error = corrective.douglas_rachford(problem, eta, 60, 20)
    assert -1e-12 <= error[-1] <= 1e-4
    assert error[0] == pytest.approx(problem.error(problem.start))


def test_a_grid_goes_on_until_its_best_has_neighbours() -> None:
    asked: list[float] = []

    def trial(values: Any) -> list[dict[str, Any]]:
        asked.extend(values)
        return [{"last": abs(np.log(value / 200.0))} for value in values]

    value, errors, result = corrective.tuned(trial, 1.0)
    assert value == 256.0
    assert result["last"] == errors[256.0] == min(errors.values())
    assert min(errors) < value < max(errors)
    assert len(asked) == len(set(asked)) == len(errors)


def test_rates() -> None:
    falling = [0.8**t for t in range(120)]
    assert corrective.rate(falling) == pytest.approx(0.8)
    assert reached(falling) == [31, 62, 93]
    assert corrective.linear(falling) is True
    assert corrective.linear([1.0, *(t**-4.0 for t in range(1, 400))]) is False
    assert corrective.linear(falling[:60]) is None
    assert problems.reached([1.0, 1e-3, 1e-2]) == [1, None, None]
    assert corrective_penalty.ratio(1e-12, 1e-15) == 1.0
    assert corrective_penalty.ratio(1e-6, 1e-12) == pytest.approx(1e3)
