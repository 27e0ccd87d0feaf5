"""Norm balls, boxes, the whole space, and the ball of sequences with few jumps."""

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import Atom, DenseAtom, SignAtom, SparseAtom
from fedtrellis.domains.base import (
    ByVector,
    Domain,
    FloatArray,
    NormBall,
    Places,
    Shape,
)
from fedtrellis.domains.numerics import project_l1, unit
from fedtrellis.settings import setting


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

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        return self.radius, self.radius


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

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # ‖x‖₁ of equal entries
        return self.radius * math.sqrt(math.prod(shape)), self.radius


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
    _entrywise: ClassVar[bool] = True
    radius: float

    def lmo(self, gradient: ArrayLike) -> SignAtom:
        """Return −radius · sign(g); +radius where g_i = 0."""
        g = self._input(gradient, "gradient")
        return SignAtom(g <= 0.0, -self.radius, self.radius)

    def project(self, point: ArrayLike) -> FloatArray:
        """Clip every coordinate."""
        return np.clip(self._input(point, "point"), -self.radius, self.radius)

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        return float(np.abs(x).max())

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        size = math.prod(shape)
        return self.radius * size, self.radius * math.sqrt(size)


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

    @property
    def _entrywise(self) -> bool:  # type: ignore[override]
        return isinstance(self.lower, float) and isinstance(self.upper, float)

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of the vertex with the largest entries
        entries = np.maximum(np.abs(self.lower), np.abs(self.upper))
        entries = np.broadcast_to(entries, shape)
        return float(entries.sum()), float(np.linalg.norm(entries))

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
    no linear minimisation oracle. As the set of a layer of a :class:`Product` it leaves
    the layer free; of Frank-Wolfe's methods the corrective ``FedFW`` takes that.

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

    def diameter(self, shape: Shape) -> float:
        """Return infinity."""
        self.check_shape(shape)
        return inf

    def centre(self, shape: Shape) -> FloatArray:
        """Return zero."""
        self.check_shape(shape)
        return np.zeros(shape)


@dataclass(frozen=True)
class TotalVariationBall(NormBall):
    """The ball |x_1| + Σ_j |x_{j+1} − x_j| ≤ radius of sequences.

    The total variation of (0, x_1, …, x_p). Without |x_1| the constant sequences would
    be free and the set not bounded. It is the l1 ball of the differences, so its
    extreme points are steps: 0 up to some entry, ±radius from there on. LMO O(p),
    projection O(p log p) in Python; the sequence of an array is that of its entries in
    C order. (Rudin, Osher, Fatemi, Physica D 1992; fused lasso: Tibshirani et al.,
    JRSS B 2005.)

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import TotalVariationBall
    >>> domain = TotalVariationBall(radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([ 0.,  0., -2.])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([1.556, 1.111, 1.111])
    """

    name: ClassVar[str] = "total-variation-ball"
    by_nonzeros: ClassVar[bool] = False
    radius: float

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        return _variation(x)

    def lmo(self, gradient: ArrayLike) -> SignAtom:
        """Return the step −radius · sign(h_k) from k on, k = argmax |h_k|.

        h_k = Σ_{j≥k} g_j, the gradient with respect to the k-th difference.
        """
        g = self._input(gradient, "gradient")
        flat = g.reshape(-1)
        largest = max(float(flat.max()), -float(flat.min()))
        if largest > 1e100:  # the sums must not overflow
            flat = flat / largest
        sums = np.cumsum(flat[::-1])[::-1]
        k = int(np.abs(sums).argmax())
        height = -self.radius if sums[k] > 0.0 else self.radius
        bits = np.arange(flat.size) >= k
        # the smaller value is the low one, as in every atom of signs
        if height < 0.0:
            return SignAtom(~bits.reshape(g.shape), height, 0.0)
        return SignAtom(bits.reshape(g.shape), 0.0, height)

    def project(self, point: ArrayLike) -> FloatArray:
        """Follow the fused lasso's path until the variation is the radius.

        The solutions of min ½‖s − x‖² + λ ‖s‖_TV are constant on pieces whose values
        move linearly in λ, and pieces that met stay together (Friedman, Hastie,
        Hoefling, Tibshirani, "Pathwise coordinate optimization", AOAS 2007; Hoefling,
        "A path algorithm for the fused lasso signal approximator", JCGS 2010): p
        meetings at most, the next one from a heap. The piece that starts at the pinned
        0 before x_1 does not move.
        """
        x = self._input(point, "point")
        flat = x.reshape(-1)
        if _variation(flat) <= self.radius:
            return x.copy()
        scale = max(float(flat.max()), -float(flat.min()))
        nearest = scale * _fused(flat / scale, self.radius / scale)
        # what rounding of the point's size has left
        variation = _variation(nearest)
        if variation > self.radius:
            nearest *= self.radius / variation
        return nearest.reshape(x.shape)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, SignAtom):
            bits = atom.bits.reshape(-1)
            first = atom.high if bits[0] else atom.low
            jumps = int(np.count_nonzero(bits[1:] != bits[:-1]))
            # without a jump the other value does not occur
            height = abs(atom.high - atom.low) if jumps else 0.0
            norm = abs(first) + jumps * height
            return bool(norm <= self.radius * (1.0 + tolerance))
        return super()._contains_atom(atom, tolerance)

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of the step that starts at once, a vertex of this ball
        return LInfBall(self.radius).largest_norms(shape)


