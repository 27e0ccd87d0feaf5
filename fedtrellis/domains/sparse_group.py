"""The sparse group ball: few groups, and few entries in each of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import SparseAtom
from fedtrellis.domains.base import FloatArray, Norm, Shape
from fedtrellis.domains.numerics import root, scaled
from fedtrellis.domains.sparse import GroupL1Ball, group_norms
from fedtrellis.settings import setting

__all__ = ["SparseGroupBall"]

_MAX_NEWTON_STEPS = 100


@dataclass(frozen=True)
class SparseGroupBall(GroupL1Ball):
    """The ball of the sparse group lasso, N(x) ≤ radius.

        N(x) = (1 − share) Σ over groups G of ‖x_G‖₂ + share ‖x‖₁

    is a sum over groups, so that oracle and projection are exact (an intersection of
    the two balls has no such oracle). Groups are not weighted by their sizes. Every
    extreme point lies in one group, with fewer non-zeros the larger the share. Simon,
    Friedman, Hastie, Tibshirani, "A sparse-group lasso", JCGS 2013. The oracle takes a
    few Newton steps of O(p), the projection some dozen steps of O(p).

    Parameters
    ----------
    radius : float
    groups : int or sequence of sequences of int
        As :class:`GroupL1Ball` has them.
    share : float
        The part of the l1 norm, at least 0 (the group l1 ball) and below 1 (which
        would be the l1 ball).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import SparseGroupBall
    >>> domain = SparseGroupBall(radius=2.0, groups=[[0, 1], [2]])
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([0., 2., 0.])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([1.831, 0.312, 0.   ])
    """

    name: ClassVar[str] = "sparse-group-ball"
    parameters: ClassVar[Mapping[str, Any]] = {
        "groups": setting(10, "entries in a group", minimum=1),
        "share": setting(
            0.5, "part of the l1 norm; the other part is the groups'", minimum=0.0,
            below=1.0,
        ),
    }  # fmt: skip
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.share
        number = isinstance(share, int | float | np.number)
        if isinstance(share, bool) or not number or not 0.0 <= share < 1.0:
            raise ValueError(
                f"{self.name}: share must be at least 0 and below 1, got {share!r}"
            )
        object.__setattr__(self, "share", float(share))

    def _gauge(
        self, values: FloatArray, labels: NDArray[np.intp] | None = None
    ) -> float:
        """Return N of the values, their groups numbered from 0 on."""
        groups = super()._gauge(values, labels)
        return (1.0 - self.share) * groups + self.share * float(np.abs(values).sum())

    def _duals(self, magnitudes: FloatArray, labels: NDArray[np.intp]) -> FloatArray:
        """Return each group's dual norm max <y, z> over N(z) ≤ 1, the ε-norm.

        It is the t with ‖(|y| − t share)₊‖₂ = t (1 − share) (Ndiaye, Fercoq, Gramfort,
        Salmon, "GAP safe screening rules for sparse-group lasso", NIPS 2016). The
        difference of the two sides is convex and falls in t, and is not negative at
        t = max |y|: from there Newton's steps grow to the root.
        """
        t = np.zeros(int(labels.max()) + 1)
        np.maximum.at(t, labels, magnitudes)
        rest = 1.0 - self.share
        for _ in range(_MAX_NEWTON_STEPS):
            above = np.maximum(magnitudes - self.share * t[labels], 0.0)
            norms = group_norms(above, labels)
            sums = np.bincount(labels, weights=above)
            # −(‖(|y| − t share)₊‖₂ − t rest)′ = share Σ (…)₊ / ‖(…)₊‖₂ + rest
            ratio = np.divide(sums, norms, out=np.ones_like(sums), where=norms > 0.0)
            step = (norms - t * rest) / (self.share * ratio + rest)
            if (step <= 4.0 * np.finfo(np.float64).eps * t).all():
                break
            t = t + np.maximum(step, 0.0)
        return t

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return −radius · z / N(z), z the gradient soft-thresholded in one group.

        The group with the largest dual norm t, and its threshold is t · share.
        """
        g = self._input(gradient, "gradient")
        flat = g.reshape(-1)
        magnitudes, _ = scaled(np.abs(flat))
        if not magnitudes.any():
            return SparseAtom(np.array([0]), np.array([self.radius]), g.shape)
        labels = self._labels_of(flat.size)
        duals = self._duals(magnitudes, labels)
        best = int(duals.argmax())
        support = np.flatnonzero(labels == best)
        z = np.maximum(magnitudes[support] - self.share * duals[best], 0.0)
        support, z = support[z > 0.0], z[z > 0.0]
        norm = self._gauge(z, np.zeros(z.size, dtype=np.intp))
        values = -np.copysign(self.radius / norm * z, flat[support])
        return SparseAtom(support, values, g.shape)

    def project(self, point: ArrayLike) -> FloatArray:
        """Find the multiplier λ of the projection by root finding, to full precision.

        The point that minimises ½‖s − x‖² + λ N(s) is x soft-thresholded at λ share,
        and then each group shortened by λ (1 − share) (Friedman, Hastie, Tibshirani, "A
        note on the group lasso and a sparse group lasso", arXiv 1001.0736). Its N
        falls in λ, to 0 at the dual norm of x.
        """
        x = self._input(point, "point")
        flat = x.reshape(-1)
        labels = self._labels_of(flat.size)
        if self.contains(x, 0.0):
            return x.copy()
        magnitudes, scale = scaled(np.abs(flat))
        radius = self.radius / scale
        largest = float(self._duals(magnitudes, labels).max())
        # with δ = λ_max − λ:  |x_i| − λ share = (|x_i| − λ_max share) + δ share
        base = magnitudes - largest * self.share

        def shrunk(delta: float) -> FloatArray:
            soft = np.maximum(base + delta * self.share, 0.0)
            norms = group_norms(soft, labels)
            short = np.maximum(norms - (largest - delta) * (1.0 - self.share), 0.0)
            factors = np.divide(short, norms, out=short, where=norms > 0.0)
            result: FloatArray = soft * factors[labels]
            return result

        def excess(delta: float) -> float:
            return self._gauge(shrunk(delta), labels) - radius

        nearest = shrunk(root(excess, largest))
        norm = self._gauge(nearest, labels)
        if norm == 0.0:  # so far away that only the direction counts
            return self.lmo(-x).dense()
        return np.copysign(self.radius / norm * nearest, flat).reshape(x.shape)

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of a single entry, or for l1 of a whole group: of d equal entries 1
        #     ‖·‖₁ = d  and  N = (1 − share) √d + share d
        known = dict(super()._largest_norms(shape))
        size = known["l1"] / self.radius
        known["l1"] = self.radius * size / (1.0 - self.share + self.share * size)
        return known
