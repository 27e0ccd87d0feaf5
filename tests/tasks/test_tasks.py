"""What every task promises, whatever it is about."""

import inspect
from typing import Any

import numpy as np
import pytest

from clients import HyFDCAClient
from fedtrellis.domains import make_domain
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import Layout
from strategies import FedFW, FedGiA, HybridFedAvg, HyFDCA, HyFEM, NaiveFrankWolfe
from tasks import TASKS, Task, make_task
from tasks.base import Point
from tasks.data.task import data_of

CASES: list[tuple[str, dict[str, Any]]] = [
    ("digits", {}),
    ("digits", {"digits.partition": "labels", "digits.labels-per-client": 5}),
    ("digits", {"digits.partition": "dirichlet"}),
    ("lasso", {"lasso.rows": 37, "lasso.columns": 50, "lasso.nonzeros": 4}),
    ("lasso", {"lasso.noise": 0.5}),
    ("quadratic-assignment", {}),
    ("matrix-completion", {}),
    ("classification", {"classification.train-limit": 2000}),
    ("classification", {"classification.partition": "natural"}),
    ("classification", {"classification.partition": "labels"}),
    ("linear-regression", {}),
    (
        "linear-regression",
        {
            "linear-regression.partition": "by-distribution",
            "linear-regression.weighting": "examples",
        },
    ),
    ("logistic-regression", {}),
    (
        "logistic-regression",
        {
            "logistic-regression.partition": "labels",
            "logistic-regression.weighting": "clients",
            "logistic-regression.intercept": True,
        },
    ),
    (
        "logistic-regression",
        {
            "logistic-regression.partition": "dirichlet",
            "logistic-regression.regularizer": "nonconvex",
            "logistic-regression.scaling": "unit-columns",
            "logistic-regression.test-fraction": 0.0,
        },
    ),
    ("kernel-pca", {"kernel-pca.partition": "iid"}),
    ("kernel-pca", {"kernel-pca.dataset": "iris", "kernel-pca.components": 2}),
    ("low-rank-network", {}),
    (
        "low-rank-network",
        {
            "low-rank-network.partition": "dirichlet",
            "low-rank-network.factored": False,
            "low-rank-network.l2": 0.01,
        },
    ),
    ("low-rank-network", {"low-rank-network.full-rank": True}),
    ("attack", {}),
    ("attack", {"attack.balance": 0.0}),
    (
        "classification",
        {"classification.model": "dnn", "classification.train-limit": 500},
    ),
    (
        "characters",
        {
            "characters.train-passages": 90,
            "characters.context": 8,
            "characters.width": 8,
            "characters.blocks": 1,
            "characters.pretrained-steps": 2,
        },
    ),
]
ON_MANIFOLDS = ["kernel-pca", "low-rank-network", "attack"]
IDS = ["-".join([name, *map(str, config.values())]) for name, config in CASES]


def in_torch(name: str, config: dict[str, Any]) -> bool:
    """Whether the model is a network in PyTorch, in single precision."""
    return name == "characters" or config.get("classification.model") == "dnn"


def task_or_skip(name: str, config: dict[str, Any], n: int, seed: int = 0) -> Task:
    if in_torch(name, config):
        pytest.importorskip("torch")
    if config.get(f"{name}.partition") in ("labels", "dirichlet"):
        pytest.importorskip("flwr_datasets")
    return make_task(name, config, n, seed)


def random_point(task: Task, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [0.3 * rng.standard_normal(shape) for shape in task.shapes()]


def flat(x: Point) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in x])


@pytest.mark.parametrize("n", [4, 10, 23])
@pytest.mark.parametrize(("name", "config"), CASES, ids=IDS)
def test_the_mean_of_the_clients_is_the_whole(
    name: str, config: dict[str, Any], n: int
) -> None:
    task = task_or_skip(name, config, n)
    task.check()
    tolerance = 1e-5 if in_torch(name, config) else 1e-11
    for seed in range(2):
        x = random_point(task, seed)
        objectives = [task.client_objective(i) for i in range(n)]
        if name != "quadratic-assignment":  # of entries, of which an f_i has all
            assert sum(f.num_examples for f in objectives) == task.num_examples()
        point = task.argument(x)
        mean = np.mean([f.value(point) for f in objectives])
        assert mean == pytest.approx(task.value(x), rel=tolerance)
        gradients = [f.gradient(point) for f in objectives]
        listed = [g if isinstance(g, list) else [g] for g in gradients]
        mean_gradient = np.mean([flat(g) for g in listed], axis=0)
        gradient = flat(task.gradient(x))
        error = np.abs(mean_gradient - gradient).max()
        assert error <= tolerance * np.abs(gradient).max()


