"""Logistic regression with a bounded, non-convex regulariser."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtrellis.objectives.checks import Array
from fedtrellis.objectives.linear_models import Logistic

__all__ = ["NonconvexLogistic"]


class NonconvexLogistic(Logistic):
    """Binary logistic regression, labels in {0, 1}, not convex where l2 > 0.

    f(x) = weight · ((1/d) Σ_k [ln(1 + exp(a_kᵀx)) − b_k a_kᵀx]
    + (l2/2) Σ_j x_j²/(1 + x_j²)), with Θ = weight · ((1/4d) AᵀA + l2 I), that of
    :class:`~fedtrellis.objectives.Logistic`.

    Parameters
    ----------
    A : array_like or scipy.sparse matrix of shape (d, p)
        Dense, or sparse and kept as CSR.
    b : array_like of shape (d,)
        Labels, 0 or 1.
    l2 : float, default 0.0
        μ, the factor of the regulariser.
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If shapes disagree, an entry is not finite, a label is neither 0 nor 1, or a
        parameter is not allowed.

    Notes
    -----
    The third loss of the public MATLAB code of FedGiA's authors (arXiv 2205.01438),
    which the paper does not have. There μ is divided by the number d_i of the client's
    examples, with μ = 0.1 for default in its description and 0.01 in the program.

    The second derivative of x²/(2(1 + x²)) is (1 − 3x²)/(1 + x²)³, in [−1/4, 1]: the
    quadratic regulariser's 1 bounds it from above, and f is l2/4-weakly convex at
    worst.
    """

    def _penalty(self, flat: Array) -> Any:
        # ½ Σ_j x_j²/(1 + x_j²), as ½ Σ_j 1/(1 + x_j⁻²) where x_j² would overflow
        with np.errstate(over="ignore", divide="ignore"):
            return 0.5 * (1.0 / (1.0 + 1.0 / np.square(flat))).sum(axis=-1)

    def _penalty_slope(self, x: Array) -> Array:
        # x_j/(1 + x_j²)²; the square of an entry beyond 1e154 is ∞, the slope 0
        with np.errstate(over="ignore"):
            slope: Array = x / np.square(1.0 + np.square(x))
        return slope

    def _penalty_curvature(self, x: Array, direction: Array) -> float:
        # Σ_j d_j² (1 − 3x_j²)/(1 + x_j²)³ = Σ_j d_j² s²(4s − 3) with s = 1/(1 + x_j²),
        # which is 0 where x_j² is ∞
        with np.errstate(over="ignore"):
            s = 1.0 / (1.0 + np.square(x))
        return float(np.vdot(np.square(direction), np.square(s) * (4.0 * s - 3.0)))
