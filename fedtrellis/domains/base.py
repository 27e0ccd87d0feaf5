"""The contract of a constraint set, and the few numerics all sets share."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom

__all__ = ["Domain", "FloatArray", "Shape"]

FloatArray = NDArray[np.float64]
Shape = tuple[int, ...]


class Domain(ABC):
    """A convex compact set D of arrays.

    Unless a class says otherwise, D is a set of vectors and an array of any shape
    stands for the vector of its entries. All computation is in float64.

    Attributes
    ----------
    name : str
        What run configurations call the set.
    """

    name: ClassVar[str]

    @abstractmethod
    def lmo(self, gradient: ArrayLike) -> Atom:
        """Solve the linear minimisation problem argmin over s in D of <gradient, s>.

        Deterministic: among equal coordinates the lowest index wins, and a zero
        gradient has a feasible point for its answer too.

        Parameters
        ----------
        gradient : ndarray

        Returns
        -------
        Atom
            An extreme point of D, of the gradient's shape.

        Raises
        ------
        ValueError
            The gradient is not finite, or D has no points of its shape.
        """

    @abstractmethod
    def project(self, point: ArrayLike) -> FloatArray:
        """Solve argmin over s in D of ‖point − s‖₂ (Euclidean, Frobenius).

        Returns
        -------
        ndarray of float64
            A new array of the point's shape.

        Raises
        ------
        ValueError
            The point is not finite, or D has no points of its shape.
        """

    @abstractmethod
    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether a point lies in D, give or take ``tolerance`` · size of D.

        A point that is not finite does not.

        Raises
        ------
        ValueError
            D has no points of this shape.
        """

    @abstractmethod
    def diameter(self, shape: Shape) -> float:
        """Return max over x, y in D of ‖x − y‖₂, for arrays of a shape."""

    @abstractmethod
    def centre(self, shape: Shape) -> FloatArray:
        """Return a point of D to start from: its centre of symmetry if it has one."""

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError if D has no points of this shape."""
        if math.prod(shape) < 1:
            raise ValueError(
                f"{self.name} has no points of shape {tuple(shape)}: "
                f"at least one entry is needed"
            )

    def gap(self, gradient: ArrayLike, point: ArrayLike) -> float:
        """Return the Frank-Wolfe gap max over u in D of <gradient, point − u>.

        For a convex function with this gradient at a feasible ``point`` it bounds the
        distance to the minimum over D from above (Jaggi, ICML 2013).
        """
        g = np.asarray(gradient, dtype=np.float64)
        x = np.asarray(point, dtype=np.float64)
        if g.shape != x.shape:
            raise ValueError(
                f"gradient and point differ in shape: {g.shape} and {x.shape}"
            )
        # the maximum is at u = lmo(g):  <g, x> − <g, lmo(g)>
        return float(np.vdot(g, x)) - self.lmo(g).dot(g)

    def _input(self, array: ArrayLike, what: str) -> FloatArray:
        """Return the argument as float64, its shape and its values checked."""
        result = np.asarray(array, dtype=np.float64)
        self.check_shape(result.shape)
        # the extremes show every NaN and infinity, and need no temporary array
        if not (math.isfinite(result.min()) and math.isfinite(result.max())):
            raise ValueError(f"{self.name}: the {what} must be finite")
        return result

    def _finite(self, point: ArrayLike) -> FloatArray | None:
        """Return the point as float64, its shape checked, or None if not finite."""
        result = np.asarray(point, dtype=np.float64)
        self.check_shape(result.shape)
        finite = math.isfinite(result.min()) and math.isfinite(result.max())
        return result if finite else None


def positive(domain: str, parameter: str, value: Any) -> float:
    """Return a parameter as float; ValueError unless positive and finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool | str) or not 0.0 < number < math.inf:
        raise ValueError(
            f"{domain}: {parameter} must be a positive finite number, got {value!r}"
        )
    return number


def positive_integer(domain: str, parameter: str, value: Any) -> int:
    """Return a parameter as int; ValueError unless an integer of at least 1."""
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integer or value < 1:
        raise ValueError(
            f"{domain}: {parameter} must be an integer of at least 1, got {value!r}"
        )
    return int(value)


def unit(vector: FloatArray) -> tuple[FloatArray, float]:
    """Return vector/‖vector‖₂ and ‖vector‖₂, safe against overflow and underflow.

    The first unit vector and 0.0 for a zero vector. Any shape; the norm is that of
    the entries.
    """
    largest = max(float(vector.max()), -float(vector.min()))
    if largest == 0.0:
        direction = np.zeros(vector.shape)
        direction.flat[0] = 1.0
        return direction, 0.0
    scale = 1.0
    if not 1e-100 < largest < 1e100:  # the squares would leave the range of floats
        # a power of two, so that the division is exact
        scale = 2.0 ** math.floor(math.log2(largest))
        vector = vector / scale
    norm = math.sqrt(float(np.vdot(vector, vector)))
    return vector / norm, scale * norm


def project_simplex(vector: FloatArray, radius: float) -> FloatArray:
    """Solve argmin ½‖s − vector‖² over s ≥ 0 with Σ s_i = radius, by sorting.

    Duchi, Shalev-Shwartz, Singer, Chandra, "Efficient projections onto the l1-ball
    for learning in high dimensions", ICML 2008, figure 1. A vector in, a new vector
    out.
    """
    # The answer does not change when all entries shift. After this shift entries
    # below −radius are zero in it, and no sum can overflow.
    with np.errstate(over="ignore"):  # −∞ is as good as any value below −radius
        shifted = vector - vector.max()
    descending = np.sort(shifted[shifted > -radius])[::-1]
    # θ_k = (Σ_{i≤k} v_i − radius) / k  for the largest k with v_k > θ_k
    thresholds = (np.cumsum(descending) - radius) / np.arange(1, descending.size + 1)
    k = np.flatnonzero(descending > thresholds)[-1]
    # s_i = max(v_i − θ, 0)
    projection: FloatArray = np.maximum(shifted - thresholds[k], 0.0)
    return projection


def project_l1(vector: FloatArray, radius: float) -> FloatArray:
    """Solve argmin ½‖s − vector‖² over ‖s‖₁ ≤ radius; a vector in, a new one out.

    Outside the ball it is the projection of |vector| onto the simplex, with the signs
    put back (Duchi et al. 2008, §4).
    """
    magnitudes = np.abs(vector)
    with np.errstate(over="ignore"):  # a sum of ∞ is outside, which is all we ask
        if magnitudes.sum() <= radius:
            return vector.copy()
    return np.copysign(project_simplex(magnitudes, radius), vector)