# without the networks: differences in single precision say little
@pytest.mark.parametrize(("name", "config"), CASES[:-2], ids=IDS[:-2])
def test_the_gradient_is_the_derivative(name: str, config: dict[str, Any]) -> None:
    task = task_or_skip(name, config, 5)
    x, direction = random_point(task, 1), random_point(task, 2)
    step = 1e-5
    ahead, behind = (
        task.value([a + s * b for a, b in zip(x, direction, strict=True)])
        for s in (step, -step)
    )
    slope = (ahead - behind) / (2 * step)
    assert slope == pytest.approx(flat(task.gradient(x)) @ flat(direction), rel=1e-5)


@pytest.mark.parametrize(("name", "config"), CASES, ids=IDS)
def test_the_seed_decides_the_data(name: str, config: dict[str, Any]) -> None:
    def values(seed: int) -> list[float]:
        task = task_or_skip(name, config, 6, seed)
        x = task.argument([np.ones(shape) * 0.1 for shape in task.shapes()])
        for array in x if isinstance(x, list) else [x]:
            array.flat[::3] = -0.2
        # built anew: what is cached would compare equal to itself
        return [task._build_client_objective(i).value(x) for i in range(6)]

    assert values(3) == values(3)
    if name == "kernel-pca" and config.get("kernel-pca.partition") != "iid":
        assert values(3) == values(4)  # nothing is drawn but the initial point
    else:
        assert not np.allclose(values(3), values(4), rtol=1e-6)


@pytest.mark.parametrize(("name", "config"), CASES, ids=IDS)
def test_starts_domains_and_metrics_fit(name: str, config: dict[str, Any]) -> None:
    task = task_or_skip(name, config, 5)
    start = task.initial_point()
    assert [a.shape for a in start] == task.shapes()
    assert all(a.dtype == np.float64 and np.isfinite(a).all() for a in start)
    start[0][:] = np.nan  # a copy: the next caller's start is unharmed
    assert np.isfinite(task.initial_point()[0]).all()
    for domain_name, radius in task.domains().items():
        assert radius >= 0.0
        domain = make_domain(domain_name, **({"radius": radius} if radius else {}))
        domain.check_shape((flat(start).size,) if len(start) > 1 else start[0].shape)
    layout = Layout(tuple(task.shapes()))
    manifold = task.manifold()
    assert (manifold is not None) == (name in ON_MANIFOLDS)
    if manifold is not None:
        # shaped like the array that stands for the model
        assert manifold.contains(layout.point(task.initial_point()))
        other = make_task(name, config, 5, 1).initial_point()
        assert not np.array_equal(flat(task.initial_point()), flat(other))
    metrics = task.metrics(task.initial_point())
    assert metrics
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(("name", "config"), CASES, ids=IDS)
def test_tasks_are_values(name: str, config: dict[str, Any]) -> None:
    one, other = task_or_skip(name, config, 5), task_or_skip(name, config, 5)
    assert one == other
    assert hash(one) == hash(other)
    assert one.client_objective(2) is other.client_objective(2)
    assert one.objective() is other.objective()
    assert one.client_objective(2) is not one.client_objective(3)


@pytest.mark.parametrize(("name", "config"), CASES, ids=IDS)
def test_what_is_dealt_is_shared_and_read_only(
    name: str, config: dict[str, Any]
) -> None:
    task = task_or_skip(name, config, 5)
    if type(task)._load is Task._load:
        return
    data = data_of(task)
    assert np.shares_memory(data.share(1)[0], data.features)
    assert not any(a.flags.writeable for a in data if isinstance(a, np.ndarray))
    assert [data.starts[0], data.starts[-1]] == [0, len(data.targets)]


