"""A column of the files says what each sample counts."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tests.harness import model_of, refused, run_app
from tests.tasks.data.files import write_csv

pytestmark = pytest.mark.usefixtures("no_pictures")

Array = NDArray[np.float64]


def table(n: int = 90) -> tuple[Array, list[str], Array]:
    """Raw columns with a constant, a label of two words, weights with a 0."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5)) * [1.0, 40.0, 0.1, 5.0, 0.0] + [0, 90, 1, 0, 1]
    score = X[:, 0] + X[:, 1] / 40.0 - 2.0 + rng.standard_normal(n)
    s = np.round(rng.uniform(0.5, 4.0, n), 2)
    s[3] = 0.0
    return X, ["yes" if z > 0 else "no" for z in score], s


def cut(
    folder: Path, samples: int, features: int, weighted: bool = True, p: int = 5
) -> list[dict[str, Any]]:
    """Labels are on the first holder of a sample, weights on the last."""
    X, y, s = table()
    configs = []
    for g, f in itertools.product(range(samples), range(features)):
        columns = np.array_split(np.arange(p), features)[f].tolist()
        first, last = f == 0, weighted and f == features - 1
        head = ["id", *(f"x{j}" for j in columns)]
        head += ["label"] * first + ["count"] * last
        body = [
            [f"p{i}", *X[i, columns], *[y[i]] * first, *[s[i]] * last]
            for i in range(g, len(X), samples)
        ]
        name = f"{samples}-{features}-{g}-{f}"
        write_csv(path := folder / f"{name}.csv", head, body)
        configs.append({"client-id": name, "data": str(path)})
    return configs


def settings(nodes: int, weighted: bool = True, p: int = 5) -> dict[str, Any]:
    own = {"hybrid-linear.class-weight": "no:1, yes:3", "data.weight-column": "count"}
    return {
        "task": "hybrid-linear",
        "method": "hyfdca",
        "rounds": 100,
        "hybrid-linear.dataset": "nodes",
        "hybrid-linear.bias": 0.0,
        "hybrid-linear.regularization": 0.05,
        "hyfdca.exposed": "accept",
        "hyfdca.tolerance": 1e-13,
        "data.feature-names": ",".join(f"x{j}" for j in range(p)),
        "data.labels": "no,yes",
        "min-nodes": nodes,
        **(own if weighted else {}),
    }


@pytest.mark.parametrize(
    ("weighted", "constant"), [(False, True), (True, True), (False, False)]
)
def test_raw_columns_are_one_model_however_they_are_split(
    tmp_path: Path, weighted: bool, constant: bool
) -> None:
    """Encrypted, and of scales from 0.1 to 40: scikit-learn's model.

    With a constant column by means and deviations; without one nothing is shifted.
    """
    X, y, s = table()
    p = 4 + constant
    X, s = X[:, :p], s if weighted else np.ones(len(s))
    signs = np.where(np.array(y) == "yes", 1.0, -1.0)
    scales = np.ones(p)
    if constant:
        scaler = StandardScaler().fit(X[:, :4], sample_weight=s)
        scales[:4] = scaler.scale_
        Z = np.column_stack([scaler.transform(X[:, :4]), X[:, 4]])
    else:
        scales = np.sqrt(np.square(X).mean(axis=0))
        Z = X / scales
    every = s * np.where(signs > 0.0, 3.0, 1.0) if weighted else s
    central = LogisticRegression(
        C=1.0 / (0.05 * every.sum()),
        fit_intercept=False,
        tol=1e-12,
        solver="newton-cholesky",
    ).fit(Z, signs, sample_weight=every)
    for samples, features in ((3, 1), (1, 2), (2, 2)):
        nodes = cut(tmp_path, samples, features, weighted, p)
        config = settings(len(nodes), weighted, p)
        record = run_app(config, len(nodes), tmp_path, node_configs=nodes)
        found = model_of(record)
        assert np.abs((found * scales - central.coef_[0])[:4]).max() < 1e-6
        assert np.abs(X @ found - Z @ central.coef_[0]).max() < 1e-5


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"method": "hyfem"}, "'hyfem' does not know hybrid-linear.class-weight"),
        ({"hybrid-linear.class-weight": "ja:2"}, "'ja:2', which is not a class"),
        ({"hybrid-linear.class-weight": "yes:-2"}, "must be a finite number from 0"),
        ({"data.weight-column": "x1"}, "'x1', which is the name of another column"),
        ({"data.weight-column": "weight"}, "column 4 is not among data.feature-names"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: Mapping[str, Any], match: str) -> None:
    nodes = cut(tmp_path, 2, 2)
    config = {**settings(4), **change}
    if config["method"] == "hyfem":
        config = {k: v for k, v in config.items() if not k.startswith("hyfdca.")}
    refused(
        match,
        lambda: run_app(config, 4, tmp_path, node_configs=nodes),
        (ValueError, RuntimeError),
    )