def _variation(x: FloatArray) -> float:
    """Return |x_1| + Σ |x_{j+1} − x_j|; infinity where that overflows."""
    with np.errstate(over="ignore"):
        return abs(float(x[0])) + float(np.abs(np.diff(x)).sum())


def _fused(x: FloatArray, radius: float) -> FloatArray:
    """Project a sequence outside the ball, of entries up to 1, onto its boundary.

    Pieces s = 0, 1, … of equal values, piece 0 the pinned zero before x_1. With σ_s the
    sign of the jump after piece s, n_s its length and m_s its mean of x, its value is

        y_s(λ) = m_s + λ c_s,   c_s = (σ_s − σ_{s−1}) / n_s,   y_0 = 0,

    and the variation, Σ_s σ_s (m_{s+1} − m_s) − λ Σ_s n_s c_s², falls.
    """
    edges = np.flatnonzero(np.diff(x, prepend=0.0))  # where a new value begins
    starts: list[int] = [0, *edges.tolist()]
    stops = [*starts[1:], x.size]
    length = [stop - start for start, stop in zip(starts, stops, strict=True)]
    total = [
        value * n for value, n in zip([0.0, *x[edges].tolist()], length, strict=True)
    ]
    mean = [0.0, *x[edges].tolist()]
    count = len(starts)
    sign = [1.0 if b > a else -1.0 for a, b in itertools.pairwise(mean)] + [0.0]
    left, right = list(range(-1, count - 1)), list(range(1, count + 1))
    move = [0.0] * count
    alive, version = [True] * count, [0] * count
    meetings: list[tuple[float, int, int, int]] = []

    def settle(s: int) -> None:
        """Note how fast a piece moves."""
        if s > 0:
            move[s] = (sign[s] - sign[left[s]]) / length[s]

    def plan(s: int) -> None:
        """Note when a piece meets the one to its right, if it does."""
        t = right[s]
        if t < count and sign[s] * (move[t] - move[s]) < 0.0:
            when = (mean[t] - mean[s]) / (move[s] - move[t])
            heapq.heappush(meetings, (when, s, version[s], version[t]))

    for s in range(count):
        settle(s)
    for s in range(count):
        plan(s)
    # the variation so far, and how fast it falls
    variation, at = sum(abs(b - a) for a, b in itertools.pairwise(mean)), 0.0
    slope = sum(length[s] * move[s] ** 2 for s in range(1, count))
    while meetings:
        when, s, version_s, version_t = meetings[0]
        t = right[s]
        if not alive[s] or version[s] != version_s or version[t] != version_t:
            heapq.heappop(meetings)  # one of the two has met another since
            continue
        if slope <= 0.0 or variation - (when - at) * slope <= radius:
            break
        heapq.heappop(meetings)
        variation, at = variation - (when - at) * slope, when
        after = right[t]
        slope -= sum(length[i] * move[i] ** 2 for i in (s, t) if i > 0)
        alive[t] = False
        length[s] += length[t]
        if s > 0:  # the pinned piece keeps its value
            total[s] += total[t]
            mean[s] = total[s] / length[s]
        sign[s], right[s] = sign[t], after
        if after < count:
            left[after] = s
        version[s] += 1
        settle(s)
        slope += length[s] * move[s] ** 2 if s > 0 else 0.0
        for i in (left[s], s):
            if i >= 0:
                plan(i)
    pieces = [s for s in range(count) if alive[s]]
    # once more, without what the updates have lost
    jumps = sum(sign[a] * (mean[b] - mean[a]) for a, b in itertools.pairwise(pieces))
    slope = sum(length[s] * move[s] ** 2 for s in pieces[1:])
    penalty = (jumps - radius) / slope if slope > 0.0 else 0.0
    values = np.array([mean[s] + penalty * move[s] for s in pieces])
    return np.repeat(values, [length[s] for s in pieces])
