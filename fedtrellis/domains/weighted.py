"""The l1 ball with a weight an entry."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import SparseAtom
from fedtrellis.domains.base import NORMS, FloatArray, Norm, Shape
from fedtrellis.domains.families import ByVector, NormBall, Places
from fedtrellis.domains.numerics import scaled
from fedtrellis.settings import setting

__all__ = ["WeightedL1Ball"]


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

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of the longest vertex
        return dict.fromkeys(NORMS, self.radius / float(self._weights(shape).min()))


@lru_cache(maxsize=8)
def _powers(size: int, exponent: float) -> FloatArray:
    """Return 1^s, 2^s, …, size^s."""
    powers = np.arange(1.0, size + 1.0) ** exponent
    powers.flags.writeable = False
    return powers
