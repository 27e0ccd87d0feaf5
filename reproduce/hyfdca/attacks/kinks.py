"""Rows where sums that are piecewise linear in w have a kink.

With the smoothed hinge loss's dual points V is a piecewise affine function of w, as it
is with every proposal that is a clipped affine function of the inner product.
Where p + 2 successive w_t are affinely dependent, Σ c_t w_t = 0 and Σ c_t = 0, all
samples that stay in one piece drop out of Σ c_t V_t. If one is left, that is its row.
"""

from __future__ import annotations

import numpy as np

from .truth import Array

__all__ = ["rows_at_kinks"]


def rows_at_kinks(
    sums: Array,
    weights: Array,
    extra: tuple[int, ...] = (2, 4, 8),
    noise: float = 1e-10,
) -> Array:
    """Claim the combinations of uploads whose weights are affinely dependent.

    Parameters
    ----------
    sums, weights : ndarray of shape (T, p)
        V_t and w_t.
    extra : tuple of int
        A window has p + so many uploads.
    noise : float
        What is less, in units of the largest sum, is rounding.

    Returns
    -------
    ndarray of shape (k, p)
    """
    T, p = sums.shape
    size = float(np.abs(sums).max(initial=0.0))
    claims = [np.zeros((0, p))]
    for length in (p + more for more in extra):
        for start in range(T - length + 1):
            w, V = weights[start : start + length], sums[start : start + length]
            moved = w - w[-1]
            largest = float(np.abs(moved).max())
            if not largest:
                continue
            table = np.hstack([np.ones((length, 1)), moved / largest])
            left, values, _ = np.linalg.svd(table)
            rank = int((values > 1e-9 * values[0]).sum())
            kept = left[:, rank:].T @ (V - V[-1])
            claims.append(kept[np.linalg.norm(kept, axis=1) > noise * size])
    return np.vstack(claims)
