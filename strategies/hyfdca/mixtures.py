"""HyFDCA's iteration with the steps ``bundle`` and ``line-search``.

Each iteration takes the units (:mod:`.units`) as far as the clients that are there
allow:

    collect   a unit's holders send enc(x_{k,i}ᵀ w_k) for one w, the unit's snapshot;
    propose   they are sent the sum, and send v_k of their proposals.

When a unit is through, its proposals go into the server's bundle, and the search for
the best mixture is exact whatever w has become meanwhile. So a sample moves only when
all its holders have taken part, though not all in one iteration, D never falls, and
w = w(α) holds at every moment.

With ``secure_sum`` each client hides its v_k and its sums of losses under masks that
cancel in the sum over all of them. All groups are one unit then, asked in one
*attempt*; whoever is away is waited for, and a sum of fewer is never made.

Clients that lost what they remembered come to α again: the server keeps backups of
enc(α), which it cannot read, and asks another holder of the group for one where its own
is too old. If no holder has α any more, the unit goes back to its last backup.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import GroupStep
from fedtrellis.dual.bundle import DualBundle
from fedtrellis.dual.weights import (
    BITS,
    OPEN_SUMS,
    SUMS,
    of_parts,
    report_exponents,
)
from fedtrellis.encryption import EncryptionError, RefusedError
from fedtrellis.encryption.block_sum import ATTEMPT_BYTES
from fedtrellis.encryption.fixed_point import Coding, RangeError
from fedtrellis.server.conversation import Answer
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.exchange import RunError
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import identity_order

from ..hybrid import ROWS, Blobs
from .settings import HyFDCASettings
from .steps import Backup, Steps, Unit, add_shares, memory_for, total_over, units_of

# A gap that is this far below 0, against P, is no rounding.
_GAP = 1e-9
# By how many bits sums get coarser where a client's part of one is too large.
_COARSER = 8
# How far the sums of two holders may lie apart: both have computed the same numbers.
_SAME = 1e-9


class WrongReportError(RunError):
    """What clients reported cannot be: one of those that are named lies, or errs."""


class MixtureSteps(Steps):
    """The waves of an iteration, and the search; see the module."""

    KEPT = ("w", "version", "bare", "bundle", "units")

    def __init__(self, strategy: HyFDCASettings, w: FloatArray) -> None:
        super().__init__(strategy)
        self.units = units_of(strategy)
        self.unit_of = {g: u for u, unit in enumerate(self.units) for g in unit.groups}
        self.bundle = DualBundle(
            len(self.alignment.feature_names),
            len(self.units),
            strategy.regularization,
            memory_for(strategy, len(self.units)),
            # the certificate cannot come closer than the search is exact
            min(1e-12, max(1e-3 * strategy.tolerance or 1e-12, 2e-16)),
            strategy.penalty,
            strategy.classes,
        )
        # the first proposals are made at the weights that the run was given
        self.w, self.certified, self.version = w, w, 0
        # the w at which every unit reports its losses once, so that P is known of it;
        # and Σ l_i, shape (C,), of the units that have
        self.held_w, self.held_version = w, 0
        self.losses: dict[int, FloatArray] = {}
        # clients and groups of which they lost what they remembered
        self.bare: set[tuple[str, int]] = set()
        # of hidden sums
        self.bits = BITS
        # of whose α each client was asked a backup in this wave
        self.wished: dict[str, list[int]] = {}
        holders = [group.holders for group in self.alignment.groups]
        # who reports a group's sums, and another where there is one
        self._reporter = [own[0] for own in holders]
        self._second = [own[min(1, len(own) - 1)] for own in holders]

    def of(self, g: int) -> Unit:
        """A group's unit."""
        return self.units[self.unit_of[g]]

    def iterate(self, available: Sequence[str]) -> tuple[set[str], dict[str, float]]:
        """One iteration; returns whose answers were used, and the metrics."""
        self.begin()
        used = self._collect(available) | self._propose(available)
        return used, self._search()

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

    # ------------------------------------------------------------------- inner products

    def _collect(self, available: Sequence[str]) -> set[str]:
        """Inner products of the units' snapshots, for the groups that are shared.

        Whether a ciphertext is whole is seen when it is added to the others: those
        that are not are asked for again at once, as if they had been lost.
        """
        of, taken = self.of, set[str]()
        asked: Sequence[str] = available
        for _ in range(1 + self.strategy.retries):
            missing = {}
            for name in asked:
                shared = self._shared_groups(name)
                groups = [g for g in shared if g not in of(g).scores]
                if groups := [g for g in groups if (name, g) not in of(g).products]:
                    missing[name] = groups
            if not missing:
                break
            taken |= self._ask_products(missing, available)
            asked = sorted(self._add_complete_products(), key=identity_order)
        return taken

    def _ask_products(
        self, missing: dict[str, list[int]], available: Sequence[str]
    ) -> set[str]:

        def entries(name: str) -> dict[str, Any]:
            groups = missing[name]
            vectors, rows = self.snapshots(groups)
            return {
                **self.extra,
                **self.instructions(name),
                **self.backup_wish(name, available),
                ROWS: self.strategy.own(name, *vectors),
                "products": groups,
                "versions": [self.of(g).version for g in groups],
                "rows": rows,
            }

        def take(answer: Answer) -> None:
            name = answer.client
            groups, wish = missing[name], self.wished.get(name, [])
            parts = self._read(answer.arrays, [*groups, *wish])
            for g, part in zip(groups, parts, strict=False):
                self.of(g).products[name, g] = part
            self.keep_alphas(wish, parts[len(groups) :])

        return self.strategy.ask("train.inner_product", entries, take, list(missing))

    def _add_complete_products(self) -> set[str]:
        """Add up what is complete; returns whose products have to be had again."""
        again: set[str] = set()
        for unit in self.units:
            for g in unit.groups:
                holders = self.alignment.groups[g].holders
                own = {
                    k: unit.products[k, g] for k in holders if (k, g) in unit.products
                }
                if g in unit.scores or len(own) < len(holders):
                    continue
                # enc(x_iᵀ w) = Σ over B_i of enc(x_{k,i}ᵀ w_k)
                total, spoilt = add_shares(self.strategy, own)
                if total is not None:
                    unit.scores[g] = total
                for name in spoilt or holders:
                    del unit.products[name, g]
                again |= spoilt
        return again

    def _heal(self, available: Sequence[str]) -> None:
        """After a loss get α from others who hold it, or go back a few steps."""
        wanted = self.lost(available)

        def entries(name: str) -> dict[str, Any]:
            return {**self.extra, **self.instructions(name), "backup": wanted[name]}

        def take(answer: Answer) -> None:
            groups = wanted[answer.client]
            self.keep_alphas(groups, self._read(answer.arrays, groups))

        if wanted:
            self.strategy.ask("train.backup", entries, take, list(wanted))

    # ------------------------------------------------------------------------ proposals

    def _propose(self, available: Sequence[str]) -> set[str]:
        """Proposals of the groups whose inner products are known."""
        # between two waves of hidden sums α is brought to those who turn out to need it
        tries, taken = 1 + self.strategy.retries, set[str]()
        waves = 1 if self.strategy.secure_sum else tries
        for _ in range(tries // waves):
            self._heal(available)
            missing = self._missing_answers(available)
            if not missing:
                break
            taken |= self._ask_proposals(missing, available, waves)
        return taken

    def _missing_answers(self, available: Sequence[str]) -> dict[str, list[int]]:
        """The groups that clients can propose for, and have not yet."""
        groups, secure = self.alignment.groups, self.strategy.secure_sum
        ready = {
            g for g in self.unit_of if g in self.of(g).scores or not groups[g].shared
        }
        if secure and len(ready) < len(groups):
            return {}  # all move together
        missing = {}
        for name in available:
            own = self.alignment.client_groups(name)
            open_ = [
                g
                for g in own
                if g in ready
                and (name, g) not in self.of(g).answers
                and self.has_alpha(name, g)
            ]
            if open_ and (
                not secure or (open_ == own and name not in self.units[0].words)
            ):
                missing[name] = open_
        return missing

    def _ask_proposals(
        self, missing: dict[str, list[int]], available: Sequence[str], attempts: int
    ) -> set[str]:
        secure = self.strategy.secure_sum
        asked: dict[str, list[int]] = {}
        if secure:
            unit = self.units[0]
            unit.attempt = unit.attempt or secrets.token_bytes(ATTEMPT_BYTES)

        def entries(name: str) -> dict[str, Any]:
            # one that turned out to have lost its state may have to wait
            groups = [g for g in missing[name] if self.has_alpha(name, g)]
            if secure and groups != missing[name]:
                groups = []
            asked[name] = groups
            local = [g for g in groups if not self.alignment.groups[g].shared]
            vectors, rows = self.snapshots(local)
            config: dict[str, Any] = {
                **self.extra,
                **self.instructions(name),
                **self.backup_wish(name, available),
                "propose": groups,
                "local": local,
                "rows": rows,
                "versions": [self.of(g).version for g in groups],
                "report": [g for g in groups if self._reporter[g] == name],
            }
            if secure:
                config["second-report"] = [g for g in groups if self._second[g] == name]
                config["attempt"] = self.units[0].attempt
            if self.bits < BITS:
                config["bits"] = self.bits
            if vectors:
                config[ROWS] = self.strategy.own(name, *vectors)
            for g in groups:
                if g in self.of(g).scores:
                    config[f"scores/{g}"] = self.of(g).scores[g]
            return config

        def take(answer: Answer) -> None:
            name, arrays = answer.client, list(answer.arrays)
            groups, wish = asked[name], self.wished.get(name, [])
            count = 1 if secure and groups else len(groups)
            found, rest = arrays[:count], arrays[count:]
            # everything is checked before anything is kept
            backups = self._read(rest, wish)
            if not secure:
                self._take_vectors(answer, groups, found)
            for words in found if secure else []:
                p_k = len(self.alignment.columns[name])
                size = self.strategy.classes * (p_k + 4 * SUMS) + 1
                _check((str(words.dtype), words.shape), ("uint64", (size,)), "words")
                self.units[0].words[name] = words
            for g in groups:
                self.bare.discard((name, g))
            self.keep_alphas(wish, backups)
            self._used(name)

        rejected = self.strategy.conversation.traffic.rejected
        before = len(rejected)
        taken = self.strategy.ask(
            "train.propose", entries, take, list(missing), attempts
        )
        refusals = rejected[before:]
        for name, reason in refusals:
            if reason.refusal == RefusedError.code and name in missing:
                self.refused(name)
        if any(reason.refusal == RangeError.code for _, reason in refusals):
            # labels of 10^5 make such sums: everybody is asked for coarser ones
            self.bits -= _COARSER
            self.units[0].attempt, self.units[0].words = b"", {}
            again = self._missing_answers(available)
            return self._ask_proposals(again, available, attempts) if again else set()
        return taken

    def _take_vectors(
        self, answer: Answer, groups: Sequence[int], arrays: Sequence[NDArray[Any]]
    ) -> None:
        """V of the proposals, and the sums of those groups that this client reports."""
        name, C = answer.client, self.strategy.classes
        shapes = [(C, len(self.alignment.columns[name]))] * len(groups)
        _check([a.shape for a in arrays], shapes, "arrays of shapes")
        _check([str(a.dtype) for a in arrays], ["float64"] * len(groups), "dtypes")
        report = [g for g in groups if self._reporter[g] == name]
        _check(len(answer.numbers), C * OPEN_SUMS * len(report), "sums")
        for g, array in zip(groups, arrays, strict=True):
            self.of(g).answers[name, g] = array
        sums = answer.numbers.reshape(len(report), C * OPEN_SUMS)
        for g, own in zip(report, sums, strict=True):
            self.of(g).reports[g] = own

    # ----------------------------------------------------------------------- the search

    def _search(self) -> dict[str, float]:
        """Put the complete units' proposals into the bundle, and move."""
        bundle = self.bundle
        found = self._found()
        metrics: dict[str, float] = {"moved-groups": 0.0}
        if not found:
            return metrics
        N, C = self.alignment.num_samples, self.strategy.classes
        λ, penalty = self.strategy.regularization, self.strategy.penalty
        proposals = {}
        for u, (V, report) in found.items():
            by_class = report.reshape(C, -1)
            if self.units[u].version == self.held_version:
                self.losses[u] = by_class[:, 0]
            # b of the current α, exactly, instead of the mixture's bound
            bundle.set_alpha_value(u, -by_class[:, 1] / N)
            # of each class one proposal, (C, 1, p) and (C, 1)
            proposals[u] = V[:, None], -by_class[:, 2:3] / N
        self.duals = bundle.dual_values()
        metrics["dual"] = float(self.duals.sum())
        if len(self.losses) == len(self.units):
            # P(w) = λ g(w) + (1/N) Σ l_i, all at the one w that was held
            w = self.held_w
            losses = sum((self.losses[u] for u in sorted(self.losses)), np.zeros(C))
            sizes = np.array([penalty.value(own) for own in np.atleast_2d(w)])
            self.primals = λ * sizes + losses / N
            metrics["primal"] = float(self.primals.sum())
            self.certified, self.lag = w, self.version - self.held_version
            # P ≥ D for any w and α, but for v's rounding and noise; else a lie
            gaps = self.primals - self.duals
            rounding = np.ldexp(4.0 * len(self.strategy.clients), -self.bits)
            slack = _GAP * np.maximum(1.0, np.abs(self.primals))
            right = gaps >= -slack - λ * rounding * np.abs(w).sum()
            if not (right.all() or self.strategy.noisy):
                raise WrongReportError(
                    f"the duality gap is {gaps.min():.3g}, and cannot be below 0: one "
                    f"of client {', '.join(sorted(set(self._reporter)))} reports sums "
                    "that are not so"
                )
        for u, mixture in bundle.search(list(found), proposals).items():
            unit = self.units[u]
            unit.mixture, unit.step, unit.snapshot = mixture, unit.step + 1, None
            unit.tag = unit.attempt
        self.w, self.version = bundle.w, self.version + 1
        metrics["dual-bound"] = float(bundle.dual_values().sum())
        moved = sum(len(self.units[u].groups) for u in found)
        metrics["moved-groups"] = float(moved)
        return {name: value for name, value in metrics.items() if np.isfinite(value)}

    def _found(self) -> dict[int, tuple[FloatArray, FloatArray]]:
        """V of the proposals, (C, p), and their sums, of the complete units."""
        units, groups = self.units, self.alignment.groups
        if self.strategy.secure_sum:
            words = units[0].words
            complete = set(words) == set(self.strategy.clients)
            return {0: self._complete_sum(words)} if complete else {}
        found = {}
        for u, unit in enumerate(units):
            reported = all(g in unit.reports for g in unit.groups)
            holders = {(k, g) for g in unit.groups for k in groups[g].holders}
            if reported and holders <= unit.answers.keys():
                V = np.zeros((self.strategy.classes, len(self.alignment.feature_names)))
                for (name, _), v in unit.answers.items():
                    V[:, self.alignment.columns[name]] += v
                found[u] = V, np.sum([unit.reports[g] for g in unit.groups], axis=0)
        return found

    def _complete_sum(
        self, words: dict[str, NDArray[np.uint64]]
    ) -> tuple[FloatArray, FloatArray]:
        """V and C ``SUMS`` sums, in which the masks cancel."""
        try:
            total, ends = total_over(self.alignment, words, self.strategy.classes)
        except ValueError as error:
            raise WrongReportError(str(error)) from None
        V = Coding(self.bits).values(total)
        exponents = report_exponents(self.bits)
        first, second = of_parts(ends.reshape(2, 2, -1), exponents)
        self._check_reports(V, first, second)
        return V, first

    def _check_reports(
        self, V: FloatArray, first: FloatArray, second: FloatArray
    ) -> None:
        """Two holders' sums are one, and V belongs to them.

        With z_i = x_iᵀ w, Σ a_i z_i = λN vᵀw for every proposal a, and for α.
        """
        N, far = self.alignment.num_samples, np.abs(first - second)
        # of terms as large as the largest sums, in another order
        most = max(np.abs(first).max(), np.abs(second).max())
        if not (far <= _SAME * (most + N)).all():
            names = ", ".join(sorted({*self._reporter, *self._second}))
            raise WrongReportError(
                "the sums of losses of two sets of holders differ, by up to "
                f"{far.max():.3g}: one of client {names} reports what is not so"
            )
        if self.strategy.noisy:
            return  # v is not exact
        C, snapshot = self.strategy.classes, self.units[0].snapshot
        assert snapshot is not None
        λN = self.strategy.regularization * N
        rounding = np.ldexp(0.5 * len(self.strategy.clients), -self.bits)
        alphas, _ = self.bundle.contribution(0)
        for c, alpha in enumerate(alphas):
            w, v = np.atleast_2d(snapshot)[c], np.stack([alpha, V[c]])
            far = np.abs(λN * (v @ w) - first.reshape(C, -1)[c, -2:])
            allowed = _SAME * (λN * (np.abs(v) @ np.abs(w)) + N)
            if not (far <= allowed + λN * rounding * np.abs(w).sum()).all():
                raise WrongReportError(
                    "the sums over all clients contradict their inner products, by up "
                    f"to {far.max():.3g}: a client reports what is not so"
                )

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
        number = 2 * unit.step
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

    def load_state(self, state: dict[str, Any]) -> None:
        """Inverse of a checkpoint; a stage that was under way starts over."""
        vars(self.bundle).update(state.pop("bundle"))
        for unit, own in zip(self.units, state.pop("units"), strict=True):
            vars(unit).update(own)
            if unit.backups:
                unit.alphas = dict(unit.backups[0].alphas)
        super().load_state(state)


def _check(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        raise ValueError(f"the answer has {what} {found}, expected {expected}")
