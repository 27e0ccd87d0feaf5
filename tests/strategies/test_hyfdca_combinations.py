"""Raw columns with an intercept, an elastic net, classes and weights, all together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, LogisticRegression
from sklearn.preprocessing import StandardScaler

from tests.strategies.hyfdca_runs import Array, Split, grid_parts
from tests.strategies.test_hyfdca_models import encrypted
from tests.strategies.test_hyfdca_raw import SPLITS, raw

N, LAMBDA = 150, 0.05
LAST = "feature-0005"  # the constant column


def weights() -> Array:
    return np.round(np.random.default_rng(3).uniform(0.3, 3.0, N), 2)


def logistic(y: Array, Z: Array, s: Array, **options: Any) -> tuple[Array, float]:
    model = LogisticRegression(
        C=1.0 / (LAMBDA * s.sum()), solver="newton-cholesky", tol=1e-12, **options
    ).fit(Z, y, sample_weight=s)
    return model.coef_[0], model.intercept_[0]


def net(t: Array, Z: Array, s: Array) -> tuple[Array, float]:
    model = ElasticNet(LAMBDA, l1_ratio=0.5, tol=1e-14, max_iter=10**6)
    model.fit(Z, t, sample_weight=s)
    return model.coef_, model.intercept_


@pytest.mark.parametrize(
    ("case", "weighted"),
    [
        ("logistic", True),
        ("net", True),
        pytest.param("logistic", False, marks=pytest.mark.slow),
        pytest.param("balanced", False, marks=pytest.mark.slow),
        pytest.param("net", False, marks=pytest.mark.slow),
        pytest.param("classes", True, marks=pytest.mark.slow),
    ],
)
def test_a_pipeline_with_an_intercept(case: str, weighted: bool) -> None:
    """StandardScaler and a model with an intercept, each coefficient to 1e-6."""
    X, y = raw(N)
    s = weights() if weighted else np.ones(N)
    scaler = StandardScaler().fit(X[:, :-1], sample_weight=s)
    Z = scaler.transform(X[:, :-1])
    options: dict[str, Any] = {"free_feature": LAST}
    loss = "logistic"
    coef: Array
    intercept: Any
    if case == "logistic":
        coef, intercept = logistic(y, Z, s)
    elif case == "balanced":
        options["class_weight"] = "balanced"
        coef, intercept = logistic(y, Z, s, class_weight="balanced")
    elif case == "net":
        loss, options["l1_ratio"] = "squared", 0.5
        rng = np.random.default_rng(4)
        y = Z @ rng.standard_normal(5) + 0.5 * rng.standard_normal(N) + 2.0
        coef, intercept = net(y, Z, s)
    else:
        options["classes"] = 3
        y = np.where(y < 0.0, 0.0, 1.0 + (X[:, 1] > 50.0))
        found = [logistic(np.where(y == c, 1.0, -1.0), Z, s) for c in range(3)]
        coef = np.stack([one for one, _ in found], axis=1)
        intercept = np.array([b for _, b in found])
    parts = grid_parts(N, X.shape[1], *SPLITS["hybrid"])
    split = Split(X, np.ones(N), parts, loss, LAMBDA)
    split.y, split.weights = y, s if weighted else None
    model = encrypted(split, standardize=True, exposed="accept", **options)
    w, constant = model[:-1], model[-1]
    own = (w.T * scaler.scale_).T
    np.testing.assert_allclose(own, coef, rtol=0, atol=1e-6)
    np.testing.assert_allclose(constant + scaler.mean_ @ w, intercept, atol=1e-6)
