"""Leading singular pairs of a matrix, and its polar factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.base import FloatArray
from fedtrellis.domains.numerics import magnitude, thin_svd, unit, unit_vectors

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix
    from scipy.sparse.linalg import LinearOperator

    Matrix = ArrayLike | sparray | spmatrix | LinearOperator[Any]

Array = NDArray[Any]
#: V, I ↦ A_i V_i and A_iᵀ A_i V_i for the matrices i in the array I.
Products = Callable[[Array, NDArray[np.intp]], tuple[Array, Array]]

# Blocks in the basis before it is cut to half of them.
_BLOCKS = 6


class LeadingPairs(NamedTuple):
    """The leading singular pairs of n matrices of shape (p, q), ``count`` of each.

    Aᵀ left = right · values to rounding; ``start`` is for similar matrices; a pass is a
    product with A_i and one with A_iᵀ, each of b vectors at once.
    """

    left: Array  # (n, p, count)
    values: Array  # (n, count), decreasing
    right: Array  # (n, q, count)
    start: Array  # (n, q, b)
    passes: NDArray[np.intp]  # (n,)
    converged: NDArray[np.bool_]  # (n,)


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

    ``products`` takes V, of shape (k, q, b), and I, (k,). ``start``, (n, q, b), has
    independent columns, at least ``count`` and at most q. There are at most ``most``
    passes, each one call of ``products`` for a matrix.
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
        block = block - basis @ (basis.swapaxes(-1, -2) @ block)
        block = np.linalg.qr(block)[0]
    return block


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


class SingularPairs(NamedTuple):
    """The leading singular pairs of one matrix of shape (m, n), ``count`` of them.

    Columns are orthonormal; ``start`` is what :func:`top_pairs` takes for a similar
    matrix, None where the matrix is so small that all pairs are found at once.
    """

    left: FloatArray  # (m, count)
    values: FloatArray  # (count,), decreasing
    right: FloatArray  # (n, count)
    start: FloatArray | None  # (min(m, n), b)


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

    ``matrix`` is an ndarray, sparse array or matrix, or LinearOperator of shape (m, n),
    ``count`` at most min(m, n), and ``start`` that of the answer for a similar matrix
    of this shape, (min(m, n), b). ``tolerance`` bounds ‖Aᵀ u − σ v‖ (or ‖A v − σ u‖)
    over the largest σ; each σ is then as near to a singular value. That none larger was
    missed is likely and not certain: an iteration is blind to what its start is
    orthogonal to. ValueError if the matrix or the start is not finite, or a shape does
    not fit.
    """
    a = as_matrix(matrix)
    if len(a.shape) != 2 or not 1 <= count <= min(a.shape):
        raise ValueError(
            f"count = {count!r} singular pairs need a matrix with as many rows and "
            f"columns, got shape {tuple(a.shape)}"
        )
    short = min(a.shape)
    size, block = _size(a), count + _SPARE
    found, small = None, size == 0.0 or short < _SMALL * block
    if not small and start is None and count == 1 and tolerance < _TIGHT:
        found = _one_pair(a, size, tolerance)
    elif not small:
        found = _pairs(a, size, count, _filled(start, short, block), tolerance)
    if found is not None:
        return found
    left, values, right = thin_svd(_dense(a))
    basis = left if a.shape[0] == short else right.T
    kept = None if small else basis[:, :block].copy()
    return SingularPairs(left[:, :count], values[:count], right[:count].T, kept)


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


# A singular value below this share of the largest is rounding.
_ROUNDING = 1e-13
# Above this share of the largest, a squared singular value has the digits of its root.
_FAR_FROM_ROUNDING = 1e-6
# Pairs beside those that are kept: the next matrix may keep more.
_BESIDE = 8


