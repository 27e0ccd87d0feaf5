"""The polar factor of a matrix, by products of matrices where they are quicker."""

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.domains.base import FloatArray
from fedtrellis.domains.numerics import thin_svd

__all__ = ["polar_factor"]

# Products are quicker than a decomposition from so many rows and columns on, for
# matrices at least twice as long as they are wide, or for all.
_LONG_FROM, _ALL_FROM = 64, 256
# Smallest eigenvalue of XᵀX over their sum for it: Q is then within 1e-10 of what the
# decomposition gives.
_SMALLEST = 1e-8
# A distance from orthonormal that one more step squares to nothing.
_NEAR = 1e-8


def polar_factor(matrix: FloatArray) -> FloatArray:
    """Solve max over Q with σ₁(Q) ≤ 1 of <X, Q>: Q = U Vᵀ with X = U Σ Vᵀ.

    It is X (XᵀX)^(−1/2), from the eigenvectors of XᵀX, made orthonormal by Newton and
    Schulz' iteration (Higham, "Functions of matrices", SIAM 2008, chapter 8). As XᵀX
    squares the condition number, a matrix where that is beyond some 10⁴ is left to the
    singular value decomposition, and so is a small one.

    Parameters
    ----------
    matrix : ndarray of shape (m, n)
        Finite.

    Returns
    -------
    ndarray of float64, shape (m, n)
        Orthonormal columns, or rows if m < n.
    """
    wide = matrix.shape[0] < matrix.shape[1]
    x = matrix.T if wide else matrix
    m, n = x.shape
    if n >= (_LONG_FROM if m >= 2 * n else _ALL_FROM):
        with np.errstate(over="ignore", invalid="ignore"):
            gram = x.T @ x
        total = float(np.trace(gram))
        if 1e-200 < total < 1e200 and _exceeds(gram, _SMALLEST * total):
            values, w = np.linalg.eigh(gram)
            # X (XᵀX)^(−1/2) = X W Λ^(−1/2) Wᵀ  with XᵀX = W Λ Wᵀ
            q = _orthonormal(x @ ((w / np.sqrt(values)) @ w.T))
            return np.ascontiguousarray(q.T) if wide else q
    left, _, right = thin_svd(matrix)
    return left @ right


def _exceeds(gram: FloatArray, bound: float) -> bool:
    """Say whether all eigenvalues exceed a bound, at a tenth of their cost."""
    shifted = gram.copy()
    shifted.flat[:: len(gram) + 1] -= bound
    # it has a Cholesky factor if and only if it is positive definite
    _, failed = scipy.linalg.lapack.dpotrf(shifted, overwrite_a=True)
    return not failed


def _orthonormal(q: FloatArray) -> FloatArray:
    """Return the nearest matrix of orthonormal columns to one not far away."""
    identity, distance = np.eye(q.shape[1]), 1.0
    while distance > _NEAR:
        excess = q.T @ q - identity
        distance = float(np.linalg.norm(excess))
        # Q ← Q (3 I − QᵀQ) / 2, which squares the distance
        q = q - q @ (0.5 * excess)
    return q
