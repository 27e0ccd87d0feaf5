r"""Search over everything that clients have proposed: a bundle of dual points.

The dual of P(w) = (λ/2)‖w‖² + (1/N) Σ l_i(xᵢᵀw) is to be maximised over α. Clients
propose whole dual vectors a_1, a_2, … for the samples of one **unit** (say, of one
group of hospitals), of which the server learns only

    v_j = (1/λN) Σ_i a_{j,i} x_i    and    b_j = −(1/N) Σ_i l_i*(−a_{j,i}).

Every mixture Σ_j θ_j a_j with θ in the simplex is feasible again, and as l* is convex

    D(Σ_j θ_j a_j)  ≥  −(λ/2)‖Σ_j θ_j v_j‖² + Σ_j θ_j b_j,

with equality at the corners and, for the hinge loss, everywhere. The server maximises
the right side, over one simplex for each unit. As the point where the clients stand is
among the a_j, D never falls, whatever the proposals were made from. With one proposal
and no memory this is a line search, θ = (1 − γ, γ).

With proposals u(w), −u_i ∈ ∂l_i(xᵢᵀw), the pair (v, b) is a cutting plane of the primal
risk, and the method is the bundle method for regularised risks (Teo, Vishwanathan,
Smola and Le, "Bundle Methods for Regularized Risk Minimization", JMLR 11, 2010), with
one bundle for each unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrellis.dual.penalty import Penalty, maximise_over_simplices
from fedtrellis.wire.arrays import FloatArray

IntArray = NDArray[np.int64]

# Numbers of all points' v that are put beside each other: 8 MiB.
_AT_ONCE = 1 << 20


def points_within(mebibytes: float, num_features: int, units: int) -> int:
    """Return how many points, of p numbers of 8 bytes, of each unit fit in memory.

    For the time of a search each unit has one more. C classes are C times the units.
    """
    each = 8 * num_features * units / 2**20
    return int(mebibytes / each) - 1


@dataclass(frozen=True)
class Mixture:
    """What a search says of one unit: α ← Σ_j θ_j a_j, and what to remember.

    ``ids`` are the points that have weight, ``weights`` θ of these, of shape (J,), of
    several classes (C, J); ``keep`` are the points to remember beside the new α, whose
    own id is ``alpha_id``.
    """

    ids: IntArray
    weights: FloatArray
    keep: IntArray
    alpha_id: int

    @property
    def lists(self) -> dict[str, list[Any]]:
        """Ids, weights class by class, and what to keep, as a request has them."""
        fields = {"ids": self.ids, "weights": self.weights, "keep": self.keep}
        return {name: array.ravel().tolist() for name, array in fields.items()}


class DualBundle:
    """All units' points as the server knows them; the last of a unit is its α.

    Where each of C classes is separated from the rest, every class is a problem of its
    own, with its best mixture: α of class c becomes Σ_j θ_{c,j} a_{j,c}. A point has
    one id, as clients remember a proposal of all classes or of none.

    Each of the units starts with the one point α = 0. ``regularization`` is λ,
    ``penalty`` g (by default ½‖w‖²), ``tolerance`` that of a search
    (:func:`maximise_over_simplices`). ``memory`` is how many points to remember of a
    unit, the current α and the next proposals included; for the time of a search one
    more. A point takes 8 C p bytes.
    """

    #: What a checkpoint has of it: the Gram matrix to the last bit as it came about.
    KEPT = ("_multipliers", "unit", "ids", "_points", "b", "_alpha", "_gram")

    def __init__(
        self,
        num_features: int,
        num_units: int,
        regularization: float,
        memory: int,
        tolerance: float = 1e-12,
        penalty: Penalty | None = None,
        classes: int = 1,
    ) -> None:
        self.regularization, self.tolerance = regularization, tolerance
        self.penalty, self.memory = penalty or Penalty(), memory
        # of each class the weight of the column that is not penalised
        self._multipliers = np.zeros(classes)
        self.unit: IntArray = np.arange(num_units)
        self.ids: IntArray = np.zeros(num_units, dtype=np.int64)
        # v of each point, (C, p), an array of its own: what is forgotten is freed
        self._points = [np.zeros((classes, num_features)) for _ in range(num_units)]
        self.b: FloatArray = np.zeros((classes, num_units))
        self._gram: FloatArray = np.zeros((classes, num_units, num_units))
        # where each unit's α is among the points
        self._alpha: IntArray = np.arange(num_units)

    @property
    def w(self) -> FloatArray:
        """W = ∇g*(Σ over units of v_α), new, of shape (C, p), of one class (p,)."""
        total = self._sum(self._alpha)
        for own, multiplier in zip(total, self._multipliers, strict=True):
            own[:] = self.penalty.weights(own, multiplier)
        return total[0] if len(total) == 1 else total

    def _sum(self, rows: IntArray) -> FloatArray:
        """Σ of some points' v, shape (C, p)."""
        total = np.zeros_like(self._points[0])
        for row in rows:
            total += self._points[row]
        return total

    def alpha_id(self, unit: int) -> int:
        """The id of a unit's current α."""
        return int(self.ids[self._alpha[unit]])

    def contribution(self, unit: int) -> tuple[FloatArray, FloatArray]:
        """Return v, shape (C, p), and b, shape (C,), of a unit's current α."""
        row = self._alpha[unit]
        return self._points[row].copy(), self.b[:, row].copy()

    def dual_values(self) -> FloatArray:
        """D of each class at the current α, shape (C,).

        A lower bound where b of a mixture is not known. What rounding leaves of v_m of
        a free column counts against it, times twice its weight of now, or 2: D is below
        P* if the best weight is not larger. With more than rounding it is −∞.
        """
        values, λ, m = [], self.regularization, self.penalty.free
        for c, v in enumerate(self._sum(self._alpha)):
            value = float(self.b[c, self._alpha].sum()) - λ * self.penalty.conjugate(v)
            if m >= 0:
                left = λ * 2.0 * max(1.0, abs(self._multipliers[c])) * abs(v[m])
                value -= left if left <= 1e-10 * max(1.0, abs(value)) else np.inf
            values.append(value)
        return np.array(values)

    def set_alpha_value(self, unit: int, b: float | FloatArray) -> None:
        """Put the exact b, shape (C,), instead of the bounds of the mixtures."""
        self.b[:, self._alpha[unit]] = b

    def new_ids(self, unit: int, count: int) -> list[int]:
        """Ids for the next proposals of a unit; the same until :meth:`search`."""
        first = self.alpha_id(unit) + 1
        return list(range(first, first + count))

    def only_alpha(
        self,
        unit: int,
        v: FloatArray | None = None,
        b: float | FloatArray | None = None,
        alpha_id: int | None = None,
    ) -> None:
        """Forget a unit's points but its α, or put another α, v and b, in its place.

        For a unit one of whose clients lost what it remembered.
        """
        row = self._alpha[unit]
        if v is not None and b is not None:
            self._points[row] = np.array(v).reshape(self._points[row].shape)
            self.b[:, row] = b
            cross = self._products([self._points[row]], self._points)[:, 0]
            self._gram[:, row] = self._gram[:, :, row] = cross
        if alpha_id is not None:
            self.ids[row] = alpha_id
        stays = self.unit != unit
        stays[row] = True
        self._select(np.flatnonzero(stays))

    def search(
        self, units: list[int], proposals: dict[int, tuple[FloatArray, FloatArray]]
    ) -> dict[int, Mixture]:
        """Take in proposals, and move the units that have some to the best mixtures.

        Of each unit V of shape (C, c, p) and b of shape (C, c), in the order of
        :meth:`new_ids`. Returns, by unit, what its clients have to do.
        """
        self._append(units, proposals)
        self._select(np.lexsort((self.ids, self.unit)))
        rest = np.setdiff1d(self._alpha, self._alpha[units])
        moving = np.flatnonzero(np.isin(self.unit, units))
        start = np.isin(moving, self._alpha[units]).astype(np.float64)
        ordered = sorted(units)
        counts = [int((self.unit == unit).sum()) for unit in ordered]
        ends = np.cumsum(counts).tolist()
        blocks = [slice(end - n, end) for n, end in zip(counts, ends, strict=True)]
        theta = np.zeros((len(self.b), len(self.ids)))
        for c, own in enumerate(theta):
            own[moving] = self._best(c, moving, rest, blocks, start.copy())
        mixtures, every = {}, []
        for unit, block in zip(ordered, blocks, strict=True):
            rows = moving[block]
            new = np.shape(proposals[unit][1])[-1]
            mixtures[unit] = self._mixture(rows, theta[:, rows], new)
            every.append(np.where(self.unit == unit, theta, 0.0))
        self._add_mixtures(mixtures, np.stack(every, axis=1))
        stays = np.ones(len(self.ids), dtype=np.bool_)
        for unit, mixture in mixtures.items():
            own = self.unit == unit
            stays[own] = np.isin(self.ids[own], [*mixture.keep, mixture.alpha_id])
        self._select(np.flatnonzero(stays))
        return mixtures

    def _best(
        self,
        c: int,
        moving: IntArray,
        rest: IntArray,
        blocks: list[slice],
        theta: FloatArray,
    ) -> FloatArray:
        """θ of the points of the units that move, for class c; the others stay."""
        λ, gram = self.regularization, self._gram[c]
        if self.penalty.plain:
            # what the other units contribute is fixed: −λ wᵀv is linear in θ
            b = self.b[c] - λ * gram[:, rest].sum(axis=1)
            G = λ * gram[np.ix_(moving, moving)]
            maximise_over_simplices(G, b[moving], theta, blocks, self.tolerance)
        else:
            V = np.stack([self._points[row][c] for row in moving])
            self._multipliers[c] = self.penalty.maximise(
                *(V, self.b[c][moving], self._sum(rest)[c], λ, theta, blocks),
                *(float(self._multipliers[c]), self.tolerance),
            )
        for block in blocks:
            theta[block] /= theta[block].sum()
        return theta

    def _mixture(self, rows: IntArray, theta: FloatArray, proposed: int) -> Mixture:
        """What a unit's clients are sent: the mixture, and what to remember of it."""
        ids, heavy = self.ids[rows], theta.max(axis=0)
        room = max(self.memory - 1 - proposed, 0)
        # the heaviest, and among those without weight the newest
        heaviest = np.lexsort((ids, heavy))[::-1][:room]
        weights = theta[:, heavy > 0.0]
        return Mixture(
            ids[heavy > 0.0],
            weights[0] if len(weights) == 1 else weights,
            np.sort(ids[heaviest]),
            int(ids.max()) + 1,
        )

    def _parts(
        self, c: int, *lists: list[FloatArray]
    ) -> Iterator[tuple[slice, list[FloatArray]]]:
        """Lists of points, each beside each other, at some columns at a time."""
        p = self._points[0].shape[1]
        width = max(1, _AT_ONCE // max(map(len, lists)))
        for start in range(0, p, width):
            own = slice(start, min(start + width, p))
            yield own, [np.stack([v[c, own] for v in points]) for points in lists]

    def _products(self, one: list[FloatArray], other: list[FloatArray]) -> FloatArray:
        """Inner products of some points with others, shape (C, k, n)."""
        total = np.zeros((len(self.b), len(one), len(other)))
        for c, products in enumerate(total):
            for _, (first, second) in self._parts(c, one, other):
                products += first @ second.T
        return total

    def _append(
        self, units: list[int], proposals: dict[int, tuple[FloatArray, FloatArray]]
    ) -> None:
        C, p = self._points[0].shape
        new, values, counts, ids = [], [], [], []
        for unit in units:
            V, b = proposals[unit]
            V = np.reshape(V, (C, -1, p))
            new += [V[:, j].copy() for j in range(V.shape[1])]
            values.append(np.reshape(b, (C, -1)))
            counts.append(V.shape[1])
            ids += self.new_ids(unit, V.shape[1])
        products = self._products(new, self._points), self._products(new, new)
        of_units = np.repeat(units, counts)
        self._extend(new, np.concatenate(values, axis=1), ids, of_units, *products)

    def _add_mixtures(self, mixtures: dict[int, Mixture], theta: FloatArray) -> None:
        """Add Σ_j θ_j v_j as the units' α; their products follow by linearity.

        ``theta`` has shape (C, k, n): of each class, of each mixture.
        """
        cross = theta @ self._gram
        mixed = [np.empty_like(self._points[0]) for _ in mixtures]
        for c, own in enumerate(theta):
            for columns, (part,) in self._parts(c, self._points):
                for v, values in zip(mixed, own @ part, strict=True):
                    v[c, columns] = values
        b = np.stack([own @ b for own, b in zip(theta, self.b, strict=True)])
        self._alpha[list(mixtures)] = len(self.ids) + np.arange(len(mixtures))
        ids = [mixture.alpha_id for mixture in mixtures.values()]
        products = cross, cross @ theta.swapaxes(1, 2)
        self._extend(mixed, b, ids, list(mixtures), *products)

    def _extend(
        self,
        points: list[FloatArray],
        b: FloatArray,
        ids: list[int],
        units: ArrayLike,
        cross: FloatArray,
        own: FloatArray,
    ) -> None:
        """Add points, with their products with the others and with each other."""
        self._gram = np.block([[self._gram, cross.swapaxes(1, 2)], [cross, own]])
        self._points += points
        self.b = np.concatenate([self.b, b], axis=1)
        self.ids = np.append(self.ids, np.array(ids, dtype=np.int64))
        self.unit = np.append(self.unit, units)

    def _select(self, rows: IntArray) -> None:
        """Keep these points, in this order."""
        where = np.full(len(self.ids), -1)
        where[rows] = np.arange(len(rows))
        self.unit, self.ids = self.unit[rows], self.ids[rows]
        self._points = [self._points[row] for row in rows]
        self.b = np.ascontiguousarray(self.b[:, rows])
        self._gram = np.stack([gram[np.ix_(rows, rows)] for gram in self._gram])
        self._alpha = where[self._alpha]
