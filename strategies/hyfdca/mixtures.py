"""HyFDCA's iteration with the steps ``bundle`` and ``line-search``.

Samples that move together make a **unit**: a group, or with secure sums all of them. A
unit goes through its stages at its own pace, and each iteration takes it as far as the
clients that are there allow:

    collect   its holders send enc(x_{k,i}ᵀ w_k) for one w, the unit's snapshot;
    propose   they are sent the sum, and send v_k of their proposals: with secure sums
              under masks that cancel in the sum over all clients.

When a unit is through, its proposals go into the server's bundle, and the search for
the best mixture is exact whatever w has become meanwhile. So a sample moves only when
all its holders have taken part, though not all in one iteration, D never falls, and
w = w(α) holds at every moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtrellis.dual.group_steps import next_chain
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import identity_order

from ..hybrid import ROWS
from .masked_sums import MaskedSums, WrongReportError
from .steps import read_blobs, split_blobs
from .units import Unit

__all__ = ["MixtureSteps", "WrongReportError"]

# A gap that is this far below 0, against P, is no rounding.
_GAP = 1e-9


class MixtureSteps(MaskedSums):
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
        self._begin_units()
        used = self._collect(available)
        self._heal(available)
        if self.strategy.secure_sum:
            used |= self._propose_hidden(available)
        else:
            used |= self._propose(available)
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
                **self._asked_weights(),
                "versions": [self.units[self.unit_of[g]].version for g in groups],
                "rows": rows,
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

    def _asked_weights(self) -> dict[str, Any]:
        """With secure sums, digests of what every member is sent."""
        if not self.strategy.secure_sum:
            return {}
        return {"weights": self._marks(self.units[0])}

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
            if wanted:
                missing[name] = wanted
        if not missing:
            return set()
        asked: dict[str, list[int]] = {}

        def entries(name: str) -> dict[str, Any]:
            # one that turned out to have lost its state may have to wait
            groups = [g for g in missing[name] if self._has_alpha(name, g)]
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
                "versions": [self.units[self.unit_of[g]].version for g in groups],
                "report": [g for g in groups if self._reporter(g) == name],
                "second-report": [],
            }
            if vectors:
                config[ROWS] = self.strategy.own(name, *vectors)
            for g in groups:
                unit = self.units[self.unit_of[g]]
                if g in unit.scores:
                    config[f"scores/{g}"] = unit.scores[g]
            return config

        def take(answer: Answer) -> None:
            self._take_proposals(answer, asked[answer.client])

        return self._asked_for_proposals(list(missing), entries, take)

    def _take_proposals(self, answer: Answer, groups: list[int]) -> None:
        """V of the proposals, and the sums of those groups that this client reports."""
        name = answer.client
        p_k = len(self.alignment.columns[name])
        arrays, C = list(answer.arrays), self.strategy.classes
        counts = {g: self._count(g) for g in groups}
        # everything is checked before anything is kept
        found: dict[int, FloatArray] = {}
        for g in groups:
            array = arrays.pop(0) if arrays else np.empty(0)
            if array.shape != (C * counts[g], p_k) or array.dtype != np.float64:
                raise ValueError(
                    f"the answer has shape {array.shape} and dtype {array.dtype}, "
                    f"expected {(C * counts[g], p_k)} and float64"
                )
            found[g] = array
        blobs = read_blobs(arrays)
        wish = self._wished.get(name, [])
        backups = split_blobs(blobs, [self._blocks(g) for g in wish])
        report = [g for g in groups if self._reporter(g) == name]
        lengths = [C * (2 + counts[g]) for g in report]
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
        self._keep_alphas(wish, backups)
        self._used(name)

    def _search(self) -> dict[str, float]:
        """Put the complete units' proposals into the bundle, and move."""
        found = self._found()
        complete = list(found)
        metrics: dict[str, float] = {"moved-groups": 0.0}
        if not complete:
            return metrics
        N, C = self.alignment.num_samples, self.strategy.classes
        proposals = {}
        for u in complete:
            V, report = found[u]
            by_class = report.reshape(C, -1)
            self.held.note(u, self.units[u].version, by_class[:, 0])
            # b of the current α, exactly, in the place of the mixture's bound
            self.bundle.set_alpha_value(u, -by_class[:, 1] / N)
            # of each class the same proposals: shape (C, c, p)
            own = np.ascontiguousarray(V.reshape(-1, C, V.shape[1]).swapaxes(0, 1))
            proposals[u] = (own, -by_class[:, 2 : 2 + own.shape[1]] / N)
        λ = self.strategy.regularization
        self.duals = self.bundle.dual_values()
        metrics["dual"] = float(self.duals.sum())
        if len(self.held.losses) == len(self.units) and self._certifies:
            # P(w) = λ g(w) + (1/N) Σ l_i, all at the one w that was held
            w, losses = self.held.w, self.held.total(C)
            penalty = self.strategy.penalty
            sizes = np.array([penalty.value(own) for own in np.atleast_2d(w)])
            self.primals = λ * sizes + losses / N
            metrics["primal"] = float(self.primals.sum())
            self.certified, self.lag = w, self.version - self.held.version
            for primal, dual in zip(self.primals, self.duals, strict=True):
                self._check_gap(float(primal), float(dual))
        mixtures = self.bundle.search(complete, proposals)
        for u, mixture in mixtures.items():
            unit = self.units[u]
            unit.mixture, unit.step, unit.snapshot = mixture, unit.step + 1, None
            if self._stage is not None:
                unit.tag = self._stage.tag
                ids, weights, keep = mixture.ids, mixture.weights, mixture.keep
                unit.chain = next_chain(
                    unit.chain,
                    unit.tag,
                    unit.step,
                    ids.tolist(),
                    weights.reshape(-1).tolist(),
                    keep.tolist(),
                )
        self._stage = None
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

    def _check_gap(self, primal: float, dual: float) -> None:
        """P ≥ D for any w and α: less than that is a wrong report, no convergence."""
        # noise on v_k makes D what it is not
        if self.strategy.noisy or primal - dual >= -_GAP * max(1.0, abs(primal)):
            return
        names = sorted({self._reporter(g) for g in range(len(self.alignment.groups))})
        raise WrongReportError(
            f"the duality gap is {primal - dual:.3g}, and cannot be below 0: one of "
            f"client {', '.join(names)} reports sums that are not so"
        )

    def _found(self) -> dict[int, tuple[FloatArray, FloatArray]]:
        """V of the proposals, (c C, p), and their sums, of the complete units."""
        if self.strategy.secure_sum:
            whole = self._complete_sum()
            return {} if whole is None else {0: whole}
        return {
            u: self._assemble(unit)
            for u, unit in enumerate(self.units)
            if self._answered(unit)
        }

    def _assemble(self, unit: Unit) -> tuple[FloatArray, FloatArray]:
        """The same of one unit, from what its holders sent."""
        count = self.strategy.classes * self._count(unit.groups[0])
        V = np.zeros((count, len(self.alignment.feature_names)))
        for (name, _), v in unit.answers.items():
            V[:, self.alignment.columns[name]] += v
        return V, np.sum([unit.reports[g] for g in unit.groups], axis=0)
