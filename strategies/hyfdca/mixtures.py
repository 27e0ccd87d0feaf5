"""HyFDCA's iteration with the steps ``bundle`` and ``line-search``.

Samples that move together make a **unit**: a group, or with secure sums all of them. A
unit goes through its stages at its own pace, and each iteration takes it as far as the
clients that are there allow:

    collect   its holders send enc(x_{k,i}ᵀ w_k) for one w, the unit's snapshot;
    propose   they are sent the sum, and send v_k of their proposals;
    open      (secure sums) those who hold a feature decrypt the sum of the v_k.

When a unit is through, its proposals go into the server's bundle, and the search for
the best mixture is exact whatever w has become meanwhile. So a sample moves only when
all its holders have taken part, though not all in one iteration, D never falls, and
w = w(α) holds at every moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import identity_order

from ..hybrid import ROWS, Blobs
from .lost_states import LostStates
from .secure_sums import SecureSums
from .steps import read_blobs, split_blobs
from .units import Unit

__all__ = ["MixtureSteps"]


class MixtureSteps(LostStates, SecureSums):
    """The server's side of an iteration; see the module."""

    # ------------------------------------------------------------------- the iteration

    def iterate(
        self,
        conversation: Conversation,
        server_round: int,
        extra: Mapping[str, Any],
        available: Sequence[str],
        timeout: float,
    ) -> tuple[set[str], dict[str, float]]:
        """One iteration; returns whose answers were used, and the metrics."""
        self._begin(conversation, server_round, extra, timeout)
        for unit in self.units:
            if unit.snapshot is None:
                unit.begin(self.w, self.version)
        used = self._collect(available)
        self._heal(available)
        used |= self._propose(available)
        if self.strategy.secure_sum:
            used |= self._open(available)
        metrics = self._search()
        return used, metrics

    def _collect(self, available: Sequence[str]) -> set[str]:
        """Inner products of the units' snapshots, for the groups that are shared.

        Whether a ciphertext is whole is seen when it is added to the others: those
        that are not are asked for again at once, as if they had been lost.
        """
        taken: set[str] = set()
        asked: Sequence[str] = available
        for _ in range(1 + self.strategy.retries):
            missing = {name: self._missing_products(name) for name in asked}
            missing = {name: groups for name, groups in missing.items() if groups}
            if not missing:
                break
            taken |= self._ask_products(missing, available)
            asked = sorted(self._add_complete_products(), key=identity_order)
        return taken

    def _missing_products(self, name: str) -> list[int]:
        """The groups of which a client's inner products are not at hand."""
        missing = []
        for g in self._shared_groups(name):
            unit = self.units[self.unit_of[g]]
            if g not in unit.scores and (name, g) not in unit.products:
                missing.append(g)
        return missing

    def _ask_products(
        self, missing: Mapping[str, list[int]], available: Sequence[str]
    ) -> set[str]:
        def entries(name: str) -> dict[str, Any]:
            groups = missing[name]
            vectors, rows = self._snapshots(groups)
            return {
                **self._extra,
                **self._instructions(name),
                **self._backup_wish(name, available),
                ROWS: self.strategy.own(name, *vectors),
                "products": groups,
                "versions": [self.units[self.unit_of[g]].version for g in groups],
                "rows": rows,
                "slots": self.strategy.slots,
            }

        def take(answer: Answer) -> None:
            wish = self._wished.get(answer.client, [])
            groups = missing[answer.client]
            counts = [self._blocks(g) for g in [*groups, *wish]]
            parts = split_blobs(read_blobs(answer.arrays), counts)
            for g, part in zip(groups, parts[: len(groups)], strict=True):
                unit = self.units[self.unit_of[g]]
                unit.products[answer.client, g] = part
            self._keep_alphas(wish, parts[len(groups) :])

        return self._ask("train.inner_product", entries, list(missing), take)

    def _add_complete_products(self) -> set[str]:
        """Add up what is complete; returns whose products have to be had again."""
        again: set[str] = set()
        for unit in self.units:
            for g in unit.groups:
                holders = self.alignment.groups[g].holders
                if g not in unit.scores and all(
                    (name, g) in unit.products for name in holders
                ):
                    again |= self._add_products(unit, g, holders)
        return again

    def _add_products(self, unit: Unit, g: int, holders: Sequence[str]) -> set[str]:
        """enc(x_iᵀ w) = Σ over B_i of enc(x_{k,i}ᵀ w_k)."""
        shares = {name: unit.products[name, g] for name in holders}
        total, spoilt = self._add(shares)
        if total is not None:
            unit.scores[g] = total
        for name in spoilt or holders:
            del unit.products[name, g]
        return spoilt

    def _propose(self, available: Sequence[str]) -> set[str]:
        """Proposals of the groups whose inner products are known."""
        missing: dict[str, list[int]] = {}
        for name in available:
            wanted = [
                g
                for g in self.alignment.client_groups(name)
                if self._ready(g)
                and (name, g) not in self.units[self.unit_of[g]].answers
                and (name, g) not in self._unhealed
            ]
            if self._whole(name, wanted):
                missing[name] = wanted
        if not missing:
            return set()
        asked: dict[str, list[int]] = {}

        def entries(name: str) -> dict[str, Any]:
            # one that turned out to have lost its state may have to wait
            groups = [g for g in missing[name] if self._has_alpha(name, g)]
            groups = groups if self._whole(name, groups) else []
            asked[name] = groups
            local = [g for g in groups if not self.alignment.groups[g].shared]
            vectors, rows = self._snapshots(local)
            config = {
                **self._extra,
                **self._instructions(name),
                **self._backup_wish(name, available),
                "propose": groups,
                "local": local,
                "rows": rows,
                "proposals": self._kinds(shared=True),
                "local-proposals": self._kinds(shared=self.strategy.secure_sum),
                "versions": [self.units[self.unit_of[g]].version for g in groups],
                "local-passes": self.strategy.local_passes,
                "slots": self.strategy.slots,
                "report": [g for g in groups if self._reporter(g) == name],
            }
            if vectors:
                config[ROWS] = self.strategy.own(name, *vectors)
            for g in groups:
                unit = self.units[self.unit_of[g]]
                if g in unit.scores:
                    config[f"scores/{g}"] = unit.scores[g]
            if self.strategy.secure_sum:
                config |= self._opening_of(name)
            return config

        def take(answer: Answer) -> None:
            self._take_proposals(answer, asked[answer.client])

        before = len(self.strategy.conversation.traffic.rejected)
        taken = self._ask("train.propose", entries, list(missing), take)
        for name, reason in self.strategy.conversation.traffic.rejected[before:]:
            if "EncryptionError" in reason and name in missing:
                # what it was sent does not add up: these groups start over
                for g in missing[name]:
                    self.units[self.unit_of[g]].begin(self.w, self.version)
        return taken

    def _whole(self, name: str, groups: list[int]) -> bool:
        """Whether a client can propose for these: secure sums are over all it has."""
        if self.strategy.secure_sum:
            return groups == self.alignment.client_groups(name)
        return bool(groups)

    def _take_proposals(self, answer: Answer, groups: list[int]) -> None:
        """V of the proposals, and the sums of those groups that this client reports."""
        name = answer.client
        p_k = len(self.alignment.columns[name])
        arrays = list(answer.arrays)
        secure = self.strategy.secure_sum
        counts = {g: self._count(g) for g in groups}
        # everything is checked before anything is kept
        found: dict[int, FloatArray] = {}
        shares: dict[str, list[Blobs]] = {}
        if not secure:
            for g in groups:
                array = arrays.pop(0) if arrays else np.empty(0)
                if array.shape != (counts[g], p_k) or array.dtype != np.float64:
                    raise ValueError(
                        f"the answer has shape {array.shape} and dtype {array.dtype}, "
                        f"expected {(counts[g], p_k)} and float64"
                    )
                found[g] = array
        blobs = read_blobs(arrays)
        if secure:
            count = max(counts.values(), default=0)
            sizes = self._opening_sizes(name)
            per_opener = [n for n in sizes.values() for _ in range(count)]
            if len(blobs) < sum(per_opener):
                raise ValueError("the answer has too few ciphertexts")
            parts = split_blobs(blobs[: sum(per_opener)], per_opener)
            for i, opener in enumerate(sizes):
                shares[opener] = parts[i * count : (i + 1) * count]
            del blobs[: sum(per_opener)]
            found = {g: np.empty(0) for g in groups}
        wish = self._wished.get(name, [])
        backups = split_blobs(blobs, [self._blocks(g) for g in wish])
        report = [g for g in groups if self._reporter(g) == name]
        lengths = [2 + counts[g] for g in report]
        if len(answer.numbers) != sum(lengths):
            raise ValueError(
                f"the answer has {len(answer.numbers)} sums, expected {sum(lengths)}"
            )
        start = 0
        for g, length in zip(report, lengths, strict=True):
            unit = self.units[self.unit_of[g]]
            unit.reports[g] = answer.numbers[start : start + length]
            start += length
        for g, array in found.items():
            self.units[self.unit_of[g]].answers[name, g] = array
            self.bare.discard((name, g))
        if secure and groups:
            self.units[self.unit_of[groups[0]]].shares[name] = shares
        self._keep_alphas(wish, backups)
        self._used(name)

    def _search(self) -> dict[str, float]:
        """Put the complete units' proposals into the bundle, and move."""
        complete = [u for u, unit in enumerate(self.units) if self._complete(unit)]
        metrics: dict[str, float] = {"moved-groups": 0.0}
        if not complete:
            return metrics
        N = self.alignment.num_samples
        versions = {self.units[u].version for u in complete}
        losses = 0.0
        proposals = {}
        for u in complete:
            unit = self.units[u]
            report = np.sum([unit.reports[g] for g in unit.groups], axis=0)
            losses += report[0]
            # b of the current α, exactly, in the place of the mixture's bound
            self.bundle.set_alpha_value(u, -report[1] / N)
            proposals[u] = (self._assemble(unit), -report[2:] / N)
        λ = self.strategy.regularization
        everybody = len(complete) == len(self.units)
        if everybody and versions == {self.version} and self._certifies:
            # P(w) = (λ/2)‖w‖² + (1/N) Σ l_i, all at this iteration's w
            metrics["primal"] = 0.5 * λ * float(self.w @ self.w) + float(losses) / N
            self.certified = self.w
        dual = self.bundle.dual_value()
        metrics["dual"] = dual
        if "primal" in metrics:
            metrics["duality-gap"] = metrics["primal"] - dual
        mixtures = self.bundle.search(complete, proposals)
        for u, mixture in mixtures.items():
            unit = self.units[u]
            unit.mixture, unit.step, unit.snapshot = mixture, unit.step + 1, None
        self.w = self.bundle.w
        self.version += 1
        metrics["dual-bound"] = self.bundle.dual_value()
        metrics["moved-groups"] = float(
            sum(len(self.units[u].groups) for u in complete)
        )
        return metrics

    @property
    def _certifies(self) -> bool:
        # with only the drawn samples' inner products the losses of the rest are unknown
        return self.strategy.slots == "all" or self.strategy.local_fraction == 1.0

    def _assemble(self, unit: Unit) -> FloatArray:
        """V of a unit's proposals, from what its holders sent: shape (c, p)."""
        count = self._count(unit.groups[0])
        V = np.zeros((count, len(self.alignment.feature_names)))
        if self.strategy.secure_sum:
            for opener, values in unit.opened.items():
                V[:, self.openers[opener]] += values
        for (name, _), v in unit.answers.items():
            if v.size:
                V[:, self.alignment.columns[name]] += v
        return V
