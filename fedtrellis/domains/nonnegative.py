"""Sets of non-negative vectors: the simplex, with a cap, or within an l1 ball."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, SparseAtom
from fedtrellis.domains.base import Domain, FloatArray, Shape
from fedtrellis.domains.numerics import positive, project_simplex, root, smallest
from fedtrellis.settings import setting

# p · cap may fall short of the radius by this much: three caps of 0.3 make 0.9.
_ROUNDING = 1e-12


class _OfSum(Domain):
    """A set of 0 ≤ x_i ≤ cap whose sum is the radius, or at most that."""

    radius: float
    sparse_atoms: ClassVar[bool] = True
    #: Whether the sum is the radius.
    _exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in {"radius", *self.parameters}:
            value = positive(self.name, name, getattr(self, name))
            object.__setattr__(self, name, value)

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether all bounds hold up to t = tolerance · radius."""
        x = self._finite(point)
        return x is not None and self._holds(x, tolerance)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, SparseAtom) and atom.values.size:  # zeros change nothing
            return self._holds(atom.values.astype(np.float64, copy=False), tolerance)
        return super()._contains_atom(atom, tolerance)

    def _holds(self, x: FloatArray, tolerance: float) -> bool:
        t = tolerance * self.radius
        with np.errstate(over="ignore"):
            excess = x.sum() - self.radius
        fits = abs(excess) <= t if self._exact else excess <= t
        cap: float = getattr(self, "cap", math.inf)
        return bool(fits and x.min() >= -t and x.max() <= cap + t)

    def centre(self, shape: Shape) -> FloatArray:
        """Return radius / p in every coordinate."""
        self.check_shape(shape)
        return np.full(shape, self.radius / math.prod(shape))

    def largest_norms(self, shape: Shape) -> tuple[float, float]:
        # every vertex but zero has one entry
        return self.radius, self.radius


@dataclass(frozen=True)
class Simplex(_OfSum):
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
    radius: float = 1.0

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

    def diameter(self, shape: Shape) -> float:
        """Return √2 radius, the distance of any two vertices; 0 if there is one."""
        self.check_shape(shape)
        return math.sqrt(2.0) * self.radius if math.prod(shape) > 1 else 0.0


