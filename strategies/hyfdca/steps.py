"""What both kinds of iteration are made of, and the one with the paper's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from logging import INFO
from math import ceil
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import MAX_SHARES, Alignment
from fedtrellis.dual.bundle import Mixture, points_within
from fedtrellis.encryption import EncryptionError
from fedtrellis.encryption.block_sum import total_of
from fedtrellis.encryption.fixed_point import Words
from fedtrellis.server.conversation import Answer
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log

from ..hybrid import ROWS, Blobs
from .settings import HyFDCASettings


class Steps:
    """The server's side of an iteration: what both kinds of steps have.

    Weights are of shape (p,) or (C, p), of C classes a row each.
    """

    #: What all of an iteration's waves have in common.
    extra: Mapping[str, Any]

    w: FloatArray
    # the weights that the last ``primal`` among the metrics is of, and how many moves
    # they were behind ``w`` when that iteration began
    certified: FloatArray
    lag: int = 0
    # P of each class's certified weights, and D, of this iteration; None: not known
    primals: FloatArray | None = None
    duals: FloatArray | None = None

    def __init__(self, strategy: HyFDCASettings) -> None:
        self.strategy = strategy
        self.alignment = strategy.alignment

    def load_state(self, state: dict[str, Any]) -> None:
        """Inverse of a checkpoint, which has what KEPT names."""
        vars(self).update(state)

    def _used(self, client: str) -> None:
        """An answer was used that changes the client's state."""
        strategy = self.strategy
        strategy.conversation.note_used(strategy.at_round, client)

    def _shared_groups(self, client: str) -> list[int]:
        groups = self.alignment.groups
        return [g for g in self.alignment.client_groups(client) if groups[g].shared]

    def _read(
        self, arrays: Sequence[NDArray[Any]], groups: Sequence[int]
    ) -> list[Blobs]:
        """An answer's ciphertexts, of C numbers for each of some groups' samples."""
        cipher, C = self.strategy.cipher, self.strategy.classes
        counts = [cipher.blocks(C * self.alignment.groups[g].size) for g in groups]
        return read_blobs(arrays, counts)


def add_shares(
    strategy: HyFDCASettings, shares: Mapping[str, Blobs]
) -> tuple[Blobs | None, set[str]]:
    """The sum of clients' ciphertexts; or None, and whose are to be had again."""
    cipher, spoilt = strategy.cipher, dict[str, str]()
    try:
        return cipher.add(list(shares.values())), set()
    except EncryptionError as error:
        for name, blobs in shares.items():
            try:
                cipher.add([blobs])
            except EncryptionError as own:
                spoilt[name] = str(own)
        # each is good by itself, and together they are not: all over again
        spoilt = spoilt or dict.fromkeys(shares, str(error))
    for name, why in spoilt.items():
        strategy.conversation.reject(name, why)
    return None, set(spoilt)


def read_blobs(arrays: Sequence[NDArray[Any]], counts: Sequence[int]) -> list[Blobs]:
    """Ciphertexts in lists of these lengths; ValueError if an answer has others."""
    if any(array.dtype != np.uint8 or array.ndim != 1 for array in arrays):
        raise ValueError("the answer has arrays that are no ciphertexts")
    if len(arrays) != sum(counts):
        raise ValueError(
            f"the answer has {len(arrays)} ciphertexts, expected {sum(counts)}"
        )
    stops = np.cumsum([0, *counts]).tolist()
    blobs = [array.tobytes() for array in arrays]
    return [blobs[start:stop] for start, stop in pairwise(stops)]


def total_over(
    alignment: Alignment, terms: Mapping[str, Words], rows: int
) -> tuple[Words, Words]:
    """Add up what all clients have hidden; ValueError where the masks do not cancel.

    Returns the sums of each feature's words, shape (rows, p), and of those after them.
    """
    p, places = len(alignment.feature_names), []
    for name, own in terms.items():
        columns = alignment.columns[name]
        ends = len(own) - 1 - rows * len(columns)
        where = p * np.arange(rows)[:, None] + columns
        places.append(np.append(where.reshape(-1), rows * p + np.arange(ends)))
    total = total_of(list(terms.values()), places, rows * p + ends)
    return total[: rows * p].reshape(rows, p), total[rows * p :]


