"""Sets given by a vector, and the first of them: the l1 ball with a weight an entry."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, SparseAtom
from fedtrellis.domains.base import Domain, FloatArray, Norm, Shape
from fedtrellis.domains.numerics import positive
from fedtrellis.settings import setting

__all__ = ["ByVector", "WeightedL1Ball", "scaled"]


class ByVector(Domain):
    """A set with a parameter that is a number or an array; arrays compare by value."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        # + 0.0 makes −0.0 the 0.0 that it equals
        values = [np.asarray(getattr(self, f.name)) + 0.0 for f in fields(self)]  # type: ignore[arg-type]
        return tuple((value.shape, value.tobytes()) for value in values)

    def _freeze(
        self, parameter: str, allowed: str, good: Callable[[FloatArray], Any]
    ) -> FloatArray:
        """Make a parameter a float, or an array of its own that nobody writes to.

        ValueError unless finite numbers that are ``good``, which is asked for finite
        ones only.
        """
        value = getattr(self, parameter)
        try:
            array = np.array(value, dtype=np.float64)
        except (TypeError, ValueError):
            array = np.array(np.nan)
        finite = array.size > 0 and bool(np.isfinite(array).all())
        if isinstance(value, bool | str) or not finite or not good(array):
            raise ValueError(
                f"{self.name}: {parameter} must be {allowed}, got {str(value)[:80]}"
            )
        array.flags.writeable = False
        object.__setattr__(self, parameter, array if array.ndim else float(array))
        return array

    def centre(self, shape: Shape) -> FloatArray:
        """Return zero."""
        self.check_shape(shape)
        return np.zeros(shape)


@dataclass(frozen=True, eq=False)
class WeightedL1Ball(ByVector):
    """The weighted l1 ball, Σ w_j |x_j| ≤ radius, all w_j > 0.

    Its extreme points are ±(radius / w_j) e_j. Weights that grow with j favour the
    first coefficients of a series (Rauhut, Ward, "Interpolation via weighted ℓ1
    minimization", ACHA 2016); those of an earlier estimate make the reweighted lasso.
    LMO O(p), projection O(p log p).

    Parameters
    ----------
    weights : float or array_like
        An array makes a ball for arrays of its shape; it is copied. A number s ≥ 0
        stands for w_j = j^s with j = 1, …, p, for arrays of any shape.
    radius : float

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import WeightedL1Ball
    >>> domain = WeightedL1Ball(weights=np.array([1.0, 2.0, 1.0]), radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([ 0.,  0., -2.])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([2., 0., 0.])
    """

    name: ClassVar[str] = "weighted-l1-ball"
    sparse_atoms: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Any]] = {
        "weights": setting(
            0.5, "s of the weights j^s of the entries j = 1, …, p", minimum=0.0,
        )
    }  # fmt: skip
    weights: float | FloatArray
    radius: float

    def __post_init__(self) -> None:
        self._freeze(
            "weights",
            "a number of at least 0 or an array of positive ones",
            lambda w: (w > 0.0).all() or (w.ndim == 0 and w == 0.0),
        )
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless there is a weight for each entry."""
        super().check_shape(shape)
        allowed = np.shape(self.weights)
        if allowed and tuple(shape) != allowed:
            raise ValueError(
                f"{self.name} with weights of shape {allowed} has no points of shape "
                f"{tuple(shape)}: only {allowed} is allowed"
            )

    def _weights(self, shape: Shape) -> FloatArray:
        if isinstance(self.weights, float):
            return _powers(math.prod(shape), self.weights)
        return self.weights.reshape(-1)

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return −(radius / w_j) · sign(g_j) · e_j with j = argmax |g_j| / w_j."""
        g = self._input(gradient, "gradient")
        flat, weights = g.reshape(-1), self._weights(g.shape)
        magnitudes, _ = scaled(np.abs(flat))
        j = int((magnitudes / weights).argmax())
        value = self.radius / weights[j]
        value = -value if flat[j] > 0.0 else value
        return SparseAtom(np.array([j]), np.array([value]), g.shape)

    def project(self, point: ArrayLike) -> FloatArray:
        """Return sign(x_i) (|x_i| − τ w_i)₊, τ found by sorting |x_i| / w_i."""
        x = self._input(point, "point")
        flat, weights = x.reshape(-1), self._weights(x.shape)
        if self.contains(x, 0.0):
            return x.copy()
        # |x_i| − τ w_i = w_i (v_i + δ) with v_i = |x_i|/w_i − max and δ = max − τ: the
        # numbers that count are of the size of D, wherever the point is.
        magnitudes, scale = scaled(np.abs(flat))
        radius, ratios = self.radius / scale, magnitudes / weights
        top = int(ratios.argmax())
        v = ratios - ratios[top]
        # beyond this the top entry alone has used up the radius
        near = np.flatnonzero(v > -radius / weights[top] ** 2)
        near = near[np.argsort(-v[near], kind="stable")]
        # δ_k = (radius − Σ_{i≤k} w_i² v_i) / Σ_{i≤k} w_i², for the largest k with
        # v_k + δ_k > 0
        squares = np.square(weights[near])
        deltas = (radius - np.cumsum(squares * v[near])) / np.cumsum(squares)
        k = np.flatnonzero(v[near] + deltas > 0.0)[-1]
        shrunk: FloatArray = scale * weights * np.maximum(v + deltas[k], 0.0)
        return np.copysign(shrunk, flat).reshape(x.shape)

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether Σ w_j |x_j| ≤ radius (1 + tolerance)."""
        x = self._finite(point)
        return x is not None and self._holds(
            x.reshape(-1), self._weights(x.shape), tolerance
        )

    def _holds(self, x: NDArray[Any], weights: FloatArray, tolerance: float) -> bool:
        with np.errstate(over="ignore"):
            return bool((weights * np.abs(x)).sum() <= self.radius * (1.0 + tolerance))

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, SparseAtom):
            weights = self._weights(atom.shape)[atom.indices]
            return self._holds(atom.values, weights, tolerance)
        return super()._contains_atom(atom, tolerance)

    def largest_norm(self, norm: Norm, shape: Shape) -> float:
        """Return radius / min w_j, the norm of the longest vertex."""
        self.check_norm(norm, shape)
        return self.radius / float(self._weights(shape).min())

    def diameter(self, shape: Shape) -> float:
        """Return 2 radius / min w_j, the distance of the two longest vertices."""
        self.check_shape(shape)
        return 2.0 * self.radius / float(self._weights(shape).min())


def scaled(magnitudes: FloatArray) -> tuple[FloatArray, float]:
    """Return the magnitudes over the largest, and that; 1 for zeros."""
    largest = float(magnitudes.max()) or 1.0
    return magnitudes / largest, largest


@lru_cache(maxsize=8)
def _powers(size: int, exponent: float) -> FloatArray:
    """Return 1^s, 2^s, …, size^s."""
    powers = np.arange(1.0, size + 1.0) ** exponent
    powers.flags.writeable = False
    return powers
