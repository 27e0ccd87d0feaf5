"""Sets whose extreme points have several non-zeros in a structured support."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.domains.atoms import SparseAtom
from fedtrellis.domains.base import FloatArray, NormBall, Places, Shape
from fedtrellis.domains.numerics import (
    magnitude,
    positive_integer,
    project_l1,
    root,
    scaled,
    smallest,
    unit,
)
from fedtrellis.settings import setting


@dataclass(frozen=True)
class KSupportBall(NormBall):
    """The k-support ball: convex hull of the x with ‖x‖₀ ≤ k and ‖x‖₂ ≤ radius.

    Its gauge is the k-support norm, max of <x, u> over the dual unit ball (Argyriou,
    Foygel, Srebro, "Sparse prediction with the k-support norm", NIPS 2012); k = 1 is
    the l1 ball, k = p the l2 ball.

    Parameters
    ----------
    k : int
        Non-zeros of an extreme point, at most the number of entries.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import KSupportBall
    >>> domain = KSupportBall(k=2, radius=2.0)
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([ 0.   ,  1.664, -1.109])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([1.879, 0.592, 0.092])
    """

    name: ClassVar[str] = "k-support-ball"
    sparse_atoms: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Any]] = {
        "k": setting(10, "non-zeros of an extreme point", minimum=1)
    }
    k: int
    radius: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "k", positive_integer(self.name, "k", self.k))

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError if there are fewer than k entries."""
        super().check_shape(shape)
        if math.prod(shape) < self.k:
            raise ValueError(
                f"{self.name} with k = {self.k} does not fit shape {tuple(shape)}: "
                f"k may be at most the number of entries, {math.prod(shape)}"
            )

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return −radius · g_S / ‖g_S‖₂, S the k entries largest in magnitude."""
        g = self._input(gradient, "gradient")
        flat = g.reshape(-1)
        support = np.sort(smallest(-np.abs(flat), self.k))
        direction, _ = unit(flat[support])
        return SparseAtom(support, -self.radius * direction, g.shape)

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        magnitudes, scale = scaled(np.abs(x))
        if magnitudes.size < self.k:  # zeros do not change it, but there must be k
            magnitudes = np.pad(magnitudes, (0, self.k - magnitudes.size))
        descending = np.sort(magnitudes)[::-1]
        j, s = _heads(descending, self.k)
        # ‖x‖² = Σ_{i≤j} x_i² + s² (k − j)  with  s = Σ_{i>j} |x_i| / (k − j)
        heads = descending[:j]
        return scale * math.sqrt(float(heads @ heads) + s * s * (self.k - j))

    def project(self, point: ArrayLike) -> FloatArray:
        """Find the threshold τ of the projection by root finding, to full precision.

        With x sorted by magnitude the projection is

            w_i = x_i s/(s + τ)       if |x_i| ≥ s + τ
            w_i = x_i − τ sign(x_i)   if τ < |x_i| < s + τ
            w_i = 0                   if |x_i| ≤ τ

        where s makes Σ min((|x_i| − τ)₊/s, 1) = k and τ puts w on the sphere: the
        proximal operator of the box norm (McDonald, Pontil, Stamos, "New perspectives
        on k-support and cluster norms", JMLR 2016, Theorem 20) with its multiplier
        chosen such that the norm is the radius. ‖w‖² = s² (Σ_{heads} x_i²/(s + τ)² +
        k − #heads) falls as τ grows.
        """
        x = self._input(point, "point")
        if self._norm(x.reshape(-1), x.shape) <= self.radius:
            return x.copy()
        magnitudes, scale = scaled(np.abs(x.reshape(-1)))
        radius = self.radius / scale
        descending = np.sort(magnitudes)[::-1]
        last = float(descending[self.k - 1])
        tail = float(descending[self.k]) if self.k < descending.size else 0.0
        _, top_norm = unit(descending[: self.k])
        if last == 0.0 or top_norm * (1.0 - tail / last) >= radius:
            # The k largest stand so far above the others that these vanish: scaling
            # the k largest to the sphere already makes τ ≥ the (k+1)-th largest.
            w = np.where(magnitudes >= last, magnitudes * (radius / top_norm), 0.0)
        else:
            # τ is in [0, tail]. With δ = tail − τ, |x_i| − τ = (|x_i| − tail) + δ loses
            # no digits however small the ball is beside the point.
            above = descending - tail

            def excess(delta: float) -> float:
                j, s = _heads(np.maximum(above + delta, 0.0), self.k)
                heads = descending[:j] * (s / (s + tail - delta))
                return float(heads @ heads) + s * s * (self.k - j) - radius * radius

            delta = root(excess, tail)
            _, s = _heads(np.maximum(above + delta, 0.0), self.k)
            # the smaller of the two is the branch that applies
            w = np.minimum(
                magnitudes - tail + delta, magnitudes * s / (s + tail - delta)
            )
            w = np.maximum(w, 0.0)
        return np.copysign(scale * w, x.reshape(-1)).reshape(x.shape)

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of an extreme point whose k entries are equal
        return self.radius * math.sqrt(self.k), self.radius


def _heads(descending: FloatArray, k: int) -> tuple[int, float]:
    """Find s with Σ min(v_i / s, 1) = k, and how many entries v_i exceed it.

    ``descending`` is v ≥ 0, sorted. Returns (j, s): s = Σ_{i>j} v_i / (k − j) for the
    smallest j in 0..k−1 with v_{j+1} ≤ s (Argyriou et al. 2012, proposition 2.1).
    """
    tails = np.cumsum(descending[k - 1 :: -1])[::-1] + descending[k:].sum()
    candidates = tails / np.arange(k, 0, -1)
    j = int(np.argmax(descending[:k] <= candidates))  # always holds at j = k − 1
    return j, float(candidates[j])


@dataclass(frozen=True)
class GroupL1Ball(NormBall):
    """The group l1 ball, Σ over groups G of ‖x_G‖₂ ≤ radius.

    Parameters
    ----------
    groups : int or sequence of sequences of int
        The groups as flat indices, each entry of the array in exactly one; or the size
        of consecutive groups, which the number of entries must then be a multiple of.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import GroupL1Ball
    >>> domain = GroupL1Ball(radius=2.0, groups=[[0, 1], [2]])
    >>> (domain.lmo(np.array([1.0, -3.0, 2.0])).dense() + 0.0).round(3)
    array([-0.632,  1.897,  0.   ])
    >>> domain.project(np.array([3.0, 1.0, 0.5])).round(3)
    array([1.897, 0.632, 0.   ])
    """

    name: ClassVar[str] = "group-l1-ball"
    sparse_atoms: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Any]] = {
        "groups": setting(10, "entries in a group", minimum=1)
    }
    radius: float
    groups: int | Sequence[Sequence[int]]
    # of listed groups, each entry's
    _labels: NDArray[np.intp] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.groups, int | np.integer):
            size = positive_integer(self.name, "groups", self.groups)
            object.__setattr__(self, "groups", size)
        else:
            self._label()

    def _label(self) -> None:
        """Normalise the groups to tuples and number each entry's."""
        error = ValueError(
            f"{self.name}: groups must be a size or put every index from 0 on into "
            f"exactly one group, got {str(self.groups)[:80]}"
        )
        try:
            parts = [np.asarray(group) for group in self.groups]  # type: ignore[union-attr]
            indices = np.concatenate(parts)
        except (TypeError, ValueError):
            raise error from None
        whole = all(part.size and part.dtype.kind in "iu" for part in parts)
        if not whole or not np.array_equal(np.sort(indices), np.arange(indices.size)):
            raise error
        labels = np.empty(indices.size, dtype=np.intp)
        labels[indices] = np.repeat(np.arange(len(parts)), [p.size for p in parts])
        groups = tuple(tuple(part.tolist()) for part in parts)
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "_labels", labels)

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the groups partition the entries."""
        super().check_shape(shape)
        size = math.prod(shape)
        if isinstance(self.groups, int):
            if size % self.groups:
                raise ValueError(
                    f"{self.name} with groups of {self.groups} does not fit shape "
                    f"{tuple(shape)}: the number of entries must be a multiple"
                )
        elif size != self._labels.size:
            raise ValueError(
                f"{self.name} with groups of {self._labels.size} entries in all does "
                f"not fit shape {tuple(shape)}, which has {size}"
            )

    def _labels_of(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the group of each of these entries."""
        listed = not isinstance(self.groups, int)
        return self._labels[places] if listed else places // self.groups

    def _norms(
        self, values: FloatArray, labels: NDArray[np.intp] | None = None
    ) -> FloatArray:
        """Return the groups' l2 norms, of the labels' groups or of a whole array."""
        if labels is not None or not isinstance(self.groups, int):
            return group_norms(values, self._labels if labels is None else labels)
        rows = values.reshape(-1, self.groups)
        squares: FloatArray = np.einsum("gi,gi->g", rows, rows)
        scale = 1.0
        if not 1e-200 < squares.max() < 1e200:  # they have left the range of floats
            scale = magnitude(values) or 1.0
            rows = rows / scale
            squares = np.einsum("gi,gi->g", rows, rows)
        norms: FloatArray = scale * np.sqrt(squares)
        return norms

    def _gauge(
        self, values: FloatArray, labels: NDArray[np.intp] | None = None
    ) -> float:
        """Return the norm of the values, their groups numbered from 0 on."""
        return float(self._norms(values, labels).sum())

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        if places is None:
            with np.errstate(over="ignore"):
                return self._gauge(x)
        groups = self._labels_of(places)
        return self._gauge(x, np.unique(groups, return_inverse=True)[1])

    def lmo(self, gradient: ArrayLike) -> SparseAtom:
        """Return −radius · g_G / ‖g_G‖₂ on the group whose ‖g_G‖₂ is largest."""
        g = self._input(gradient, "gradient")
        flat = g.reshape(-1)
        best = int(self._norms(flat).argmax())
        if isinstance(self.groups, int):
            support = np.arange(best * self.groups, (best + 1) * self.groups)
        else:
            support = np.flatnonzero(self._labels == best)
        direction, _ = unit(flat[support])
        return SparseAtom(support, -self.radius * direction, g.shape)

    def project(self, point: ArrayLike) -> FloatArray:
        """Project the vector of group norms onto the l1 ball and rescale the groups."""
        x = self._input(point, "point")
        flat = x.reshape(-1)
        norms = self._norms(flat)
        # x_G ← x_G · n'_G / n_G  with n' the l1 projection of the norms n
        shrunk = project_l1(norms, self.radius)
        factors = np.divide(shrunk, norms, out=np.ones_like(norms), where=norms > 0.0)
        if isinstance(self.groups, int):
            rows = flat.reshape(-1, self.groups)
            return (rows * factors[:, None]).reshape(x.shape)
        return (flat * factors[self._labels]).reshape(x.shape)

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of an extreme point, which fills a group
        if isinstance(self.groups, int):
            largest = self.groups
        else:
            largest = max(len(group) for group in self.groups)
        return self.radius * math.sqrt(largest), self.radius


def group_norms(values: FloatArray, labels: NDArray[np.intp]) -> FloatArray:
    """Return the l2 norm of each group, the values' groups numbered from 0 on."""
    # scaled, so that no square overflows
    scale = float(np.abs(values).max()) or 1.0
    squares = np.bincount(labels, weights=np.square(values / scale))
    norms: FloatArray = scale * np.sqrt(squares)
    return norms


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
        labels = self._labels_of(np.arange(flat.size))
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
        labels = self._labels_of(np.arange(flat.size))
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

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of a single entry, or for l1 of a whole group: of d equal entries 1
        #     ‖·‖₁ = d  and  N = (1 − share) √d + share d
        size = super().largest_norms(shape)[0] / self.radius
        return self.radius * size / (1.0 - self.share + self.share * size), self.radius
