"""Local passes against a plain loop over whole vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from clients.hyfdca.proposals import local_dual_passes
from fedtrellis.objectives.losses import LOSSES, DualLoss, make_loss

Array = NDArray[np.float64]
N, P, SCALE = 30, 7, 0.4
ROWS = np.random.default_rng(5).permutation(N)[:22]


def _data(loss: DualLoss) -> tuple[Array, Array, Array, Array]:
    """Features with zeros and an empty row, and labels, α and z of ROWS."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, P)) * (rng.random((N, P)) < 0.6)
    X[ROWS[3]] = 0.0
    y = np.where(rng.random(len(ROWS)) < 0.5, 1.0, -1.0)
    alpha = y * rng.random(len(ROWS))
    if loss.labels == "real":
        y, alpha = rng.standard_normal((2, len(ROWS)))
    if loss.labels == "counts":
        y = rng.poisson(2.0, len(ROWS)).astype(np.float64)
        alpha = y - rng.exponential(2.0, len(ROWS))
    return X, y, alpha, X[ROWS] @ rng.standard_normal(P)


def _passes(
    loss: DualLoss, X: Any, y: Array, alpha: Array, z: Array, sigma: float, passes: int
) -> Array:
    dense = X if isinstance(X, np.ndarray) else X.toarray()
    q: Array = (dense[ROWS] ** 2).sum(axis=1)
    return local_dual_passes(
        loss,
        X,
        ROWS,
        alpha,
        z,
        y,
        q,
        SCALE,
        aggregation=sigma,
        passes=passes,
        rng=np.random.default_rng(9),
    )


@pytest.mark.parametrize("sigma", [1.0, 4.0])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_it_is_a_plain_loop_in_that_order(name: str, sigma: float) -> None:
    loss = make_loss(name)
    X, y, start, z = _data(loss)
    before = start.copy()
    found = _passes(loss, X, y, start, z, sigma, 3)
    assert np.array_equal(start, before)  # it works on a copy
    rng, alpha, S = np.random.default_rng(9), start.copy(), X[ROWS]
    for _ in range(3):
        for i in rng.permutation(len(ROWS)):
            # the gradient of the quadratic term, from all coordinates' changes anew
            score = z[i] + sigma / SCALE * S[i] @ (S.T @ (alpha - start))
            alpha[i] += loss.coordinate_step(
                alpha[[i]], np.array([score]), sigma * S[i] @ S[i], y[[i]], SCALE
            )[0]
    assert np.abs(found - alpha).max() < 1e-12
    assert np.abs(found - start).max() > 0.1
    thin = _passes(loss, sparse.csr_array(X), y, start, z, sigma, 3)
    assert np.abs(found - thin).max() < 1e-13
    assert np.array_equal(_passes(loss, X, y, start, z, sigma, 0), start)
