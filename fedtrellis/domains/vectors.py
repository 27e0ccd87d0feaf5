"""Norm balls and the simplex: sets given coordinate by coordinate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, DenseAtom, SignAtom, SparseAtom
from fedtrellis.domains.base import NORMS, Domain, FloatArray, Norm, Shape
from fedtrellis.domains.families import NormBall, Places
from fedtrellis.domains.numerics import positive, project_l1, project_simplex, unit

__all__ = ["L1Ball", "L2Ball", "LInfBall", "Simplex"]


@dataclass(frozen=True)
class L1Ball(NormBall):
    """The l1 ball, ‖x‖₁ = Σ |x_i| ≤ radius.

    Its extreme points are ±radius in one coordinate. LMO O(p), projection O(p log p).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import L1Ball
    >>> domain = L1Ball(radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([0., 2., 0.])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([2., 0., 0.])
    """

    name: ClassVar[str] = "l1-ball"
    sparse_atoms: ClassVar[bool] = True
    any_vector: ClassVar[bool] = True
    radius: float

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return −radius · sign(g_j) · e_j with j = argmax |g_j|."""
        g = np.asarray(gradient, dtype=np.float64)
        self.check_shape(g.shape)
        flat = g.reshape(-1)
        # argmax |g| without the array of |g|; the first of equals, as argmax gives
        top, bottom = int(flat.argmax()), int(flat.argmin())
        largest, smallest = float(flat[top]), float(flat[bottom])
        # these two show every infinity and, as NaN goes before all numbers, every NaN
        if not (math.isfinite(largest) and math.isfinite(smallest)):
            raise ValueError(f"{self.name}: the gradient must be finite")
        if largest == -smallest:
            j = min(top, bottom)
        else:
            j = top if largest > -smallest else bottom
        value = -self.radius if flat[j] > 0.0 else self.radius
        return SparseAtom(np.array([j]), np.array([value]), g.shape)

    def lmo_many(self, gradients: FloatArray) -> list[Atom]:
        """Call the oracle for many gradients, one a row."""
        flat, rows = self._rows(gradients), np.arange(len(gradients))
        top, bottom = flat.argmax(axis=1), flat.argmin(axis=1)
        largest, smallest = flat[rows, top], -flat[rows, bottom]
        self._check_extremes(largest, smallest)
        j = np.where(largest > smallest, top, bottom)
        np.minimum(top, bottom, out=j, where=largest == smallest)
        values = np.where(flat[rows, j] > 0.0, -self.radius, self.radius)
        return [*SparseAtom.singles(j, values, gradients.shape[1:])]

    def contains_atom(self, atom: Atom, tolerance: float = 1e-9) -> bool:
        """Say whether an atom that came from elsewhere is a point of the ball."""
        if isinstance(atom, SparseAtom) and atom.values.size == 1:
            # NaN is not at most anything
            return abs(float(atom.values[0])) <= self.radius * (1.0 + tolerance)
        return super().contains_atom(atom, tolerance)

    def project(self, point: ArrayLike) -> FloatArray:
        """Soft-threshold at the level found by sorting (Duchi et al. 2008)."""
        x = self._input(point, "point")
        return project_l1(x.reshape(-1), self.radius).reshape(x.shape)

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        with np.errstate(over="ignore"):
            return float(np.abs(x).sum())

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # every vertex has the norm radius
        return dict.fromkeys(NORMS, self.radius)


@dataclass(frozen=True)
class L2Ball(NormBall):
    """The l2 ball, ‖x‖₂ ≤ radius.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import L2Ball
    >>> domain = L2Ball(radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([-0.535,  1.604, -1.069])
    """

    name: ClassVar[str] = "l2-ball"
    radius: float

    def lmo(self, gradient: ArrayLike) -> DenseAtom:
        """Return −radius · g / ‖g‖₂."""
        direction, _ = unit(self._input(gradient, "gradient"))
        return DenseAtom(-self.radius * direction)

    def project(self, point: ArrayLike) -> FloatArray:
        """Return x · min(1, radius / ‖x‖₂)."""
        x = self._input(point, "point")
        direction, norm = unit(x)
        return x.copy() if norm <= self.radius else self.radius * direction

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        return unit(x)[1]

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # ‖x‖₁ of equal entries, and ‖X‖_* of equal singular values
        return {
            "l1": self.radius * math.sqrt(math.prod(shape)),
            "l2": self.radius,
            "linf": self.radius,
            "nuclear": self.radius * math.sqrt(min(shape)),
        }


@dataclass(frozen=True)
class LInfBall(NormBall):
    """The l∞ ball, |x_i| ≤ radius for every i; its vertices are vectors of signs.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import LInfBall
    >>> domain = LInfBall(radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([-2.,  2., -2.])
    """

    name: ClassVar[str] = "linf-ball"
    radius: float

    def lmo(self, gradient: ArrayLike) -> SignAtom:
        """Return −radius · sign(g); +radius where g_i = 0."""
        g = self._input(gradient, "gradient")
        return SignAtom(g <= 0.0, -self.radius, self.radius)

    def lmo_many(self, gradients: FloatArray) -> list[Atom]:
        """Call the oracle for many gradients, one a row."""
        flat = self._rows(gradients)
        self._check_extremes(flat.min(axis=1), flat.max(axis=1))
        high = gradients <= 0.0
        return [SignAtom(bits, -self.radius, self.radius) for bits in high]

    def project(self, point: ArrayLike) -> FloatArray:
        """Clip every coordinate."""
        return np.clip(self._input(point, "point"), -self.radius, self.radius)

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        return float(np.abs(x).max())

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, SignAtom):
            return self.contains(atom.levels(), tolerance)
        return super()._contains_atom(atom, tolerance)

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of a vertex; their nuclear norms differ
        size = math.prod(shape)
        return {
            "l1": self.radius * size,
            "l2": self.radius * math.sqrt(size),
            "linf": self.radius,
        }


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

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # every vertex has the norm radius
        return dict.fromkeys(NORMS, self.radius)

    def diameter(self, shape: Shape) -> float:
        """Return √2 radius, the distance of any two vertices; 0 if there is one."""
        self.check_shape(shape)
        return math.sqrt(2.0) * self.radius if math.prod(shape) > 1 else 0.0

    def centre(self, shape: Shape) -> FloatArray:
        """Return radius / p in every coordinate."""
        self.check_shape(shape)
        return np.full(shape, self.radius / math.prod(shape))