def kept_pairs(
    x: FloatArray, keep: Callable[[FloatArray], FloatArray] = np.asarray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """U (m, k), keep(σ) (k,) and V (n, k) of X = U Σ Vᵀ, where they are above 0."""
    left, values, right = thin_svd(x)
    kept = keep(values)
    k = int((kept > _ROUNDING * kept[0]).sum())
    return left[:, :k], kept[:k], right[:k].T


class SimilarPairs:
    """Singular pairs of similar matrices that a projection keeps, by one pass for each.

    The subspace iteration goes on from the right singular vectors of the last matrix,
    at first from what the columns of ``right`` span.
    """

    def __init__(self, right: FloatArray) -> None:
        self._v, self._rank = np.linalg.qr(right.astype(np.float64))[0], right.shape[1]
        self._rng = np.random.default_rng(0)

    def of(
        self, x: FloatArray, keep: Callable[[FloatArray], FloatArray]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """U (m, k), keep(σ) (k,) and V (n, k) of X ≈ U Σ Vᵀ, where they are above 0."""
        while (size := self._rank + _BESIDE) <= min(x.shape) // 2:
            known = self._v[:, :size]
            more = self._rng.standard_normal((x.shape[1], size - known.shape[1]))
            v = np.hstack([known, _orthonormal(more, known)])
            u = np.linalg.qr(x @ v)[0]
            z = x.T @ u
            # Xᵀ U = V Σ Sᵀ  with  S Σ² Sᵀ = (Xᵀ U)ᵀ Xᵀ U
            squares, s = np.linalg.eigh(z.T @ z)
            if squares[0] > _FAR_FROM_ROUNDING * squares[-1]:
                left, values = s[:, ::-1], np.sqrt(squares[::-1])
                self._v = (z @ left) / values
            else:  # Xᵀ U = V R
                v, r = np.linalg.qr(z)
                left, values, right = np.linalg.svd(r.T)
                self._v = v @ right.T
            kept = keep(values)
            k = self._rank = int((kept > _ROUNDING * kept[0]).sum())
            if k < size:
                return u @ left[:, :k], kept[:k], self._v[:, :k]
        return kept_pairs(x, keep)


def sparse_plus_low_rank(
    sparse: sparray | spmatrix, left: ArrayLike, right: ArrayLike
) -> LinearOperator[Any]:
    """Return S + L Rᵀ as an operator, without the dense matrix.

    S, a sparse array or matrix of shape (m, n), is for example the gradient of
    :class:`~fedtrellis.objectives.MatrixCompletion`; L (m, k) and R (n, k) are an
    iterate of Frank-Wolfe as its atoms, with their weights.
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
    """Return a power of two near ‖A‖, of an operator near ‖A x‖ for a random x."""
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
    transposed = a.T

    def both(v: Array, _: Array) -> tuple[Array, Array]:
        w = a @ v[0]
        return w[None], (transposed @ w)[None]

    return both


def _filled(given: ArrayLike | None, size: int, block: int) -> FloatArray:
    """Return a start of so many columns: those given, and then random ones."""
    noise = _noise(size, block)
    if given is None:
        return noise
    start = np.asarray(given, dtype=np.float64)
    if start.ndim != 2 or len(start) != size or not np.isfinite(start).all():
        raise ValueError(
            f"a start for this matrix must be finite, of shape ({size}, b); got shape "
            f"{start.shape}"
        )
    known = start[:, :block]
    return np.concatenate([known, noise[:, known.shape[1] :]], axis=1)


@lru_cache(maxsize=8)
def _noise(size: int, block: int) -> FloatArray:
    """Return random vectors as columns, always the same for a size."""
    # random: a structured gradient could have its singular vector orthogonal to ones
    vectors = np.random.default_rng(0).standard_normal((block, size)).T
    vectors.flags.writeable = False
    return vectors


# Up to this ‖xᵀx − I‖ the series for (xᵀx)^(−1/2) needs few enough terms (16) to be
# faster than the eigenvalues.
_NEAR = 0.1


def polar_factor(x: FloatArray, smallest: float = 1e-3) -> FloatArray:
    """Return the factor U Vᵀ of each x = U Σ Vᵀ, the closest orthonormal columns.

    It is x (xᵀx)^(−1/2) where the columns are independent: by the series of the
    inverse root near orthonormal columns, else through the eigenvalues of xᵀx where
    their ratio is at least ``smallest``, else by the singular value decomposition.
    Forming xᵀx costs an error of 2⁻⁵³/ratio in the factor: below 1e-12 by default. With
    dependent columns the factor is not unique, and it is U Vᵀ as LAPACK completes U.
    x is finite, of shape (m, p, r) with p ≥ r, and so is the result, in float64,
    orthonormal to about 1e-15.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import polar_factor
    >>> polar_factor(np.array([[[3.0], [4.0]]])).round(3).ravel()
    array([0.6, 0.8])
    """
    if x.shape[2] == 1:  # x/‖x‖
        columns, _ = unit_vectors(x.swapaxes(1, 2))
        return np.ascontiguousarray(columns.swapaxes(1, 2))
    with np.errstate(over="ignore", invalid="ignore"):
        gram = x.swapaxes(1, 2) @ x
        excess = gram - np.eye(x.shape[2])
        farthest = math.sqrt(np.einsum("mij,mij->m", excess, excess).max())
    if farthest <= _NEAR:  # not so if it is NaN
        near: FloatArray = x @ _inverse_root_near_identity(excess, farthest)
        return near
    return _far(x, gram, smallest)


def _far(x: FloatArray, gram: FloatArray, smallest: float) -> FloatArray:
    """Return the polar factors, given xᵀx, each by the fastest way that is safe."""
    trace = np.trace(gram, axis1=1, axis2=2)
    in_range = (trace > 1e-100) & (trace < 1e100)  # not so if it is NaN
    usable = np.where(in_range[:, None, None], gram, np.eye(x.shape[2]))
    values, vectors = np.linalg.eigh(usable)
    safe = in_range & (values[:, 0] >= smallest * values[:, -1])
    if safe.all():
        return _by_eigenvalues(x, values, vectors)
    result = np.empty_like(x)
    result[safe] = _by_eigenvalues(x[safe], values[safe], vectors[safe])
    left, _, right = thin_svd(x[~safe])
    result[~safe] = left @ right  # U Vᵀ
    return result


def _by_eigenvalues(x: FloatArray, values: FloatArray, w: FloatArray) -> FloatArray:
    """Return the polar factors, given the eigenvalues and vectors of xᵀx."""
    # x (xᵀx)^(−1/2) = x W Λ^(−1/2) Wᵀ  with xᵀx = W Λ Wᵀ
    y = x @ ((w / np.sqrt(values)[:, None, :]) @ w.swapaxes(1, 2))
    # y is orthonormal to 2⁻⁵³/ratio; once more, from so near, makes that 1e-15
    excess = y.swapaxes(1, 2) @ y - np.eye(x.shape[2])
    result: FloatArray = y @ _inverse_root_near_identity(excess, 1e-6)
    return result


def _inverse_root_near_identity(excess: FloatArray, size: float) -> FloatArray:
    """Return (I + E)^(−1/2) for symmetric E with ‖E‖ ≤ size < 1, by its series."""
    identity = np.eye(excess.shape[1])
    last, previous, *coefficients = reversed(_series(size))
    # Σ_k c_k E^k, in Horner's order
    result = last * excess + previous * identity
    for coefficient in coefficients:
        result = result @ excess
        result += coefficient * identity
    return result


def _series(size: float) -> list[float]:
    """Return the coefficients of (1 + z)^(−1/2) that count for |z| ≤ size, two or more.

    What follows the last is below 2⁻⁵³/10.
    """
    coefficients = [1.0]
    # c_k = c_{k−1} (1/2 − k)/k
    while abs(coefficients[-1]) * size ** (len(coefficients) - 1) > 1e-17:
        k = len(coefficients)
        coefficients.append(coefficients[-1] * (0.5 - k) / k)
    return coefficients
