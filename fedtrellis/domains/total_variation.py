"""The total variation ball of sequences: few jumps, that start from zero."""

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, SignAtom
from fedtrellis.domains.base import FloatArray, Norm, NormBall, Places, Shape

__all__ = ["TotalVariationBall"]


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

    def norm(self, point: ArrayLike) -> float:
        """Return |x_1| + Σ |x_{j+1} − x_j|."""
        return super().norm(point)

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

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of the step that starts at once; nuclear norms differ
        size = math.prod(shape)
        return {
            "l1": self.radius * size,
            "l2": self.radius * math.sqrt(size),
            "linf": self.radius,
        }


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
    # the two sums of the variation, kept as pieces meet
    jumps = sum(sign[s] * (mean[s + 1] - mean[s]) for s in range(count - 1))
    slope = sum(length[s] * move[s] ** 2 for s in range(1, count))
    while meetings:
        when, s, version_s, version_t = meetings[0]
        t = right[s]
        if not alive[s] or version[s] != version_s or version[t] != version_t:
            heapq.heappop(meetings)  # one of the two has met another since
            continue
        if slope <= 0.0 or jumps - when * slope <= radius:
            break
        heapq.heappop(meetings)
        before, after = left[s], right[t]
        near = [i for i in (before, s, t) if i >= 0]
        jumps -= sum(
            sign[i] * (mean[right[i]] - mean[i]) for i in near if right[i] < count
        )
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
        near = [i for i in (before, s) if i >= 0]
        jumps += sum(
            sign[i] * (mean[right[i]] - mean[i]) for i in near if right[i] < count
        )
        slope += length[s] * move[s] ** 2 if s > 0 else 0.0
        for i in near:
            plan(i)
    pieces = [s for s in range(count) if alive[s]]
    # once more, without what the updates have lost
    jumps = sum(sign[a] * (mean[b] - mean[a]) for a, b in itertools.pairwise(pieces))
    slope = sum(length[s] * move[s] ** 2 for s in pieces[1:])
    penalty = (jumps - radius) / slope if slope > 0.0 else 0.0
    values = np.array([mean[s] + penalty * move[s] for s in pieces])
    return np.repeat(values, [length[s] for s in pieces])
