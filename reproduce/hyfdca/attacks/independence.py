"""Rows as independent components: a statistical attack on random coefficients.

Where V_t − w_t is a sum of m rows with independent coefficients that are not Gaussian,
independent component analysis finds the rows from very many t.
"""

from __future__ import annotations

import numpy as np

from .truth import Array

__all__ = ["rows_by_independence"]

# Uploads whose mean length is a unit.
_AROUND = 21


def rows_by_independence(
    steps: Array, noise: float = 1e-8, iterations: int = 300, seed: int = 0
) -> Array:
    """Claim the mixing directions of FastICA with tanh, all at once.

    Hyvärinen, "Fast and Robust Fixed-Point Algorithms for Independent Component
    Analysis", IEEE Transactions on Neural Networks 10, 1999.

    Parameters
    ----------
    steps : ndarray of shape (T, p)
        V_t − w_t of successive uploads. They shrink as a run ends, so each is taken in
        units of the lengths around it.
    noise : float
        Singular values below this share of the largest are rounding.

    Returns
    -------
    ndarray of shape (m, p)
        m the rank.
    """
    T = len(steps)
    lengths = np.log(np.maximum(np.linalg.norm(steps, axis=1), 1e-300))
    window = np.ones(min(_AROUND, T))
    around = np.convolve(lengths, window, "same")
    around /= np.convolve(np.ones(T), window, "same")
    scaled = steps / np.exp(around)[:, None]
    left, values, right = np.linalg.svd(scaled, full_matrices=False)
    m = int((values > noise * values[0]).sum())
    white = left[:, :m] * np.sqrt(T)
    rng = np.random.default_rng(seed)
    W = np.linalg.qr(rng.standard_normal((m, m)))[0]
    for _ in range(iterations):
        image = np.tanh(white @ W.T)
        new = image.T @ white / T - (1.0 - image**2).mean(axis=0)[:, None] * W
        u, _, vh = np.linalg.svd(new)
        new = u @ vh
        turned = 1.0 - np.abs(np.einsum("ij,ij->i", new, W)).min()
        W = new
        if turned < 1e-9:
            break
    return np.asarray(W @ (values[:m, None] * right[:m]))
