"""HyFDCA's bundle in one place, for any loss and any proposal: what a server would see.

No messages and no encryption: the sums that a run's server reads, to the resolution of
the masked words, and beside them what only clients know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedtrellis.dual.bundle import DualBundle
from fedtrellis.objectives.losses import DualLoss
from fedtrellis.random import generator

from .recorded import Array, Case

__all__ = ["DUAL_POINT", "MIXED", "Clients", "Run", "proposal", "simulate"]

#: Takes α and z, returns what the holders of these samples propose.
Propose = Callable[[Array, Array], Array]

# What clients propose, see :func:`proposal`: ``clients/hyfdca/proposals.py`` has g and
# the least r of the second, the first is what they proposed in version 0.2.
DUAL_POINT, MIXED = (None, None), (0.1, 0.5)

# The resolution of what travels.
_BITS = 40


def proposal(
    loss: DualLoss,
    y: Array,
    scale: float,
    proximal: float | None,
    least: float | None,
    seed: int = 0,
) -> Propose:
    """Make a kind of proposal.

    Parameters
    ----------
    loss : DualLoss
    y : ndarray of shape (N,)
    scale : float
        λN.
    proximal : float or None
        g of argmax over a of −l*(−a) − z a − (g/2)(a − α)²; None: the dual point.
    least : float or None
        It is mixed with α at random, α + r (u − α), r_i uniform in [least, 1]; None:
        not mixed.
    seed : int
        Of r.
    """
    rng = generator(seed, "hyfdca proposals")

    def propose(alpha: Array, z: Array) -> Array:
        if proximal is None:
            u = loss.dual_point(z, y)
        else:
            q = np.full(len(y), proximal * scale)
            u = alpha + loss.coordinate_step(alpha, z, q, y, scale)
        if least is not None:
            u = alpha + rng.uniform(least, 1.0, len(y)) * (u - alpha)
        return loss.feasible(u, y)

    return propose


@dataclass
class Run:
    """A simulated run.

    Attributes
    ----------
    weights : ndarray of shape (T, p)
    sums : ndarray of shape (T, u, p)
        V of each unit; a unit is everybody, or the samples of one group.
    scores, alphas, proposals : ndarray of shape (T, N)
        z = Xw, α with w = w(α), and what is proposed: clients know them.
    primal, dual : ndarray of shape (T,)
        P and D where each search started.
    """

    weights: Array
    sums: Array
    scores: Array
    alphas: Array
    proposals: Array
    primal: Array
    dual: Array


def simulate(
    case: Case,
    loss: DualLoss,
    propose: Propose,
    *,
    rounds: int,
    memory: int = 40,
    apart: bool = False,
    noise: float = 0.0,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> Run:
    """Run the bundle.

    Parameters
    ----------
    case : Case
    loss : DualLoss
    propose : callable
        See :func:`proposal`.
    rounds : int
        At most.
    memory : int
    apart : bool
        Every group of samples is a unit, of which the server reads the sum; otherwise
        everybody together.
    noise : float
        Standard deviation of what each client adds to each of its numbers, in units of
        the most that one sample adds to one: max |x| / λN.
    tolerance : float
        The run ends where (P − D)/P is less.
    seed : int
        Of the noise.
    """
    X, y, scale = case.X, case.y, case.scale
    N, p = X.shape
    rows = [np.array(r) for r in dict.fromkeys(tuple(r) for r, _ in case.parts)]
    units = rows if apart else [np.arange(N)]
    bundle = DualBundle(p, len(units), case.regularization, memory)
    points = [{bundle.alpha_id(u): np.zeros(len(r))} for u, r in enumerate(units)]
    spread = noise * np.abs(X).max() / scale * np.sqrt(_holders(case))
    rng = generator(seed, "hyfdca noise")
    alpha = np.zeros(N)
    kept: list[tuple[Array, Array, Array, Array, Array, float, float]] = []
    for _ in range(rounds):
        w = bundle.w
        z = X @ w
        square = 0.5 * case.regularization * float(w @ w)
        primal = square + float(loss.value(z, y).mean())
        dual = -square - float(loss.conjugate(alpha, y).mean())
        new = propose(alpha, z)
        found = {}
        for u, own in enumerate(units):
            V = new[own] @ X[own] / scale
            if noise:
                V = V + spread * rng.standard_normal(p)
            V = np.rint(np.ldexp(V, _BITS)) / 2.0**_BITS
            b = -float(loss.conjugate(new[own], y[own]).sum()) / N
            bundle.set_alpha_value(
                u, -float(loss.conjugate(alpha[own], y[own]).sum()) / N
            )
            found[u] = (V[None], np.array([b]))
            points[u][bundle.new_ids(u, 1)[0]] = new[own]
        sums = np.array([V[0] for V, _ in found.values()])
        kept.append((w, sums, z, alpha.copy(), new, primal, dual))
        if primal - dual <= tolerance * primal and not noise:
            break
        for u, mixture in bundle.search(list(found), found).items():
            mixed = mixture.weights @ np.stack([points[u][int(i)] for i in mixture.ids])
            points[u] = {int(i): points[u][int(i)] for i in mixture.keep}
            points[u][mixture.alpha_id] = mixed
            alpha[units[u]] = mixed
    columns = [np.array([one[i] for one in kept]) for i in range(7)]
    return Run(*columns)


def _holders(case: Case) -> Array:
    """How many clients hold each feature."""
    counts = np.zeros(case.X.shape[1])
    for _, columns in case.parts:
        counts[columns] += 1.0
    return counts


class Clients:
    """All clients as one who answers at any w: Σ_k v_k, or Σ l_i.

    For attacks that choose w; see :data:`.attacks.Query`.
    """

    def __init__(
        self, case: Case, loss: DualLoss, propose: Propose, noise: float = 0.0
    ) -> None:
        self.case, self.loss, self.propose = case, loss, propose
        self.spread = noise * np.abs(case.X).max() / case.scale
        self.spread = self.spread * np.sqrt(_holders(case))
        self.rng = generator(0, "hyfdca noise", "answers")
        self.alpha = self.last = np.zeros(len(case.y))

    def sums(self, w: Array, accept: bool) -> Array:
        """Σ_k v_k of the proposals at w, after taking the last ones for α or not."""
        if accept:
            self.alpha = self.last
        self.last = self.propose(self.alpha, self.case.X @ w)
        V = self.case.X.T @ self.last / self.case.scale
        if self.spread.any():
            V = V + self.spread * self.rng.standard_normal(len(V))
        return np.asarray(np.rint(np.ldexp(V, _BITS)) / 2.0**_BITS)

    def losses(self, w: Array, accept: bool) -> Array:
        """Σ l_i at w, shape (1,)."""
        return np.array([self.loss.value(self.case.X @ w, self.case.y).sum()])
