"""Matrices of fixed rank."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.numerics import positive_integer
from fedtrellis.manifolds.base import (
    FloatArray,
    Manifold,
    Shape,
    checked_shape,
    power_of_two_scaled,
)
from fedtrellis.manifolds.polar import thin_svd

__all__ = ["FixedRank"]

# Subspace iteration pays where the rank is at most this share of the smaller side.
_LOW_RANK = 1 / 4
# It is left after so many steps, for the singular value decomposition.
_MAX_STEPS = 4
# Largest error of the projection, relative to the matrix, with which it is done.
_ACCURACY = 1e-14


@dataclass(frozen=True)
class FixedRank(Manifold):
    """The p × r matrices of rank R.

    The closest point is the truncated singular value decomposition, unique where
    σ_R > σ_{R+1}; in a tie LAPACK's order decides. A matrix of smaller rank has no
    closest one of rank R (there are some as close as you like): it is its own
    projection, and counts as contained. The manifold is not closed, and its tangent
    space at such a matrix is that of R singular vectors LAPACK completes it with.

    Parameters
    ----------
    shape : tuple of int
        (p, r).
    rank : int
        R, from 1 to min(p, r).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import FixedRank
    >>> manifold = FixedRank((2, 2), rank=1)
    >>> point = manifold.project(np.array([[3.0, 0.0], [0.0, 1.0]]))
    >>> manifold.contains(point)
    True
    >>> (point + 0.0).round(3)
    array([[3., 0.],
           [0., 0.]])
    """

    name: ClassVar[str] = "fixed-rank"
    shape: Shape
    rank: int

    def __post_init__(self) -> None:
        shape = checked_shape(self.name, self.shape, matrix=True)
        rank = positive_integer(self.name, "rank", self.rank)
        if rank > min(shape):
            raise ValueError(
                f"{self.name}: rank must be at most {min(shape)} for shape {shape}, "
                f"got {rank}"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "rank", rank)

    @property
    def dimension(self) -> int:
        """Return R (p + r − R)."""
        return self.rank * (sum(self.shape) - self.rank)

    def factors(self, point: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the R largest singular triples U, s, Vᵀ of a point or a batch.

        Parameters
        ----------
        point : ndarray, shape (p, r) or (m, p, r)

        Returns
        -------
        tuple of ndarray of float64
            Of shapes (p, R), (R,), (R, r), or (m, p, R), (m, R), (m, R, r); s
            decreases.

        Raises
        ------
        ValueError
            The point is not finite, or neither a point of this shape nor a batch.
        """
        x = self._finite(point, "point")
        left, values, right = self._factors(self._batch(x))
        if x.ndim == 2:
            return left[0], values[0], right[0]
        return left, values, right

    def from_factors(
        self, left: ArrayLike, values: ArrayLike, right: ArrayLike
    ) -> FloatArray:
        """Return U diag(s) Vᵀ, the inverse of :meth:`factors`."""
        u, s, vt = (np.asarray(a, dtype=np.float64) for a in (left, values, right))
        (p, r), rank = self.shape, self.rank
        wanted = ((p, rank), (rank,), (rank, r))
        batch = s.shape[:-1]
        got = (u.shape, s.shape, vt.shape)
        if len(batch) > 1 or got != tuple((*batch, *shape) for shape in wanted):
            raise ValueError(
                f"{self.name}: the factors have shapes {u.shape}, {s.shape} and "
                f"{vt.shape}, expected {wanted[0]}, {wanted[1]} and {wanted[2]}, or "
                "several of these along a first axis"
            )
        # U diag(s) Vᵀ
        product: FloatArray = (u * s[..., None, :]) @ vt
        return product

    def _factors(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        left, values, right = thin_svd(x)
        rank = self.rank
        return left[:, :, :rank], values[:, :rank], right[:, :rank]

    def _project(self, x: FloatArray) -> FloatArray:
        if self.rank == min(self.shape):
            return x.copy()
        if self.rank > _LOW_RANK * min(self.shape):
            return self._truncate(x)
        result, done = _truncate_near(x, self.rank)
        if not done.all():
            result[~done] = self._truncate(x[~done])
        return result

    def _truncate(self, x: FloatArray) -> FloatArray:
        # P_M(x) = Σ_{i ≤ R} σ_i u_i v_iᵀ
        u, s, vt = self._factors(x)
        return (u * s[:, None, :]) @ vt

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        u, _, vt = self._factors(x)
        along = u @ (u.swapaxes(1, 2) @ v)
        # U Uᵀv + (v − U Uᵀv) V Vᵀ
        return along + ((v - along) @ vt.swapaxes(1, 2)) @ vt


def _truncate_near(x: FloatArray, rank: int) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Truncate matrices that are near ones of a rank, by subspace iteration.

    A step brings the R leading left singular vectors closer by (σ_{R+1}/σ_R)². With
    Q the basis found, ‖x − Q Qᵀx‖ < σ_R(Qᵀx) says that it is the leading ones it
    found.

    Returns
    -------
    ndarray of float64, shape (m, p, r)
        Q Qᵀx.
    ndarray of bool, shape (m,)
        Where that is the truncation, to rounding; elsewhere it is of no use.
    """
    scaled, scale = power_of_two_scaled(x, (1, 2))
    transposed = scaled.swapaxes(1, 2)
    basis = np.linalg.qr(scaled @ _start(x.shape[2], rank)).Q
    truncated = basis @ (basis.swapaxes(1, 2) @ scaled)
    done = np.zeros(len(x), dtype=np.bool_)
    for _ in range(_MAX_STEPS):
        product = scaled @ np.linalg.qr(transposed @ basis).Q
        change = _lengths(product - basis @ (basis.swapaxes(1, 2) @ product))
        basis, triangle = np.linalg.qr(product)
        smallest = np.linalg.svd(triangle, compute_uv=False)[:, -1]
        truncated = basis @ (basis.swapaxes(1, 2) @ scaled)
        rest = _lengths(scaled - truncated)
        # σ_{R+1}/σ_R is at most this; what is wrong now is at most change · rate²
        rate = rest / np.where(smallest > 0.0, smallest, 1.0)
        promising = (smallest > 0.0) & (rate < 0.5)
        done = promising & (change * rate**2 <= _ACCURACY * _lengths(product))
        if done.all() or not promising.any():
            break
    return scale * truncated, done


def _lengths(x: FloatArray) -> FloatArray:
    """Return the Frobenius norms of a batch of matrices."""
    norms: FloatArray = np.sqrt(np.einsum("mij,mij->m", x, x))
    return norms


@lru_cache(maxsize=32)
def _start(rows: int, columns: int) -> FloatArray:
    """Return the iteration's start, always the same for a shape."""
    # random: a structured matrix could have a singular vector orthogonal to ones
    start = np.random.default_rng(0).standard_normal((rows, columns))
    start.flags.writeable = False
    return start
