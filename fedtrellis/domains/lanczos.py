"""The block Lanczos method for leading singular pairs, on many matrices in step."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LeadingPairs", "Products", "leading_pairs"]

Array = NDArray[Any]
#: V, I ↦ A_i V_i and A_iᵀ A_i V_i for the matrices i in the array I.
Products = Callable[[Array, NDArray[np.intp]], tuple[Array, Array]]

# Blocks in the basis before it is cut to half of them.
_BLOCKS = 6


class LeadingPairs(NamedTuple):
    """The leading singular pairs of n matrices of shape (p, q).

    Attributes
    ----------
    left : ndarray of shape (n, p, count)
    values : ndarray of shape (n, count)
        Decreasing, and Aᵀ left = right · values to rounding.
    right : ndarray of shape (n, q, count)
    start : ndarray of shape (n, q, b)
        Where to start for similar matrices.
    passes : ndarray of shape (n,)
        Products with A_i and with A_iᵀ that it took, each of b vectors at once.
    converged : ndarray of shape (n,), bool
    """

    left: Array
    values: Array
    right: Array
    start: Array
    passes: NDArray[np.intp]
    converged: NDArray[np.bool_]


def leading_pairs(
    products: Products,
    start: Array,
    count: int = 1,
    tolerance: float = 1e-10,
    most: int = 100,
) -> LeadingPairs:
    """Return the leading singular pairs of n matrices A_i of shape (p, q).

    The block Lanczos method for A_iᵀ A_i with Rayleigh and Ritz' projection, full
    orthogonalisation and thick restarts (Golub, Underwood, "The block Lanczos method
    for computing eigenvalues", 1977; Wu, Simon, "Thick-restart Lanczos method for
    large symmetric eigenvalue problems", SIAM J. Matrix Anal. Appl. 2000), on all
    matrices in step. It ends for a matrix when ‖A_iᵀ u − σ v‖ is at most ``tolerance``
    times the largest σ for each pair, and at most its root for the pair that follows;
    what it returns is half a step further.

    A block is followed from one matrix to the next, and not a vector: Frank-Wolfe's
    last atom is what its gradient has just been pushed away from, and near an optimum
    of rank r the gradient has r leading singular values that are equal.

    Parameters
    ----------
    products : callable
        V, I ↦ (A_i V_i, A_iᵀ A_i V_i) for the matrices i in the array I, of shape (k,),
        and V of shape (k, q, b).
    start : ndarray of shape (n, q, b)
        Independent columns, at least ``count`` and at most q.
    count : int
    tolerance : float
    most : int
        Passes, each one call of ``products`` for a matrix.
    """
    n, q, b = start.shape
    now, passes = np.arange(n), 1
    tiny, rounding = np.finfo(start.dtype).tiny, 64 * np.finfo(start.dtype).eps
    v = np.linalg.qr(start)[0]
    w, z = products(v, now)
    left = np.empty((n, w.shape[1], count), w.dtype)
    values = np.empty((n, count), w.dtype)
    right, kept = np.empty((n, q, count), v.dtype), np.empty_like(v)
    took, good = np.zeros(n, np.intp), np.zeros(n, np.bool_)
    while True:
        # the eigenvectors of Vᵀ AᵀA V, largest eigenvalue first, are Ritz'
        small = v.swapaxes(1, 2) @ z
        squares, s = np.linalg.eigh(small + small.swapaxes(1, 2))
        squares, s = 0.5 * squares[:, ::-1], s[:, :, ::-1]
        front = s[:, :, :b]
        ritz, image = v @ front, z @ front
        residual = image - ritz * squares[:, None, :b]
        # with u = A v/σ:  ‖Aᵀ u − σ v‖ = ‖AᵀA v − σ² v‖ / σ
        sigma = np.sqrt(np.maximum(squares[:, :b], tiny))
        norms = np.linalg.norm(residual, axis=1) / sigma[:, :1] ** 2
        sizes = norms[:, :count] * (sigma[:, :1] / sigma[:, :count])
        near = (sizes <= tolerance).all(axis=1)
        # The pair that follows must be known, too, if less well: one that was on its
        # way to the front would not show in the residuals of those before it.
        follows = (norms[:, count : count + 1] <= math.sqrt(tolerance)).all(axis=1)
        converged = near & follows
        # of a pair far below the first, squares can tell no more than this
        exhausted = ~near & (norms[:, :count] <= rounding).all(axis=1)
        width = v.shape[2]
        ended = converged | exhausted | (passes == most) | (width == q)
        if ended.any():
            done = now[ended]
            took[done], good[done] = passes, converged[ended]
            best = front[ended, :, :count]
            # A V S = U Σ Tᵀ, and so Aᵀ U = AᵀA V S T Σ⁻¹, which is R Σ' Qᵀ: the pairs
            # U Q, R are half a step further than those looked at
            u, sigma_u, t = np.linalg.svd(w[ended] @ best, full_matrices=False)
            sigma_u = np.maximum(sigma_u, math.sqrt(rounding) * sigma_u[:, :1] + tiny)
            back = z[ended] @ (best @ t.swapaxes(1, 2)) / sigma_u[:, None]
            right[done], values[done], turn = np.linalg.svd(back, full_matrices=False)
            left[done] = u @ turn.swapaxes(1, 2)
            # one step of the power method on the whole block, for nothing
            kept[done] = image[ended] / sigma[ended, :1, None] ** 2
            if ended.all():
                return LeadingPairs(left, values, right, kept, took, good)
            now, residual, s = now[~ended], residual[~ended], s[~ended]
            v, w, z = v[~ended], w[~ended], z[~ended]
        if width + b > _BLOCKS * b:
            half = s[:, :, : _BLOCKS * b // 2]
            v, w, z = v @ half, w @ half, z @ half
        added = _orthonormal(residual[:, :, : q - v.shape[2]], v)
        more = products(added, now)
        v = np.concatenate([v, added], axis=2)
        w = np.concatenate([w, more[0]], axis=2)
        z = np.concatenate([z, more[1]], axis=2)
        passes += 1


def _orthonormal(block: Array, basis: Array) -> Array:
    """Return an orthonormal basis of the block, orthogonal to the basis."""
    for _ in range(2):  # once leaves what cancellation has left
        block = block - basis @ (basis.swapaxes(1, 2) @ block)
        block = np.linalg.qr(block)[0]
    return block
