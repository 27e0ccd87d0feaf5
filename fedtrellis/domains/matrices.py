"""Balls of matrices by their singular values: nuclear and spectral norm."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, DenseAtom, RankOneAtom
from fedtrellis.domains.base import Domain, FloatArray, Norm, Shape
from fedtrellis.domains.numerics import positive, project_l1, unit

__all__ = ["NuclearNormBall", "SpectralNormBall"]

# From this many rows and columns on, one triple by Lanczos is faster than all of them.
_LANCZOS_FROM = 96
# Largest residual of a singular triple, relative to the singular value.
_RESIDUAL = 1e-10
# Restarts of Lanczos, 20 products each, before a full decomposition is the cheaper.
_MAX_RESTARTS = 40


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
    """

    name: ClassVar[str] = "nuclear-norm-ball"
    form: ClassVar[str] = "low-rank"
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def lmo(self, gradient: ArrayLike) -> RankOneAtom:
        """Return −radius · u₁ v₁ᵀ, the leading singular vectors of the gradient.

        The largest entry of u₁ is made positive, so that the pair is unique.
        """
        g = self._input(gradient, "gradient")
        left, right = _leading_pair(g)
        if left[np.abs(left).argmax()] < 0.0:
            left, right = -left, -right
        return RankOneAtom(-self.radius * left, right)

    def project(self, point: ArrayLike) -> FloatArray:
        """Project the singular values onto the l1 ball."""
        x = self._input(point, "point")
        left, values, right = _svd(x)
        projected = project_l1(values, self.radius)
        if np.array_equal(projected, values):
            return x.copy()
        return (left * projected) @ right

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether Σ σ_i ≤ radius (1 + tolerance)."""
        x = self._finite(point)
        return x is not None and bool(
            _svd(x)[1].sum() <= self.radius * (1.0 + tolerance)
        )

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, RankOneAtom):
            u, v = atom.left, atom.right
            if not (np.isfinite(u).all() and np.isfinite(v).all()):
                return False
            # the one singular value of u vᵀ is ‖u‖ ‖v‖
            return unit(u)[1] * unit(v)[1] <= self.radius * (1.0 + tolerance)
        return super()._contains_atom(atom, tolerance)

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
    """The spectral norm ball, σ₁(X) ≤ radius, of m × n matrices."""

    name: ClassVar[str] = "spectral-norm-ball"
    form: ClassVar[str] = "entries"
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def lmo(self, gradient: ArrayLike) -> DenseAtom:
        """Return −radius · U Vᵀ, from the thin singular value decomposition U Σ Vᵀ."""
        left, _, right = _svd(self._input(gradient, "gradient"))
        return DenseAtom(-self.radius * (left @ right))

    def project(self, point: ArrayLike) -> FloatArray:
        """Clip the singular values."""
        x = self._input(point, "point")
        left, values, right = _svd(x)
        if values[0] <= self.radius:
            return x.copy()
        return (left * np.minimum(values, self.radius)) @ right

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether σ₁ ≤ radius (1 + tolerance)."""
        x = self._finite(point)
        return x is not None and bool(_svd(x)[1][0] <= self.radius * (1.0 + tolerance))

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


def _scaled(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Return the matrix over a power of two near its largest entry, and that power."""
    largest = float(np.abs(matrix).max())
    scale = 2.0 ** math.floor(math.log2(largest)) if largest > 0.0 else 1.0
    return matrix / scale, scale


def _svd(matrix: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the thin singular value decomposition U, σ, Vᵀ; σ decreases."""
    scaled, scale = _scaled(matrix)
    try:
        left, values, right = np.linalg.svd(scaled, full_matrices=False)
    except np.linalg.LinAlgError:  # the divide-and-conquer driver fails now and then
        left, values, right = scipy.linalg.svd(
            scaled, full_matrices=False, lapack_driver="gesvd"
        )
    return left, scale * values, right


def _leading_pair(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the unit singular vectors of the largest singular value."""
    if min(matrix.shape) >= _LANCZOS_FROM and matrix.any():
        from scipy.sparse.linalg import ArpackError, svds

        scaled, _ = _scaled(matrix)
        try:
            left, values, right = svds(
                scaled,
                k=1,
                tol=0.1 * _RESIDUAL,
                v0=_start_vector(min(matrix.shape)),
                maxiter=_MAX_RESTARTS,
            )
        except (ArpackError, np.linalg.LinAlgError):
            pass  # not converged: all of them, below
        else:
            u, sigma, v = left[:, 0], float(values[0]), right[0]
            # σ u = A v and σ v = Aᵀ u hold for a singular triple
            residual = max(
                float(np.linalg.norm(scaled @ v - sigma * u)),
                float(np.linalg.norm(u @ scaled - sigma * v)),
            )
            if residual <= _RESIDUAL * sigma:
                return u / np.linalg.norm(u), v / np.linalg.norm(v)
    left, _, right = _svd(matrix)
    return left[:, 0], right[0]


@lru_cache(maxsize=32)
def _start_vector(size: int) -> FloatArray:
    """Return Lanczos' start, always the same for a size."""
    # random: a structured gradient could have its singular vector orthogonal to ones
    vector = np.random.default_rng(0).standard_normal(size)
    vector.flags.writeable = False
    return vector
