"""Matrices: with orthonormal columns, and of fixed rank."""

from dataclasses import dataclass
from typing import ClassVar

from fedtrellis.domains.numerics import positive_integer, thin_svd
from fedtrellis.domains.singular import polar_factor
from fedtrellis.manifolds.base import FloatArray, Manifold, Shape


@dataclass(frozen=True)
class Stiefel(Manifold):
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
    _matrices: ClassVar[bool] = True
    shape: Shape

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

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        product = x.swapaxes(1, 2) @ v
        # v − x (xᵀv + vᵀx)/2
        return v - x @ (0.5 * (product + product.swapaxes(1, 2)))


@dataclass(frozen=True)
class Grassmann(Stiefel):
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

    def _factors(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        left, values, right = thin_svd(x)
        rank = self.rank
        return left[:, :, :rank], values[:, :rank], right[:, :rank]

    def _project(self, x: FloatArray) -> FloatArray:
        if self.rank == min(self.shape):
            return x.copy()
        # P_M(x) = Σ_{i ≤ R} σ_i u_i v_iᵀ
        u, s, vt = self._factors(x)
        return (u * s[:, None, :]) @ vt

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        u, _, vt = self._factors(x)
        along = u @ (u.swapaxes(1, 2) @ v)
        # U Uᵀv + (v − U Uᵀv) V Vᵀ
        return along + ((v - along) @ vt.swapaxes(1, 2)) @ vt
