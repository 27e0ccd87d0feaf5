"""What only the smaller tasks have: their data, their minima."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA

import sim
from fedtrellis.domains import L1Ball
from fedtrellis.manifolds import Euclidean, FixedRank, Product, Stiefel
from fedtrellis.wire.arrays import Layout
from tasks import Digits, KernelPCA, Lasso, LinearRegression, LowRankNetwork
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


def test_the_data_is_what_the_paper_describes() -> None:
    task = Lasso(num_clients=3, seed=0)
    A, b, solution = *data_of(task)[:2], task.solution()
    assert A.shape == (200, 400)
    assert np.count_nonzero(solution) == 20
    np.testing.assert_allclose(b, A @ solution)
    # 80 000 entries with variances from U[1, 2]
    assert A.mean() == pytest.approx(0.0, abs=0.02)
    assert A.var() == pytest.approx(1.5, abs=0.05)
    columns = A.var(axis=0)
    assert columns.std() == pytest.approx(np.sqrt(1 / 12 + 2 * 2.33 / 200), rel=0.15)


def test_the_split_does_not_depend_on_the_number_of_clients() -> None:
    few, many = (data_of(Digits(num_clients=n, seed=0)) for n in (2, 50))
    np.testing.assert_array_equal(few.test_features, many.test_features)
    other = data_of(Digits(num_clients=2, seed=1))
    assert not np.array_equal(few.test_targets, other.test_targets)


def test_the_optimum_is_that_of_cvxpy() -> None:
    cvxpy = pytest.importorskip("cvxpy")
    task, domain = Digits(num_clients=3, seed=0), L1Ball(5.0)
    x = z = np.zeros((65, 10))
    step = 1.0 / task.objective().lipschitz()
    for t in range(1, 121):  # accelerated projected gradient
        before, x = x, domain.project(z - step * task.gradient(z))
        z = x + (t - 1) / (t + 2) * (x - before)
    data = data_of(task)
    features = np.hstack([data.features, np.ones((len(data.targets), 1))])
    W = cvxpy.Variable((65, 10))
    scores = features @ W
    chosen = cvxpy.sum(cvxpy.multiply(np.eye(10)[data.targets], scores))
    loss = cvxpy.sum(cvxpy.log_sum_exp(scores, axis=1)) - chosen
    problem = cvxpy.Problem(
        cvxpy.Minimize(loss / len(features)), [cvxpy.sum(cvxpy.abs(W)) <= 5.0]
    )
    problem.solve(solver="SCS", eps_abs=1e-3, eps_rel=1e-3)
    assert task.value(x) == pytest.approx(problem.value, abs=2e-3)


def task(n: int = 5, seed: int = 0, **settings: Any) -> LowRankNetwork:
    return LowRankNetwork(num_clients=n, seed=seed, **settings)


KINDS: list[dict[str, Any]] = [{}, {"factored": False}, {"full_rank": True}]


def test_the_arrays_of_each_kind() -> None:
    free = [(32,), (32, 10), (10,)]
    spaces = [Euclidean(shape) for shape in free]
    assert task().shapes() == [(64, 8), (8,), (32, 8), *free]
    assert task().manifold() == Product(
        [Stiefel((64, 8)), Euclidean((8,)), Stiefel((32, 8)), *spaces]
    )
    assert task(factored=False).shapes() == [(64, 32), *free]
    assert task(factored=False).manifold() == Product([FixedRank((64, 32), 8), *spaces])
    task(rank=33, full_rank=True).check()
    # nothing to factor
    for factored in (True, False):
        full = task(full_rank=True, factored=factored)
        assert full.shapes() == [(64, 32), *free]
        assert full.manifold() == Product([Euclidean((64, 32)), *spaces])


@pytest.mark.parametrize("kind", KINDS, ids=["factored", "matrix", "full"])
def test_projected_gradient_learns_on_the_manifold(kind: dict[str, Any]) -> None:
    made = task(**kind)
    manifold, objective = made.manifold(), made.objective()
    x = Layout(tuple(made.shapes())).point(made.initial_point())
    before = made.metrics(x)["accuracy"]
    for _ in range(150):
        step = -0.2 * manifold.project_tangent(x, objective.gradient(x))
        x = manifold.retract(x, step)
    assert before < 0.3
    assert made.metrics(x)["accuracy"] > 0.88
    assert manifold.contains(x, 1e-10)


@pytest.mark.parametrize("task", ["characters", "classification"])
def test_a_large_network_keeps_no_parameters_where_values_are_all(task: str) -> None:
    pytest.importorskip("torch")
    from fedtrellis.objectives.torch_forward import TorchForward
    from fedtrellis.objectives.torch_objective import TorchObjective
    from tasks.networks import FORWARD_FROM

    settings: dict[str, dict[str, Any]] = {
        # of 113 000 parameters
        "characters": {"width": 96, "blocks": 1, "train-passages": 40},
        # of 18 000
        "classification": {"dataset": "digits", "model": "dnn"},
    }
    config = {"task": task} | {f"{task}.{k}": v for k, v in settings[task].items()}
    runs = {
        method: sim.app.experiment({**config, "method": method}, 4)
        for method in ("zeroth-order-sgd", "local-sgd")
    }
    found = {
        method: run.task.client_parts(1)["objective"] for method, run in runs.items()
    }
    size = sum(int(np.prod(s)) for s in runs["local-sgd"].task.shapes())
    kind = TorchForward if size >= FORWARD_FROM else TorchObjective
    assert isinstance(found["zeroth-order-sgd"], kind)
    assert isinstance(found["local-sgd"], TorchObjective)
    assert (task == "characters") == (kind is TorchForward)
    start = runs["local-sgd"].task.initial_point()
    values = [objective.value(start) for objective in found.values()]
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    for own in (objective.initial_point() for objective in found.values()):
        assert all(map(np.allclose, own, start))
    # the server measures a gradient all the same
    assert np.isfinite(
        runs["zeroth-order-sgd"].task.objective().gradient(start)[0]
    ).all()


def task_components(n: int = 5, seed: int = 0, **settings: Any) -> KernelPCA:
    return KernelPCA(num_clients=n, seed=seed, **settings)


def test_f_is_that_of_the_centred_covariance() -> None:
    images = load_digits(return_X_y=True)[0]
    made = task_components(scale=False)
    x = np.random.default_rng(0).standard_normal((64, 4))
    covariance = np.cov(images.T, bias=True)
    expected = -0.5 * np.trace(x.T @ covariance @ x)
    assert made.value(x) == pytest.approx(expected, rel=1e-12)
    # scaled: the same, by one factor
    factor = np.linalg.eigvalsh(covariance)[-1]
    assert task_components().value(x) == pytest.approx(expected / factor, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ({}, load_digits(return_X_y=True)[0]),
        ({"samples": 200}, load_digits(return_X_y=True)[0][:200]),
        ({"dataset": "iris", "components": 2}, load_iris(return_X_y=True)[0]),
    ],
    ids=["digits", "200-digits", "iris"],
)
def test_the_optimum_is_that_of_scikit_learn(
    settings: dict[str, Any], images: np.ndarray
) -> None:
    made = task_components(**settings)
    components = made.components
    pca = PCA().fit(images)
    ratios = pca.explained_variance_ / pca.explained_variance_[0]
    optimum = made.objective().optimum()  # type: ignore[attr-defined]
    assert optimum == pytest.approx(-0.5 * ratios[:components].sum(), rel=1e-9)
    best = pca.components_[:components].T
    assert made.manifold().contains(best)
    assert made.value(best) == pytest.approx(optimum, rel=1e-9)
    metrics = made.metrics(best)
    assert abs(metrics["optimality-gap"]) < 1e-9
    assert metrics["subspace-error"] < 1e-7
    start = made.metrics(made.initial_point())
    assert start["optimality-gap"] > 0.1
    assert start["subspace-error"] > 0.5


# -- files
