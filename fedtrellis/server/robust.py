"""Averages that a few of those who answer cannot choose.

The mean of n points is wherever one of them wants it. Each rule here stays near the
points of the majority, whatever the others are, and pays for it where honest points
differ: then it is not their mean either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray

__all__ = ["BY_COORDINATE", "LEAST", "RULES", "Average"]

Rule = Literal["none", "median", "trimmed-mean", "centred-clipping"]
RULES: tuple[Rule, ...] = get_args(Rule)
#: Those that look at every coordinate by itself, so that points may lack some.
BY_COORDINATE = ("median", "trimmed-mean")
#: Of fewer points no majority is known: a liar and a client are one each.
LEAST = 3

# Centred clipping's l. One is enough near the mean, as its authors say; from the last
# model, as far away as the points are, the first brings the centre among them.
_CLIPPINGS = 3


@dataclass(frozen=True)
class Average:
    """One rule, and its parameters.

    ::

        median            the coordinate-wise median
        trimmed-mean      in each coordinate the mean without the ⌈βn⌉ smallest and the
                          ⌈βn⌉ largest values (never all of them)
        centred-clipping  3 times:  v ← v + (1/n) Σ (x_i − v) min(1, τ/‖x_i − v‖)

    Source: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
    Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498, definitions 1 and
    2; Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust
    Optimization", ICML 2021, arXiv 2012.10333, algorithm 2. τ by itself, the median of
    the distances ‖x_i − v‖, is ours: half of the points are clipped to it.

    Parameters
    ----------
    rule : str
        One of :data:`RULES`; "none" is the mean.
    trimmed_fraction : float
        β, above 0 and below 1/2.
    radius : float or None
        τ; None: by itself, anew each time.
    """

    rule: str = "none"
    trimmed_fraction: float = 0.2
    radius: float | None = None

    def __call__(
        self, points: Sequence[FloatArray] | FloatArray, centre: FloatArray
    ) -> FloatArray:
        r"""The average of some points.

        Parameters
        ----------
        points : sequence of n ndarrays of shape S, or ndarray of shape (n, \*S)
            Finite; at least one.
        centre : ndarray of shape S
            Where centred clipping begins: the last average. Not changed.

        Returns
        -------
        ndarray of float64
            Summed up in float64 whatever the points are of, to be rounded once.
        """
        if self.rule == "none":
            # (1/n) Σ x_i, as np.mean does it, which takes as long again to get there
            mean: FloatArray = np.add.reduce(points, axis=0, dtype=np.float64)
            mean /= len(points)
            return mean
        if self.rule == "centred-clipping":
            return self._clipped(np.asarray(points, dtype=np.float64), centre)
        return self._middle(np.sort(points, axis=0), len(points))

    def of_held(
        self, points: FloatArray, held: NDArray[np.bool_], otherwise: FloatArray
    ) -> FloatArray:
        """As the rule, of points that lack some coordinates.

        Parameters
        ----------
        points : ndarray of shape (n, p)
        held : ndarray of bool, shape (n, p)
            Which coordinates each point has; what else stands there does not count.
        otherwise : ndarray of shape (p,)
            Values where fewer points than :data:`LEAST` have the coordinate.

        Raises
        ------
        ValueError
            The rule does not look at coordinates one by one.
        """
        if self.rule not in BY_COORDINATE:
            raise ValueError(f"{self.rule} is no rule by coordinates")
        counts = held.sum(axis=0)
        ordered = np.sort(np.where(held, points, np.inf), axis=0)
        result = otherwise.copy()
        for count in np.unique(counts[counts >= LEAST]):
            alike = counts == count
            result[alike] = self._middle(ordered[:count, alike], int(count))
        return result

    def _middle(self, ordered: FloatArray, count: int) -> FloatArray:
        """The mean of what is left of sorted values, both ends cut off."""
        most = (count - 1) // 2
        # the median is what is left if as many are cut off as can be
        cut = most
        if self.rule == "trimmed-mean":
            # β·n may lie above a whole number by rounding alone
            cut = min(most, ceil(self.trimmed_fraction * count - 1e-9))
        middle: FloatArray = ordered[cut : count - cut].mean(axis=0, dtype=np.float64)
        return middle

    def _clipped(self, points: FloatArray, centre: FloatArray) -> FloatArray:
        rows = points.reshape(len(points), -1)
        v = centre.reshape(-1)
        for _ in range(_CLIPPINGS):
            offsets = rows - v
            distances = np.linalg.norm(offsets, axis=1)
            radius = float(np.median(distances)) if self.radius is None else self.radius
            # v ← v + (1/n) Σ (x_i − v) min(1, τ/‖x_i − v‖)
            far = distances > radius
            weights = np.ones(len(rows))
            weights[far] = radius / distances[far]
            v = v + weights @ offsets / len(rows)
        return v.reshape(centre.shape)
