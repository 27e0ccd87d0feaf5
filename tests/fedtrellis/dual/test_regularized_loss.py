"""The primal, the dual and the central optimum, by certificates and cvxpy."""

import re
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array
from sklearn.datasets import load_digits

from fedtrellis.dual.regularized_loss import Optimum, RegularizedLoss, central_optimum
from fedtrellis.objectives.losses import (
    LOSSES,
    DualLoss,
    Hinge,
    LogisticLoss,
    SmoothedHinge,
    Squared,
    make_loss,
)


def digits(*, unit: bool = False) -> tuple[np.ndarray, np.ndarray]:
    pixels, classes = load_digits(return_X_y=True)
    features = np.hstack([pixels / 16.0, np.ones((len(pixels), 1))])
    if unit:
        features /= np.linalg.norm(features, axis=1)[:, None]
    return features, np.where(classes >= 5, 1.0, -1.0)


def small(n: int = 60, p: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, p))
    y = np.where(features @ rng.standard_normal(p) + rng.normal(size=n) > 0, 1.0, -1.0)
    return features, y


def suited(name: str, y: np.ndarray) -> np.ndarray:
    """Signs as labels of a loss: counts are 0 and 2."""
    return y + 1.0 if LOSSES[name].labels == "counts" else y


def certified(problem: RegularizedLoss, optimum: Optimum, tolerance: float) -> None:
    X, y, regularization = problem.features, problem.labels, problem.regularization
    loss = problem.loss
    primal = regularization / 2 * optimum.w @ optimum.w
    primal += loss.value(X @ optimum.w, y).mean()
    point = X.T @ optimum.alpha / (regularization * len(y))
    dual = -regularization / 2 * point @ point
    dual -= loss.conjugate(optimum.alpha, y).mean()
    assert optimum.value == pytest.approx(primal, rel=1e-12)
    assert optimum.gap == pytest.approx(primal - dual, abs=1e-14)
    assert optimum.gap <= tolerance * primal


# -- the objective


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sparse", [False, True])
def test_the_formulas(name: str, sparse: bool) -> None:
    X, y = small()
    y = suited(name, y)
    loss, regularization = make_loss(name, 0.5), 0.3
    problem = RegularizedLoss(csr_array(X) if sparse else X, y, loss, regularization)
    assert problem.shape == (5,)
    assert problem.num_examples == 60
    rng = np.random.default_rng(1)
    w, alpha = rng.standard_normal(5), y * rng.random(60)
    np.testing.assert_allclose(problem.scores(w), X @ w)
    expected = 0.15 * w @ w + loss.value(X @ w, y).mean()
    assert problem.value(w) == pytest.approx(expected, rel=1e-14)
    gradient = 0.3 * w - X.T @ loss.dual_point(X @ w, y) / 60
    np.testing.assert_allclose(problem.gradient(w), gradient, atol=1e-14)
    point = X.T @ alpha / (0.3 * 60)
    np.testing.assert_allclose(problem.primal_of(alpha), point)
    dual = -0.15 * point @ point - loss.conjugate(alpha, y).mean()
    assert problem.dual_value(alpha) == pytest.approx(dual, rel=1e-14)
    assert dual <= expected
    if name != "poisson":
        assert problem.metrics(w) == {"accuracy": np.mean((X @ w > 0) == (y > 0))}


def test_what_is_refused() -> None:
    X, y = small()
    given: Any = {"features": X, "labels": y, "loss": Hinge(), "regularization": 0.1}
    for change, match in (
        ({"labels": np.zeros(60)}, "label 0 is 0; .* -1 or"),
        ({"labels": np.ones(59)}, "59 entries; it must have 60"),
        ({"regularization": np.nan}, "regularization is nan"),
        ({"features": np.full((60, 2), np.inf)}, "NaN or infinite"),
        ({"features": np.ones(60)}, "must have 2 axes"),
    ):
        with pytest.raises(ValueError, match=match) as caught:
            RegularizedLoss(**{**given, **change})
        assert "\n" not in str(caught.value)
    problem = RegularizedLoss(X, y, Hinge(), 0.1)
    with pytest.raises(ValueError, match=re.escape("must be (5,)")):
        problem.value(np.zeros(6))
    with pytest.raises(ValueError, match=re.escape("must be (60,)")):
        problem.dual_value(np.zeros(5))


# -- the optimum


@pytest.mark.parametrize("regularization", [1e-5, 1e-3, 1.0])
@pytest.mark.parametrize(
    "loss", [Hinge(), SmoothedHinge(0.3), LogisticLoss(), Squared()]
)
@pytest.mark.parametrize("sparse", [False, True])
def test_certificates(regularization: float, loss: DualLoss, sparse: bool) -> None:
    X, y = digits()
    problem = RegularizedLoss(csr_array(X) if sparse else X, y, loss, regularization)
    optimum = central_optimum(problem)
    certified(problem, optimum, 1e-9)
    assert optimum.w.shape == (65,)
    assert optimum.alpha.shape == (1797,)
    # w = (1/λN) Σ α_i x_i up to what the gap leaves: (λ/2)‖w − w_α‖² ≤ gap
    distance = np.linalg.norm(problem.primal_of(optimum.alpha) - optimum.w)
    assert distance <= np.sqrt(2 * optimum.gap / regularization) + 1e-6


def _constant(y: np.ndarray) -> float:
    """Σ (y ln y − y) of counts 0 and 2."""
    return float((2.0 * np.log(2.0) - 2.0) * (y == 2.0).sum())


@pytest.mark.parametrize("name", LOSSES)
def test_cvxpys_minima(name: str) -> None:
    X, y = small()
    y = suited(name, y)
    loss, regularization = make_loss(name, 0.4), 0.05
    w = cp.Variable(5)
    margins = cp.multiply(y, X @ w)
    losses = {
        "hinge": cp.sum(cp.pos(1 - margins)),
        # m²/2g up to g and m − g/2 beyond is half of Huber's over g
        "smoothed-hinge": cp.sum(cp.huber(cp.pos(1 - margins), 0.4)) / 0.8,
        "logistic": cp.sum(cp.logistic(-margins)),
        "squared": cp.sum_squares(X @ w - y) / 2,
        "poisson": cp.sum(cp.exp(X @ w) - cp.multiply(y, X @ w)) + _constant(y),
    }
    objective = losses[name] / 60 + regularization / 2 * cp.sum_squares(w)
    theirs = cp.Problem(cp.Minimize(objective)).solve()
    ours = central_optimum(RegularizedLoss(X, y, loss, regularization))
    assert ours.value == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_wide_sparse_and_repeated_data(name: str) -> None:
    wide, y_wide = small(30, 200)
    rng = np.random.default_rng(0)
    sparse = csr_array(random_array((400, 3000), density=0.01, rng=rng))
    sparse.indices = sparse.indices.astype(np.int64)
    sparse.indptr = sparse.indptr.astype(np.int64)
    # the duals are not unique, and the Gram matrix is singular
    X, y = small(40, 4)
    repeated = np.vstack([X, X, X, np.zeros((3, 4))])
    for features, signs, λ in (
        (wide, y_wide, 1e-3),
        (sparse, rng.choice([-1.0, 1.0], 400), 1e-4),
        (repeated, np.concatenate([y, y, -y, np.ones(3)]), 1e-3),
    ):
        labels, loss = suited(name, signs), make_loss(name, 0.5)
        problem = RegularizedLoss(features, labels, loss, λ)
        certified(problem, central_optimum(problem), 1e-9)
