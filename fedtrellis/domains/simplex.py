"""The simplex, a set given by the signs and the sum of coordinates."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, SparseAtom
from fedtrellis.domains.base import Domain, FloatArray, Norm, Shape
from fedtrellis.domains.numerics import positive, project_simplex

__all__ = ["Simplex"]


@dataclass(frozen=True)
class Simplex(Domain):
    """The simplex, x ≥ 0 with Σ x_i = radius; its vertices are radius · e_j.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import Simplex
    >>> domain = Simplex(radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([0., 2., 0.])
    """

    name: ClassVar[str] = "simplex"
    sparse_atoms: ClassVar[bool] = True
    by_nonzeros: ClassVar[bool] = True
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return radius · e_j with j = argmin g_j."""
        g = self._input(gradient, "gradient")
        return SparseAtom(np.array([g.argmin()]), np.array([self.radius]), g.shape)

    def lmo_many(self, gradients: FloatArray) -> list[Atom]:
        """Call the oracle for many gradients, one a row."""
        flat, rows = self._rows(gradients), np.arange(len(gradients))
        j = flat.argmin(axis=1)
        self._check_extremes(flat[rows, j], flat.max(axis=1))
        values = np.full(len(flat), self.radius)
        return [*SparseAtom.singles(j, values, gradients.shape[1:])]

    def project(self, point: ArrayLike) -> FloatArray:
        """Return max(x − θ, 0), θ found by sorting (Duchi et al. 2008)."""
        x = self._input(point, "point")
        return project_simplex(x.reshape(-1), self.radius).reshape(x.shape)

    def project_on(self, point: FloatArray, support: NDArray[np.bool_]) -> FloatArray:
        """Project the entries of the support onto a simplex of their own."""
        result = np.zeros(point.shape)
        result[support] = self.project(point[support])
        return result

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether x ≥ −t and |Σ x_i − radius| ≤ t, t = tolerance · radius."""
        x = self._finite(point)
        if x is None:
            return False
        t = tolerance * self.radius
        with np.errstate(over="ignore"):
            return bool(x.min() >= -t and abs(x.sum() - self.radius) <= t)

    def largest_norm(self, norm: Norm, shape: Shape) -> float:
        """Return radius, the norm of every vertex."""
        self.check_norm(norm, shape)
        return self.radius

    def diameter(self, shape: Shape) -> float:
        """Return √2 radius, the distance of any two vertices; 0 if there is one."""
        self.check_shape(shape)
        return math.sqrt(2.0) * self.radius if math.prod(shape) > 1 else 0.0

    def centre(self, shape: Shape) -> FloatArray:
        """Return radius / p in every coordinate."""
        self.check_shape(shape)
        return np.full(shape, self.radius / math.prod(shape))
