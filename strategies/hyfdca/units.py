"""Samples that move together, and how far they have come.

A **unit** is a group, or with secure sums all of them. It goes through its stages at
its own pace: inner products at one w, its snapshot; proposals. Then the search moves
it, and it starts over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.bundle import DualBundle, Mixture, points_within
from fedtrellis.dual.group_steps import GroupStep
from fedtrellis.dual.questions import weights_mark
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log

from ..hybrid import Blobs
from .steps import Steps, as_array, proposal_kinds

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["Stage", "Unit", "UnitSteps"]

# A search over more points than this would take longer than the clients do.
_MAX_POINTS = 400
_MAX_UNITS = 100
_LEAST_POINTS = 3


#: enc(α) of a unit's groups, each with its step; v, b and chain of that α.
Backup = tuple[dict[int, tuple[int, Blobs]], FloatArray, FloatArray, bytes]


@dataclass
class Unit:
    """Samples that move together, and how far they have come."""

    groups: list[int]
    step: int = 0  # mixtures applied so far
    mixture: Mixture | None = None  # the last one
    # with secure sums: of the wave that it is of, and how α came about
    tag: bytes = b""
    chain: bytes = b""
    snapshot: FloatArray | None = None  # the w that the proposals are made at
    version: int = -1  # which w that is
    products: dict[tuple[str, int], Blobs] = field(default_factory=dict)
    marks: list[bytes] = field(default_factory=list)  # of each client's part of it
    scores: dict[int, Blobs] = field(default_factory=dict)  # enc(x_iᵀ w), by group
    answers: dict[tuple[str, int], FloatArray] = field(default_factory=dict)
    reports: dict[int, FloatArray] = field(default_factory=dict)
    # enc(α) of each group and the step it is of; what of them made one backup
    alphas: dict[int, tuple[int, Blobs]] = field(default_factory=dict)
    backups: list[Backup] = field(default_factory=list)  # the newest first

    def keep_backup(self, backup: Backup) -> None:
        """Keep it, and the one before: one of them may turn out to be damaged."""
        self.backups = [backup, *self.backups[:1]]

    def begin(self, w: FloatArray, version: int) -> None:
        """Start over, at a new w."""
        self.snapshot, self.version, self.marks = w, version, []
        for stage in (self.products, self.scores, self.answers, self.reports):
            stage.clear()


@dataclass
class HeldWeights:
    """The w at which every unit reports its losses once, so that P is known of it.

    Attributes
    ----------
    w : ndarray of shape (p,) or (C, p)
    version : int
    losses : dict
        Σ l_i, shape (C,), of the units that have reported.
    """

    w: FloatArray
    version: int
    losses: dict[int, FloatArray] = field(default_factory=dict)

    def note(self, unit: int, version: int, losses: FloatArray) -> None:
        """Take a unit's report, if it is of this w."""
        if version == self.version:
            self.losses[unit] = losses

    def total(self, classes: int) -> FloatArray:
        """Return Σ l_i over all units, shape (C,)."""
        total = np.zeros(classes)
        for u in sorted(self.losses):
            total += self.losses[u]
        return total


@dataclass
class Stage:
    """What all clients are asked alike until the sum is complete.

    Attributes
    ----------
    nonces, inputs : list of bytes
        Of each member of the agreement.
    tag : bytes
        T, as the clients compute it.
    words : dict
        What each client has answered.
    """

    nonces: list[bytes]
    inputs: list[bytes]
    tag: bytes
    words: dict[str, NDArray[np.uint64]] = field(default_factory=dict)


