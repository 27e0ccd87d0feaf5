"""What only the smaller tasks have: their data, their minima, their files."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import quadratic_assignment
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA

import sim
import tasks.data
from fedtrellis.manifolds import Euclidean, FixedRank, Manifold, Product, Stiefel
from fedtrellis.server.records import no_better
from fedtrellis.wire.arrays import Layout
from tasks import (
    KernelPCA,
    Lasso,
    LinearRegression,
    LowRankNetwork,
    MatrixCompletionTask,
    QuadraticAssignmentTask,
)
from tasks.data.task import data_of

# -- linear regression and lasso


def linear(n: int = 8, **settings: Any) -> LinearRegression:
    return LinearRegression(num_clients=n, seed=0, **settings)


def moments(sample: np.ndarray) -> tuple[float, float]:
    """Return the variance and the kurtosis E[z⁴]/E[z²]².

    Normal: 1 and 3; t with 5 degrees of freedom: 5/3 and 9; U[−5, 5]: 25/3 and 1.8.
    """
    return float(sample.var()), float(np.mean(sample**4) / sample.var() ** 2)


def test_every_client_has_one_of_the_three_distributions() -> None:
    data = data_of(linear(60, partition="by-distribution"))
    groups: list[list[np.ndarray]] = [[], [], []]
    for i in range(60):
        groups[i % 3].append(np.column_stack(data.share(i)))
    normal, student, uniform = (np.vstack(group) for group in groups)
    for sample in (normal, student, uniform):
        assert abs(sample.mean()) < 0.02
        # b is drawn like the features, and independently
        assert sample[:, -1].var() == pytest.approx(sample[:, :-1].var(), rel=0.15)
    assert moments(normal) == pytest.approx((1.0, 3.0), rel=0.03)
    assert moments(student)[0] == pytest.approx(5 / 3, rel=0.03)
    assert moments(student)[1] > 5.0
    assert moments(uniform) == pytest.approx((25 / 3, 1.8), rel=0.02)
    assert 4.99 < np.abs(uniform).max() < 5.0


@pytest.mark.parametrize("partition", ["shuffled", "by-distribution"])
@pytest.mark.parametrize("weighting", ["clients", "examples"])
def test_the_solution_of_the_normal_equations(partition: str, weighting: str) -> None:
    task = linear(9, partition=partition, weighting=weighting)
    gram, right = np.zeros((100, 100)), np.zeros(100)
    for A, b in map(data_of(task).share, range(9)):
        weight = 1 / len(b) if weighting == "clients" else 1.0
        gram += weight * A.T @ A
        right += weight * A.T @ b
    expected = np.linalg.solve(gram, right)
    np.testing.assert_allclose(task.solution(), expected, rtol=1e-8, atol=1e-12)
    moved = task.metrics(task.solution() + 0.1)["solution-error"]
    assert moved == pytest.approx(1.0, rel=1e-12)


def test_lasso_s_data_is_what_the_paper_describes() -> None:
    task = Lasso(num_clients=3, seed=0)
    A, b, solution = *data_of(task)[:2], task.solution()
    assert A.shape == (200, 400)
    assert np.count_nonzero(solution) == 20
    np.testing.assert_allclose(b, A @ solution)
    # 80 000 entries with variances from U[1, 2]
    assert A.mean() == pytest.approx(0.0, abs=0.02)
    assert A.var() == pytest.approx(1.5, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, [Stiefel((64, 8)), Euclidean((8,)), Stiefel((32, 8))]),
        ({"factored": False}, [FixedRank((64, 32), 8)]),
        # nothing to factor
        ({"full_rank": True}, [Euclidean((64, 32))]),
    ],
)
def test_begin_on_the_manifold(settings: dict[str, Any], first: list[Manifold]) -> None:
    made = LowRankNetwork(num_clients=5, seed=0, **settings)
    free = [Euclidean(shape) for shape in ((32,), (32, 10), (10,))]
    assert made.manifold() == Product([*first, *free])
    x = Layout(tuple(made.shapes())).point(made.initial_point())
    assert made.manifold().contains(x, 1e-10)


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ({}, load_digits(return_X_y=True)[0]),
        ({"samples": 200, "scale": False}, load_digits(return_X_y=True)[0][:200]),
        ({"dataset": "iris", "components": 2}, load_iris(return_X_y=True)[0]),
    ],
    ids=["digits", "200-digits", "iris"],
)
def test_optima_are_scikit_learns(settings: dict[str, Any], images: np.ndarray) -> None:
    made = KernelPCA(num_clients=5, seed=0, **settings)
    pca = PCA().fit(images)
    covariance = np.cov(images.T, bias=True)
    if made.scale:
        covariance /= np.linalg.eigvalsh(covariance)[-1]
    best = pca.components_[: made.components].T
    assert made.manifold().contains(best)
    for x in (best, np.random.default_rng(0).standard_normal(best.shape)):
        expected = -0.5 * np.trace(x.T @ covariance @ x)
        assert made.value(x) == pytest.approx(expected, rel=1e-9)
    metrics = made.metrics(best)
    assert abs(metrics["optimality-gap"]) < 1e-9 * abs(made.value(best))
    assert metrics["subspace-error"] < 1e-7
    start = made.metrics(made.initial_point())
    assert start["optimality-gap"] > 0.1
    assert start["subspace-error"] > 0.5


@pytest.mark.parametrize("n", [1, 3, 40])
def test_every_rating_is_used_once(tmp_path: Path, n: int) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "u.data"
    cells = rng.choice(30 * 20, 203, replace=False)
    columns = [cells // 20 + 1, cells % 20 + 1, rng.integers(1, 6, 203), cells]
    np.savetxt(path, np.transpose(columns), fmt="%d", delimiter="\t")
    task = MatrixCompletionTask(num_clients=n, seed=0, path=str(path))
    data = data_of(task)
    assert len(data.test_targets) == 41  # 20 % of 203, rounded
    found = np.concatenate([data.features @ [20, 1], data.test_features @ [20, 1]])
    np.testing.assert_array_equal(np.sort(found), np.sort(cells))
    # that clients hold each once, test_clients_means_are_the_whole has
    assert {*np.diff(data.starts).tolist()} <= {162 // n, 162 // n + 1}


def test_a_rating_is_its_biases_and_what_they_leave(tmp_path: Path) -> None:
    rng, path, task = np.random.default_rng(0), tmp_path / "r.csv", "matrix-completion"
    users, items = 3.5 + 0.5 * rng.normal(size=40), 0.5 * rng.normal(size=30)
    seen = np.argwhere(rng.random((40, 30)) < 0.6)
    rated = [(i + 1, j + 1, users[i] + items[j]) for i, j in seen]
    lines = ["user,item,rating", *(f"{i},{j},{r}" for i, j, r in rated)]
    path.write_text("\n".join(lines))
    found = sim.app.experiment({"task": task, f"{task}.path": str(path)}, 3)
    left, domain = data_of(found.task).targets, found.task.domains()
    radius = 0.4 * left.std() * np.sqrt(1200)
    assert domain == {"nuclear-norm-ball": pytest.approx(radius)}
    # damping takes a part of a bias
    assert found.evaluate(found.initial_arrays())["rmse"] < 0.5 * users.std()
    rmse = np.sqrt(np.mean(np.square(data_of(found.task).test_targets)))
    assert found.task.baseline() == {"rmse": pytest.approx(rmse)}
    assert "above that of X = 0" in no_better({"rmse": 9.0}, {"rmse": rmse})[0]
    assert not no_better({"rmse": 0.0}, {"rmse": 0.0})
    known = {name: np.array(x) for name, x in found.task.meaning().items()}
    sums = known["mean"] + known["user-biases"][:, None] + known["item-biases"]
    _, kept = found.task._split()
    i, j = seen[kept].T
    assert sums[i, j] + left == pytest.approx(users[i] + items[j])
    more = {f"{task}.biases": False, "radius": 50.0}
    raw = sim.app.experiment({**found.config, **more}, 3)
    assert data_of(raw.task).targets == pytest.approx(users[i] + items[j])
    assert raw.task.meaning() == {}


def test_the_stored_permutation_costs_9552() -> None:
    task = QuadraticAssignmentTask(num_clients=72, seed=0)
    text = resources.files(tasks.data).joinpath("chr12a.json").read_text()
    permutation = np.array(json.loads(text)["permutation"]) - 1
    x = np.eye(len(permutation))[permutation]
    assert task.value(x) == task.cost(permutation) == 9552.0
    metrics = {"assignment-cost": 9552.0, "assignment-excess": 0.0}
    # rounding forgives what is not quite a permutation
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, x.shape)
    assert task.metrics([x + noise]) == metrics
    # the barycentre
    np.testing.assert_array_equal(task.initial_point()[0], np.full((12, 12), 1 / 12))


@pytest.mark.slow
def test_a_run_from_ten_starts_is_no_worse_than_faq() -> None:
    task = "quadratic-assignment"
    experiment = sim.app.experiment({"task": task, f"{task}.starts": 10}, 6)
    A, B, _ = experiment.task.instance()
    starts = experiment.task.initial_point()
    assert np.sum(starts, axis=1) == pytest.approx(1.0)
    assert np.sum(starts, axis=2) == pytest.approx(1.0)
    faq = [
        quadratic_assignment(A, B, method="faq", options={"P0": x}).fun for x in starts
    ]
    model = experiment.start().arrays.to_numpy_ndarrays()
    costs = [experiment.task.cost(experiment.task.round(x)) for x in model]
    assert np.mean(costs) <= 1.1 * np.mean(faq)
    best = {"assignment-cost": min(costs), "assignment-excess": min(costs) / 9552 - 1}
    assert experiment.task.metrics(model) == best


def test_an_assignment_from_a_file(tmp_path: Path) -> None:
    """Where A has more entries than B, these are dealt."""
    path = tmp_path / "two.dat"
    path.write_text("2\n\n0 3\n1 0\n0 3 0 0")
    task = QuadraticAssignmentTask(num_clients=2, seed=0, path=str(path))
    task.check()
    assert task.cost(np.array([1, 0])) == 3.0
    assert task.metrics(np.eye(2)) == {"assignment-cost": 9.0}
    assert [task.client_objective(i).num_examples for i in range(2)] == [1, 1]