@dataclass(frozen=True)
class NonNegativeL1Ball(_OfSum):
    """The non-negative part of the l1 ball, x ≥ 0 with Σ x_i ≤ radius.

    The simplex and all below it; its vertices are zero and radius · e_j. LMO O(p),
    projection O(p log p).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import NonNegativeL1Ball
    >>> domain = NonNegativeL1Ball(radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([0., 2., 0.])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([2., 0., 0.])
    """

    name: ClassVar[str] = "non-negative-l1-ball"
    _exact: ClassVar[bool] = False
    radius: float

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return radius · e_j with j = argmin g_j if g_j < 0, else zero."""
        g = self._input(gradient, "gradient")
        j = int(g.argmin())
        count = int(g.flat[j] < 0.0)  # an atom without a value is zero
        return SparseAtom(np.full(count, j), np.full(count, self.radius), g.shape)

    def project(self, point: ArrayLike) -> FloatArray:
        """Return max(x − θ, 0): θ = 0 if that is in D, else as onto the simplex."""
        x = self._input(point, "point")
        clipped = np.maximum(x, 0.0)
        with np.errstate(over="ignore"):  # a sum of ∞ is outside, which is all we ask
            if clipped.sum() <= self.radius:
                return clipped
        return project_simplex(x.reshape(-1), self.radius).reshape(x.shape)

    def diameter(self, shape: Shape) -> float:
        """Return √2 radius, the distance of two vertices; radius if p = 1."""
        self.check_shape(shape)
        return math.sqrt(min(math.prod(shape), 2)) * self.radius

    def centre(self, shape: Shape) -> FloatArray:
        """Return radius / (p + 1) in every coordinate, the mean of the vertices."""
        self.check_shape(shape)
        return np.full(shape, self.radius / (math.prod(shape) + 1))


@dataclass(frozen=True)
class CappedSimplex(_OfSum):
    """The capped simplex, 0 ≤ x_i ≤ cap with Σ x_i = radius.

    The simplex cut by a box; with cap = 1 and an integer radius the hypersimplex. An
    extreme point has ⌊radius / cap⌋ entries cap and one that makes up the sum.

    Parameters
    ----------
    cap : float
        The largest entry; p · cap must be at least the radius.
    radius : float
        The sum.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import CappedSimplex
    >>> domain = CappedSimplex(cap=0.5)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([0.5, 0.5, 0. ])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([0.5, 0.5, 0. ])
    """

    name: ClassVar[str] = "capped-simplex"
    sparse_atoms: ClassVar[bool] = False
    parameters: ClassVar[Mapping[str, Any]] = {
        "cap": setting(1.0, "largest entry", above=0.0)
    }
    cap: float
    radius: float = 1.0

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError if all entries at the cap are not enough."""
        super().check_shape(shape)
        if math.prod(shape) * self.cap < self.radius * (1.0 - _ROUNDING):
            raise ValueError(
                f"{self.name} with cap = {self.cap:g} and radius = {self.radius:g} has "
                f"no points of shape {tuple(shape)}: cap may be no less than "
                f"{self.radius / math.prod(shape):g}"
            )

    def _levels(self, size: int) -> FloatArray:
        """Return the entries of an extreme point that are not zero, largest first."""
        full = min(int(self.radius / self.cap), size)
        rest = self.radius - full * self.cap
        levels = [self.cap] * full + [rest] * (rest > 0.0 and full < size)
        return np.array(levels)

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return cap where g is smallest, as often as it fits, and then the rest."""
        g = self._input(gradient, "gradient")
        flat = g.reshape(-1)
        levels = self._levels(flat.size)
        support = smallest(flat, levels.size)
        values = np.full(levels.size, self.cap)
        values[-1] = levels[-1]  # the last of the largest
        order = np.argsort(support)
        return SparseAtom(support[order], values[order], g.shape)

    def project(self, point: ArrayLike) -> FloatArray:
        """Return min(max(x − θ, 0), cap) with the θ that makes the sum right.

        The sum falls piecewise linearly in θ (Wang, Lu, "Projection onto the capped
        simplex", arXiv 1503.01002), which is found by root finding, to full precision.
        """
        x = self._input(point, "point")
        flat, size = x.reshape(-1), x.size
        # With K = ⌈radius/cap⌉ the θ is within cap below the K-th largest entry.
        # From there on every number is of the size of cap, wherever the point is.
        k = min(math.ceil(self.radius / self.cap), size)
        reference = np.partition(flat, size - k)[size - k]
        with np.errstate(over="ignore"):
            v = np.clip(flat - reference, -self.cap, self.cap)

        def shortfall(theta: float) -> float:
            return self.radius - float(np.clip(v - theta, 0.0, self.cap).sum())

        # with δ = θ + cap, from 0 on:  at −cap the sum is not below the radius
        theta = root(lambda delta: shortfall(delta - self.cap), 2.0 * self.cap)
        nearest: FloatArray = np.clip(v - (theta - self.cap), 0.0, self.cap)
        return nearest.reshape(x.shape)

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of an extreme point
        return self.radius, float(np.linalg.norm(self._levels(math.prod(shape))))

    def diameter(self, shape: Shape) -> float:
        """Return the distance of two extreme points that share as little as they can.

        ‖x − y‖² = 2 ‖x‖² − 2 <x, y>, which is largest where one falls as the other
        rises.
        """
        self.check_shape(shape)
        size = math.prod(shape)
        levels = self._levels(size)
        # entry i of x, falling, meets entry p − 1 − i: both are there from p − k on
        k = levels.size
        shared = levels[size - k :] if size - k < k else levels[:0]
        inner = float(shared @ shared[::-1])
        return math.sqrt(max(2.0 * float(levels @ levels) - 2.0 * inner, 0.0))
