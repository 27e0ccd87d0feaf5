r"""Search over everything that clients have proposed: a bundle of dual points.

The dual of P(w) = (λ/2)‖w‖² + (1/N) Σ l_i(xᵢᵀw) is to be maximised over α. Clients
propose whole dual vectors a_1, a_2, … for the samples of one **unit** (say, of one
group of hospitals), of which the server is told only

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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray

__all__ = ["DualBundle", "Mixture", "maximise_over_simplices"]

IntArray = NDArray[np.int64]

# Pairwise steps first, to find about the right supports; then whole faces at once.
_PAIRWISE_SWEEPS = 4
_STEPS_A_SWEEP = 4
_MAX_FACES = 300
_MAX_RETRIES = 20
_RETRY_SWEEPS = 10


def maximise_over_simplices(
    G: FloatArray,
    b: FloatArray,
    theta: FloatArray,
    blocks: list[slice],
    tolerance: float = 1e-12,
) -> FloatArray:
    """Maximise bᵀθ − ½ θᵀGθ over a product of simplices, from a feasible θ.

    A few sweeps of pairwise coordinate ascent (in each simplex weight moves from the
    entry with the lowest partial derivative to the one with the highest, by an exact
    step), then an active-set method: to the maximum on the face of the simplices that
    θ lies in, or to that face's boundary on the way there; at a maximum of its face
    the entries with the largest derivatives come in. The objective never falls.

    Parameters
    ----------
    G : ndarray of shape (n, n)
        Positive semi-definite.
    b, theta : ndarray of shape (n,)
        ``theta`` is changed in place.
    blocks : list of slice
        The simplices; together they are all of θ.
    tolerance : float
        On what a derivative may exceed those of its simplex's support, relative to the
        largest |b|.

    Returns
    -------
    ndarray of shape (n,)
    """
    gradient = b - G @ theta
    enough = tolerance * max(float(np.abs(b).max(initial=0.0)), 1e-300)
    for _ in range(_PAIRWISE_SWEEPS):
        for block in blocks:
            _pairwise_steps(G, theta, gradient, block, enough)
    block_of = np.zeros(len(b), dtype=np.int64)
    for i, block in enumerate(blocks):
        block_of[block] = i
    free = theta > 0.0
    retries = 0
    for _ in range(_MAX_FACES):
        target = _maximum_on_face(G, b, free, block_of, len(blocks))
        negative = free & (target < 0.0)
        step = 1.0
        if negative.any():
            ratios = theta[negative] / (theta[negative] - target[negative])
            step = float(ratios.min())
        moved = theta + step * (target - theta)
        if step < 1.0:
            stuck = negative & (moved <= 1e-15)
            moved[stuck] = 0.0
            free &= ~stuck
        moved = _normalised(np.where(free, np.maximum(moved, 0.0), 0.0), blocks)
        if _objective(G, b, moved) < _objective(G, b, theta):
            # rounding, or points of the face that are affinely dependent, so that its
            # maximum is not where the KKT system says: pairwise steps go on from here
            gradient = b - G @ theta
            if (
                retries == _MAX_RETRIES
                or _difference(theta, gradient, blocks) <= enough
            ):
                break
            retries += 1
            for _ in range(_RETRY_SWEEPS):
                for block in blocks:
                    _pairwise_steps(G, theta, gradient, block, enough)
            free = theta > 0.0
            continue
        theta[:] = moved
        if step < 1.0:
            continue
        gradient = b - G @ theta
        entering = _entering(gradient, free, blocks, enough)
        if not entering:
            break
        free[entering] = True
    return theta


def _pairwise_steps(
    G: FloatArray,
    theta: FloatArray,
    gradient: FloatArray,
    block: slice,
    enough: float,
) -> None:
    """Move weight within one simplex; ``theta`` and ``gradient`` change in place."""
    for _ in range(_STEPS_A_SWEEP):
        g = gradient[block]
        up = block.start + int(g.argmax())
        down = block.start + int(np.where(theta[block] > 0.0, g, np.inf).argmin())
        difference = float(gradient[up] - gradient[down])
        if difference <= enough:
            return
        curvature = float(G[up, up] + G[down, down] - 2.0 * G[up, down])
        step = float(theta[down])
        if curvature > 0.0:
            step = min(step, difference / curvature)
        theta[up] += step
        theta[down] -= step
        gradient -= step * (G[:, up] - G[:, down])


def _maximum_on_face(
    G: FloatArray,
    b: FloatArray,
    free: NDArray[np.bool_],
    block_of: IntArray,
    num_blocks: int,
) -> FloatArray:
    """Maximum over Σ θ = 1 in each block with the other entries 0: a KKT system."""
    index = np.flatnonzero(free)
    n = len(index)
    KKT = np.zeros((n + num_blocks, n + num_blocks))
    face = G[np.ix_(index, index)]
    # points of a face may be affinely dependent: the least shift makes it definite
    KKT[:n, :n] = face + 1e-14 * max(np.trace(face) / n, 1e-300) * np.eye(n)
    KKT[np.arange(n), n + block_of[index]] = 1.0
    KKT[n + block_of[index], np.arange(n)] = 1.0
    right = np.concatenate([b[index], np.ones(num_blocks)])
    target = np.zeros(len(b))
    try:
        target[index] = np.linalg.solve(KKT, right)[:n]
    except np.linalg.LinAlgError:
        target[index] = np.linalg.lstsq(KKT, right, rcond=None)[0][:n]
    return target


def _entering(
    gradient: FloatArray,
    free: NDArray[np.bool_],
    blocks: list[slice],
    enough: float,
) -> list[int]:
    """In each simplex the entry that would raise the objective most, if any would."""
    entering = []
    for block in blocks:
        g = gradient[block]
        inside = free[block]
        level = float(g[inside].mean())
        outside = np.where(inside, -np.inf, g)
        best = int(outside.argmax())
        if outside[best] > level + enough:
            entering.append(block.start + best)
    return entering


def _difference(theta: FloatArray, gradient: FloatArray, blocks: list[slice]) -> float:
    """By how much a derivative exceeds the lowest in its simplex's support, at most."""
    return max(
        float(gradient[k].max() - gradient[k][theta[k] > 0.0].min()) for k in blocks
    )


