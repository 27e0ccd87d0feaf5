"""Matrices with orthonormal columns: as they are, and as bases of subspaces."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrellis.manifolds.base import FloatArray, Manifold, Shape, checked_shape
from fedtrellis.manifolds.polar import polar_factor

__all__ = ["Grassmann", "Stiefel"]

# Longest tangent that is followed: rounding blurs the angles of longer ones.
_LONGEST = 1e6


class _Orthonormal(Manifold):
    """What the two share: the points, and with them the projection."""

    def __post_init__(self) -> None:
        shape = checked_shape(self.name, self.shape, matrix=True)
        if shape[0] < shape[1]:
            raise ValueError(
                f"{self.name}: shape must have at least as many rows as columns, "
                f"got {self.shape!r}"
            )
        object.__setattr__(self, "shape", shape)

    def _project(self, x: FloatArray) -> FloatArray:
        # P_M(x) = U Vᵀ  for x = U Σ Vᵀ
        return polar_factor(x)

    def _check_length(self, v: FloatArray) -> None:
        if np.abs(v).max() > _LONGEST:
            raise ValueError(
                f"{self.name}: the exponential map takes tangents with entries up to "
                f"{_LONGEST:g}, got {np.abs(v).max():.3g}"
            )


@dataclass(frozen=True)
class Stiefel(_Orthonormal):
    """The p × r matrices with orthonormal columns, xᵀx = I, p ≥ r.

    The closest point to x = U Σ Vᵀ is U Vᵀ, unique where the columns of x are
    independent; elsewhere U is completed as LAPACK does it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import Stiefel
    >>> manifold = Stiefel((3, 1))
    >>> point = manifold.project(np.array([[3.0], [4.0], [0.0]]))
    >>> manifold.contains(point)
    True
    >>> (point + 0.0).round(3)
    array([[0.6],
           [0.8],
           [0. ]])
    """

    name: ClassVar[str] = "stiefel"
    shape: Shape

    @property
    def dimension(self) -> int:
        """Return p r − r (r + 1)/2."""
        p, r = self.shape
        return p * r - r * (r + 1) // 2

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        product = x.swapaxes(1, 2) @ v
        # v − x (xᵀv + vᵀx)/2
        return v - x @ (0.5 * (product + product.swapaxes(1, 2)))

    def _exponential(self, x: FloatArray, v: FloatArray) -> FloatArray:
        # Zimmermann, Hüper, "Computing the Riemannian logarithm on the Stiefel
        # manifold", SIAM J. Matrix Anal. Appl. 2022, the Euclidean metric:
        #   Exp_x(v) = [x Q] exp([2A −Rᵀ; R 0]) [I; 0] exp(−A),  A = xᵀv,  QR = v − xA
        # Here with K = QR itself in the place of Q: no factorisation, any rank.
        self._check_length(v)
        r = self.shape[1]
        product = x.swapaxes(1, 2) @ v
        a = 0.5 * (product - product.swapaxes(1, 2))
        k = v - x @ product
        size = np.sqrt(np.einsum("mpr,mpr->m", k, k))[:, None, None]
        size = np.where(size > 0.0, size, 1.0)
        # [2A  −KᵀK/τ; τI  0],  τ = ‖K‖ balancing the two
        generator = np.zeros((len(a), 2 * r, 2 * r))
        generator[:, :r, :r] = 2.0 * a
        generator[:, :r, r:] = -(k.swapaxes(1, 2) @ k) / size
        generator[:, r:, :r] = size * np.eye(r)
        flow = _expm(generator)[:, :, :r] @ _expm(-a)
        # [x  K/τ] exp(…) [I; 0] exp(−A);  the polar factor takes away rounding
        return polar_factor(x @ flow[:, :r] + (k / size) @ flow[:, r:])


@dataclass(frozen=True)
class Grassmann(_Orthonormal):
    """The r-dimensional subspaces of R^p, p ≥ r, each given by an orthonormal basis.

    Points and projection are those of :class:`Stiefel`. Tangent vectors at x are the
    horizontal ones, xᵀv = 0: those that change the subspace and not only its basis.
    For functions with f(xq) = f(x) for every orthogonal q.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import Grassmann
    >>> manifold = Grassmann((3, 1))
    >>> point = manifold.project(np.array([[3.0], [4.0], [0.0]]))
    >>> manifold.contains(point)
    True
    >>> (point + 0.0).round(3)
    array([[0.6],
           [0.8],
           [0. ]])
    """

    name: ClassVar[str] = "grassmann"
    shape: Shape

    @property
    def dimension(self) -> int:
        """Return r (p − r)."""
        p, r = self.shape
        return r * (p - r)

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        # v − x xᵀv
        return v - x @ (x.swapaxes(1, 2) @ v)

    def _exponential(self, x: FloatArray, v: FloatArray) -> FloatArray:
        self._check_length(v)
        # vᵀv = W Σ² Wᵀ;  cos and sin(σ)/σ are smooth in σ², so no accuracy is lost
        squares, w = np.linalg.eigh(v.swapaxes(1, 2) @ v)
        angles = np.sqrt(np.maximum(squares, 0.0))[:, None, :]
        # Exp_x(v) = x W cos(Σ) Wᵀ + U sin(Σ) Wᵀ,  U = v W Σ⁻¹  (Edelman, Arias,
        # Smith, SIAM J. Matrix Anal. Appl. 1998, theorem 2.3)
        y = x @ (w * np.cos(angles)) + v @ (w * np.sinc(angles / np.pi))
        # the polar factor takes away rounding
        return polar_factor(y @ w.swapaxes(1, 2))


def _expm(a: FloatArray) -> FloatArray:
    """Return exp(A) for a batch of square matrices, by scaling and squaring.

    The Taylor series of exp(A/2^s) with ‖A/2^s‖ ≤ 1/2, squared s times. Products of
    the whole batch: SciPy goes through the batch matrix by matrix.
    """
    size = math.sqrt(float(np.einsum("mij,mij->m", a, a).max()))
    squarings = max(0, math.frexp(size)[1] + 1)
    a = a / 2.0**squarings
    size /= 2.0**squarings
    # terms until size^k/k! no longer counts
    terms, term = 1, size
    while term > 1e-18:
        terms += 1
        term *= size / terms
    identity = np.eye(a.shape[1])
    # I + A (I + A/2 (I + A/3 (…)))
    result = identity + a / terms
    for k in range(terms - 1, 0, -1):
        result = identity + (a / k) @ result
    for _ in range(squarings):
        result = result @ result
    return result