class UpdateSteps(Steps):
    """The paper's steps, ``practical`` and ``theoretical``: algorithm 1.

    Clients encrypt by how much α of their samples is to change, and the server adds up
    the updates without seeing one:

        newcomers are sent enc(α) of their samples, and send ŵ_k             (one wave)
        all send enc(x_{k,i}ᵀ w_k), the server adds them up                  (one wave)
        all are sent the sums, and send enc(γ_t/|B_n| Δα)                    (one wave)
        all are sent enc(α) + the sum of these, and send ŵ_k                 (one wave)

    Without newcomers that is three waves, and two where no sample is shared. Whoever is
    away counts with what it last sent, as in algorithms 1, 2 and 4; the second
    SecureInnerProduct of an iteration is left out, as in the paper's experiments.
    """

    KEPT = (
        "w",
        "iteration",
        "current",
        "contributions",
        "shares",
        "alphas",
        "products",
    )

    def __init__(self, strategy: HyFDCASettings) -> None:
        super().__init__(strategy)
        # enc(α) of each group that has moved yet, and how many were added up in it
        self.alphas: dict[int, Blobs] = {}
        self.shares: dict[int, int] = {}
        # enc(x_{k,i}ᵀ w_k) by client and group, ŵ_k/(λN) of each client, as last sent
        self.products: dict[tuple[str, int], Blobs] = {}
        columns = self.alignment.columns.items()
        self.contributions = {name: np.zeros(len(own)) for name, own in columns}
        # those who know the current α of their samples
        self.current: set[str] = set(strategy.clients)
        self.w = np.zeros(len(self.alignment.feature_names))
        self.certified = self.w
        self.iteration = 0

    def iterate(self, available: Sequence[str]) -> tuple[set[str], dict[str, float]]:
        """One iteration; returns whose answers were used, and the metrics."""
        self.iteration += 1
        self.extra = {**self.extra, "iteration": self.iteration}
        newcomers = [name for name in available if name not in self.current]
        if newcomers:
            self._primal(newcomers)
        here = self._inner_products(available)
        lost = [name for name in available if name in here - self.current]
        if lost:
            self._primal(lost)
        here &= self.current
        metrics, proposed = self._dual([name for name in available if name in here])
        # from here on whoever does not answer is behind
        self.current.clear()
        used = self._primal([name for name in available if name in proposed])
        return used, metrics

    def _primal(self, clients: Sequence[str]) -> set[str]:
        """PrimalAggregation: clients learn α of their samples, the server ŵ_k."""
        wishes = {name: self._stale_ciphertexts(name, clients) for name in clients}

        def entries(name: str) -> dict[str, Any]:
            groups = self.alignment.client_groups(name)
            moved = [g for g in groups if g in self.alphas]
            blobs = {f"alpha/{g}": self.alphas[g] for g in moved}
            return {**self.extra, "moved": moved, "renew": wishes[name], **blobs}

        def take(answer: Answer) -> None:
            name = answer.client
            p_k = len(self.alignment.columns[name])
            arrays = list(answer.arrays)
            if not arrays or arrays[0].shape != (p_k,) or arrays[0].dtype != np.float64:
                raise ValueError(f"the answer does not start with {p_k} weights")
            parts = self._read(arrays[1:], wishes[name])
            for g, part in zip(wishes[name], parts, strict=True):
                self.alphas[g], self.shares[g] = part, 1
            self.contributions[name] = arrays[0]
            self.current.add(name)
            self._used(name)

        taken = self.strategy.ask("train.primal", entries, take, clients)
        # w_m = (1/λN) Σ over K_m of ŵ_{k,m}
        self.w = np.zeros_like(self.w)
        for name, own in self.contributions.items():
            self.w[self.alignment.columns[name]] += own
        return taken

    def _stale_ciphertexts(self, name: str, clients: Sequence[str]) -> list[int]:
        """Groups whose enc(α) has so many shares that this client is to renew it."""
        wanted = []
        for g in self.alignment.client_groups(name):
            holders = self.alignment.groups[g].holders
            full = self.shares.get(g, 0) + len(holders) > MAX_SHARES
            if full and next(n for n in holders if n in clients) == name:
                wanted.append(g)
        return wanted

    def _inner_products(self, available: Sequence[str]) -> set[str]:
        """SecureInnerProduct; a client without shared samples has nothing to send."""
        shared = {name: self._shared_groups(name) for name in available}

        def entries(name: str) -> dict[str, Any]:
            # shares of other iterations are added to these: one label for all
            zeros = [0] * len(shared[name])
            asked = {"products": shared[name], "versions": zeros, "rows": zeros}
            own = {ROWS: self.strategy.own(name, self.w)}
            return {**self.extra, **own, **asked, "groups": [], "backup": []}

        def take(answer: Answer) -> None:
            groups = shared[answer.client]
            for g, part in zip(groups, self._read(answer.arrays, groups), strict=True):
                self.products[answer.client, g] = part

        asked = [name for name in available if shared[name]]
        taken = self.strategy.ask("train.inner_product", entries, take, asked)
        return taken | (set(available) - set(asked))

    def _dual(self, clients: Sequence[str]) -> tuple[dict[str, float], set[str]]:
        """LocalDualMethod, and enc(α) ← enc(α) + Σ enc(γ_t/|B_n| Δα)."""
        reporters: dict[str, list[int]] = {name: [] for name in clients}
        for g, group in enumerate(self.alignment.groups):
            if there := [name for name in group.holders if name in clients]:
                reporters[there[0]].append(g)
        sums: dict[int, FloatArray] = {}
        updates: dict[int, dict[str, Blobs]] = {}
        scores: dict[int, Blobs] = {}

        def entries(name: str) -> dict[str, Any]:
            groups = self.alignment.client_groups(name)
            gamma, c_k = self._damping(name)
            config = {
                **self.extra,
                "gamma": gamma,
                "c": c_k,
                "dual": groups,
                "moved": [g for g in groups if g in self.alphas],
                "report": reporters[name],
                ROWS: self.strategy.own(name, self.w),
            }
            for g in groups:
                if g not in scores:
                    scores[g] = self._sum_of_products(g)
                if scores[g]:
                    config[f"scores/{g}"] = scores[g]
            return config

        def take(answer: Answer) -> None:
            groups = self.alignment.client_groups(answer.client)
            report = reporters[answer.client]
            if len(answer.numbers) != 2 * len(report):
                raise ValueError("the answer has another number of sums")
            for g, part in zip(groups, self._read(answer.arrays, groups), strict=True):
                updates.setdefault(g, {})[answer.client] = part
            for i, g in enumerate(report):
                sums[g] = answer.numbers[2 * i : 2 * i + 2]

        taken = self.strategy.ask("train.dual", entries, take, clients)
        for g, shares in updates.items():
            every = {"": self.alphas[g], **shares} if g in self.alphas else shares
            total, spoilt = add_shares(self.strategy, every)
            if total is None:
                # the rest of them are good, and count
                good = {k: s for k, s in every.items() if k not in spoilt}
                total = add_shares(self.strategy, good)[0] if good else None
            if total is not None:
                self.alphas[g] = total
                self.shares[g] = self.shares.get(g, 0) + len(shares)
        return self._certificate(sums, taken), taken

    def _sum_of_products(self, g: int) -> Blobs:
        """A group's inner products; empty if a share is spoilt, which is dropped."""
        holders = self.alignment.groups[g].holders
        known = {k: self.products[k, g] for k in holders if (k, g) in self.products}
        total, spoilt = (
            add_shares(self.strategy, known) if known else (None, set[str]())
        )
        for name in spoilt:
            del self.products[name, g]
        return total or []

    def _certificate(
        self, sums: Mapping[int, FloatArray], taken: set[str]
    ) -> dict[str, float]:
        """P and D of the point the iteration started from, if nobody was away."""
        metrics = {"moved-groups": float(len(sums))}
        if len(taken) == len(self.strategy.clients) and len(self.current) == len(taken):
            losses, conjugates = np.sum(list(sums.values()), axis=0)
            N, λ = self.alignment.num_samples, self.strategy.regularization
            half, self.certified = 0.5 * λ * float(self.w @ self.w), self.w
            metrics["primal"] = half + float(losses) / N
            metrics["dual"] = -half - float(conjugates) / N
            self.primals, self.duals = np.array(
                [[metrics["primal"]], [metrics["dual"]]]
            )
        return metrics

    def _damping(self, name: str) -> tuple[float, float]:
        """γ_t and c_k of the convergence theorems; 1 and 1 in practice."""
        if self.strategy.step == "practical":
            return 1.0, 1.0
        if self.strategy.cyclic_groups:
            return 1.0 / self.iteration, 1.0
        if self.alignment.horizontal:
            return 1.0, 1.0
        held = sum(len(rows) for rows in self.alignment.rows[name].values())
        return 1.0, held / self.alignment.num_samples

    def reached(self) -> Any:
        """How many iterations there have been: each moves whoever is there."""
        return self.iteration

    def restored(self, client: str) -> None:
        """A client that lost its state is a newcomer."""
        self.current.discard(client)