def _normalised(theta: FloatArray, blocks: list[slice]) -> FloatArray:
    for block in blocks:
        theta[block] /= theta[block].sum()
    return theta


def _objective(G: FloatArray, b: FloatArray, theta: FloatArray) -> float:
    return float(b @ theta - 0.5 * theta @ (G @ theta))


@dataclass(frozen=True)
class Mixture:
    """What a search says of one unit: α ← Σ_j θ_j a_j, and what to remember.

    Attributes
    ----------
    ids : ndarray of int64
        The points that have weight.
    weights : ndarray
        θ of these.
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
        Points to remember of a unit, the current α and the next proposals included.
    """

    def __init__(
        self, num_features: int, num_units: int, regularization: float, memory: int
    ) -> None:
        self.regularization = regularization
        self.memory = memory
        self.unit: IntArray = np.arange(num_units)
        self.ids: IntArray = np.zeros(num_units, dtype=np.int64)
        self.V: FloatArray = np.zeros((num_units, num_features))
        self.b: FloatArray = np.zeros(num_units)
        self._gram: FloatArray = np.zeros((num_units, num_units))
        # the row of each unit's α
        self._alpha: IntArray = np.arange(num_units)

    @property
    def w(self) -> FloatArray:
        """W = Σ over units of v_α, a new array of shape (p,)."""
        total: FloatArray = self.V[self._alpha].sum(axis=0)
        return total

    def alpha_id(self, unit: int) -> int:
        """The id of a unit's current α."""
        return int(self.ids[self._alpha[unit]])

    def contribution(self, unit: int) -> tuple[FloatArray, float]:
        """Return v and b of a unit's current α."""
        row = self._alpha[unit]
        return self.V[row].copy(), float(self.b[row])

    def dual_value(self) -> float:
        """D at the current α, or a lower bound where b of a mixture is not known."""
        w = self.w
        linear = float(self.b[self._alpha].sum())
        return linear - 0.5 * self.regularization * float(w @ w)

    def set_alpha_value(self, unit: int, b: float) -> None:
        """Put the exact b of a unit's α in the place of the bound of its mixture."""
        self.b[self._alpha[unit]] = b

    def new_ids(self, unit: int, count: int) -> list[int]:
        """Ids for the next proposals of a unit; the same until :meth:`search`."""
        first = self.alpha_id(unit) + 1
        return list(range(first, first + count))

    def only_alpha(
        self, unit: int, v: FloatArray | None = None, b: float = 0.0
    ) -> None:
        """Forget all of a unit's points but its α, or put another α in its place.

        For a unit one of whose clients lost what it remembered.
        """
        row = self._alpha[unit]
        if v is not None:
            self.V[row], self.b[row] = v, b
            self._gram[row] = self.V @ v
            self._gram[:, row] = self._gram[row]
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
        G = λ * self._gram[np.ix_(moving, moving)]
        maximise_over_simplices(G, b[moving], theta, blocks)
        rows = {unit: moving[b] for unit, b in zip(sorted(units), blocks, strict=True)}
        weights = {
            unit: theta[b] / theta[b].sum()
            for unit, b in zip(sorted(units), blocks, strict=True)
        }
        mixtures = {
            unit: self._mixture(rows[unit], weights[unit], len(proposals[unit][1]))
            for unit in sorted(units)
        }
        self._add_mixtures(rows, weights, mixtures)
        self._drop_forgotten(mixtures)
        return mixtures

    # ------------------------------------------------------------------- the points

    def _append(
        self, units: list[int], proposals: dict[int, tuple[FloatArray, FloatArray]]
    ) -> None:
        V = np.vstack([proposals[unit][0] for unit in units])
        cross = V @ self.V.T
        self._gram = np.block([[self._gram, cross.T], [cross, V @ V.T]])
        self.V = np.vstack([self.V, V])
        self.b = np.concatenate([self.b, *(proposals[unit][1] for unit in units)])
        counts = [len(proposals[unit][1]) for unit in units]
        new_ids = [self.new_ids(u, n) for u, n in zip(units, counts, strict=True)]
        self.ids = np.concatenate([self.ids, *new_ids]).astype(np.int64)
        self.unit = np.concatenate([self.unit, np.repeat(units, counts)])

    def _mixture(self, rows: IntArray, theta: FloatArray, proposed: int) -> Mixture:
        """What a unit's clients are told: the mixture, and what to remember of it."""
        ids, used = self.ids[rows], theta > 0.0
        room = max(self.memory - 1 - proposed, 0)
        # the heaviest, and among those without weight the newest
        heaviest = np.lexsort((ids, theta))[::-1][:room]
        return Mixture(
            ids[used], theta[used], np.sort(ids[heaviest]), int(ids.max()) + 1
        )

    def _add_mixtures(
        self,
        rows: dict[int, IntArray],
        weights: dict[int, FloatArray],
        mixtures: dict[int, Mixture],
    ) -> None:
        """Add the mixtures as the units' α; their Gram entries follow by linearity."""
        theta = np.zeros((len(mixtures), len(self.ids)))
        for i, unit in enumerate(mixtures):
            theta[i, rows[unit]] = weights[unit]
        cross = theta @ self._gram
        own = cross @ theta.T
        self._gram = np.block([[self._gram, cross.T], [cross, own]])
        first = len(self.ids)
        self.V = np.vstack([self.V, theta @ self.V])
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
        self.V, self.b = self.V[rows], self.b[rows]
        self._gram = self._gram[np.ix_(rows, rows)]
        self._alpha = where[self._alpha]

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, NDArray[np.float64] | IntArray]:
        """All of it as arrays."""
        return {
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
        self.V, self.b = state["V"], state["b"]
        self._alpha = state["alpha"].astype(int)
        self._gram = state["gram"]
