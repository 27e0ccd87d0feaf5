"""Samples that move together, how far they have come, and who knows their α.

A **unit** is a group, or with secure sums all of them. It goes through its stages at
its own pace: inner products at one w, its snapshot; proposals. Then the search moves
it, and it starts over.

Clients that lost what they remembered come to α again: the server keeps backups of
enc(α), which it cannot read, and asks another holder of the group for one where its own
is too old. If no holder has α any more, the unit goes back to its last backup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from math import ceil
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.bundle import DualBundle, Mixture, points_within
from fedtrellis.dual.group_records import GroupStep
from fedtrellis.encryption import EncryptionError
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log

from ..hybrid import Blobs
from .settings import HyFDCASettings
from .steps import Steps

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


class Units(Steps):
    """All units, the bundle of their proposals, and who knows what of α."""

    KEPT = ("w", "version", "bare")

    def __init__(self, strategy: HyFDCASettings, w: FloatArray) -> None:
        super().__init__(strategy)
        groups = range(len(self.alignment.groups))
        lists = [list(groups)] if strategy.secure_sum else self._lists()
        self.units = [Unit(group) for group in lists]
        self.unit_of = {g: u for u, unit in enumerate(self.units) for g in unit.groups}
        memory, p = self._memory(), len(self.alignment.feature_names)
        sizes = p, len(self.units), strategy.regularization, memory
        found = strategy.search_tolerance, strategy.penalty, strategy.classes
        self.bundle = DualBundle(*sizes, *found)
        # the first proposals are made at the weights that the run was given
        self.w, self.certified, self.version = w, w, 0
        # the w at which every unit reports its losses once, so that P is known of it;
        # and Σ l_i, shape (C,), of the units that have
        self.held_w, self.held_version = w, 0
        self.losses: dict[int, FloatArray] = {}
        # clients and groups of which they lost what they remembered
        self.bare: set[tuple[str, int]] = set()
        # of whose α each client was asked a backup in this wave
        self.wished: dict[str, list[int]] = {}

    def _memory(self) -> int:
        """How many proposals of a unit there is room for; SettingsError below 3."""
        strategy, units = self.strategy, len(self.units)
        # a line search is between two
        wanted = strategy.memory if strategy.step == "bundle" else 2
        wanted = min(wanted, max(_LEAST_POINTS, _MAX_POINTS // units))
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
            left = "%d proposals of %d are remembered, for memory_limit = %d MiB"
            log(INFO, left, room, wanted, strategy.memory_limit)
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

    def of(self, g: int) -> Unit:
        """A group's unit."""
        return self.units[self.unit_of[g]]

    def count(self, g: int) -> int:
        """How many proposals clients make of a group."""
        # with secure sums all groups are one unit, with as many proposals
        shared = self.strategy.secure_sum or self.alignment.groups[g].shared
        return len(self.strategy.proposal_kinds(shared))

    # ---------------------------------------------------------------------- the stages

    def begin(self) -> None:
        """Give every unit that starts over its w: the held one, if it owes a report.

        Where clients come and go, units are never at one w by themselves, and P would
        hardly ever be known. So one w is held until all have proposed at it; none of
        them waits for that, and whoever has reported goes on at the newest w.
        """
        waiting = {unit.version for unit in self.units if unit.snapshot is not None}
        reported = len(self.losses) == len(self.units)
        # all have reported; or nobody has, or is about to, so that a newer one will do
        if reported or not (self.losses or self.held_version in waiting):
            self.held_w, self.held_version, self.losses = self.w, self.version, {}
        for u, unit in enumerate(self.units):
            if unit.snapshot is not None:
                continue
            held, newest = (self.held_w, self.held_version), (self.w, self.version)
            unit.begin(*(newest if u in self.losses else held))

    def instructions(self, name: str) -> dict[str, Any]:
        """Where a client's groups stand: the mixture to take, and enc(α) where lost."""
        records = []
        for g in self.alignment.client_groups(name):
            unit, alpha_id = self.of(g), self.bundle.alpha_id(self.unit_of[g])
            give = (name, g) in self.bare and self.alpha_is_current(g) and unit.step
            alpha = unit.alphas[g][1] if give else None
            mixture = unit.mixture.lists if unit.mixture else {}
            records.append(GroupStep(g, unit.step, alpha_id, alpha=alpha, **mixture))
        entries = GroupStep.pack(records)
        if self.strategy.secure_sum:
            entries["tag"] = self.units[0].tag
        return entries

    def snapshots(self, groups: Sequence[int]) -> tuple[list[FloatArray], list[int]]:
        """The different snapshots of some groups, and which of them is each group's."""
        vectors: dict[int, FloatArray] = {}
        rows = []
        for g in groups:
            unit = self.of(g)
            assert unit.snapshot is not None
            vectors.setdefault(unit.version, unit.snapshot)
            rows.append(list(vectors).index(unit.version))
        return list(vectors.values()), rows

    def reached(self) -> Any:
        """Something that differs whenever anything has come closer to a move."""
        stages = [
            (
                *(unit.step, unit.version, len(unit.products), len(unit.scores)),
                *(len(unit.answers), tuple(sorted(unit.words))),
            )
            for unit in self.units
        ]
        return self.version, stages

    # ---------------------------------------------------------------------- lost states

    def alpha_is_current(self, g: int) -> bool:
        """Whether the server has enc(α) of the group's step."""
        unit = self.of(g)
        return g in unit.alphas and unit.alphas[g][0] == unit.step

    def has_alpha(self, name: str, g: int) -> bool:
        """Whether a client knows α of a group, or can be given it."""
        known = (name, g) not in self.bare or self.of(g).step == 0
        return known or self.alpha_is_current(g)

    def restored(self, client: str) -> None:
        """A client has nothing any more: its groups go on from their α alone."""
        for g in self.alignment.client_groups(client):
            if (client, g) not in self.bare:
                log(WARNING, "client %s lost its state of group %d", client, g)
            self.bare.add((client, g))
            unit = self.of(g)
            # what it proposed is lost with it; what it sent of products is not
            answered = unit.answers.pop((client, g), None) is not None
            if answered and self.alignment.groups[g].holders[0] == client:
                unit.reports.pop(g, None)
            # it is asked again, and answers the same
            unit.words.pop(client, None)
            if unit.step:
                self.bundle.only_alpha(self.unit_of[g])

    def donor(self, g: int, available: Sequence[str]) -> str | None:
        """The holder to ask for α of a group."""
        holders = self.alignment.groups[g].holders
        here = (n for n in holders if n in available and (n, g) not in self.bare)
        return next(here, None)

    def backup_wish(self, name: str, available: Sequence[str]) -> dict[str, list[int]]:
        """Which groups' α a client is to send encrypted, for safekeeping."""
        wish = []
        for g in self.alignment.client_groups(name):
            unit = self.of(g)
            age = unit.step - unit.alphas.get(g, (0, []))[0]
            if age >= self.strategy.backup_every and self.donor(g, available) == name:
                wish.append(g)
        self.wished[name] = wish
        return {"backup": wish}

    def keep_alphas(self, groups: Sequence[int], parts: Sequence[Blobs]) -> None:
        """Keep enc(α) of some groups, and of a unit that has all of its groups'."""
        for g, part in zip(groups, parts, strict=True):
            try:
                self.strategy.cipher.add([part])
            except EncryptionError:
                continue  # it arrived spoilt, and would be of no use to anybody
            unit = self.of(g)
            unit.alphas[g] = (unit.step, part)
            if all(self.alpha_is_current(other) for other in unit.groups):
                v, b = self.bundle.contribution(self.unit_of[g])
                newest = Backup(dict(unit.alphas), v, b, unit.tag)
                unit.backups = [newest, *unit.backups[:1]]

    def lost(self, available: Sequence[str]) -> dict[str, list[int]]:
        """Whom to ask for α that was lost; a unit that nobody has goes back."""
        wanted: dict[str, list[int]] = {}
        for g in sorted({g for _, g in self.bare}):
            if self.of(g).step == 0 or self.alpha_is_current(g):
                continue
            donor = self.donor(g, available)
            if donor is not None:
                wanted.setdefault(donor, []).append(g)
            elif all(
                (name, g) in self.bare for name in self.alignment.groups[g].holders
            ):
                self._go_back(self.unit_of[g])
        return wanted

    def _go_back(self, u: int) -> None:
        """All holders of a unit's group lost α: back to the last backup of the unit."""
        unit = self.units[u]
        log(WARNING, "every holder lost its state: a group goes back to its backup")
        for g in unit.groups:
            # the others of the unit go back too
            self.bare |= {(n, g) for n in self.alignment.groups[g].holders}
        if unit.backups:
            last = unit.backups[0]
            v, b, unit.tag = last.v, last.b, last.tag
            # the ciphertexts keep the step that they are labelled with
            unit.alphas = dict(last.alphas)
            unit.step = next(iter(last.alphas.values()))[0]
        else:
            classes, p = self.strategy.classes, len(self.alignment.feature_names)
            v, b, unit.tag = np.zeros((classes, p)), np.zeros(classes), b""
            unit.step = 0
            unit.alphas.clear()
        unit.mixture = None
        # clients know α of a step by this number, whichever way it was come to
        number = unit.step * (1 + self.count(unit.groups[0]))
        self.bundle.only_alpha(u, v, b, number if self.strategy.secure_sum else None)
        self.w, self.version = self.bundle.w, self.version + 1
        unit.begin(self.w, self.version)

    def refused(self, name: str) -> None:
        """A client could not open ciphertexts: an older backup, or the stage again."""
        for g in self.alignment.client_groups(name):
            unit = self.of(g)
            if (name, g) in self.bare and g in unit.alphas and unit.step:
                log(WARNING, "client %s refused a backup of group %d", name, g)
                bad = unit.alphas.pop(g)
                unit.backups = [b for b in unit.backups if b.alphas.get(g) != bad]
            else:
                unit.begin(self.w, self.version)

    # --------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """The bundle and the units; a stage that was under way starts over."""

        def kept(thing: Any) -> dict[str, Any]:
            return {name: getattr(thing, name) for name in thing.KEPT}

        units = [kept(unit) for unit in self.units]
        return {**kept(self), "bundle": kept(self.bundle), "units": units}

    def load_state(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        vars(self.bundle).update(state.pop("bundle"))
        for unit, own in zip(self.units, state.pop("units"), strict=True):
            vars(unit).update(own)
            if unit.backups:
                unit.alphas = dict(unit.backups[0].alphas)
        vars(self).update(state)
