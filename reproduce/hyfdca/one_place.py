"""Dual steps for split data in one place: NumPy, no messages, no encryption.

For comparing steps over thousands of iterations. What is summed over clients in a run
is one matrix product here; each step notes the round trips that it would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import sim
from fedtrellis.dual.bundle import DualBundle
from fedtrellis.objectives.losses import Hinge
from fedtrellis.wire.arrays import FloatArray
from reproduce.common import app_config
from tasks import HybridTask

from .simulated import MIXED, proposal

__all__ = [
    "State",
    "Table",
    "accelerated",
    "bundle",
    "line_search",
    "load",
    "paper_step",
    "with_averages",
]

Rows = NDArray[np.intp]
#: The clients that are there in an iteration, counted from 1.
Available = Callable[[int], "set[int]"]

HINGE = Hinge()


@dataclass(frozen=True)
class Table:
    """Samples, and who holds what of them.

    Attributes
    ----------
    X : ndarray of shape (N, p)
    y : ndarray of shape (N,)
    regularization : float
    groups, blocks : list of ndarray of int
        The sample groups' rows and the feature groups' columns: client s·Q + q holds
        those of one of each.
    optimum : float
        P*.
    """

    X: FloatArray
    y: FloatArray
    regularization: float
    groups: list[Rows]
    blocks: list[Rows]
    optimum: float

    @property
    def scale(self) -> float:
        """λN."""
        return self.regularization * len(self.y)

    def primal(self, w: FloatArray, z: FloatArray) -> float:
        """P(w), z = Xw."""
        losses = HINGE.value(z, self.y).mean()
        return 0.5 * self.regularization * float(w @ w) + float(losses)

    def dual(self, alpha: FloatArray, w: FloatArray) -> float:
        """D(α), w = w(α)."""
        return float(self.y @ alpha) / len(self.y) - 0.5 * self.regularization * float(
            w @ w
        )

    def weights(self, alpha: FloatArray) -> FloatArray:
        """w(α) = (1/λN) Xᵀα."""
        return np.asarray(self.X.T @ alpha) / self.scale


class State(NamedTuple):
    """Where an iteration starts: w, z = Xw, D, and the round trips so far."""

    w: FloatArray
    z: FloatArray
    dual: float
    trips: float


def load(config: dict[str, Any], nodes: int) -> Table:
    """Make the table of a hybrid task whose data is a grid of groups and is dense."""
    setup = sim.app.experiment(app_config(config), nodes)
    task = setup.task
    assert isinstance(task, HybridTask)
    objective: Any = task.objective()
    data = [task.client_data(client) for client in range(nodes)]
    ids = [int(name) for one in data for name in one.sample_ids]
    position = {name: i for i, name in enumerate(sorted(set(ids)))}
    columns = {name: i for i, name in enumerate(task.feature_names())}
    rows = [tuple(position[int(name)] for name in one.sample_ids) for one in data]
    held = [tuple(columns[name] for name in one.feature_names) for one in data]
    return Table(
        np.asarray(objective.features),
        np.asarray(objective.labels),
        task.regularization,
        [np.array(group, dtype=np.intp) for group in dict.fromkeys(rows)],
        [np.array(block, dtype=np.intp) for block in dict.fromkeys(held)],
        task.optimum().value,
    )


@dataclass
class Unit:
    """Samples that move together, what their holders remember, and who has answered."""

    holders: set[int]
    rows: Rows
    points: dict[int, FloatArray] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)


# ---------------------------------------------------------------------------- proposals


class Proposer:
    """What clients propose at z: for each kind a new α of all samples.

    ``dual-point`` is u with −u in ∂l(z), ``coordinate`` each coordinate's own optimum.
    ``passes``: each client goes once through its samples in random order, and a
    coordinate sees the change of the client's own block so far, times the number Q of
    feature groups; a sample's holders' proposals are averaged. ``mixed`` is what
    clients propose where the server reads sums over all.
    """

    def __init__(self, table: Table, kinds: tuple[str, ...], seed: int = 0) -> None:
        self.table, self.kinds = table, kinds
        self.q = np.einsum("ij,ij->i", table.X, table.X)
        self.rng = np.random.default_rng(seed)
        self.mixed = proposal(HINGE, table.y, table.scale, *MIXED, seed)
        self.parts = [
            [np.ascontiguousarray(table.X[np.ix_(r, block)]) for r in table.groups]
            for block in table.blocks
        ]

    @property
    def trips(self) -> int:
        """Round trips: inner products and proposals, one more for an average."""
        return 3 if "passes" in self.kinds else 2

    def __call__(self, alpha: FloatArray, z: FloatArray) -> list[FloatArray]:
        """All kinds' proposals."""
        table, made = self.table, []
        for kind in self.kinds:
            if kind == "dual-point":
                made.append(HINGE.dual_point(z, table.y))
            elif kind == "coordinate":
                step = HINGE.coordinate_step(alpha, z, self.q, table.y, table.scale)
                made.append(alpha + step)
            elif kind == "mixed":
                made.append(self.mixed(alpha, z))
            else:
                made.append(self._passes(alpha, z))
        return made

    def _passes(self, alpha: FloatArray, z: FloatArray) -> FloatArray:
        table, Q = self.table, len(self.table.blocks)
        total = np.zeros_like(alpha)
        for parts in self.parts:
            for rows, part in zip(table.groups, parts, strict=True):
                total[rows] += self._one_pass(part, alpha[rows], z[rows], rows, Q)
        return total / Q

    def _one_pass(
        self, X: FloatArray, alpha: FloatArray, z: FloatArray, rows: Rows, Q: int
    ) -> FloatArray:
        """One client's α after its pass; for the hinge loss, as plain numbers."""
        y, q, scale = self.table.y[rows], self.q[rows], self.table.scale
        change = np.zeros(X.shape[1])
        new = alpha.copy()
        for i in self.rng.permutation(len(rows)):
            x, label = X[i], y[i]
            margin = label * (z[i] + Q * float(x @ change))
            before = label * new[i]
            # y·clip(λN(1 − yz)/q + yα, 0, 1)
            after = min(1.0, max(0.0, before + scale * (1.0 - margin) / q[i]))
            if after != before:
                new[i] = label * after
                change += (label * (after - before) / scale) * x
        return new


