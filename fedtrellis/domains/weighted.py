"""Sets given by a vector: weighted and sorted l1 balls, and the permutahedron."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, DenseAtom, SparseAtom
from fedtrellis.domains.base import (
    ByVector,
    Domain,
    FloatArray,
    NormBall,
    Places,
    Shape,
)
from fedtrellis.domains.numerics import root, scaled, unit
from fedtrellis.settings import setting


@dataclass(frozen=True, eq=False)
class WeightedL1Ball(ByVector, NormBall):
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
        super().__post_init__()

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

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        weights = self._weights(shape)
        if places is not None:
            weights = weights[places]
        with np.errstate(over="ignore"):
            return float((weights * np.abs(x)).sum())

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of the longest vertex
        longest = self.radius / float(self._weights(shape).min())
        return longest, longest


@lru_cache(maxsize=8)
def _powers(size: int, exponent: float) -> FloatArray:
    """Return 1^s, 2^s, …, size^s."""
    powers = np.arange(1.0, size + 1.0) ** exponent
    powers.flags.writeable = False
    return powers


class _BySortedVector(ByVector):
    """A set given by a vector in falling order, for arrays of as many entries."""

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless there are as many entries as given."""
        Domain.check_shape(self, shape)
        (parameter,) = self.parameters
        given = np.shape(getattr(self, parameter))
        if given and math.prod(shape) != given[0]:
            raise ValueError(
                f"{self.name} with {parameter} of {given[0]} entries does not "
                f"fit shape {tuple(shape)}, which has {math.prod(shape)}"
            )


