"""The task ``logistic-regression``: data, weights and scalings, and known minima."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import dump_svmlight_file
from sklearn.linear_model import LogisticRegression as SklearnLogistic

from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.settings import SettingsError
from tasks import LogisticRegression
from tasks.data.task import data_of
from tests.tasks.data.node_files import refused


def make(n: int = 4, seed: int = 0, **settings: Any) -> LogisticRegression:
    return LogisticRegression(num_clients=n, seed=seed, **settings)


def minimum(task: LogisticRegression) -> Any:
    objective = task.objective()
    solve: Any = minimize
    options = {"maxiter": 5000, "maxfun": 10000, "gtol": 1e-9, "ftol": 1e-16}
    start, slope = np.zeros(objective.shape), objective.gradient
    found = solve(objective.value, start, jac=slope, method="L-BFGS-B", options=options)
    assert np.abs(slope(found.x)).max() < 1e-6
    return found


@pytest.fixture
def sparse_file(tmp_path: Path) -> str:
    """50 examples of 6 features in LIBSVM's format; the last feature is always 0."""
    rng = np.random.default_rng(0)
    lines = []
    for i in range(50):
        used = np.flatnonzero(rng.random(5) < 0.5)
        pairs = " ".join(f"{j + 1}:{rng.normal():.6f}" for j in used)
        lines.append(f"{2 - i % 2} {pairs}" + (" 6:0" if i == 0 else ""))
    path = tmp_path / "small.libsvm"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("l2", [1e-3, 0.1])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_minimum_is_scikit_learns(l2: float, intercept: bool) -> None:
    task = make(l2=l2, intercept=intercept)
    data = data_of(task)
    features, d = np.asarray(data.features), len(data.targets)
    options = {"fit_intercept": intercept, "tol": 1e-10, "max_iter": 10000}
    model = SklearnLogistic(C=1 / (d * l2), **options).fit(features, data.targets)
    theirs = model.coef_[0]
    scores = features @ theirs + model.intercept_
    loss = np.mean(np.logaddexp(0, scores) - data.targets * scores)
    found = minimum(task)
    assert found.fun == pytest.approx(loss + l2 / 2 * theirs @ theirs, abs=1e-9)
    rest = model.intercept_ if intercept else []
    np.testing.assert_allclose(found.x, [*theirs, *rest], atol=1e-3)


@pytest.mark.parametrize("regularizer", ["l2", "nonconvex"])
@pytest.mark.parametrize("weighting", ["examples", "clients"])
def test_the_losses_are_the_formulas(regularizer: str, weighting: str) -> None:
    pytest.importorskip("flwr_datasets")
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
    assert task.value(x) == pytest.approx(np.mean(expected), rel=1e-12)
    if weighting == "examples":
        # the regulariser counts once
        assert task.value(x) == pytest.approx(losses.mean() + penalty, rel=1e-12)
    convex = regularizer == "l2"
    assert task.convex == convex
    assert make(regularizer=regularizer, l2=0.0).convex
    for method in ("fedfw", "naive-frank-wolfe"):
        suggested = task.suggestions(method).get("schedule", "convex")
        assert suggested == ("convex" if convex else "nonconvex")
        assert "schedule" not in task.suggestions(method, given=["schedule"])


