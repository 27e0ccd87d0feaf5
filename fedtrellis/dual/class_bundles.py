"""The bundles of several classes, each of which is separated from the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.bundle import DualBundle, Mixture
from fedtrellis.wire.arrays import FloatArray

__all__ = ["ClassBundles"]

IntArray = NDArray[np.int64]


class ClassBundles:
    """A bundle of each class, whose points have ids, and are forgotten, together.

    One class against the rest is a problem of its own for each class, and so is its
    best mixture: α of class c becomes Σ_j θ_{c,j} a_{j,c}. Clients remember a proposal
    of all classes or of none. With one class this is its :class:`DualBundle`.

    Parameters
    ----------
    bundles : sequence of DualBundle
        Alike but for what is in them.
    """

    def __init__(self, bundles: Sequence[DualBundle]) -> None:
        self.bundles = list(bundles)

    @property
    def w(self) -> FloatArray:
        """W = Σ over units of v_α, a new array of shape (C, p), of one class (p,)."""
        each = [one.w for one in self.bundles]
        return each[0] if len(each) == 1 else np.stack(each)

    def alpha_id(self, unit: int) -> int:
        """The id of a unit's current α."""
        return self.bundles[0].alpha_id(unit)

    def contribution(self, unit: int) -> tuple[FloatArray, FloatArray]:
        """Return v, shape (C, p), and b, shape (C,), of a unit's current α."""
        v, b = zip(*(one.contribution(unit) for one in self.bundles), strict=True)
        return np.stack(v), np.array(b)

    def dual_values(self) -> FloatArray:
        """D of each class, shape (C,), as :meth:`DualBundle.dual_value`."""
        return np.array([one.dual_value() for one in self.bundles])

    def dual_value(self) -> float:
        """The sum of D over the classes."""
        return float(self.dual_values().sum())

    def set_alpha_value(self, unit: int, b: FloatArray) -> None:
        """Put the exact b, shape (C,), in the place of the bounds of the mixtures."""
        for one, own in zip(self.bundles, b.tolist(), strict=True):
            one.set_alpha_value(unit, own)

    def new_ids(self, unit: int, count: int) -> list[int]:
        """Ids for the next proposals of a unit; the same until :meth:`search`."""
        return self.bundles[0].new_ids(unit, count)

    def only_alpha(
        self,
        unit: int,
        v: FloatArray | None = None,
        b: FloatArray | None = None,
        alpha_id: int | None = None,
    ) -> None:
        """Forget all of a unit's points but its α, or put another α in its place.

        ``v`` has shape (C, p), and ``b`` (C,).
        """
        for c, one in enumerate(self.bundles):
            if v is None or b is None:
                one.only_alpha(unit, alpha_id=alpha_id)
            else:
                one.only_alpha(unit, v[c], float(b[c]), alpha_id)

    def search(
        self, units: list[int], proposals: dict[int, tuple[FloatArray, FloatArray]]
    ) -> dict[int, Mixture]:
        """Take in proposals, V of shape (C, c, p) and b of (C, c), and move.

        Returns
        -------
        dict
            By unit, what its clients have to do.
        """
        found = [
            one.weigh(units, {u: (V[c], b[c]) for u, (V, b) in proposals.items()})
            for c, one in enumerate(self.bundles)
        ]
        mixtures = {}
        for unit in sorted(units):
            ids = found[0][unit][0]
            theta = np.stack([own[unit][1] for own in found])
            one, count = self.bundles[0], proposals[unit][1].shape[1]
            alone = len(self.bundles) == 1
            mixtures[unit] = one.mixture(ids, theta[0] if alone else theta, count)
        for one in self.bundles:
            one.move(mixtures)
        return mixtures

    def state(self) -> dict[str, NDArray[np.float64] | IntArray]:
        """All of it as arrays."""
        first, *others = self.bundles
        arrays = first.state()
        for c, one in enumerate(others, start=1):
            arrays |= {f"{key}-{c}": array for key, array in one.state().items()}
        return arrays

    def load_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Inverse of :meth:`state`."""
        for c, one in enumerate(self.bundles):
            one.load_state({k: state[f"{k}-{c}" if c else k] for k in one.state()})
