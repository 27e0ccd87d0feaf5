"""Samples that move together, and how far they have come.

A **unit** is a group, or with secure sums all of them. It goes through its stages at
its own pace: inner products at one w, its snapshot; proposals. Then the search moves
it, and it starts over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from logging import INFO
from math import ceil
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.bundle import Mixture, points_within
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log

from ..hybrid import Blobs
from .settings import HyFDCASettings

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
    units: list[Unit] = []
    for shared in (True, False):  # they may differ in what they propose
        own = [g for g, group in enumerate(groups) if group.shared == shared]
        room = max(1, _MAX_UNITS * len(own) // len(groups))
        parts = np.array_split(own, min(len(own), room)) if own else []
        units += [Unit(part.tolist()) for part in parts]
    return units


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