# ------------------------------------------------------------------------------- units

# A search over more points than this would take longer than the clients do.
_MAX_POINTS = 400
_MAX_UNITS = 100
_LEAST_POINTS = 3


@dataclass
class Backup:
    """enc(α) of a unit's groups, each with its step; v, b and tag of that α."""

    alphas: dict[int, tuple[int, Blobs]]
    v: FloatArray
    b: FloatArray
    tag: bytes


@dataclass
class Unit:
    """Samples that move together, and how far they have come."""

    #: What a checkpoint has of it.
    KEPT: ClassVar = ("step", "tag", "mixture", "backups")

    groups: list[int]
    # how many mixtures were taken, and the last one
    step: int = 0
    mixture: Mixture | None = None
    # with secure sums the attempt that it is of: clients know by it which α a step has
    tag: bytes = b""
    # the w that the proposals are made at, and which that is
    snapshot: FloatArray | None = None
    version: int = -1
    # enc(x_{k,i}ᵀ w_k) by client and group, and their sums by group
    products: dict[tuple[str, int], Blobs] = field(default_factory=dict)
    scores: dict[int, Blobs] = field(default_factory=dict)
    # v_k of the proposals and sums of losses, where they are not hidden
    answers: dict[tuple[str, int], FloatArray] = field(default_factory=dict)
    reports: dict[int, FloatArray] = field(default_factory=dict)
    # with secure sums: the wave under way, and what each client has answered in it
    attempt: bytes = b""
    words: dict[str, NDArray[np.uint64]] = field(default_factory=dict)
    # enc(α) of each group and the step it is of; and what of them made one backup, the
    # newest first, and the one before, as one may turn out to be damaged
    alphas: dict[int, tuple[int, Blobs]] = field(default_factory=dict)
    backups: list[Backup] = field(default_factory=list)

    def begin(self, w: FloatArray, version: int) -> None:
        """Start over, at a new w."""
        self.snapshot, self.version, self.attempt = w, version, b""
        sums = self.scores, self.reports
        for stage in (self.products, self.answers, self.words, *sums):
            stage.clear()


