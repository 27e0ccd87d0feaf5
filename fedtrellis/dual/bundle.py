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

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.penalty import Penalty
from fedtrellis.dual.simplices import maximise_over_simplices
from fedtrellis.wire.arrays import FloatArray

__all__ = ["DualBundle", "Mixture", "maximise_over_simplices", "points_within"]

IntArray = NDArray[np.int64]

# Numbers of all points' v that are put beside each other: 8 MiB.
_AT_ONCE = 1 << 20


def points_within(mebibytes: float, num_features: int, units: int) -> int:
    """Return how many points of each unit may be remembered in so much memory.

    A point is a vector of p numbers of 8 bytes, and for the time of a search each unit
    has one more. Of C classes there are C times as many units.
    """
    each = 8 * num_features * units / 2**20
    return int(mebibytes / each) - 1


@dataclass(frozen=True)
class Mixture:
    """What a search says of one unit: α ← Σ_j θ_j a_j, and what to remember.

    Attributes
    ----------
    ids : ndarray of int64
        The points that have weight.
    weights : ndarray of shape (J,), or (C, J)
        θ of these; of several classes a row each.
    keep : ndarray of int64
        The points to remember beside the new α.
    alpha_id : int
        The new α's own id.
    """

    ids: IntArray
    weights: FloatArray
    keep: IntArray
    alpha_id: int


