"""The task ``linear-regression``."""

from typing import Any

import numpy as np
import pytest

from tasks import LinearRegression
from tasks.data.task import data_of

MODES = [
    (partition, weighting)
    for partition in ("shuffled", "by-distribution")
    for weighting in ("clients", "examples")
]
every_mode = pytest.mark.parametrize(("partition", "weighting"), MODES)


def make(n: int = 8, seed: int = 0, **settings: Any) -> LinearRegression:
    return LinearRegression(num_clients=n, seed=seed, **settings)


def shares(task: LinearRegression) -> list[tuple[np.ndarray, np.ndarray]]:
    data = data_of(task)
    return [
        (data.features[start:stop], data.targets[start:stop])
        for start, stop in zip(data.starts[:-1], data.starts[1:], strict=True)
    ]


def moments(sample: np.ndarray) -> tuple[float, float]:
    """Return the variance and the kurtosis E[z⁴]/E[z²]².

    Normal: 1 and 3; t with 5 degrees of freedom: 5/3 and 9; U[−5, 5]: 25/3 and 1.8.
    """
    return float(sample.var()), float(np.mean(sample**4) / sample.var() ** 2)


def test_every_client_has_one_of_the_three_distributions() -> None:
    task = make(60, partition="by-distribution")
    groups: list[list[np.ndarray]] = [[], [], []]
    for i, (A, b) in enumerate(shares(task)):
        groups[i % 3].append(np.column_stack([A, b]))
    normal, student, uniform = (np.vstack(group) for group in groups)
    for sample in (normal, student, uniform):
        assert abs(sample.mean()) < 0.02
        # b is drawn like the features, and independently
        assert sample[:, -1].var() == pytest.approx(sample[:, :-1].var(), rel=0.15)
    assert moments(normal) == pytest.approx((1.0, 3.0), rel=0.03)
    assert moments(student)[0] == pytest.approx(5 / 3, rel=0.03)
    assert moments(student)[1] > 5.0
    assert np.abs(student).max() > 8.0
    assert moments(uniform) == pytest.approx((25 / 3, 1.8), rel=0.02)
    assert np.abs(uniform).max() < 5.0
    assert np.abs(uniform).max() > 4.99


def test_shuffled_clients_have_a_third_of_each() -> None:
    task = make(60)
    expected = (1 + 5 / 3 + 25 / 3) / 3
    assert data_of(task).features.var() == pytest.approx(expected, rel=0.02)
    # rows with the variance of the uniform distribution, in every client
    fractions = [np.mean(A.var(axis=1) > 4.5) for A, _ in shares(task)]
    assert np.mean(fractions) == pytest.approx(1 / 3, abs=0.02)
    assert min(fractions) > 0.1
    assert max(fractions) < 0.6


def test_sizes_are_uniform_between_their_bounds() -> None:
    sizes = np.diff(data_of(make(2000, features=1)).starts)
    assert sizes.min() == 50
    assert sizes.max() == 150
    assert sizes.mean() == pytest.approx(100, abs=2)
    assert sizes.std() == pytest.approx(np.sqrt((101**2 - 1) / 12), rel=0.05)
    fixed = make(5, rows_min=7, rows_max=7)
    assert np.diff(data_of(fixed).starts).tolist() == [7] * 5
    assert fixed.num_examples() == 35
    # the same for both partitions
    other = make(2000, features=1, partition="by-distribution")
    np.testing.assert_array_equal(np.diff(data_of(other).starts), sizes)


@every_mode
def test_the_solution_is_that_of_the_normal_equations(
    partition: str, weighting: str
) -> None:
    task = make(9, partition=partition, weighting=weighting)
    gram, right = np.zeros((100, 100)), np.zeros(100)
    for A, b in shares(task):
        weight = 1 / len(b) if weighting == "clients" else 1.0
        gram += weight * A.T @ A
        right += weight * A.T @ b
    expected = np.linalg.solve(gram, right)
    np.testing.assert_allclose(task.solution(), expected, rtol=1e-8, atol=1e-12)
    assert np.abs(task.gradient(task.solution())).max() < 1e-12
    assert task.metrics(task.solution()) == {"solution-error": 0.0}
    moved = task.metrics(task.solution() + 0.1)["solution-error"]
    assert moved == pytest.approx(1.0, rel=1e-12)
