"""What every task promises, whatever it is about."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clients import HyFDCAClient
from fedtrellis.domains import RUN_DOMAINS
from fedtrellis.wire.arrays import Layout
from strategies import FedFW, FedGiA, HybridFedAvg, HyFDCA, HyFEM, NaiveFrankWolfe
from tasks import TASKS, Task, make_task
from tasks.base import Point
from tasks.data.task import data_of
from tests.harness import refused

SMALL_TEXT = {"train-passages": 90, "context": 8, "width": 8, "blocks": 1}
#: Kinds of each task, with settings besides the defaults.
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("digits", {}),
    ("digits", {"partition": "labels", "labels-per-client": 5}),
    ("digits", {"partition": "dirichlet"}),
    ("lasso", {"rows": 37, "columns": 50, "nonzeros": 4}),
    ("lasso", {"noise": 0.5}),
    ("quadratic-assignment", {}),
    ("quadratic-assignment", {"starts": 3}),
    ("matrix-completion", {}),
    ("classification", {"train-limit": 2000}),
    ("classification", {"partition": "natural"}),
    ("classification", {"partition": "labels"}),
    ("linear-regression", {}),
    ("linear-regression", {"partition": "by-distribution", "weighting": "examples"}),
    ("logistic-regression", {}),
    (
        "logistic-regression",
        {"partition": "labels", "weighting": "clients", "intercept": True},
    ),
    (
        "logistic-regression",
        {"partition": "dirichlet", "regularizer": "nonconvex"}
        | {"scaling": "unit-columns", "test-fraction": 0.0},
    ),
    ("kernel-pca", {"partition": "iid"}),
    ("kernel-pca", {"dataset": "iris", "components": 2}),
    ("low-rank-network", {}),
    ("low-rank-network", {"partition": "dirichlet", "factored": False}),
    ("low-rank-network", {"full-rank": True}),
    ("attack", {}),
    ("attack", {"balance": 0.0}),
    ("classification", {"model": "dnn", "train-limit": 500}),
    ("characters", {**SMALL_TEXT, "pretrained-steps": 2}),
]


def named(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a task as a run config has them."""
    return {f"{name}.{key}": value for key, value in settings.items()}


CASES = [(name, named(name, settings)) for name, settings in KINDS]
ON_MANIFOLDS = ["kernel-pca", "low-rank-network", "attack"]
IDS = ["-".join([name, *map(str, config.values())]) for name, config in CASES]
every = pytest.mark.parametrize(("name", "config"), CASES, ids=IDS)


def in_torch(name: str, config: dict[str, Any]) -> bool:
    """Whether the model is a network in PyTorch, in single precision."""
    return name == "characters" or config.get("classification.model") == "dnn"


def task_or_skip(name: str, config: dict[str, Any], n: int, seed: int = 0) -> Task:
    if in_torch(name, config):
        pytest.importorskip("torch")
    return make_task(name, config, n, seed)


def random_point(task: Task, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [0.3 * rng.standard_normal(shape) for shape in task.shapes()]


def flat(x: Point) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in x])


@pytest.mark.parametrize("n", [4, 23])
@every
def test_clients_means_are_the_whole(name: str, config: dict[str, Any], n: int) -> None:
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


@every
def test_seeds_decide_and_tasks_are_values(name: str, config: dict[str, Any]) -> None:
    def point(task: Task) -> Any:
        x = [np.ones(shape) * 0.1 for shape in task.shapes()]
        for array in x:
            array.flat[::3] = -0.2
        return task.argument(x)

    def values(task: Task) -> list[float]:
        # built anew: what is cached would compare equal to itself
        return [task._build_client_objective(i).value(point(task)) for i in range(6)]

    one, same = (task_or_skip(name, config, 6, 3) for _ in range(2))
    other = task_or_skip(name, config, 6, 4)
    assert values(one) == values(same)
    if name == "kernel-pca" and config.get("kernel-pca.partition") != "iid":
        assert values(one) == values(other)  # nothing is drawn but the initial point
    else:
        assert not np.allclose(values(one), values(other), rtol=1e-6)
    assert one == same != other
    assert hash(one) == hash(same)
    assert one.client_objective(2) is same.client_objective(2)
    assert one.objective() is same.objective()
    assert one.client_objective(2) is not one.client_objective(3)
    single = replace(one, dtype="float32").client_parts(2)["objective"]
    assert single.value(point(one)) == pytest.approx(values(one)[2], rel=1e-4)
    if name in ("digits", "lasso", "linear-regression", "logistic-regression"):
        assert single.dtype == "float32"
    if type(one)._load is not Task._load:  # what is dealt is shared and read-only
        data = data_of(one)
        assert np.shares_memory(data.share(1)[0], data.features)
        assert not any(a.flags.writeable for a in data if isinstance(a, np.ndarray))
        assert [data.starts[0], data.starts[-1]] == [0, len(data.targets)]


@every
def test_starts_domains_and_metrics_fit(name: str, config: dict[str, Any]) -> None:
    task = task_or_skip(name, config, 5)
    start = task.initial_point()
    assert [a.shape for a in start] == task.shapes()
    assert all(a.dtype == np.float64 and np.isfinite(a).all() for a in start)
    start[0][:] = np.nan  # a copy: the next caller's start is unharmed
    assert np.isfinite(task.initial_point()[0]).all()
    for domain_name, radius in task.domains().items():
        assert radius >= 0.0
        domain = RUN_DOMAINS[domain_name].from_config({}, radius or 1.0)
        task.model_set(domain).check_shape(Layout(tuple(task.shapes())).point_shape)
    manifold = task.manifold()
    assert (manifold is not None) == (name in ON_MANIFOLDS)
    if manifold is not None:
        # shaped like the array that stands for the model
        point = Layout(tuple(task.shapes())).point(task.initial_point())
        assert manifold.contains(point)
        other = make_task(name, config, 5, 1).initial_point()
        assert not np.array_equal(flat(task.initial_point()), flat(other))
    metrics = task.metrics(task.initial_point())
    assert metrics
    assert all(np.isfinite(value) for value in metrics.values())
    # where the number of examples does not depend on it, as many clients have one each
    generated = name in ("classification", "linear-regression")
    if not generated and "partition" not in str(config):
        most = 130 if name == "quadratic-assignment" else task.num_examples()
        task_or_skip(name, config, most).check()
        many = task_or_skip(name, config, most + 1)
        refused(str(most + 1), many.check)


STRATEGIES = {s.name: s for s in (FedFW, NaiveFrankWolfe, FedGiA, HyFDCA)}


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_gives_is_what_methods_and_clients_take(name: str) -> None:
    task = task_or_skip(name, {}, 3)
    assert set(task.suggested) <= set(STRATEGIES)
    for method, strategy in STRATEGIES.items():
        fields = inspect.signature(strategy).parameters
        assert set(task.suggestions(method)) <= set(fields)
    parts, options = task.client_parts(1), task.method_options()
    if not task.split_data:
        assert parts == {"objective": task.client_objective(1)}
        getattr(parts["objective"], "initial_point", list)()  # zeroth-order clients do
        assert options == {"evaluation_weights": "equal"}
        return
    assert set(parts) <= set(inspect.signature(HyFDCAClient).parameters)
    for split in (HyFDCA, HyFEM, HybridFedAvg):
        assert split(**options).regularization == options["regularization"]
    assert parts["new_samples"].feature_names == parts["feature_names"]
    refused("client 3", lambda: task.client_parts(3), IndexError)