class DualBundle:
    """All units' points as the server knows them; the last of a unit is its α.

    Parameters
    ----------
    num_features : int
        p.
    num_units : int
        Each starts with the one point α = 0.
    regularization : float
        λ.
    memory : int
        Points to remember of a unit, the current α and the next proposals included; for
        the time of a search one more. A point takes 8 p bytes.
    tolerance : float, default 1e-12
        Of a search, see :func:`maximise_over_simplices`.
    penalty : Penalty, optional
        g, by default ½‖w‖².
    """

    def __init__(
        self,
        num_features: int,
        num_units: int,
        regularization: float,
        memory: int,
        tolerance: float = 1e-12,
        penalty: Penalty | None = None,
    ) -> None:
        self.regularization, self.tolerance = regularization, tolerance
        self.penalty = penalty or Penalty()
        self._multiplier = 0.0  # the weight of the column that is not penalised
        self.memory = memory
        self.unit: IntArray = np.arange(num_units)
        self.ids: IntArray = np.zeros(num_units, dtype=np.int64)
        self._rows: list[FloatArray] = [
            np.zeros(num_features) for _ in range(num_units)
        ]
        self.b: FloatArray = np.zeros(num_units)
        self._gram: FloatArray = np.zeros((num_units, num_units))
        # the row of each unit's α
        self._alpha: IntArray = np.arange(num_units)
        # of the last search: by unit the rows of its points, and θ
        self._found: dict[int, tuple[IntArray, FloatArray]] = {}

    @property
    def w(self) -> FloatArray:
        """W = ∇g*(Σ over units of v_α), a new array of shape (p,)."""
        total = self._sum(self._alpha)
        if self.penalty.plain:
            return total
        return self.penalty.weights(total, self._multiplier)

    def _sum(self, rows: IntArray) -> FloatArray:
        """Σ of some points' v."""
        total = np.zeros_like(self._rows[0])
        for row in rows:
            total += self._rows[row]
        return total

    @property
    def V(self) -> FloatArray:  # noqa: N802
        """V of every point, a new array of shape (n, p)."""
        return np.stack(self._rows)

    def alpha_id(self, unit: int) -> int:
        """The id of a unit's current α."""
        return int(self.ids[self._alpha[unit]])

    def contribution(self, unit: int) -> tuple[FloatArray, float]:
        """Return v and b of a unit's current α."""
        row = self._alpha[unit]
        return self._rows[row].copy(), float(self.b[row])

    def dual_value(self) -> float:
        """D at the current α, or a lower bound where b of a mixture is not known.

        What rounding leaves of v_m of a free column counts against it, times twice its
        weight of now, or 2: D is below P* if the best weight is not larger.
        """
        v = self._sum(self._alpha)
        linear = float(self.b[self._alpha].sum())
        value = linear - self.regularization * self.penalty.conjugate(v)
        if self.penalty.free >= 0:
            most = 2.0 * max(1.0, abs(self._multiplier))
            value -= self.regularization * most * abs(float(v[self.penalty.free]))
        return value

    def set_alpha_value(self, unit: int, b: float) -> None:
        """Put the exact b of a unit's α in the place of the bound of its mixture."""
        self.b[self._alpha[unit]] = b

    def new_ids(self, unit: int, count: int) -> list[int]:
        """Ids for the next proposals of a unit; the same until :meth:`search`."""
        first = self.alpha_id(unit) + 1
        return list(range(first, first + count))

    def only_alpha(
        self,
        unit: int,
        v: FloatArray | None = None,
        b: float = 0.0,
        alpha_id: int | None = None,
    ) -> None:
        """Forget all of a unit's points but its α, or put another α in its place.

        For a unit one of whose clients lost what it remembered.
        """
        row = self._alpha[unit]
        if v is not None:
            self._rows[row], self.b[row] = np.array(v), b
            self._gram[row] = self._products([self._rows[row]], self._rows)[0]
            self._gram[:, row] = self._gram[row]
        if alpha_id is not None:
            self.ids[row] = alpha_id
        stays = self.unit != unit
        stays[row] = True
        self._select(np.flatnonzero(stays))

    def search(
        self, units: list[int], proposals: dict[int, tuple[FloatArray, FloatArray]]
    ) -> dict[int, Mixture]:
        """Take in proposals, and move the named units to the best mixtures.

        Parameters
        ----------
        units : list of int
            The units that have proposals.
        proposals : dict
            For each unit its V of shape (c, p), and b of shape (c,), in the order of
            :meth:`new_ids`.

        Returns
        -------
        dict
            By unit, what its clients have to do.
        """
        found = self.weigh(units, proposals)
        mixtures = {
            unit: self.mixture(*found[unit], len(proposals[unit][1]))
            for unit in sorted(units)
        }
        self.move(mixtures)
        return mixtures

    def weigh(
        self, units: list[int], proposals: dict[int, tuple[FloatArray, FloatArray]]
    ) -> dict[int, tuple[IntArray, FloatArray]]:
        """Take in proposals, as :meth:`search`; returns ids and θ of each unit."""
        self._append(units, proposals)
        order = np.lexsort((self.ids, self.unit))
        self._select(order)
        λ = self.regularization
        rest = np.setdiff1d(self._alpha, self._alpha[units])
        # what the other units contribute is fixed: −λ wᵀv is linear in θ
        b = self.b - λ * self._gram[:, rest].sum(axis=1)
        moving = np.flatnonzero(np.isin(self.unit, units))
        theta = np.zeros(len(moving))
        blocks, start = [], 0
        for unit in sorted(units):
            count = int((self.unit == unit).sum())
            blocks.append(slice(start, start + count))
            start += count
        position = {int(row): i for i, row in enumerate(moving)}
        for unit in units:
            theta[position[int(self._alpha[unit])]] = 1.0
        if self.penalty.plain:
            G = λ * self._gram[np.ix_(moving, moving)]
            maximise_over_simplices(G, b[moving], theta, blocks, self.tolerance)
        else:
            self._multiplier = self.penalty.maximise(
                np.stack([self._rows[row] for row in moving]),
                self.b[moving],
                self._sum(rest),
                λ,
                theta,
                blocks,
                self._multiplier,
                self.tolerance,
            )
        self._found = {
            unit: (moving[b], theta[b] / theta[b].sum())
            for unit, b in zip(sorted(units), blocks, strict=True)
        }
        return {u: (self.ids[rows], own) for u, (rows, own) in self._found.items()}

    def move(self, mixtures: dict[int, Mixture]) -> None:
        """Make the mixtures that :meth:`weigh` found the units' α, and forget."""
        self._add_mixtures(mixtures)
        self._drop_forgotten(mixtures)

    # ------------------------------------------------------------------- the points

    def _parts(
        self, *lists: list[FloatArray]
    ) -> Iterator[tuple[slice, list[FloatArray]]]:
        """Lists of vectors, each beside each other, at some columns at a time."""
        p = len(lists[0][0])
        width = max(1, _AT_ONCE // max(map(len, lists)))
        for start in range(0, p, width):
            own = slice(start, min(start + width, p))
            yield own, [np.stack([row[own] for row in rows]) for rows in lists]

    def _products(self, one: list[FloatArray], other: list[FloatArray]) -> FloatArray:
        """Inner products of some vectors with others, shape (k, n)."""
        total = np.zeros((len(one), len(other)))
        for _, (first, second) in self._parts(one, other):
            total += first @ second.T
        return total

    def _mixed(self, theta: FloatArray) -> list[FloatArray]:
        """Σ_j θ_j v_j for each row of θ."""
        mixed = [np.empty_like(self._rows[0]) for _ in theta]
        for own, (part,) in self._parts(self._rows):
            for row, values in zip(mixed, theta @ part, strict=True):
                row[own] = values
        return mixed

    def _append(
        self, units: list[int], proposals: dict[int, tuple[FloatArray, FloatArray]]
    ) -> None:
        # each a row of its own: what is forgotten is freed
        new = [row.copy() for unit in units for row in proposals[unit][0]]
        cross, own = self._products(new, self._rows), self._products(new, new)
        self._gram = np.block([[self._gram, cross.T], [cross, own]])
        self._rows += new
        self.b = np.concatenate([self.b, *(proposals[unit][1] for unit in units)])
        counts = [len(proposals[unit][1]) for unit in units]
        new_ids = [self.new_ids(u, n) for u, n in zip(units, counts, strict=True)]
        self.ids = np.concatenate([self.ids, *new_ids]).astype(np.int64)
        self.unit = np.concatenate([self.unit, np.repeat(units, counts)])

    def mixture(self, ids: IntArray, theta: FloatArray, proposed: int) -> Mixture:
        """What a unit's clients are sent: the mixture, and what to remember of it.

        ``theta`` has shape (J,), or (C, J) for C classes.
        """
        heavy = theta if theta.ndim == 1 else theta.max(axis=0)
        room = max(self.memory - 1 - proposed, 0)
        # the heaviest, and among those without weight the newest
        heaviest = np.lexsort((ids, heavy))[::-1][:room]
        used = heavy > 0.0
        return Mixture(
            ids[used], theta[..., used], np.sort(ids[heaviest]), int(ids.max()) + 1
        )

    def _add_mixtures(self, mixtures: dict[int, Mixture]) -> None:
        """Add the mixtures as the units' α; their Gram entries follow by linearity."""
        theta = np.zeros((len(mixtures), len(self.ids)))
        for i, unit in enumerate(mixtures):
            rows, weights = self._found[unit]
            theta[i, rows] = weights
        cross = theta @ self._gram
        own = cross @ theta.T
        self._gram = np.block([[self._gram, cross.T], [cross, own]])
        first = len(self.ids)
        self._rows += self._mixed(theta)
        self.b = np.concatenate([self.b, theta @ self.b])
        new_ids = [mixture.alpha_id for mixture in mixtures.values()]
        self.ids = np.append(self.ids, new_ids)
        self.unit = np.append(self.unit, list(mixtures))
        self._alpha[list(mixtures)] = first + np.arange(len(mixtures))

    def _drop_forgotten(self, mixtures: dict[int, Mixture]) -> None:
        stays = np.ones(len(self.ids), dtype=bool)
        for unit, mixture in mixtures.items():
            own = self.unit == unit
            stays[own] = np.isin(self.ids[own], [*mixture.keep, mixture.alpha_id])
        self._select(np.flatnonzero(stays))

    def _select(self, rows: IntArray) -> None:
        """Keep these rows, in this order."""
        where = np.full(len(self.ids), -1)
        where[rows] = np.arange(len(rows))
        self.unit, self.ids = self.unit[rows], self.ids[rows]
        self._rows, self.b = [self._rows[row] for row in rows], self.b[rows]
        self._gram = self._gram[np.ix_(rows, rows)]
        self._alpha = where[self._alpha]

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, NDArray[np.float64] | IntArray]:
        """All of it as arrays."""
        free = {"multiplier": np.array(self._multiplier)}
        return {
            **(free if self.penalty.free >= 0 else {}),
            "unit": self.unit,
            "ids": self.ids,
            "V": self.V,
            "b": self.b,
            "alpha": self._alpha,
            "gram": self._gram,  # to the last bit as it came about
        }

    def load_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Inverse of :meth:`state`."""
        self.unit, self.ids = state["unit"].astype(int), state["ids"].astype(int)
        self._rows, self.b = [row.copy() for row in state["V"]], state["b"]
        self._alpha = state["alpha"].astype(int)
        self._gram = state["gram"]
        if self.penalty.free >= 0:
            self._multiplier = float(state["multiplier"])