# -------------------------------------------------------------------------------- steps


def line_search(table: Table, proposer: Proposer) -> Iterator[State]:
    """α ← α + γ(proposal − α), one γ in [0, 1] for all samples, the best for D."""
    alpha, trips, λ, N = np.zeros(len(table.y)), 0, table.regularization, len(table.y)
    while True:
        w = table.weights(alpha)
        z = table.X @ w
        yield State(w, z, table.dual(alpha, w), trips)
        (proposal,) = proposer(alpha, z)
        delta = proposal - alpha
        move = table.weights(delta)
        gamma, curvature = 0.0, λ * float(move @ move)
        if curvature > 0.0:
            slope = float(table.y @ delta) / N - λ * float(w @ move)
            gamma = min(1.0, max(0.0, slope / curvature))
        alpha = alpha + gamma * delta
        trips += proposer.trips


def bundle(
    table: Table,
    proposer: Proposer,
    memory: int,
    parts: int = 1,
    available: Available | None = None,
    together: bool = False,
) -> Iterator[State]:
    """The server's bundle over all units' proposals, as in HyFDCA's step ``bundle``.

    A unit is a group, or a part of one, or ``together`` all samples, as where the
    server reads sums over all clients.

    With memory 2 and one proposal it is HyFDCA's step ``line-search``: one γ a unit,
    and the best of all of them together. A unit moves when all its holders have
    answered twice at one w, in as many iterations as that takes.
    """
    N, trips, labels, Q = len(table.y), 0, table.y, len(table.blocks)
    everybody = set(range(len(table.groups) * Q))
    units = [
        Unit({s * Q + q for q in range(Q)}, rows)
        for s, group in enumerate(table.groups)
        for rows in np.array_split(np.random.default_rng(s).permutation(group), parts)
    ]
    if together:
        units = [Unit(everybody, np.arange(N))]
    search = DualBundle(table.X.shape[1], len(units), table.regularization, memory)
    for u, unit in enumerate(units):
        unit.points[search.alpha_id(u)] = np.zeros(len(unit.rows))
    alpha, z_last = np.zeros(N), np.zeros(N)
    for t in count(1):
        w = search.w
        z = table.X @ w
        yield State(w, z, search.dual_values().sum(), trips)
        here = everybody if available is None else available(t)
        complete = []
        for u, unit in enumerate(units):
            present = unit.holders & here
            if not unit.sent:
                z_last[unit.rows] = z[unit.rows]  # the snapshot of its w
            unit.sent |= present
            if unit.sent == unit.holders:
                unit.answered |= present
                if unit.answered == unit.holders:
                    complete.append(u)
        trips += proposer.trips
        if not complete:
            continue
        proposals = proposer(alpha, z_last)
        sums = {}
        for u in complete:
            unit = units[u]
            own = np.stack([proposal[unit.rows] for proposal in proposals])
            unit.points |= dict(zip(search.new_ids(u, len(own)), own, strict=True))
            V = own @ table.X[unit.rows] / table.scale
            sums[u] = (V, own @ labels[unit.rows] / N)
        for u, mixture in search.search(complete, sums).items():
            unit = units[u]
            mixed = mixture.weights @ np.stack([unit.points[i] for i in mixture.ids])
            unit.points = {i: a for i, a in unit.points.items() if i in mixture.keep}
            unit.points[mixture.alpha_id] = mixed
            alpha[unit.rows] = mixed
            unit.sent, unit.answered = set(), set()


