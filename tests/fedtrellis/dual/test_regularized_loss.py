"""The primal, the dual and the central optimum, by certificates and cvxpy."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array
from sklearn.datasets import load_digits

from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.objectives.losses import LOSSES, make_loss


def small(n: int = 60, p: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, p))
    y = np.where(features @ rng.standard_normal(p) + rng.normal(size=n) > 0, 1.0, -1.0)
    return features, y


def suited(name: str, y: np.ndarray) -> np.ndarray:
    """Signs as labels of a loss: counts are 0 and 2."""
    return y + 1.0 if LOSSES[name].labels == "counts" else y


def certified(problem: RegularizedLoss) -> None:
    X, y, loss = problem.features, problem.labels, problem.loss
    found, λ = central_optimum(problem), problem.regularization
    primal = λ / 2 * found.w @ found.w + loss.value(X @ found.w, y).mean()
    point = X.T @ found.alpha / (λ * len(y))
    dual = -λ / 2 * point @ point - loss.conjugate(found.alpha, y).mean()
    assert found.value == pytest.approx(primal, rel=1e-12)
    assert found.gap == pytest.approx(primal - dual, abs=1e-14)
    assert found.gap <= 1e-9 * primal
    # w = (1/λN) Σ α_i x_i up to what the gap leaves: (λ/2)‖w − w_α‖² ≤ gap
    away = np.linalg.norm(problem.primal_of(found.alpha) - found.w)
    assert away <= np.sqrt(2 * found.gap / λ) + 1e-6


@pytest.mark.parametrize("name", LOSSES)
def test_the_optimum_is_certified_and_cvxpys(name: str) -> None:
    X, signs = small()
    y = suited(name, signs)
    w = cp.Variable(5)
    margins = cp.multiply(y, X @ w)
    # Σ (y ln y − y) of counts 0 and 2
    constant = float((2.0 * np.log(2.0) - 2.0) * (y == 2.0).sum())
    losses = {
        "hinge": cp.sum(cp.pos(1 - margins)),
        # m²/2g up to g and m − g/2 beyond is half of Huber's over g
        "smoothed-hinge": cp.sum(cp.huber(cp.pos(1 - margins), 0.4)) / 0.8,
        "logistic": cp.sum(cp.logistic(-margins)),
        "squared": cp.sum_squares(X @ w - y) / 2,
        "poisson": cp.sum(cp.exp(X @ w) - margins) + constant,
    }
    objective = losses[name] / 60 + 0.05 / 2 * cp.sum_squares(w)
    theirs = cp.Problem(cp.Minimize(objective)).solve()
    ours = central_optimum(RegularizedLoss(X, y, make_loss(name, 0.4), 0.05))
    assert ours.value == pytest.approx(theirs, rel=1e-6)
    # wide, sparse, and repeated data, whose duals are not unique
    wide, y_wide = small(30, 200)
    rng = np.random.default_rng(0)
    sparse = csr_array(random_array((400, 3000), density=0.01, rng=rng))
    X, y = small(40, 4)
    repeated = np.vstack([X, X, X, np.zeros((3, 4))])
    pixels, digits = load_digits(return_X_y=True)
    for features, signs, λ in (
        (wide, y_wide, 1e-3),
        (sparse, rng.choice([-1.0, 1.0], 400), 1e-4),
        (repeated, np.concatenate([y, y, -y, np.ones(3)]), 1e-3),
        (pixels[::3] / 16.0, np.where(digits[::3] >= 5, 1.0, -1.0), 1e-4),
    ):
        loss = make_loss(name, 0.5)
        certified(RegularizedLoss(features, suited(name, signs), loss, λ))
