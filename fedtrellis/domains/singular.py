"""Leading singular pairs of a matrix, from where those of a similar one are."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.base import FloatArray
from fedtrellis.domains.lanczos import Products, leading_pairs
from fedtrellis.domains.numerics import magnitude, thin_svd, unit

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix
    from scipy.sparse.linalg import LinearOperator

    Matrix = ArrayLike | sparray | spmatrix | LinearOperator[Any]

__all__ = ["SingularPairs", "as_matrix", "sparse_plus_low_rank", "top_pairs"]

Array = NDArray[Any]

# Columns of a block beside those that are wanted: equal singular values, and those
# that change places from one gradient to the next, cost no more steps then.
_SPARE = 3
# A full decomposition is quicker with fewer than so many rows for a block's column.
_SMALL = 24
# ... and it costs less than the shorter side's rows over this many passes.
_AFFORDED = 4
# Below this tolerance one pair from nowhere is a matter for ARPACK.
_TIGHT = 1e-6
# Its restarts, 20 products each, before a full decomposition is the cheaper.
_MAX_RESTARTS = 40
# Entries of a dense matrix that stay in a core's cache between both products.
_CACHED = 2**17


class SingularPairs(NamedTuple):
    """The leading singular pairs of one matrix of shape (m, n).

    Attributes
    ----------
    left : ndarray of shape (m, count)
        Orthonormal columns.
    values : ndarray of shape (count,)
        Decreasing.
    right : ndarray of shape (n, count)
        Orthonormal columns.
    start : ndarray of shape (n, b) or None
        What :func:`top_pairs` takes for a similar matrix. None where the matrix is so
        small that all pairs are found at once.
    """

    left: FloatArray
    values: FloatArray
    right: FloatArray
    start: FloatArray | None


def top_pairs(
    matrix: Matrix,
    count: int = 1,
    start: ArrayLike | None = None,
    tolerance: float = 1e-10,
) -> SingularPairs:
    """Return the ``count`` leading singular pairs of a matrix.

    One pair to full precision without a start is found by ARPACK's Lanczos method,
    everything else by :func:`leading_pairs`. Where the matrix is small, or neither
    converged, a full decomposition gives them. Deterministic: what ``start`` lacks are
    always the same random vectors.

    Parameters
    ----------
    matrix : ndarray, sparse array or matrix, or LinearOperator, shape (m, n)
    count : int
        At most min(m, n).
    start : ndarray of shape (min(m, n), b), optional
        ``start`` of the answer for a similar matrix of this shape.
    tolerance : float
        Largest ‖Aᵀ u − σ v‖ (or ‖A v − σ u‖) over the largest σ. Each σ is then as
        near to a singular value. That none larger was missed is likely and not
        certain: an iteration is blind to what its start is orthogonal to.

    Raises
    ------
    ValueError
        The matrix or the start is not finite, or a shape does not fit.
    """
    a = as_matrix(matrix)
    if len(a.shape) != 2 or not 1 <= count <= min(a.shape):
        raise ValueError(
            f"count = {count!r} singular pairs need a matrix with as many rows and "
            f"columns, got shape {tuple(a.shape)}"
        )
    short = min(a.shape)
    size, block = _size(a), count + _SPARE
    if size == 0.0 or short < _SMALL * block:
        left, values, right = thin_svd(_dense(a))
        return SingularPairs(left[:, :count], values[:count], right[:count].T, None)
    known = None if start is None else _check_start(start, short)
    if known is None and count == 1 and tolerance < _TIGHT:
        found = _one_pair(a, size, tolerance)
    else:
        found = _pairs(a, size, count, _filled(known, short, block), tolerance)
    if found is not None:
        return found
    left, values, right = thin_svd(_dense(a))
    basis = left if a.shape[0] == short else right.T
    return SingularPairs(
        left[:, :count], values[:count], right[:count].T, basis[:, :block].copy()
    )


def _pairs(
    a: Any, size: float, count: int, start: FloatArray, tolerance: float
) -> SingularPairs | None:
    """Return what :func:`leading_pairs` finds, None unless it converges in time."""
    scale = 1.0 if 1e-100 < size < 1e100 else size  # σ² must be in range
    used = a if scale == 1.0 else a * (1.0 / scale)
    # the basis is on the shorter side, where it takes the least room and work
    wide = a.shape[0] < a.shape[1]
    found = leading_pairs(
        _products(used.T if wide else used),
        start[None],
        count,
        tolerance,
        min(a.shape) // _AFFORDED,
    )
    if not (found.converged[0] and found.values[0, -1] > 0.0):
        return None
    left, right = found.left[0], found.right[0]
    if wide:
        left, right = right, left
    return SingularPairs(left, scale * found.values[0], right, found.start[0])


def _one_pair(a: Any, size: float, tolerance: float) -> SingularPairs | None:
    """Return the leading pair by ARPACK, None unless it converges in time."""
    from scipy.sparse.linalg import ArpackError, svds

    used = a * (1.0 / size)  # ARPACK compares with numbers of its own
    try:
        left, values, right = svds(
            used,
            k=1,
            tol=0.1 * tolerance,
            v0=_noise(min(a.shape), 1)[:, 0],
            maxiter=_MAX_RESTARTS,
        )
    except (ArpackError, np.linalg.LinAlgError):
        return None
    u, sigma, v = left[:, :1], float(values[0]), right[:1].T
    # σ u = A v and σ v = Aᵀ u hold for a singular pair
    residual = max(
        float(np.linalg.norm(used @ v - sigma * u)),
        float(np.linalg.norm(used.T @ u - sigma * v)),
    )
    if not residual <= tolerance * sigma:
        return None
    u, v = unit(u)[0], unit(v)[0]
    return SingularPairs(u, np.array([size * sigma]), v, u if len(u) <= len(v) else v)


def sparse_plus_low_rank(
    sparse: sparray | spmatrix, left: ArrayLike, right: ArrayLike
) -> LinearOperator[Any]:
    """Return S + L Rᵀ as an operator, without the dense matrix.

    Parameters
    ----------
    sparse : sparse array or matrix, shape (m, n)
        S, e.g. the gradient of :class:`~fedtrellis.objectives.MatrixCompletion`.
    left, right : ndarray of shapes (m, k) and (n, k)
        L and R: an iterate of Frank-Wolfe as its atoms, with their weights.
    """
    operator: Any = scipy.sparse.linalg.aslinearoperator
    low_rank = operator(np.asarray(left)) @ operator(np.asarray(right).T)
    whole: LinearOperator[Any] = operator(sparse) + low_rank
    return whole


def as_matrix(matrix: Matrix) -> Any:
    """Return an ndarray or CSR array of float64, or the LinearOperator given."""
    a: Any = matrix
    if isinstance(a, scipy.sparse.linalg.LinearOperator):
        return a
    sparse: bool = scipy.sparse.issparse(a)
    if sparse:
        return a.tocsr().astype(np.float64, copy=False)
    return np.asarray(a, dtype=np.float64)


def _size(a: Any) -> float:
    """Return a power of two near ‖A‖, of an operator near ‖A x‖ for a random x.

    Raises
    ------
    ValueError
        Not finite.
    """
    if isinstance(a, scipy.sparse.linalg.LinearOperator):
        size = magnitude(a @ _noise(a.shape[1], 1)[:, 0])
    else:
        size = magnitude(a if isinstance(a, np.ndarray) else a.data)
    if not math.isfinite(size):
        raise ValueError("the matrix must be finite")
    return size


def _dense(a: Any) -> FloatArray:
    """Return a matrix as an ndarray."""
    if isinstance(a, scipy.sparse.linalg.LinearOperator):
        a = a @ np.eye(a.shape[1])
    return np.asarray(a if isinstance(a, np.ndarray) else a.toarray(), dtype=np.float64)


def _products(a: Any) -> Products:
    """Return V ↦ A V, AᵀA V for a batch of this one matrix."""
    if isinstance(a, np.ndarray):
        return lambda v, _: _in_cache(a, v)
    transposed = a.T

    def both(v: Array, _: Array) -> tuple[Array, Array]:
        w = a @ v[0]
        return w[None], (transposed @ w)[None]

    return both


def _in_cache(a: FloatArray, v: Array) -> tuple[Array, Array]:
    """Return A V, AᵀA V, reading A from memory once."""
    m, n = a.shape
    w, z = np.empty((1, m, v.shape[2])), np.zeros((1, n, v.shape[2]))
    rows = max(8, _CACHED // n)
    for first in range(0, m, rows):
        strip = a[first : first + rows]
        # AᵀA V = Σ over strips of rows of A_sᵀ (A_s V)
        own = w[0, first : first + rows] = strip @ v[0]
        z[0] += strip.T @ own
    return w, z


def _check_start(given: ArrayLike, size: int) -> FloatArray:
    start = np.asarray(given, dtype=np.float64)
    if start.ndim != 2 or len(start) != size or not np.isfinite(start).all():
        raise ValueError(
            f"a start for this matrix must be finite, of shape ({size}, b); got shape "
            f"{start.shape}"
        )
    return start


def _filled(given: FloatArray | None, size: int, block: int) -> FloatArray:
    """Return a start of so many columns: those given, and then random ones."""
    noise = _noise(size, block)
    if given is None:
        return noise
    known = given[:, :block]
    return np.concatenate([known, noise[:, known.shape[1] :]], axis=1)


@lru_cache(maxsize=8)
def _noise(size: int, block: int) -> FloatArray:
    """Return random vectors as columns, always the same for a size."""
    # random: a structured gradient could have its singular vector orthogonal to ones
    vectors = np.random.default_rng(0).standard_normal((block, size)).T
    vectors.flags.writeable = False
    return vectors