def units_of(strategy: HyFDCASettings) -> list[Unit]:
    """All groups with secure sums; else one each, unless there are too many."""
    groups = strategy.alignment.groups
    if strategy.secure_sum:
        return [Unit(list(range(len(groups))))]
    parts = np.array_split(np.arange(len(groups)), min(len(groups), _MAX_UNITS))
    return [Unit(part.tolist()) for part in parts]


def memory_for(strategy: HyFDCASettings, units: int) -> int:
    """How many proposals of a unit there is room for; SettingsError below 3."""
    # a line search is between two
    wanted = strategy.memory if strategy.step == "bundle" else 2
    wanted = min(wanted, max(_LEAST_POINTS, _MAX_POINTS // units))
    p, vectors = len(strategy.alignment.feature_names), strategy.classes * units
    room = points_within(strategy.memory_limit, p, vectors)
    fewest = min(wanted, _LEAST_POINTS)
    if room < fewest:
        least = ceil(8 * p * vectors * (fewest + 1) / 2**20)
        raise SettingsError(
            f"memory_limit = {strategy.memory_limit} MiB is too little for {p} "
            f"features of {vectors} units; allowed: at least {least}"
        )
    if room < wanted:
        left = "%d proposals of %d are remembered, for memory_limit = %d MiB"
        log(INFO, left, room, wanted, strategy.memory_limit)
    return min(room, wanted)