@dataclass(frozen=True, eq=False)
class SortedL1Ball(_BySortedVector, NormBall):
    """The ball of the sorted l1 (OWL) norm, Σ w_k |x|_[k] ≤ radius.

    |x|_[1] ≥ |x|_[2] ≥ … are the sorted magnitudes. The largest pays most, so that
    entries become zero or equal: features that say the same get one coefficient
    (OSCAR, Bondell and Reich, Biometrics 2008; SLOPE, Bogdan et al., AOAS 2015). The
    extreme points are k entries ±radius / (w_1 + … + w_k), for some k (Zeng and
    Figueiredo, "The ordered weighted ℓ1 norm: atomic formulation, projections, and
    algorithms", arXiv 1409.4271). LMO O(p log p); projection O(p log p) for each of
    some dozen steps.

    Parameters
    ----------
    weights : float or array_like of shape (p,)
        w_1 ≥ … ≥ w_p ≥ 0, w_1 > 0, for arrays of p entries; it is copied. A number
        between 0 and 1 stands for weights that fall evenly from 1 to it, for arrays
        of any shape.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import SortedL1Ball
    >>> domain = SortedL1Ball(weights=np.array([2.0, 1.0, 1.0]), radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([ 0.   ,  0.667, -0.667])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([1., 0., 0.])
    """

    name: ClassVar[str] = "sorted-l1-ball"
    parameters: ClassVar[Mapping[str, Any]] = {
        "weights": setting(
            0.5, "weight of the smallest entry; it falls evenly from the largest's 1",
            minimum=0.0, maximum=1.0,
        )
    }  # fmt: skip
    weights: float | FloatArray
    radius: float

    def __post_init__(self) -> None:
        self._freeze(
            "weights",
            "a number from 0 to 1 or a vector of numbers that do not grow",
            lambda w: 0.0 <= w <= 1.0 if w.ndim == 0 else _falls(w),
        )
        super().__post_init__()

    def _weights(self, size: int) -> FloatArray:
        if isinstance(self.weights, float):
            return _falling(size, 1.0, self.weights)
        return self.weights

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        descending = np.sort(np.abs(x))[::-1]
        with np.errstate(over="ignore"):
            return float((self._weights(math.prod(shape))[: x.size] * descending).sum())

    def _levels(self, size: int) -> FloatArray:
        """Return the magnitude of the k entries of an extreme point, k = 1, …, p."""
        return self.radius / np.cumsum(self._weights(size))

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return the extreme point with the smallest <g, s>.

        With k entries it is best on the k largest |g_j|, against their signs, and has
        <g, s> = −level_k (|g|_[1] + … + |g|_[k]): the best of p numbers.
        """
        g = self._input(gradient, "gradient")
        flat = g.reshape(-1)
        magnitudes, _ = scaled(np.abs(flat))
        order = np.argsort(-magnitudes, kind="stable")
        levels = self._levels(g.size)
        k = int(np.argmax(levels * np.cumsum(magnitudes[order]))) + 1
        indices = np.sort(order[:k])
        values = np.where(flat[indices] > 0.0, -levels[k - 1], levels[k - 1])
        return SparseAtom(indices, values, g.shape)

    def project(self, point: ArrayLike) -> FloatArray:
        """Find the τ of the projection by root finding.

        The point that minimises ½‖s − x‖² + τ Σ w_k |s|_[k] has the sorted magnitudes
        max(y, 0), with y the nearest falling sequence to |x|_[k] − τ w_k (Bogdan et al.
        2015; Zeng and Figueiredo, §4). Its norm falls in τ, to 0 at τ_max = max over k
        of Σ_{i≤k} |x|_[i] / Σ_{i≤k} w_i, the dual norm.
        """
        x = self._input(point, "point")
        if self._norm(x.reshape(-1), x.shape) <= self.radius:
            return x.copy()
        magnitudes, scale = scaled(np.abs(x.reshape(-1)))
        radius, weights = self.radius / scale, self._weights(x.size)
        order = np.argsort(-magnitudes, kind="stable")
        descending = magnitudes[order]
        largest = float((np.cumsum(descending) / np.cumsum(weights)).max())
        # with δ = τ_max − τ:  |x|_[k] − τ w_k = (|x|_[k] − τ_max w_k) + δ w_k
        base = descending - largest * weights

        def shrunk(delta: float) -> FloatArray:
            nearest = scipy.optimize.isotonic_regression(
                base + delta * weights, increasing=False
            )
            return np.maximum(nearest.x, 0.0)

        def excess(delta: float) -> float:
            return float(weights @ shrunk(delta)) - radius

        nearest = shrunk(root(excess, largest))
        norm = float(weights @ nearest)
        if norm == 0.0:  # beside the magnitudes the radius is less than rounding
            return self.lmo(-x).dense()
        nearest *= min(1.0, radius / norm)
        result = np.empty(x.size)
        result[order] = scale * nearest
        return np.copysign(result, x.reshape(-1)).reshape(x.shape)

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of the extreme points, where it is largest
        levels = self._levels(math.prod(shape))
        k = np.arange(1, levels.size + 1)
        return float((k * levels).max()), float((np.sqrt(k) * levels).max())


@dataclass(frozen=True, eq=False)
class Permutahedron(_BySortedVector):
    """The convex hull of all permutations of a vector.

    By Rado's theorem (1952) the x with Σ x_i = Σ v_i whose k largest entries add up to
    no more than the k largest of v, for every k: the set for rankings and scores. LMO
    and projection O(p log p).

    Parameters
    ----------
    vector : float or array_like of shape (p,)
        v, in any order, for arrays of p entries; it is copied. A number c > 0 stands
        for values that fall evenly from c to 0, for arrays of any shape.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import Permutahedron
    >>> domain = Permutahedron(np.array([3.0, 2.0, 1.0]))
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([2., 3., 1.])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([3.  , 1.75, 1.25])
    """

    name: ClassVar[str] = "permutahedron"
    parameters: ClassVar[Mapping[str, Any]] = {
        "vector": setting(1.0, "largest entry; the others fall evenly to 0", above=0.0)
    }
    vector: float | FloatArray

    def __post_init__(self) -> None:
        v = self._freeze(
            "vector",
            "a positive number or a vector of numbers",
            lambda v: v > 0.0 if v.ndim == 0 else v.ndim == 1,
        )
        if v.ndim:
            falling = np.sort(v)[::-1].copy()
            falling.flags.writeable = False
            object.__setattr__(self, "vector", falling)

    def _vector(self, shape: Shape) -> FloatArray:
        """Return v, falling."""
        if isinstance(self.vector, float):
            return _falling(math.prod(shape), self.vector, 0.0)
        return self.vector

    def lmo(self, gradient: ArrayLike) -> Atom:
        """Return the permutation that gives the smallest g the largest v, and so on.

        A SparseAtom if most of v is zero, else a DenseAtom.
        """
        g = self._input(gradient, "gradient")
        v = self._vector(g.shape)
        order = np.argsort(g.reshape(-1), kind="stable")
        if 2 * np.count_nonzero(v) > v.size:
            array = np.empty(g.size)
            array[order] = v
            return DenseAtom(array.reshape(g.shape))
        places = np.flatnonzero(v)
        places = places[np.argsort(order[places])]
        return SparseAtom(order[places], v[places], g.shape)

    def project(self, point: ArrayLike) -> FloatArray:
        """Return x − y: y the nearest falling sequence to x − v, both sorted.

        Lim and Wright, "Efficient Bregman projections onto the permutahedron and
        related polytopes", AISTATS 2016. Twice: the first projection is off by the
        rounding of the point's size, the second by that of the set's.
        """
        x = self._input(point, "point")
        v = self._vector(x.shape)
        once = _nearest_majorised(x.reshape(-1), v)
        return _nearest_majorised(once, v).reshape(x.shape)

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether the sums of the k largest entries are at most those of v.

        And the sum of all is the same; both up to tolerance · Σ |v_i|.
        """
        x = self._finite(point)
        if x is None:
            return False
        v = self._vector(x.shape)
        t = tolerance * float(np.abs(v).sum())
        with np.errstate(over="ignore", invalid="ignore"):
            excess = np.cumsum(np.sort(x.reshape(-1))[::-1] - v)
        return bool((excess <= t).all() and abs(excess[-1]) <= t)

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        v = np.abs(self._vector(shape))
        return float(v.sum()), unit(v)[1]

    def diameter(self, shape: Shape) -> float:
        """Return ‖v − v reversed‖₂, the distance of opposite orders."""
        self.check_shape(shape)
        v = self._vector(shape)
        # ‖x − y‖² = 2 ‖v‖² − 2 <x, y>: smallest if one falls where the other rises
        return unit(v - v[::-1])[1]

    def centre(self, shape: Shape) -> FloatArray:
        """Return the mean of v in every entry."""
        self.check_shape(shape)
        return np.full(shape, self._vector(shape).mean())


