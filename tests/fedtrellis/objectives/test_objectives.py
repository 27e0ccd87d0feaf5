"""What every objective keeps to, against finite differences and plain loops."""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
    Objective,
    QuadraticAssignment,
)
from fedtrellis.objectives.base import draw_batch
from tests.fedtrellis.objectives.cases import (
    BOUNDED,
    CASES,
    CURVED,
    Array,
    FixedBatch,
    csr,
    finite_difference,
    point,
)

every_objective = pytest.mark.parametrize("name", CASES)
bounded_objectives = pytest.mark.parametrize("name", BOUNDED)


@every_objective
def test_gradient_is_that_of_central_differences(name: str) -> None:
    objective = CASES[name]()
    x = point(objective)
    gradient = objective.gradient(x)
    expected = finite_difference(objective.value, x)
    assert gradient.shape == x.shape
    assert gradient.dtype == np.float64
    assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected)


@every_objective
@pytest.mark.parametrize("slice_entries", [2**23, 1])
def test_values_are_those_of_a_loop(
    name: str, slice_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtrellis.objectives.base._SLICE_ENTRIES", slice_entries)
    objective = CASES[name]()
    points = np.stack([point(objective, seed) for seed in range(6)])
    expected = [objective.value(x) for x in points]
    values = objective.values(points, np.random.default_rng(0))
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-14)
    assert objective.values(points[:0]).shape == (0,)


@every_objective
@pytest.mark.parametrize("batch_size", [1, 2])
def test_mini_batches_average_to_the_gradient(name: str, batch_size: int) -> None:
    objective = CASES[name]()
    x, count = point(objective), objective.num_examples
    points = np.stack([x, point(objective, 1)])
    subsets = itertools.combinations(range(count), batch_size)
    batches = [FixedBatch(subset) for subset in subsets]
    gradients = [objective.stochastic_gradient(x, b, batch_size) for b in batches]
    whole = objective.gradient(x)
    near: Any = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(np.mean(gradients, axis=0), whole, **near)
    assert np.std(gradients, axis=0).max() > 1e-3
    values = [objective.values(points, b, batch_size=batch_size) for b in batches]
    expected = objective.values(points)
    np.testing.assert_allclose(np.mean(values, axis=0), expected, **near)
    full = objective.stochastic_gradient(x, np.random.default_rng(0), count + 5)
    np.testing.assert_array_equal(full, whole)
    with pytest.raises(ValueError, match="batch_size is 0"):
        objective.stochastic_gradient(x, np.random.default_rng(0), 0)
    with pytest.raises(ValueError, match="rng is None"):
        objective.values(x[None], batch_size=2)


def test_batches_are_drawn_evenly_and_without_replacement() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_batch(rng, 5, 2) for _ in range(10_000)]
    counts = Counter(frozenset(rows.tolist()) for rows in drawn if rows is not None)
    # each of the ten pairs is expected 1000 ± 30 times
    assert {len(key) for key in counts} == {2}
    assert len(counts) == 10
    assert all(abs(count - 1000) < 150 for count in counts.values())


@bounded_objectives
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-2, 1.0, 30.0]))
def test_hessian_bound_majorises(name: str, seed: int, scale: float) -> None:
    objective = BOUNDED[name]()
    x, z = point(objective, seed, scale), point(objective, seed + 1, scale)
    difference = (x - z).ravel()
    theta = objective.hessian_bound()
    quadratic = 0.5 * float(difference @ (theta @ difference))
    linear = float(np.vdot(objective.gradient(z), x - z))
    bound = objective.value(z) + linear + quadratic
    size = abs(objective.value(z)) + abs(linear) + quadratic
    assert objective.value(x) <= bound + 1e-11 * size
    if isinstance(objective, LeastSquares | MatrixCompletion):
        assert objective.value(x) == pytest.approx(bound, abs=1e-11 * size)