def accelerated(table: Table) -> Iterator[State]:
    """Nesterov's projected gradient on D, its step by backtracking, with restarts.

    An iteration asks for z at the new point, and once for every step tried; z at the
    extrapolated point follows from the last two.
    """
    N, y = len(table.y), table.y
    alpha = before = np.zeros(N)
    w = w_before = table.weights(alpha)
    z_before, trips, t = table.X @ w, 0, 1.0
    # 1/step is the mean of what it would be for one coordinate alone, to begin with
    L = float(np.mean(np.einsum("ij,ij->i", table.X, table.X))) / (table.scale * N)
    while True:
        z, dual = table.X @ w, table.dual(alpha, w)
        yield State(w, z, dual, trips)
        trips += 1
        t_next = 0.5 * (1.0 + sqrt(1.0 + 4.0 * t * t))
        momentum = (t - 1.0) / t_next
        L *= 0.9
        while True:
            middle = alpha + momentum * (alpha - before)
            w_middle = w + momentum * (w - w_before)
            gradient = (y - z - momentum * (z - z_before)) / N
            new = y * np.clip(y * (middle + gradient / L), 0.0, 1.0)
            w_new = table.weights(new)
            trips += 1
            step, moved = new - middle, w_new - w_middle
            if table.regularization * float(moved @ moved) > L * float(step @ step):
                L *= 2.0  # the model is no bound: a shorter step
            elif momentum and table.dual(new, w_new) < dual:
                momentum, t_next = 0.0, 1.0  # a restart
            else:
                break
        before, w_before, z_before = alpha, w, z
        alpha, w, t = new, w_new, t_next


def paper_step(
    table: Table,
    rule: str,
    samples: int = 0,
    seed: int = 0,
    available: Available | None = None,
    weight: float | None = None,
    gamma: Callable[[int], float] = lambda t: 1.0,
) -> Iterator[State]:
    """The paper's steps, ``practical`` or ``theoretical``, with stale values.

    H = ``samples`` of each client move, all of them where it is 0. Clients that are
    away count with the inner products and the ŵ_k that they last sent. c_k of the
    theoretical step is ``weight``, N_k/N where it is None, and γ_t is ``gamma``.
    """
    rng = np.random.default_rng(seed)
    N, Q, λ, trips = len(table.y), len(table.blocks), table.regularization, 0
    clients = [(rows, block) for rows in table.groups for block in table.blocks]
    parts = [table.X[np.ix_(rows, block)] for rows, block in clients]
    products = [np.zeros(len(rows)) for rows, _ in clients]
    sums = [np.zeros(len(block)) for _, block in clients]
    alpha = np.zeros(N)
    everybody = set(range(len(clients)))
    current = everybody

    def aggregated(asked: Iterable[int]) -> FloatArray:
        """PrimalAggregation: w from the ŵ_k, new ones of those who are asked."""
        for k in asked:
            sums[k] = parts[k].T @ alpha[clients[k][0]] / table.scale
        w = np.zeros(table.X.shape[1])
        for (_, block), own in zip(clients, sums, strict=True):
            w[block] += own
        return w

    w = aggregated([])
    for t in count(1):
        yield State(w, table.X @ w, table.dual(alpha, table.weights(alpha)), trips)
        here = sorted(everybody if available is None else available(t))
        newcomers = [k for k in here if k not in current]
        if newcomers:
            w, trips = aggregated(newcomers), trips + 1
        for k in here:
            products[k] = parts[k] @ w[clients[k][1]]
        move = np.zeros(N)
        for k in here:
            rows, first = clients[k][0], k - k % Q
            z = np.sum(products[first : first + Q], axis=0)
            own, y = alpha[rows], table.y[rows]
            if rule == "practical":
                step = HINGE.coordinate_step(own, z, 1.0, y, table.scale)
            else:
                c = len(rows) / N if weight is None else weight
                step = HINGE.theoretical_step(own, z, y, c, gamma(t), λ)
            H = min(samples or len(rows), len(rows))
            drawn = rng.choice(len(rows), size=H, replace=False)
            move[rows[drawn]] += gamma(t) * step[drawn] / Q
        alpha = alpha + move
        w, current, trips = aggregated(here), set(here), trips + 3


def with_averages(states: Iterator[State]) -> Iterator[State]:
    """The same steps, seen at w̄ ∝ Σ (s + 1)·w_s; z̄ follows without a message."""
    w = z = np.zeros(1)
    for t, state in enumerate(states):
        share = 1.0 if t == 0 else 2.0 / (t + 2.0)
        w, z = w + share * (state.w - w), z + share * (state.z - z)
        yield state._replace(w=w, z=z)
