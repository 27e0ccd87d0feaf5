"""Stochastic dual coordinate ascent on one client's own samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.objectives.losses import DualLoss
from fedtrellis.wire.arrays import FloatArray


def local_dual_passes(
    loss: DualLoss,
    features: Any,
    rows: NDArray[np.int64],
    alpha: FloatArray,
    z: FloatArray,
    y: FloatArray,
    q: FloatArray,
    scale: float,
    *,
    aggregation: float,
    passes: int,
    rng: np.random.Generator,
) -> FloatArray:
    r"""Maximise CoCoA+'s local sub-problem over a client's dual variables.

    With X the client's samples, z = Xw and Δ = α' − α::

        −Σ l_i*(−α'_i) − zᵀΔ − (σ'/2λN) ‖XᵀΔ‖²

    by passes of coordinate ascent in random order. σ' = K, the number of clients, makes
    the sum of all clients' Δ safe to add.

    Source: Ma, Smith, Jaggi, Jordan, Richtárik and Takáč, "Adding vs. Averaging in
    Distributed Primal-Dual Optimization", ICML 2015, equation (9).

    α, z, the labels y and the squared norms q are those of the ``rows`` of the client's
    ``features`` (dense or CSR), in order; ``scale`` is λN, ``aggregation`` σ' ≥ 1.
    Returns α'.
    """
    alpha = alpha.copy()
    # σ'/(λN) XᵀΔ: what the other coordinates see of the changes so far
    change = np.zeros(features.shape[1])
    sparse = hasattr(features, "indptr")
    for _ in range(passes):
        for i in rng.permutation(len(rows)):
            row = rows[i]
            if sparse:
                own = slice(features.indptr[row], features.indptr[row + 1])
                index, x = features.indices[own], features.data[own]
            else:
                index, x = slice(None), features[row]
            score = z[i] + float(x @ change[index])
            one = slice(i, i + 1)
            step = loss.coordinate_step(
                alpha[one], np.array([score]), aggregation * q[one], y[one], scale
            )[0]
            if step:
                alpha[i] += step
                change[index] += (aggregation * step / scale) * x
    return alpha