@bounded_objectives
def test_lipschitz_is_an_eigenvalue(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dense bound, and of a large one, which is an operator."""
    objective = BOUNDED[name]()
    theta = objective.hessian_bound()
    assert isinstance(theta, np.ndarray)
    assert theta.shape == (np.prod(objective.shape),) * 2
    np.testing.assert_allclose(theta, theta.T, atol=1e-15)
    eigenvalues = np.linalg.eigvalsh(theta)
    assert eigenvalues[0] >= -1e-12 * eigenvalues[-1]
    assert objective.lipschitz() == pytest.approx(eigenvalues[-1], rel=1e-12)
    monkeypatch.setattr("fedtrellis.objectives.base.DENSE_ORDER", 2)
    large = BOUNDED[name]()
    operator = large.hessian_bound()
    assert not isinstance(operator, np.ndarray)
    np.testing.assert_allclose(operator @ np.eye(len(theta)), theta, atol=1e-13)
    for found in (large.lipschitz(), Objective.lipschitz(large)):
        assert found == pytest.approx(eigenvalues[-1], rel=1e-10)


QUADRATIC = {"least", "matrix", "assignment", "principal"}


def directions(objective: Objective) -> list[Array]:
    """A dense one, one with two entries, one with the first and last row, and none."""
    dense, few = point(objective, 5), np.zeros(objective.shape)
    few.flat[[1, -2]] = 0.5, -2.0
    ends = np.zeros(objective.shape)
    ends[[0, -1]] = dense[[0, -1]]
    return [dense, few, ends, np.zeros(objective.shape)]


@pytest.mark.parametrize("name", CURVED)
def test_curvature_is_how_the_slope_along_the_direction_changes(name: str) -> None:
    objective = CURVED[name]()
    x, step = point(objective), 1e-4
    for d in directions(objective):
        before = x.copy(), d.copy()
        found = objective.curvature(x, d)
        assert type(found) is float
        slopes = [np.vdot(objective.gradient(x + t * d), d) for t in (step, -step)]
        expected = (slopes[0] - slopes[1]) / (2 * step)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-7)
        np.testing.assert_array_equal((x, d), before)
    assert objective.quadratic == (name.split()[0].strip(",") in QUADRATIC)
    if objective.quadratic:  # the parabola along any line
        d, gamma = point(objective, 5), 3.7
        slope, bend = np.vdot(objective.gradient(x), d), objective.curvature(x, d) or 0
        parabola = objective.value(x) + gamma * slope + 0.5 * gamma**2 * bend
        end = objective.value(x + gamma * d)
        assert end == pytest.approx(parabola, rel=1e-12, abs=1e-12)


@every_objective
def test_points_of_another_shape_are_refused(name: str) -> None:
    objective = CASES[name]()
    x = point(objective)
    calls: list[Callable[[Array], object]] = [objective.value, objective.gradient]
    calls.append(lambda wrong: objective.values(wrong[None]))
    if name in CURVED:
        calls.append(lambda wrong: objective.curvature(x, wrong))
        calls.append(lambda wrong: objective.curvature(wrong, x))
    for call, wrong in itertools.product(calls, (x[..., None], x[:-1])):
        with pytest.raises(ValueError, match="(x|points|direction) has shape"):
            call(wrong)


NAN = np.array([[1.0, np.nan]])
SQUARE = np.eye(3)
REFUSED: list[tuple[str, Callable[[], object]]] = [
    (r"A has shape \(2,\)", lambda: LeastSquares([1.0, 2.0], [1.0, 2.0])),
    ("A.data has NaN", lambda: LeastSquares(csr(NAN), [1.0])),
    (r"A has shape \(0, 2\)", lambda: LeastSquares(np.zeros((0, 2)), [])),
    ("A has dtype", lambda: LeastSquares([["a"]], [1.0])),
    ("b has 1 entries; it must have 3", lambda: LeastSquares(SQUARE, [1.0])),
    ("b has NaN", lambda: LeastSquares([[1.0]], [np.inf])),
    ("scale is 'mean'; allowed", lambda: LeastSquares([[1.0]], [1.0], scale="mean")),
    ("weight is 0", lambda: LeastSquares([[1.0]], [1.0], weight=0)),
    ("l2 is -0.1", lambda: Logistic([[1.0]], [1], l2=-0.1)),
    ("b has the entry -1", lambda: Logistic([[1.0], [2.0]], [-1, 1])),
    ("labels has the entry 3", lambda: MultinomialLogistic(SQUARE, [0, 3, 1], 3)),
    ("labels has 2 entries", lambda: MultinomialLogistic(SQUARE, [0, 1], 3)),
    ("classes is 1", lambda: MultinomialLogistic([[1.0]], [0], 1)),
    ("rows has the entry 3", lambda: MatrixCompletion([3], [0], [1.0], (3, 3))),
    ("columns has the entry -1", lambda: MatrixCompletion([0], [-1], [1.0], (3, 3))),
    ("ratings is empty", lambda: MatrixCompletion([], [], [], (3, 3))),
    (r"shape is \(3, 0\)", lambda: MatrixCompletion([0], [0], [1.0], (3, 0))),
    (r"\(2, 2\)\); they must", lambda: QuadraticAssignment(SQUARE, np.eye(2))),
    ("mask has dtype", lambda: QuadraticAssignment(SQUARE, SQUARE, mask=SQUARE)),
    ("true somewhere", lambda: QuadraticAssignment(SQUARE, SQUARE, mask=SQUARE > 2)),
]


@pytest.mark.parametrize(("message", "make"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_does_not_fit_is_refused(message: str, make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
