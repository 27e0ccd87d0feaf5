"""The task ``logistic-regression``: its weights, scalings and files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import dump_svmlight_file

from fedtrellis.objectives.linear_models import NonconvexLogistic
from tasks import LogisticRegression
from tasks.data.task import data_of
from tests.harness import refused


def make(n: int = 4, seed: int = 0, **settings: Any) -> LogisticRegression:
    return LogisticRegression(num_clients=n, seed=seed, **settings)


def sparse_rows(path: Path, classes: int, count: int = 50) -> tuple[Any, Any]:
    """Write examples of 6 features in LIBSVM's format; the last is mostly 0."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((count, 6)) < 0.5, rng.normal(size=(count, 6)).round(3), 0)
    y = np.arange(count) % classes
    dump_svmlight_file(X, 10 * y, str(path), zero_based=False)
    return X, y


@pytest.mark.parametrize("regularizer", ["l2", "nonconvex"])
@pytest.mark.parametrize("weighting", ["examples", "clients"])
def test_the_losses_are_the_formulas(regularizer: str, weighting: str) -> None:
    n, l2 = 6, 0.05
    settings: Any = {"regularizer": regularizer, "weighting": weighting}
    task = make(n, l2=l2, partition="dirichlet", **settings)
    data = data_of(task)
    x = np.random.default_rng(0).standard_normal(30)
    penalty = np.sum(x**2 if regularizer == "l2" else x**2 / (1 + x**2)) * l2 / 2
    scores = data.features @ x
    losses = np.logaddexp(0, scores) - data.targets * scores
    expected = []
    for i in range(n):
        own = slice(data.starts[i], data.starts[i + 1])
        size = len(losses[own])
        weight = n * size / len(losses) if weighting == "examples" else 1.0
        expected.append(weight * (losses[own].mean() + penalty))
        objective = task.client_objective(i)
        assert objective.value(x) == pytest.approx(expected[-1], rel=1e-12)
        assert isinstance(objective, NonconvexLogistic) == (regularizer != "l2")
        if isinstance(objective, NonconvexLogistic):
            assert objective.strong_convexity() == 0.0
    assert task.value(x) == pytest.approx(np.mean(expected), rel=1e-12)
    convex = regularizer == "l2"
    assert task.convex == convex
    assert make(regularizer=regularizer, l2=0.0).convex
    suggested = task.suggestions("fedfw").get("schedule", "convex")
    assert suggested == ("convex" if convex else "nonconvex")


@pytest.mark.parametrize("dataset", ["breast-cancer", "libsvm"])
def test_scalings_are_measured_on_training_data(tmp_path: Path, dataset: str) -> None:
    settings: dict[str, Any] = {"dataset": dataset}
    if dataset == "libsvm":
        settings["path"] = str(tmp_path / "small.libsvm")
        sparse_rows(tmp_path / "small.libsvm", 2)

    def dense(scaling: str) -> list[np.ndarray]:
        data = data_of(make(scaling=scaling, **settings))
        parts = [data.features, data.test_features]
        return [p if dataset != "libsvm" else p.toarray() for p in parts]

    def norm(a: np.ndarray, axis: int) -> np.ndarray:
        norms = np.linalg.norm(a, axis=axis, keepdims=True)
        return np.where(norms > 0, norms, 1.0)

    raw, test = dense("none")
    mean, deviation = raw.mean(axis=0), raw.std(axis=0)
    rows = raw / norm(raw, 1), test / norm(test, 1)
    columns = raw / norm(raw, 0), test / norm(raw, 0)
    wanted = {"unit-rows": rows, "unit-columns": columns, "auto": rows}
    if dataset == "breast-cancer":
        wanted["standard"] = ((raw - mean) / deviation, (test - mean) / deviation)
        wanted["auto"] = wanted["standard"]
    for scaling, expected in wanted.items():
        for ours, theirs in zip(dense(scaling), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_sparse_file(tmp_path: Path, intercept: bool, classes: int) -> None:
    """The mean cross-entropy of a softmax, by NumPy, of data that stay sparse."""
    path = tmp_path / "some.txt"
    X, y = sparse_rows(path, classes)
    settings: dict[str, Any] = {"dataset": "file", "path": str(path)}
    settings |= {"classes": classes, "intercept": intercept}
    task = make(4, **settings, l2=0.1, test_fraction=0.0)
    task.check()
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    A = X / np.where(lengths > 0, lengths, 1.0)
    A = np.hstack([A, np.ones((len(X), int(intercept)))])
    w = np.random.default_rng(1).standard_normal((A.shape[1], classes))
    if classes == 2:  # only the difference of the two scores counts
        w[:, 0] = 0.0
    point = w[:, 1] if classes == 2 else w
    assert task.shapes() == [point.shape]
    scores = A @ w
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]
    expected = losses.mean() + 0.05 * (w[:6] ** 2).sum()
    assert task.value(point) == pytest.approx(expected)
    right = np.mean(scores.argmax(axis=1) == y)
    assert task.metrics(point) == {"train-accuracy": pytest.approx(right)}
    assert scipy.sparse.issparse(data_of(task).share(1)[0])
    if classes == 2:
        own: Any = task.client_objective(1)
        assert scipy.sparse.issparse(own.hessian_factor()[0])
    held = make(4, **settings)
    assert held.num_examples() == 40
    assert set(held.metrics(point)) == {"accuracy"}


def test_files_that_do_not_suit_their_settings(tmp_path: Path) -> None:
    path = tmp_path / "three.txt"
    settings: dict[str, Any] = {"dataset": "file", "path": str(path)}
    sparse_rows(path, 3)
    refused("there must be 2", make(**settings).check)
    settings["classes"] = 3
    refused("allowed: l2", make(**settings, regularizer="nonconvex").check)
    sparse_rows(path, 3, 4)
    refused("2 and 1 and 1 examples", make(2, **settings).check)