@pytest.mark.parametrize(
    ("name", "config", "n"),
    [
        ("digits", {}, 1438),
        ("lasso", {}, 201),
        ("lasso", {"lasso.rows": 3}, 4),
        ("quadratic-assignment", {}, 131),
        ("matrix-completion", {}, 1201),
        ("classification", {"classification.train-limit": 9}, 10),
        ("logistic-regression", {}, 456),
        ("kernel-pca", {"kernel-pca.samples": 20}, 21),
        ("low-rank-network", {"low-rank-network.train-limit": 20}, 21),
        ("attack", {}, 92),
        ("characters", {"characters.train-passages": 7}, 8),
    ],
)
def test_too_many_clients(name: str, config: dict[str, Any], n: int) -> None:
    if in_torch(name, config):
        pytest.importorskip("torch")
    with pytest.raises(SettingsError, match=str(n)) as caught:
        make_task(name, config, n, 0).check()
    assert "\n" not in str(caught.value)
    make_task(name, config, n - 1, 0).check()


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("lasso", {"columns": 10}, "lasso.nonzeros = 20"),
        ("linear-regression", {"rows-min": 200}, "rows-min = 200 .*rows-max = 150"),
        ("linear-regression", {"rows-max": 20}, "rows-min = 50 .*rows-max = 20"),
        ("kernel-pca", {"dataset": "iris", "components": 5}, "= 5 .* 4 features"),
        ("low-rank-network", {"rank": 33}, "rank = 33 is too high: .* 64 x 32"),
        ("low-rank-network", {"rank": 65, "hidden": 100}, "64 x 100, so at most 64"),
        *(
            (name, {"dataset": dataset}, rf"{name}\.path is empty; it must name")
            for name, dataset in [
                *(("kernel-pca", "file"), ("low-rank-network", "mnist")),
                *(("lasso", "file"), ("attack", "file"), ("attack", "cifar10")),
                *(("logistic-regression", "qsar"), ("logistic-regression", "libsvm")),
                *(("classification", "mnist"), ("classification", "emnist")),
            ]
        ),
        *(
            (name, {"path": "nowhere/x", **more}, rf"{name}\.path = 'nowhere/x'")
            for name, more in [
                ("kernel-pca", {"dataset": "file"}),
                ("low-rank-network", {"dataset": "mnist"}),
                ("quadratic-assignment", {}),
                ("matrix-completion", {}),
                ("linear-regression", {"dataset": "file"}),
                ("logistic-regression", {"dataset": "santander"}),
                ("classification", {"dataset": "cifar10"}),
                ("attack", {"dataset": "file", "classifier-path": "m.onnx"}),
            ]
        ),
    ],
)
def test_settings_that_are_refused(
    name: str, settings: dict[str, Any], match: str
) -> None:
    config = {f"{name}.{key}": value for key, value in settings.items()}
    with pytest.raises((SettingsError, FileNotFoundError), match=match) as caught:
        make_task(name, config, 4, 0).check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_suggests_are_settings_of_the_method(name: str) -> None:
    strategies = {
        "fedfw": FedFW,
        "naive-frank-wolfe": NaiveFrankWolfe,
        "fedgia": FedGiA,
        "hyfdca": HyFDCA,
    }
    task = make_task(name, {}, 3, 0)
    assert set(task.suggested) <= set(strategies)
    for method, strategy in strategies.items():
        fields = inspect.signature(strategy).parameters
        suggested = task.suggestions(method)
        assert set(suggested) <= set(fields)
        assert task.suggestions(method, given=fields) == {}
    assert task.suggestions("another") == {}


@pytest.mark.parametrize("name", TASKS)
def test_a_client_is_made_of_a_task_s_parts(name: str) -> None:
    task = task_or_skip(name, {}, 3)
    parts, options = task.client_parts(1), task.method_options()
    if not task.split_data:
        assert parts == {"objective": task.client_objective(1)}
        assert options == {}
        return
    wanted = inspect.signature(HyFDCAClient).parameters
    assert list(wanted)[1:5] == list(parts)[:4]
    assert set(parts) <= set(wanted)
    for strategy in (HyFDCA, HyFEM, HybridFedAvg):
        assert strategy(**options).regularization == options["regularization"]
    assert parts["new_samples"].feature_names == parts["feature_names"]
    with pytest.raises(IndexError, match="client 3"):
        task.client_parts(3)
