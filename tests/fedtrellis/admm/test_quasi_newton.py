"""The server's steps, against SciPy's solvers and formulas written out."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from fedtrellis.admm.adapted_sigma import AdaptedSigma, common_scale
from fedtrellis.admm.quasi_newton import QuasiNewton, Separable
from tests.harness import Array

H_KINDS = {
    "lasso": Separable(l1=0.7),
    "elastic net": Separable(l1=0.5, l2=0.3),
    "ridge": Separable(l2=0.4),
    "all": Separable(l1=0.4, l2=0.2, lower=-0.1, upper=0.5),
    "non-negative": Separable(lower=0.0),
}


@pytest.mark.parametrize("kind", H_KINDS)
def test_the_prox_is_the_minimum(kind: str) -> None:
    h, rng = H_KINDS[kind], np.random.default_rng(0)
    v, weight = 2.0 * rng.standard_normal(12), rng.uniform(0.2, 3.0, 12)

    def value(x: Array) -> Array:
        square = weight / 2 * (x - v) ** 2
        return np.asarray(h.l1 * np.abs(x) + h.l2 / 2 * x**2 + square)

    x = h.prox(v, weight)
    for step in (1e-6, -1e-6):  # it is convex: no neighbour is lower
        assert np.all(value(x) <= value(np.clip(x + step, h.lower, h.upper)))


@pytest.mark.parametrize("kind", H_KINDS)
def test_composite_minima(kind: str) -> None:
    """Of h plus a quadratic of condition 1 000, beside L-BFGS-B on x = p − q."""
    h, n, rng = H_KINDS[kind], 15, np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    H, b = (Q * np.geomspace(1.0, 1e-3, n)) @ Q.T, rng.standard_normal(n)
    search, x, k = QuasiNewton(np.ones(n) + h.l2, replace(h, l2=0.0)), np.zeros(n), 0
    while k < 150:
        is_best = search.observe(x, H @ x - b + h.l2 * x)
        if search.residual() <= 1e-12:
            break
        x, k = search.propose(is_best), k + 1
    assert k < 150
    assert search.best is not None

    def value_and_gradient(pair: Array) -> tuple[float, Array]:
        # both parts at least 0
        z = pair[:n] - pair[n:]
        g = H @ z - b + h.l2 * z
        value = 0.5 * z @ H @ z - b @ z + h.l2 / 2 * z @ z + h.l1 * pair.sum()
        return float(value), np.concatenate([g + h.l1, -g + h.l1])

    found = minimize(
        value_and_gradient,
        np.zeros(2 * n),
        jac=True,
        bounds=[(0.0, h.upper)] * n + [(0.0, -h.lower)] * n,
        method="L-BFGS-B",
        options={"ftol": 0.0, "gtol": 1e-12, "maxiter": 10**5, "maxfun": 10**5},
    )
    x = search.best
    value = 0.5 * x @ H @ x - b @ x + h.value(x)
    assert value <= found.fun + 1e-13 * abs(found.fun)
    assert np.abs(x - (found.x[:n] - found.x[n:])).max() < 1e-4


def test_an_adapted_sigma_finds_the_minimum_from_what_clients_send() -> None:
    """z_i = x − ∇f_i(x)/(mσ), of quadratics with columns of all sizes."""
    rng, (m, p) = np.random.default_rng(0), (4, 6)
    H, c = rng.uniform(1.0, 2.0, (m, p)) * 10.0 ** np.arange(p), rng.normal(size=(m, p))
    assert common_scale([*np.ones((4, p)), np.full(p, 9.0)], 2.0).max() == 2.0
    made = AdaptedSigma(common_scale([*H]), 1.0, Separable(), m, 1e-12, float)
    x, found = np.zeros(p), dict[str, float]()
    for _ in range(40):
        made.note([0], True)
        assert made.waits
        made.note([1, 2, 3], True)
        assert made.answered.all()
        z = x - H * (x - c) / (made.growth * made.scale)
        x, found = made.step(x, z.mean(axis=0), False)
        if made.stopped:
            break
    assert made.stopped
    assert found["gradient-norm"] ** 2 <= p * 1e-12
    assert np.allclose(x, (H * c).sum(axis=0) / H.sum(axis=0), atol=1e-6)
