"""Clients that lost what they remembered, and how they come to α again.

The server keeps backups of enc(α), which it cannot read, and asks another holder of the
group for one where its own is too old. If no holder has α any more, the unit goes back
to its last backup.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from logging import WARNING
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtrellis.server.answers import Answer
from fedtrellis.wire.flower_internals import log

from ..hybrid import Blobs, add_shares
from .steps import read_blobs, split_blobs
from .units import UnitSteps

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["LostStates"]


class LostStates(UnitSteps):
    """Backups of α, and what is done with them after a loss."""

    def __init__(self, strategy: HyFDCA) -> None:
        super().__init__(strategy)
        # groups of whose α each client was asked a backup in this wave
        self._wished: dict[str, list[int]] = {}
        self._unhealed: set[tuple[str, int]] = set()

    def restored(self, client: str) -> None:
        """A client has nothing any more: its groups go on from their α alone."""
        for g in self.alignment.client_groups(client):
            if (client, g) not in self.bare:
                log(WARNING, "client %s lost its state of group %d", client, g)
            self.bare.add((client, g))
            unit = self.units[self.unit_of[g]]
            # what it proposed is lost with it; what it sent of products is not
            answered = unit.answers.pop((client, g), None) is not None
            if answered and self._reporter(g) == client:
                unit.reports.pop(g, None)
            if self._stage is not None:
                # it is asked again, and answers the same from its ledger
                self._stage.words.pop(client, None)
            if unit.step:
                self.bundle.only_alpha(self.unit_of[g])

    def _has_alpha(self, name: str, g: int) -> bool:
        """Whether a client knows α of a group, or can be given it."""
        unit = self.units[self.unit_of[g]]
        return (name, g) not in self.bare or unit.step == 0 or self._alpha_is_current(g)

    def _backup_wish(self, name: str, available: Sequence[str]) -> dict[str, Any]:
        """Which groups' α a client is to send encrypted, for safekeeping."""
        wish = []
        for g in self.alignment.client_groups(name):
            unit = self.units[self.unit_of[g]]
            if not unit.step or self._alpha_is_current(g):
                continue
            age = unit.step - unit.alphas.get(g, (0, []))[0]
            if age >= self.strategy.backup_every and self._donor(g, available) == name:
                wish.append(g)
        self._wished[name] = wish
        return {"backup": wish}

    def _donor(self, g: int, available: Sequence[str]) -> str | None:
        """The holder to ask for α of a group."""
        for name in self.alignment.groups[g].holders:
            if name in available and (name, g) not in self.bare:
                return name
        return None

    def _keep_alphas(self, groups: list[int], parts: list[Blobs]) -> None:
        for g, part in zip(groups, parts, strict=True):
            if add_shares(self._cipher, {"": part})[0] is None:
                continue  # it arrived spoilt, and would be of no use to anybody
            unit = self.units[self.unit_of[g]]
            unit.alphas[g] = (unit.step, part)
            if all(self._alpha_is_current(other) for other in unit.groups):
                v, b = self.bundle.contribution(self.unit_of[g])
                unit.keep_backup((dict(unit.alphas), v, b, unit.chain))

    def _heal(self, available: Sequence[str]) -> None:
        """Get α for those who lost it from others who hold it, or go back a few steps.

        An extra wave, and only after a loss.
        """
        self._unhealed = set()
        wanted: dict[str, list[int]] = {}
        for g in sorted({g for _, g in self.bare}):
            unit = self.units[self.unit_of[g]]
            if unit.step == 0 or self._alpha_is_current(g):
                continue
            holders = self.alignment.groups[g].holders
            donor = self._donor(g, available)
            if donor is not None:
                wanted.setdefault(donor, []).append(g)
            elif all((name, g) in self.bare for name in holders):
                self._go_back(self.unit_of[g])

        def entries(name: str) -> dict[str, Any]:
            self._wished[name] = wanted[name]
            config = {**self._extra, **self._instructions(name)}
            return {**config, "backup": wanted[name]}

        def take(answer: Answer) -> None:
            groups = wanted[answer.client]
            counts = [self._blocks(g) for g in groups]
            parts = split_blobs(read_blobs(answer.arrays), counts)
            self._keep_alphas(groups, parts)

        if wanted:
            self._ask("train.backup", entries, list(wanted), take)
        self._unhealed = {
            (name, g) for name, g in self.bare if not self._has_alpha(name, g)
        }

    def _go_back(self, u: int) -> None:
        """All holders of a unit's group lost α: back to the last backup of the unit."""
        unit = self.units[u]
        none: tuple[Any, None, None, bytes] = {}, None, None, b""
        alphas, v, b, chain = unit.backups[0] if unit.backups else none
        log(WARNING, "every holder lost its state: a group goes back to its backup")
        for g in unit.groups:
            # the others of the unit go back too
            self.bare |= {(n, g) for n in self.alignment.groups[g].holders}
        if v is None:
            classes, p = self.strategy.classes, len(self.alignment.feature_names)
            v, b = np.zeros((classes, p)), np.zeros(classes)
            unit.step = 0
            unit.alphas.clear()
        else:
            # the ciphertexts keep the step that they are labelled with
            unit.alphas = dict(alphas)
            unit.step = next(iter(alphas.values()))[0]
        unit.mixture, unit.tag = None, secrets.token_bytes(len(unit.tag))
        unit.chain = chain
        # clients know α of a step by this number, whichever way it was come to
        number = unit.step * (1 + self._count(unit.groups[0]))
        self.bundle.only_alpha(u, v, b, number if self.strategy.secure_sum else None)
        self.w = self.bundle.w
        self.version += 1
        self._stage = None
        unit.begin(self.w, self.version)

    def _drop_backup(self, name: str, g: int) -> bool:
        """Whether what a client refused was a backup of α; if so, it is used no more.

        A ciphertext that was damaged on its way here is seen only by those that open
        it. The backup before takes its place.
        """
        unit = self.units[self.unit_of[g]]
        if (name, g) not in self.bare or g not in unit.alphas or not unit.step:
            return False
        log(WARNING, "client %s refused a backup of group %d: it is damaged", name, g)
        bad = unit.alphas.pop(g)
        unit.backups = [b for b in unit.backups if b[0].get(g) != bad]
        return True
