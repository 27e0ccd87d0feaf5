"""Matrices: with orthonormal columns, as they are or as bases, and of fixed rank."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.numerics import positive_integer, power_of_two_scaled, thin_svd
from fedtrellis.domains.singular import polar_factor
from fedtrellis.manifolds.base import (
    FloatArray,
    Manifold,
    Shape,
)


class _Orthonormal(Manifold):
    """What the two share: the points, and with them the projection."""

    _matrices: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape[0] < self.shape[1]:
            raise ValueError(
                f"{self.name}: shape must have at least as many rows as columns, "
                f"got {self.shape!r}"
            )

    def _project(self, x: FloatArray) -> FloatArray:
        # P_M(x) = U Vᵀ  for x = U Σ Vᵀ
        return polar_factor(x)


@dataclass(frozen=True)
class Stiefel(_Orthonormal):
    """The p × r matrices with orthonormal columns, xᵀx = I, p ≥ r.

    The closest point to x = U Σ Vᵀ is U Vᵀ, unique where the columns of x are
    independent; elsewhere U is completed as LAPACK does it.

    Examples
    --------
    >>> from fedtrellis.manifolds import Stiefel
    >>> (Stiefel((3, 1)).project([[3.0], [4.0], [0.0]]) + 0.0).round(3).tolist()
    [[0.6], [0.8], [0.0]]
    """

    name: ClassVar[str] = "stiefel"
    shape: Shape

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        product = x.swapaxes(1, 2) @ v
        # v − x (xᵀv + vᵀx)/2
        return v - x @ (0.5 * (product + product.swapaxes(1, 2)))


@dataclass(frozen=True)
class Grassmann(_Orthonormal):
    """The r-dimensional subspaces of R^p, p ≥ r, each given by an orthonormal basis.

    Points and projection are those of :class:`Stiefel`. Tangent vectors at x are the
    horizontal ones, xᵀv = 0: those that change the subspace and not only its basis.
    For functions with f(xq) = f(x) for every orthogonal q.

    Examples
    --------
    >>> from fedtrellis.manifolds import Grassmann
    >>> Grassmann((3, 1)).contains([[0.6], [0.8], [0.0]])
    True
    """

    name: ClassVar[str] = "grassmann"
    shape: Shape

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        # v − x xᵀv
        return v - x @ (x.swapaxes(1, 2) @ v)


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
    >>> from fedtrellis.manifolds import FixedRank
    >>> (FixedRank((2, 2), rank=1).project([[3.0, 0.0], [0.0, 1.0]]) + 0.0).tolist()
    [[3.0, 0.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "fixed-rank"
    _matrices: ClassVar[bool] = True
    shape: Shape
    rank: int

    def __post_init__(self) -> None:
        super().__post_init__()
        shape, rank = self.shape, positive_integer(self.name, "rank", self.rank)
        if rank > min(shape):
            raise ValueError(
                f"{self.name}: rank must be at most {min(shape)} for shape {shape}, "
                f"got {rank}"
            )
        object.__setattr__(self, "rank", rank)

    def factors(self, point: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the R largest singular triples U, s, Vᵀ of a point or a batch.

        Of shapes (p, R), (R,), (R, r), or (m, p, R), (m, R), (m, R, r) in float64; s
        decreases. ValueError if the point is not finite, or neither a point of this
        shape nor a batch.
        """
        x = self._finite(point, "point")
        left, values, right = self._factors(self._batch(x))
        if x.ndim == 2:
            return left[0], values[0], right[0]
        return left, values, right

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
    Returns Q Qᵀx, and where that is the truncation to rounding: elsewhere it is of no
    use.
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
