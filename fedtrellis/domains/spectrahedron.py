"""The spectrahedron: positive semidefinite matrices of a given trace."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, RankOneAtom
from fedtrellis.domains.base import NORMS, Domain, FloatArray, Norm, Shape
from fedtrellis.domains.numerics import magnitude, positive, project_simplex, unit

__all__ = ["Spectrahedron"]


@dataclass(frozen=True)
class Spectrahedron(Domain):
    """The symmetric n × n matrices X ⪰ 0 with trace(X) = radius.

    Its extreme points are radius · v vᵀ with unit vectors v (Hazan, "Sparse approximate
    solutions to semidefinite programs", LATIN 2008; Jaggi, ICML 2013). A matrix that
    is not symmetric may be a gradient or a point to project: its symmetric part counts.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import Spectrahedron
    >>> domain = Spectrahedron()
    >>> gradient = np.array([[-3.0, 0.0], [0.0, 1.0]])
    >>> (domain.lmo(gradient).dense() + 0.0).round(3)
    array([[1., 0.],
           [0., 0.]])
    >>> (domain.project(-gradient) + 0.0).round(3)
    array([[1., 0.],
           [0., 0.]])
    """

    name: ClassVar[str] = "spectrahedron"
    form: ClassVar[str] = "low-rank"
    of_vectors: ClassVar[bool] = False
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the shape is a square matrix's."""
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
            raise ValueError(
                f"{self.name} is a set of square matrices and has no points of shape "
                f"{tuple(shape)}: only (n, n) is allowed"
            )

    def lmo(self, gradient: ArrayLike) -> RankOneAtom:
        """Return radius · v vᵀ, v the eigenvector of the smallest eigenvalue.

        That of (G + Gᵀ)/2, in O(n³): LAPACK reduces it to three diagonals and finds the
        one pair of these.
        """
        symmetric, _ = _symmetric_part(self._input(gradient, "gradient"))
        v, _ = unit(scipy.linalg.eigh(symmetric, subset_by_index=[0, 0])[1][:, 0])
        return RankOneAtom(self.radius * v, v)

    def project(self, point: ArrayLike) -> FloatArray:
        """Project the eigenvalues of (X + Xᵀ)/2 onto the simplex."""
        scaled, scale = _symmetric_part(self._input(point, "point"))
        values, vectors = scipy.linalg.eigh(scaled)
        if scale < self.radius:
            weights = project_simplex(scale * values, self.radius)
        else:  # an eigenvalue times the scale need not be finite
            weights = scale * project_simplex(values, self.radius / scale)
        half = vectors * np.sqrt(weights)
        return half @ half.T

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether X is symmetric and X ⪰ 0, with the trace radius.

        Up to t = tolerance · radius: ‖X − Xᵀ‖_F, the smallest eigenvalue and the trace.
        """
        x = self._finite(point)
        if x is None:
            return False
        t = tolerance * self.radius
        with np.errstate(over="ignore"):
            if abs(np.trace(x) - self.radius) > t or unit(x - x.T)[1] > t:
                return False
        scaled, scale = _symmetric_part(x)
        return bool(scale * scipy.linalg.eigvalsh(scaled)[0] >= -t)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if not isinstance(atom, RankOneAtom):
            return super()._contains_atom(atom, tolerance)
        u, v = atom.left, atom.right
        if not (np.isfinite(u).all() and np.isfinite(v).all()):
            return False
        t = tolerance * self.radius
        direction, length = unit(v)
        along = float(u @ direction)
        across = unit(u - along * direction)[1]
        # trace(u vᵀ) = <u, v>, ‖u vᵀ − v uᵀ‖_F = √2 ‖u across v‖ ‖v‖, and the smallest
        # eigenvalue of the symmetric part is (<u, v> − ‖u‖ ‖v‖) / 2
        lowest = 0.5 * length * (along - math.hypot(along, across))
        return (
            abs(along * length - self.radius) <= t
            and math.sqrt(2.0) * across * length <= t
            and lowest >= -t
        )

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of radius · v vᵀ, with Σ |v_i v_j| ≤ n
        return dict.fromkeys(NORMS, self.radius) | {"l1": self.radius * shape[0]}

    def diameter(self, shape: Shape) -> float:
        """Return √2 radius, the distance of v vᵀ and w wᵀ with <v, w> = 0."""
        self.check_shape(shape)
        return math.sqrt(2.0) * self.radius if shape[0] > 1 else 0.0

    def centre(self, shape: Shape) -> FloatArray:
        """Return radius / n on the diagonal."""
        self.check_shape(shape)
        return self.radius / shape[0] * np.eye(shape[0])


def _symmetric_part(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Return (X + Xᵀ)/2 over a power of two near ‖X‖_F, and that power; 1 for zero."""
    scale = magnitude(matrix) or 1.0
    scaled = matrix / scale
    return 0.5 * (scaled + scaled.T), scale
