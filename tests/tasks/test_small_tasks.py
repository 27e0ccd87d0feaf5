"""What only the smaller tasks have: their data, their minima."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA

import sim
from fedtrellis.manifolds import Euclidean, FixedRank, Product, Stiefel
from fedtrellis.wire.arrays import Layout
from tasks import Digits, KernelPCA, Lasso, LinearRegression, LowRankNetwork
from tasks.data.task import data_of


def make(n: int = 8, **settings: Any) -> LinearRegression:
    return LinearRegression(num_clients=n, seed=0, **settings)


def test_every_client_has_one_of_the_three_distributions() -> None:
    data = data_of(make(60, partition="by-distribution"))
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
    assert np.abs(student).max() > 8.0
    assert moments(uniform) == pytest.approx((25 / 3, 1.8), rel=0.02)
    assert 4.99 < np.abs(uniform).max() < 5.0


def moments(sample: np.ndarray) -> tuple[float, float]:
    """Return the variance and the kurtosis E[z⁴]/E[z²]².

    Normal: 1 and 3; t with 5 degrees of freedom: 5/3 and 9; U[−5, 5]: 25/3 and 1.8.
    """
    return float(sample.var()), float(np.mean(sample**4) / sample.var() ** 2)


def test_sizes_are_uniform_between_their_bounds() -> None:
    sizes = np.diff(data_of(make(2000, features=1)).starts)
    assert (sizes.min(), sizes.max()) == (50, 150)
    assert sizes.mean() == pytest.approx(100, abs=2)
    assert sizes.std() == pytest.approx(np.sqrt((101**2 - 1) / 12), rel=0.05)
    # the same for both partitions
    other = make(2000, features=1, partition="by-distribution")
    np.testing.assert_array_equal(np.diff(data_of(other).starts), sizes)


@pytest.mark.parametrize("partition", ["shuffled", "by-distribution"])
@pytest.mark.parametrize("weighting", ["clients", "examples"])
def test_the_solution_is_that_of_the_normal_equations(
    partition: str, weighting: str
) -> None:
    task = make(9, partition=partition, weighting=weighting)
    gram, right = np.zeros((100, 100)), np.zeros(100)
    for A, b in map(data_of(task).share, range(9)):
        weight = 1 / len(b) if weighting == "clients" else 1.0
        gram += weight * A.T @ A
        right += weight * A.T @ b
    expected = np.linalg.solve(gram, right)
    np.testing.assert_allclose(task.solution(), expected, rtol=1e-8, atol=1e-12)
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


def network(**settings: Any) -> LowRankNetwork:
    return LowRankNetwork(num_clients=5, seed=0, **settings)


KINDS: list[dict[str, Any]] = [{}, {"factored": False}, {"full_rank": True}]


def test_the_arrays_of_each_kind() -> None:
    free = [(32,), (32, 10), (10,)]
    spaces = [Euclidean(shape) for shape in free]
    factors = [Stiefel((64, 8)), Euclidean((8,)), Stiefel((32, 8))]
    whole = [(64, 32), *free]
    network(rank=33, full_rank=True).check()
    for settings, shapes, parts in (
        ({}, [(64, 8), (8,), (32, 8), *free], factors),
        ({"factored": False}, whole, [FixedRank((64, 32), 8)]),
        # nothing to factor
        ({"full_rank": True}, whole, [Euclidean((64, 32))]),
        ({"full_rank": True, "factored": False}, whole, [Euclidean((64, 32))]),
    ):
        made = network(**settings)
        assert made.shapes() == shapes
        assert made.manifold() == Product([*parts, *spaces])


@pytest.mark.parametrize("kind", KINDS, ids=["factored", "matrix", "full"])
def test_projected_gradient_learns_on_the_manifold(kind: dict[str, Any]) -> None:
    made = network(**kind)
    manifold, objective = made.manifold(), made.objective()
    x = Layout(tuple(made.shapes())).point(made.initial_point())
    before = made.metrics(x)["accuracy"]
    for _ in range(150):
        step = -0.2 * manifold.project_tangent(x, objective.gradient(x))
        x = manifold.retract(x, step)
    assert before < 0.3
    assert made.metrics(x)["accuracy"] > 0.88
    assert manifold.contains(x, 1e-10)


@pytest.mark.parametrize(
    ("task", "settings", "kind"),
    [
        # of 113 000 parameters, and of 18 000
        ("characters", {"width": 96, "blocks": 1, "train-passages": 40}, "Forward"),
        ("classification", {"dataset": "digits", "model": "dnn"}, "Objective"),
    ],
)
def test_a_large_network_keeps_no_parameters_where_values_are_all(
    task: str, settings: dict[str, Any], kind: str
) -> None:
    pytest.importorskip("torch")
    config = {"task": task} | {f"{task}.{k}": v for k, v in settings.items()}
    values = []
    for method, wanted in (("zeroth-order-sgd", kind), ("local-sgd", "Objective")):
        made = sim.app.experiment({**config, "method": method}, 4).task
        start = made.initial_point()
        found: Any = made.client_parts(1)["objective"]
        assert f"Torch{wanted}" in {cls.__name__ for cls in type(found).__mro__}
        values.append(found.value(start))
        assert all(map(np.allclose, found.initial_point(), start))
        # the server measures a gradient all the same
        assert np.isfinite(made.objective().gradient(start)[0]).all()
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_f_is_that_of_the_centred_covariance() -> None:
    images = load_digits(return_X_y=True)[0]
    x = np.random.default_rng(0).standard_normal((64, 4))
    covariance = np.cov(images.T, bias=True)
    expected = -0.5 * np.trace(x.T @ covariance @ x)
    # scaled: the same, by one factor
    for scale, factor in ((False, 1.0), (True, np.linalg.eigvalsh(covariance)[-1])):
        made = KernelPCA(num_clients=5, seed=0, scale=scale)
        assert made.value(x) == pytest.approx(expected / factor, rel=1e-12)


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
    made = KernelPCA(num_clients=5, seed=0, **settings)
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
