"""Balls of matrices by their singular values: nuclear and spectral norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, DenseAtom, RankOneAtom
from fedtrellis.domains.base import Domain, FloatArray, Norm, Shape
from fedtrellis.domains.numerics import positive, project_l1, thin_svd, unit
from fedtrellis.domains.polar import polar_factor
from fedtrellis.domains.singular import as_matrix, top_pairs
from fedtrellis.settings import setting

if TYPE_CHECKING:
    from fedtrellis.domains.singular import Matrix

__all__ = ["NuclearNormBall", "SpectralNormBall"]


class _MatrixBall(Domain):
    """What the two balls share: only matrices, symmetric about zero."""

    of_vectors: ClassVar[bool] = False
    radius: float

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the shape is a matrix's."""
        if len(shape) != 2:
            raise ValueError(
                f"{self.name} is a set of matrices and has no points of shape "
                f"{tuple(shape)}: two dimensions are needed"
            )
        super().check_shape(shape)

    def centre(self, shape: Shape) -> FloatArray:
        """Return zero."""
        self.check_shape(shape)
        return np.zeros(shape)


@dataclass(frozen=True)
class NuclearNormBall(_MatrixBall):
    """The nuclear norm ball, ‖X‖_* = Σ σ_i(X) ≤ radius, of m × n matrices.

    Its extreme points are radius · u vᵀ with unit vectors u and v.

    Parameters
    ----------
    radius : float
    tolerance : float
        Of the oracle: the largest ‖Gᵀ u₁ − σ₁ v₁‖ (or ‖G v₁ − σ₁ u₁‖) over σ₁. With
        more than the default, which is as good as exact, <G, s> may be above the
        minimum by tolerance · radius · σ₁; mostly it is by the square of it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import NuclearNormBall
    >>> domain = NuclearNormBall(radius=2.0)
    >>> gradient = np.array([[-3.0, 0.0], [0.0, 1.0]])
    >>> (domain.lmo(gradient).dense() + 0.0).round(3)
    array([[2., 0.],
           [0., 0.]])
    >>> (domain.project(-gradient) + 0.0).round(3)
    array([[2., 0.],
           [0., 0.]])
    """

    name: ClassVar[str] = "nuclear-norm-ball"
    form: ClassVar[str] = "low-rank"
    parameters: ClassVar[Mapping[str, Any]] = {
        "tolerance": setting(
            1e-10,
            "largest residual of the oracle's singular pair",
            above=0.0,
            below=1.0,
        )
    }
    radius: float
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        for parameter in ("radius", "tolerance"):
            value = positive(self.name, parameter, getattr(self, parameter))
            object.__setattr__(self, parameter, value)
        if self.tolerance >= 1.0:
            raise ValueError(
                f"{self.name}: tolerance must be below 1, got {self.tolerance!r}"
            )

    def lmo(self, gradient: Matrix) -> RankOneAtom:
        """Return −radius · u₁ v₁ᵀ, the leading singular vectors of the gradient.

        The largest entry of u₁ is made positive, so that the pair is unique. The
        gradient may be an ndarray, a sparse array or matrix, or a LinearOperator, see
        :func:`~fedtrellis.domains.singular.sparse_plus_low_rank`.
        """
        return self.lmo_from(gradient, None)[0]

    def lmo_from(
        self, gradient: Matrix, start: ArrayLike | None
    ) -> tuple[RankOneAtom, FloatArray | None]:
        """Return :meth:`lmo`'s atom, and a block of singular vectors to start from.

        See :func:`~fedtrellis.domains.singular.top_pairs`.
        """
        g = as_matrix(gradient)
        self.check_shape(g.shape)
        left, _, right, start = top_pairs(g, 1, start, self.tolerance)
        u, v = left[:, 0], right[:, 0]
        if u[np.abs(u).argmax()] < 0.0:
            u, v = -u, -v
        return RankOneAtom(-self.radius * u, v), start

    def gap(self, gradient: ArrayLike, point: ArrayLike) -> float:
        """Return the Frank-Wolfe gap, whatever the tolerance: a bound takes all σ₁."""
        return Domain.gap(NuclearNormBall(self.radius), gradient, point)

    def project(self, point: ArrayLike) -> FloatArray:
        """Project the singular values onto the l1 ball."""
        x = self._input(point, "point")
        left, values, right = thin_svd(x)
        projected = project_l1(values, self.radius)
        if np.array_equal(projected, values):
            return x.copy()
        return (left * projected) @ right

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether Σ σ_i ≤ radius (1 + tolerance)."""
        x = self._finite(point)
        return x is not None and bool(
            thin_svd(x)[1].sum() <= self.radius * (1.0 + tolerance)
        )

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, RankOneAtom):
            u, v = atom.left, atom.right
            if not (np.isfinite(u).all() and np.isfinite(v).all()):
                return False
            # the one singular value of u vᵀ is ‖u‖ ‖v‖
            u, v = (w.astype(np.float64, copy=False) for w in (u, v))
            return unit(u)[1] * unit(v)[1] <= self.radius * (1.0 + tolerance)
        return super()._contains_atom(atom, tolerance)

    def contains_product(
        self, left: FloatArray, right: FloatArray, tolerance: float = 1e-9
    ) -> bool:
        """Say whether ‖A Bᵀ‖_* ≤ radius, from the small matrix R_A R_Bᵀ.

        With A = Q_A R_A and B = Q_B R_B that has the same singular values.
        """
        if not (np.isfinite(left).all() and np.isfinite(right).all()):
            return False
        if not left.size or not right.size:
            return True
        left, right = (f.astype(np.float64, copy=False) for f in (left, right))
        core = np.linalg.qr(left).R @ np.linalg.qr(right).R.T
        return self.contains(core, tolerance)

    def largest_norm(self, norm: Norm, shape: Shape) -> float:
        """Return the norm of radius · u vᵀ; Σ |u_i v_j| ≤ √m √n."""
        self.check_norm(norm, shape)
        return (
            self.radius * math.sqrt(math.prod(shape)) if norm == "l1" else self.radius
        )

    def diameter(self, shape: Shape) -> float:
        """Return 2 radius."""
        self.check_shape(shape)
        return 2.0 * self.radius


@dataclass(frozen=True)
class SpectralNormBall(_MatrixBall):
    """The spectral norm ball, σ₁(X) ≤ radius, of m × n matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import SpectralNormBall
    >>> domain = SpectralNormBall(radius=2.0)
    >>> gradient = np.array([[-3.0, 0.0], [0.0, 1.0]])
    >>> (domain.lmo(gradient).dense() + 0.0).round(3)
    array([[ 2.,  0.],
           [ 0., -2.]])
    >>> (domain.project(-gradient) + 0.0).round(3)
    array([[ 2.,  0.],
           [ 0., -1.]])
    """

    name: ClassVar[str] = "spectral-norm-ball"
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def lmo(self, gradient: ArrayLike) -> DenseAtom:
        """Return −radius · U Vᵀ, the gradient's polar factor, U Σ Vᵀ its thin SVD."""
        return DenseAtom(-self.radius * polar_factor(self._input(gradient, "gradient")))

    def project(self, point: ArrayLike) -> FloatArray:
        """Clip the singular values."""
        x = self._input(point, "point")
        left, values, right = thin_svd(x)
        if values[0] <= self.radius:
            return x.copy()
        return (left * np.minimum(values, self.radius)) @ right

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether σ₁ ≤ radius (1 + tolerance)."""
        x = self._finite(point)
        return x is not None and bool(
            thin_svd(x)[1][0] <= self.radius * (1.0 + tolerance)
        )

    def largest_norm(self, norm: Norm, shape: Shape) -> float | None:
        """Return the norm of radius · U Vᵀ; Σ |x_ij| is not known."""
        self.check_norm(norm, shape)
        rank = min(shape)
        known = {
            "l2": self.radius * math.sqrt(rank),
            "linf": self.radius,
            "nuclear": self.radius * rank,
        }
        return known.get(norm)

    def diameter(self, shape: Shape) -> float:
        """Return 2 radius √min(m, n), the distance of U Vᵀ radius to its negative."""
        self.check_shape(shape)
        return 2.0 * self.radius * math.sqrt(min(shape))