@pytest.mark.parametrize("dataset", ["breast-cancer", "libsvm"])
def test_scalings_are_measured_on_training_data(sparse_file: str, dataset: str) -> None:
    settings: dict[str, Any] = {"dataset": dataset}
    if dataset == "libsvm":
        settings["path"] = sparse_file

    def dense(scaling: str) -> tuple[np.ndarray, np.ndarray]:
        data = data_of(make(scaling=scaling, **settings))
        parts = [data.features, data.test_features]
        arrays = [p if dataset != "libsvm" else p.toarray() for p in parts]
        return arrays[0], arrays[1]

    def norm(a: np.ndarray, axis: int) -> np.ndarray:
        norms = np.linalg.norm(a, axis=axis, keepdims=True)
        return np.where(norms > 0, norms, 1.0)

    raw, test = dense("none")
    mean, deviation = raw.mean(axis=0), raw.std(axis=0)
    wanted = {
        "unit-rows": (raw / norm(raw, 1), test / norm(test, 1)),
        "unit-columns": (raw / norm(raw, 0), test / norm(raw, 0)),
        "auto": (raw / norm(raw, 1), test / norm(test, 1)),
    }
    if dataset == "breast-cancer":
        wanted["standard"] = ((raw - mean) / deviation, (test - mean) / deviation)
        wanted["auto"] = wanted["standard"]
    for scaling, expected in wanted.items():
        for ours, theirs in zip(dense(scaling), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_sparse_data_stays_sparse(sparse_file: str) -> None:
    task = make(4, dataset="libsvm", path=sparse_file, intercept=True)
    task.check()
    assert task.num_examples() == 40
    assert task.shapes() == [(7,)]
    data = data_of(task)
    dense = data.features.toarray()
    for i in range(4):
        share, labels = data.share(i)
        own = slice(data.starts[i], data.starts[i + 1])
        np.testing.assert_array_equal(share.toarray(), dense[own])
        np.testing.assert_array_equal(labels, data.targets[own])
        objective: Any = task.client_objective(i)
        assert objective.hessian_factor()[0].format == data.features.format == "csr"
    x = np.random.default_rng(0).standard_normal(7)
    mean = np.mean([task.client_objective(i).value(x) for i in range(4)])
    assert mean == pytest.approx(task.value(x), rel=1e-12)
    assert 0.0 <= task.metrics(x)["accuracy"] <= 1.0
    without = make(4, dataset="libsvm", path=sparse_file, test_fraction=0.0)
    assert without.num_examples() == 50
    assert set(without.metrics(np.zeros(6))) == {"train-accuracy"}


@pytest.mark.parametrize("intercept", [False, True])
def test_a_file_with_several_labels(tmp_path: Path, intercept: bool) -> None:
    """The mean cross-entropy of a softmax, by NumPy, of data that stay sparse."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((30, 6)) < 0.5, rng.normal(size=(30, 6)).round(3), 0.0)
    y = np.arange(30) % 3
    path = tmp_path / "three.txt"
    dump_svmlight_file(X, 10 * y, str(path), zero_based=False)
    settings: dict[str, Any] = {"dataset": "file", "path": str(path), "classes": 3}
    task = make(4, **settings, l2=0.1, test_fraction=0.0, intercept=intercept)
    task.check()
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    A = X / np.where(lengths > 0, lengths, 1.0)
    A = np.hstack([A, np.ones((30, int(intercept)))])
    assert task.shapes() == [(6 + intercept, 3)]
    w = rng.standard_normal((6 + intercept, 3))
    scores = A @ w
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(30), y]
    assert task.value(w) == pytest.approx(losses.mean() + 0.05 * (w[:6] ** 2).sum())
    parts = [task.client_objective(i) for i in range(4)]
    assert np.mean([f.value(w) for f in parts]) == pytest.approx(task.value(w))
    mean = np.mean([f.gradient(w) for f in parts], axis=0)
    np.testing.assert_allclose(task.gradient(w), mean)
    expected = np.mean(scores.argmax(axis=1) == y)
    assert task.metrics(w) == {"train-accuracy": pytest.approx(expected)}
    assert data_of(task).share(1)[0].format == "csr"
    held = make(4, **settings, intercept=intercept)
    assert set(held.metrics(w)) == {"accuracy"}
    refused(SettingsError, "exactly two", make(4, dataset="file", path=str(path)))
    refused(SettingsError, "exactly 4", make(4, **settings | {"classes": 4}))
    refused(SettingsError, "allowed: l2", make(4, **settings, regularizer="nonconvex"))
    dump_svmlight_file(X[:4], 10 * y[:4], str(path), zero_based=False)
    refused(SettingsError, "2 and 1 and 1 examples", make(2, **settings))
