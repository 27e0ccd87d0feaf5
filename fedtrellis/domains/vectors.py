"""Norm balls, boxes and the whole space: sets given coordinate by coordinate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, DenseAtom, SignAtom, SparseAtom
from fedtrellis.domains.base import (
    NORMS,
    ByVector,
    Domain,
    FloatArray,
    Norm,
    NormBall,
    Places,
    Shape,
)
from fedtrellis.domains.numerics import project_l1, unit
from fedtrellis.settings import setting

__all__ = ["Box", "L1Ball", "L2Ball", "LInfBall", "WholeSpace"]


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


@dataclass(frozen=True, eq=False)
class Box(ByVector):
    """The box lower ≤ x ≤ upper.

    Parameters
    ----------
    lower, upper : float or array_like
        Two numbers make a box for arrays of any shape. An array makes a box for
        arrays of its shape; it is copied.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import Box
    >>> domain = Box(lower=-1.0, upper=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([-1.,  2., -1.])
    """

    name: ClassVar[str] = "box"
    parameters: ClassVar[Mapping[str, Any]] = {
        "lower": setting(-1.0, "lower bound of every entry"),
        "upper": setting(1.0, "upper bound of every entry"),
    }
    lower: float | FloatArray
    upper: float | FloatArray

    def __post_init__(self) -> None:
        lower, upper = (
            self._freeze(name, "a finite number or an array of them", lambda _: True)
            for name in ("lower", "upper")
        )
        if lower.ndim and upper.ndim and lower.shape != upper.shape:
            raise ValueError(
                f"{self.name}: lower and upper must have one shape, got {lower.shape} "
                f"and {upper.shape}"
            )
        if (lower > upper).any():
            raise ValueError(
                f"{self.name}: lower must not exceed upper, got {self.lower!r} and "
                f"{self.upper!r}"
            )

    def lmo(self, gradient: ArrayLike) -> Atom:
        """Return lower where g > 0 and upper elsewhere.

        A SignAtom if both bounds are numbers, else a DenseAtom.
        """
        g = self._input(gradient, "gradient")
        if isinstance(self.lower, float) and isinstance(self.upper, float):
            return SignAtom(g <= 0.0, self.lower, self.upper)
        return DenseAtom(np.where(g <= 0.0, self.upper, self.lower))

    def project(self, point: ArrayLike) -> FloatArray:
        """Clip every coordinate."""
        x = self._input(point, "point")
        return cast(NDArray[np.float64], np.clip(x, self.lower, self.upper))

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether lower − t ≤ x ≤ upper + t, t = tolerance · largest |bound|."""
        x = self._finite(point)
        if x is None:
            return False
        t = tolerance * max(np.abs(self.lower).max(), np.abs(self.upper).max())
        return bool((x >= self.lower - t).all() and (x <= self.upper + t).all())

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        numbers = isinstance(self.lower, float) and isinstance(self.upper, float)
        if numbers and isinstance(atom, SignAtom):
            return self.contains(atom.levels(), tolerance)
        return super()._contains_atom(atom, tolerance)

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of the vertex with the largest entries; nuclear norms differ
        entries = np.maximum(np.abs(self.lower), np.abs(self.upper))
        entries = np.broadcast_to(entries, shape)
        return {
            "l1": float(entries.sum()),
            "l2": float(np.linalg.norm(entries)),
            "linf": float(entries.max()),
        }

    def diameter(self, shape: Shape) -> float:
        """Return ‖upper − lower‖₂."""
        self.check_shape(shape)
        return unit(np.broadcast_to(np.subtract(self.upper, self.lower), shape))[1]

    def centre(self, shape: Shape) -> FloatArray:
        """Return (lower + upper) / 2."""
        self.check_shape(shape)
        middle = np.multiply(0.5, self.lower) + np.multiply(0.5, self.upper)
        return np.array(np.broadcast_to(middle, shape))


@dataclass(frozen=True)
class WholeSpace(Domain):
    """Every array: the domain of an unconstrained problem.

    It is closed and convex but not bounded, so it has a projection (the identity) and
    no linear minimisation oracle, and Frank-Wolfe's methods refuse it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import WholeSpace
    >>> WholeSpace().contains(np.array([1e9]))
    True
    """

    name: ClassVar[str] = "whole-space"
    bounded: ClassVar[bool] = False

    def lmo(self, gradient: ArrayLike) -> NoReturn:
        """Raise ValueError: a linear function has no minimum here."""
        raise ValueError(
            f"{self.name} is not bounded: it has no linear minimisation oracle"
        )

    def project(self, point: ArrayLike) -> FloatArray:
        """Return a copy of the point."""
        return self._input(point, "point").copy()

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether the point is finite."""
        return self._finite(point) is not None

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        return dict.fromkeys(NORMS, inf)

    def diameter(self, shape: Shape) -> float:
        """Return infinity."""
        self.check_shape(shape)
        return inf

    def centre(self, shape: Shape) -> FloatArray:
        """Return zero."""
        self.check_shape(shape)
        return np.zeros(shape)
