"""The server's steps, against SciPy's solvers and formulas written out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from fedtrellis.admm.quasi_newton import QuasiNewton, Separable
from tests.harness import Array

H_KINDS = {
    "lasso": Separable(l1=0.7),
    "elastic net": Separable(l1=0.5, l2=0.3),
    "ridge": Separable(l2=0.4),
    "box": Separable(lower=-0.2, upper=0.3),
    "all": Separable(l1=0.4, l2=0.2, lower=-0.1, upper=0.5),
    "non-negative": Separable(lower=0.0),
}


@pytest.mark.parametrize("kind", H_KINDS)
def test_prox_and_slope(kind: str) -> None:
    h = H_KINDS[kind]
    rng = np.random.default_rng(0)
    v, weight = 2.0 * rng.standard_normal(12), rng.uniform(0.2, 3.0, 12)
    x = h.prox(v, weight)
    lower, upper = max(h.lower, -9.0), min(h.upper, 9.0)
    for j in range(12):

        def value(t: float, j: int = j) -> float:
            square = float(weight[j]) / 2 * (t - float(v[j])) ** 2
            return h.l1 * abs(t) + h.l2 / 2 * t * t + square

        found = minimize_scalar(
            value, bounds=(lower, upper), method="bounded", options={"xatol": 1e-12}
        )
        assert abs(found.x - x[j]) < 1e-5
        assert value(float(x[j])) <= value(float(found.x)) + 1e-12
    # at the minimum of h + ½‖· − v‖² 0 is in its slope, and else it is not
    assert np.abs(h.slope(x, weight * (x - v))).max() < 1e-12
    other = np.clip(x + 0.05, h.lower, h.upper) + 0.0
    if not np.array_equal(other, x):
        assert np.abs(h.slope(other, weight * (other - v))).max() > 1e-3


def quadratic(n: int, condition: float, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    return (Q * np.geomspace(1.0, 1.0 / condition, n)) @ Q.T, rng.standard_normal(n)


def steps_to(
    gradient: Callable[[Array], Array],
    scale: Array,
    h: Separable,
    tolerance: float,
    most: int = 500,
) -> tuple[QuasiNewton, int]:
    search = QuasiNewton(scale + h.l2, replace(h, l2=0.0))
    x = np.zeros(len(scale))
    for k in range(most):
        is_best = search.observe(x, gradient(x) + h.l2 * x)
        if search.residual() <= tolerance:
            return search, k
        x = search.propose(is_best)
    return search, most


@pytest.mark.parametrize("kind", H_KINDS)
def test_composite_minima(kind: str) -> None:
    h = H_KINDS[kind]
    H, b = quadratic(15, 1e3)
    search, k = steps_to(lambda x: H @ x - b, np.ones(15), h, 1e-12)
    assert k < 150
    x = search.best
    assert x is not None

    def value_and_gradient(pair: Array) -> tuple[float, Array]:
        # x = p − q, both at least 0
        p, q = pair[:15], pair[15:]
        z = p - q
        g = H @ z - b + h.l2 * z
        value = 0.5 * z @ H @ z - b @ z + h.l2 / 2 * z @ z + h.l1 * (p + q).sum()
        return float(value), np.concatenate([g + h.l1, -g + h.l1])

    bounds: Any = [(0.0, h.upper)] * 15 + [(0.0, -h.lower)] * 15
    found = minimize(
        value_and_gradient,
        np.zeros(30),
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"ftol": 0.0, "gtol": 1e-12, "maxiter": 10**5, "maxfun": 10**5},
    )
    value = 0.5 * x @ H @ x - b @ x + h.value(x)
    assert value <= found.fun + 1e-13 * abs(found.fun)
    assert np.abs(x - (found.x[:15] - found.x[15:])).max() < 1e-4