def _nearest_majorised(x: FloatArray, v: FloatArray) -> FloatArray:
    """Project a vector onto the permutahedron of v, which falls."""
    order = np.argsort(-x, kind="stable")
    descending = x[order]
    regression = scipy.optimize.isotonic_regression(descending - v, increasing=False)
    # On a block of equal y:  x − y = x − mean of x + mean of v  there. A block of one
    # is v itself, however large x is.
    starts = regression.blocks[:-1].astype(np.intp)
    counts = np.diff(regression.blocks).astype(np.intp)
    deviations = descending - np.repeat(descending[starts], counts)
    means = (np.add.reduceat(v, starts) - np.add.reduceat(deviations, starts)) / counts
    nearest = np.empty(x.size)
    nearest[order] = deviations + np.repeat(means, counts)
    return nearest


def _falls(weights: FloatArray) -> bool:
    """Say whether a vector of weights does not grow, and has no negative ones."""
    if weights.ndim != 1 or weights[0] <= 0.0 or weights[-1] < 0.0:
        return False
    return bool((np.diff(weights) <= 0.0).all())


@lru_cache(maxsize=8)
def _falling(size: int, first: float, last: float) -> FloatArray:
    """Return numbers that fall evenly; the first alone if there is one."""
    numbers = np.linspace(first, last, size)
    numbers.flags.writeable = False
    return numbers