class UnitSteps(Steps):
    """The units and the bundle of an iteration, and what clients are sent of them."""

    def __init__(self, strategy: HyFDCA) -> None:
        super().__init__(strategy)
        groups = range(len(self.alignment.groups))
        lists = [list(groups)] if strategy.secure_sum else self._lists()
        self.units = [Unit(group) for group in lists]
        self.unit_of = {g: u for u, unit in enumerate(self.units) for g in unit.groups}
        memory = self._memory()
        self.bundle = DualBundle(
            len(self.alignment.feature_names),
            len(self.units),
            strategy.regularization,
            memory,
            strategy.search_tolerance,
            strategy.penalty,
            strategy.classes,
        )
        self._stage: Stage | None = None
        # holders that lost what they remembered of a group
        self.bare: set[tuple[str, int]] = set()
        # the first proposals are made at the weights that the run was given
        self.w = strategy.initial_weights()
        self.version = 0
        self.certified = self.w
        self.held = HeldWeights(self.w, self.version)

    def _memory(self) -> int:
        """How many proposals of a unit there is room for.

        Raises
        ------
        SettingsError
            Fewer than three.
        """
        strategy, units = self.strategy, len(self.units)
        wanted = min(strategy.remembered, max(_LEAST_POINTS, _MAX_POINTS // units))
        p, vectors = len(self.alignment.feature_names), strategy.classes * units
        room = points_within(strategy.memory_limit, p, vectors)
        fewest = min(wanted, _LEAST_POINTS)
        if room < fewest:
            least = ceil(8 * p * vectors * (fewest + 1) / 2**20)
            raise SettingsError(
                f"memory_limit = {strategy.memory_limit} MiB is too little for {p} "
                f"features of {vectors} units; allowed: at least {least}"
            )
        if room < wanted:
            log(
                INFO,
                "%d proposals of %d are remembered, for memory_limit = %d MiB",
                *(room, wanted, strategy.memory_limit),
            )
        return min(room, wanted)

    def _lists(self) -> list[list[int]]:
        """The units' groups: one each, unless there are too many to search over."""
        groups = self.alignment.groups
        lists: list[list[int]] = []
        for shared in (True, False):  # they may differ in what they propose
            own = [g for g, group in enumerate(groups) if group.shared == shared]
            room = max(1, _MAX_UNITS * len(own) // len(groups))
            parts = np.array_split(own, min(len(own), room)) if own else []
            lists += [part.tolist() for part in parts]
        return lists

    def _begin_units(self) -> None:
        """Give every unit that starts over its w: the held one, if it owes a report.

        Where clients come and go, units are never at one w by themselves, and P would
        hardly ever be known. So one w is held until all have proposed at it; none of
        them waits for that, and whoever has reported goes on at the newest w.
        """
        waiting = {unit.version for unit in self.units if unit.snapshot is not None}
        losses, version = self.held.losses, self.held.version
        # all have reported; or nobody has, or is about to, so that a newer one will do
        if len(losses) == len(self.units) or not (losses or version in waiting):
            self.held = HeldWeights(self.w, self.version)
        for u, unit in enumerate(self.units):
            if unit.snapshot is not None:
                continue
            if u in self.held.losses:
                unit.begin(self.w, self.version)
            else:
                unit.begin(self.held.w, self.held.version)

    # ------------------------------------------------------------------------- helpers

    def _instructions(self, name: str) -> dict[str, Any]:
        """Where each of a client's groups stands: the mixture to take, if it has not.

        And α, encrypted, of a group that it lost, where the server has it.
        """
        records = []
        for g in self.alignment.client_groups(name):
            unit = self.units[self.unit_of[g]]
            alpha_id = self.bundle.alpha_id(self.unit_of[g])
            give = (name, g) in self.bare and self._alpha_is_current(g) and unit.step
            alpha = unit.alphas[g][1] if give else None
            records.append(GroupStep.after(g, unit.step, alpha_id, unit.mixture, alpha))
        entries = GroupStep.pack(records)
        if self.strategy.secure_sum:
            entries |= {"tag": self.units[0].tag, "chain": self.units[0].chain}
        return entries

    def _marks(self, unit: Unit) -> list[bytes]:
        """Digests of what each member is sent of a unit's snapshot."""
        if not unit.marks:
            assert unit.snapshot is not None
            for name in self.strategy.agreement.names:
                own = self.strategy.own(name, unit.snapshot)
                unit.marks.append(weights_mark(own))
        return unit.marks

    def _snapshots(self, groups: Sequence[int]) -> tuple[list[FloatArray], list[int]]:
        """The different snapshots of some groups, and which of them is each group's."""
        vectors: list[FloatArray] = []
        versions: list[int] = []
        rows = []
        for g in groups:
            unit = self.units[self.unit_of[g]]
            if unit.version not in versions:
                assert unit.snapshot is not None
                versions.append(unit.version)
                vectors.append(unit.snapshot)
            rows.append(versions.index(unit.version))
        return vectors, rows

    def _kinds(self, shared: bool) -> list[str]:
        """What clients propose, in order."""
        return proposal_kinds(self.strategy, shared)

    def reached(self) -> Any:
        """How far the units and the stage have come."""
        words = () if self._stage is None else tuple(sorted(self._stage.words))
        units = [
            (
                *(unit.step, unit.version),
                *(len(unit.products), len(unit.scores), len(unit.answers)),
            )
            for unit in self.units
        ]
        return self.version, units, words

    def _count(self, g: int) -> int:
        if self.strategy.secure_sum:  # all groups are one unit, with as many proposals
            return len(self._kinds(shared=True))
        return len(self._kinds(self.alignment.groups[g].shared))

    def _ready(self, g: int) -> bool:
        unit = self.units[self.unit_of[g]]
        return g in unit.scores or not self.alignment.groups[g].shared

    def _reporter(self, g: int) -> str:
        return self.alignment.groups[g].holders[0]

    def _answered(self, unit: Unit) -> bool:
        return all(g in unit.reports for g in unit.groups) and all(
            (name, g) in unit.answers
            for g in unit.groups
            for name in self.alignment.groups[g].holders
        )

    def _alpha_is_current(self, g: int) -> bool:
        unit = self.units[self.unit_of[g]]
        return g in unit.alphas and unit.alphas[g][0] == unit.step

    # --------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, NDArray[Any]]:
        """The bundle and the units; a stage that was under way starts over."""
        arrays: dict[str, NDArray[Any]] = {
            f"bundle/{key}": array for key, array in self.bundle.state().items()
        }
        arrays["w"] = self.w
        arrays["version"] = np.array(self.version)
        names = self.strategy.clients
        bare = [(names.index(name), g) for name, g in sorted(self.bare)]
        arrays["bare"] = np.array(bare, dtype=np.int64).reshape(-1, 2)
        for u, unit in enumerate(self.units):
            arrays[f"{u}/step"] = np.array(unit.step)
            arrays[f"{u}/tag"] = as_array(unit.tag)
            arrays[f"{u}/chain"] = as_array(unit.chain)
            if unit.mixture is not None:
                arrays[f"{u}/mix-ids"] = unit.mixture.ids
                arrays[f"{u}/mix-weights"] = unit.mixture.weights
                arrays[f"{u}/keep"] = unit.mixture.keep
                arrays[f"{u}/alpha-id"] = np.array(unit.mixture.alpha_id)
            for age, (alphas, v, b, chain) in enumerate(unit.backups):
                for g, (step, blobs) in alphas.items():
                    for i, blob in enumerate(blobs):
                        key = f"{u}/backup/{age}/{g}/{step}/{i}"
                        arrays[key] = as_array(blob)
                arrays[f"{u}/backup-v/{age}"] = v
                arrays[f"{u}/backup-b/{age}"] = b
                arrays[f"{u}/backup-chain/{age}"] = as_array(chain)
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        prefix = "bundle/"
        own = {k.removeprefix(prefix): a for k, a in state.items() if prefix in k}
        self.bundle.load_state(own)
        self.w, self.version = state["w"], int(state["version"])
        names = self.strategy.clients
        self.bare = {(names[int(k)], int(g)) for k, g in state["bare"]}
        for u, unit in enumerate(self.units):
            unit.step = int(state[f"{u}/step"])
            unit.tag = state[f"{u}/tag"].tobytes()
            unit.chain = state[f"{u}/chain"].tobytes()
            if f"{u}/mix-ids" in state:
                unit.mixture = Mixture(
                    state[f"{u}/mix-ids"],
                    state[f"{u}/mix-weights"],
                    state[f"{u}/keep"],
                    int(state[f"{u}/alpha-id"]),
                )
            for age in (0, 1):
                if f"{u}/backup-v/{age}" not in state:
                    continue
                alphas: dict[int, tuple[int, Blobs]] = {}
                for key, array in state.items():
                    if key.startswith(f"{u}/backup/{age}/"):
                        *_, g, step, _ = key.split("/")
                        blobs = alphas.setdefault(int(g), (int(step), []))[1]
                        blobs.append(array.tobytes())
                b = state[f"{u}/backup-b/{age}"].reshape(self.strategy.classes)
                chain = state[f"{u}/backup-chain/{age}"].tobytes()
                v = state[f"{u}/backup-v/{age}"].reshape(len(b), -1)
                unit.backups.append((alphas, v, b, chain))
            if unit.backups:
                unit.alphas = dict(unit.backups[0][0])
