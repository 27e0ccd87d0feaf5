"""Rows of samples whose inner products somebody knows: one linear system.

A client that holds sample i is given z_{t,i} = x_iᵀw_t. With the server, who knows all
of w_t, it solves for x_i, its own features and everybody else's.
"""

from __future__ import annotations

import numpy as np

from .truth import Array

__all__ = ["rows_from_scores"]


def rows_from_scores(weights: Array, scores: Array) -> Array:
    """Return the rows of least squares ‖weights X ᵀ − scores‖.

    Parameters
    ----------
    weights : ndarray of shape (T, p)
    scores : ndarray of shape (T, n)

    Returns
    -------
    ndarray of shape (n, p)
        Exact as soon as the weights span all features; until then their parts in the
        span of the weights.
    """
    return np.asarray(np.linalg.lstsq(weights, scores, rcond=1e-10)[0].T)
