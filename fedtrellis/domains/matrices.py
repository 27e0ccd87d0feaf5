"""Balls of matrices by their singular values: nuclear and spectral norm."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, DenseAtom, RankOneAtom
from fedtrellis.domains.base import NORMS, Domain, FloatArray, Norm, Shape
from fedtrellis.domains.families import NormBall, Places
from fedtrellis.domains.numerics import positive, thin_svd, unit
from fedtrellis.domains.polar import polar_factor
from fedtrellis.domains.singular import as_matrix, top_pairs
from fedtrellis.domains.vectors import L1Ball, LInfBall
from fedtrellis.settings import setting

if TYPE_CHECKING:
    from fedtrellis.domains.singular import Matrix

__all__ = ["NuclearNormBall", "SpectralNormBall"]


class _MatrixBall(NormBall):
    """The matrices whose singular values are in a ball of vectors."""

    of_vectors: ClassVar[bool] = False
    by_nonzeros: ClassVar[bool] = False

    @property
    @abstractmethod
    def _singular_values(self) -> NormBall:
        """The ball of the same radius that the singular values are in."""

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the shape is a matrix's."""
        if len(shape) != 2:
            raise ValueError(
                f"{self.name} is a set of matrices and has no points of shape "
                f"{tuple(shape)}: two dimensions are needed"
            )
        super().check_shape(shape)

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        return self._singular_values.norm(thin_svd(x.reshape(shape))[1])

    def project(self, point: ArrayLike) -> FloatArray:
        """Project the singular values onto their ball."""
        x = self._input(point, "point")
        left, values, right = thin_svd(x)
        projected = self._singular_values.project(values)
        if np.array_equal(projected, values):
            return x.copy()
        return (left * projected) @ right


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
        super().__post_init__()
        tolerance = positive(self.name, "tolerance", self.tolerance)
        object.__setattr__(self, "tolerance", tolerance)
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

    @property
    def _singular_values(self) -> L1Ball:
        return L1Ball(self.radius)

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

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of radius · u vᵀ, with Σ |u_i v_j| ≤ √m √n
        known = dict.fromkeys(NORMS, self.radius)
        return known | {"l1": self.radius * math.sqrt(math.prod(shape))}


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

    def lmo(self, gradient: ArrayLike) -> DenseAtom:
        """Return −radius · U Vᵀ, the gradient's polar factor, U Σ Vᵀ its thin SVD."""
        return DenseAtom(-self.radius * polar_factor(self._input(gradient, "gradient")))

    @property
    def _singular_values(self) -> LInfBall:
        return LInfBall(self.radius)

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of radius · U Vᵀ, whose l1 norms differ
        rank = min(shape)
        return {
            "l2": self.radius * math.sqrt(rank),
            "linf": self.radius,
            "nuclear": self.radius * rank,
        }
