"""The wave in which only sums over all clients travel (``secure_sum``).

Each client hides its v_k and its sums of losses under masks that cancel in the sum over
all of them (:mod:`fedtrellis.encryption.masks`). Masks depend on a nonce of every
client and on what every client is asked, so all of that is settled when the wave
begins: its **stage**. Whoever is away is waited for; a sum of fewer is never made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtrellis.dual.agreement import second_holder
from fedtrellis.dual.questions import inputs_digest, query_of
from fedtrellis.encryption import RefusedError
from fedtrellis.encryption.masks import from_words, mask_tag, whole_number
from fedtrellis.server.answers import Answer
from fedtrellis.wire.arrays import FloatArray

from ..hybrid import ROWS
from .lost_states import LostStates
from .steps import read_blobs, split_blobs
from .units import Stage

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["MaskedSums", "WrongReportError"]

# How far the sums of two holders may lie apart: both have computed the same numbers.
_SAME = 1e-9


class WrongReportError(RuntimeError):
    """What clients reported cannot be: one of those that are named lies, or errs."""


class MaskedSums(LostStates):
    """Sums over all clients that nobody can take apart."""

    def __init__(self, strategy: HyFDCA) -> None:
        super().__init__(strategy)
        # another holder than the reporter, where there is one
        self._second = {
            g: second_holder(group.holders)
            for g, group in enumerate(self.alignment.groups)
        }

    def _entries_of(self, name: str) -> dict[str, Any]:
        """What a client is asked; it does not depend on what happens meanwhile."""
        groups = self.alignment.client_groups(name)
        local = [g for g in groups if not self.alignment.groups[g].shared]
        vectors, rows = self._snapshots(local)
        (unit,) = self.units
        config = {
            **self._instructions(name),
            "propose": groups,
            "local": local,
            "rows": rows,
            "versions": [unit.version] * len(groups),
            "query": query_of(self._marks(unit)),
            "report": [g for g in groups if self._reporter(g) == name],
            "second-report": [g for g in groups if self._second[g] == name],
        }
        for g in groups:
            if g in unit.scores:
                config[f"scores/{g}"] = unit.scores[g]
        if vectors:
            config[ROWS] = self.strategy.own(name, *vectors)
        return config

    def _begun(self) -> Stage:
        """The stage, started if there is none."""
        if self._stage is None:
            inputs = []
            for name in self.strategy.agreement.names:
                config = self._entries_of(name)
                weights = config.get(ROWS, np.zeros((1, 0)))
                inputs.append(inputs_digest(config, weights))
            nonces = [
                self.strategy.nonces[name] for name in self.strategy.agreement.names
            ]
            run = self.strategy.agreement.digest
            tag = mask_tag(run, "propose", nonces, inputs)
            self._stage = Stage(nonces, inputs, tag)
        return self._stage

    def _propose_hidden(self, available: Sequence[str]) -> set[str]:
        """Ask for the terms that are missing, once all inner products are there."""
        (unit,) = self.units
        taken: set[str] = set()
        for attempt in range(1 + self.strategy.retries):
            if attempt and any(not self._has_alpha(*one) for one in self.bare):
                self._heal(available)  # somebody turned out to have lost its state
            if not all(self._ready(g) for g in unit.groups):
                break
            stage = self._begun()
            missing = [
                name
                for name in available
                if name not in stage.words
                and not any((name, g) in self._unhealed for g in unit.groups)
            ]
            if not missing:
                break
            taken |= self._ask_terms(stage, missing, available)
        return taken

    def _ask_terms(
        self, stage: Stage, missing: Sequence[str], available: Sequence[str]
    ) -> set[str]:
        asked: dict[str, list[int]] = {}

        def entries(name: str) -> dict[str, Any]:
            config = {**self._extra, **self._entries_of(name)}
            config |= self._backup_wish(name, available)
            config |= {"nonces": stage.nonces, "inputs": stage.inputs}
            # one that turned out to have lost its state may have to wait
            if not all(self._has_alpha(name, g) for g in config["propose"]):
                config["propose"] = []
            asked[name] = config["propose"]
            return config

        def take(answer: Answer) -> None:
            if asked[answer.client]:
                self._take_term(answer, stage)
            else:
                self._take_backups(answer)

        return self._asked_for_proposals(list(missing), entries, take, attempts=1)

    def _asked_for_proposals(
        self,
        clients: Sequence[str],
        entries: Callable[[str], Mapping[str, Any]],
        take: Callable[[Answer], None],
        attempts: int | None = None,
    ) -> set[str]:
        """Ask, and see to what clients refused: what they were sent does not add up."""
        rejected = self.strategy.conversation.traffic.rejected
        before = len(rejected)
        taken = self._ask("train.propose", entries, clients, take, attempts)
        for name, reason in rejected[before:]:
            if reason.refusal == RefusedError.code and name in clients:
                self._refused(name)
        return taken

    def _refused(self, name: str) -> None:
        """A client was sent ciphertexts that are not what they should be."""
        for g in self.alignment.client_groups(name):
            if not self._drop_backup(name, g):
                self.units[self.unit_of[g]].begin(self.w, self.version)
                self._stage = None

    def _take_term(self, answer: Answer, stage: Stage) -> None:
        name = answer.client
        arrays = list(answer.arrays)
        wish = self._wished.get(name, [])
        if not arrays or arrays[0].dtype != np.uint64:
            raise ValueError("the answer does not begin with words of 64 bits")
        words, blobs = arrays[0], read_blobs(arrays[1:])
        if not blobs or len(blobs[0]) != len(stage.nonces[0]):
            raise ValueError("the answer has no nonce")
        if not len(words):
            # its nonce was used up in an answer that was lost: all over again
            self.strategy.nonces[name] = blobs[0]
            self._stage = None
            raise ValueError("its nonce had been used; the wave begins again")
        expected = self._size_of(name)
        if words.shape != (expected,):
            raise ValueError(
                f"the answer has {words.shape} words, expected ({expected},)"
            )
        backups = split_blobs(blobs[1:], [self._blocks(g) for g in wish])
        # everything is checked before anything is kept
        self.strategy.nonces[name] = blobs[0]
        stage.words[name] = words
        for g in self.alignment.client_groups(name):
            self.bare.discard((name, g))
        self._keep_alphas(wish, backups)
        self._used(name)

    def _take_backups(self, answer: Answer) -> None:
        """A client that has to wait has taken where it stands, and may send α."""
        wish = self._wished.get(answer.client, [])
        blobs = read_blobs(answer.arrays)
        self._keep_alphas(wish, split_blobs(blobs, [self._blocks(g) for g in wish]))
        self._used(answer.client)

    def _numbers(self) -> int:
        """C R: how many sums a report has, see the clients' ``_propose``."""
        return self.strategy.classes * (3 + 2 * len(self._kinds(shared=True)))

    def _size_of(self, name: str) -> int:
        count = self.strategy.classes * len(self._kinds(shared=True))
        return count * len(self.alignment.columns[name]) + 4 * self._numbers()

    def _complete_sum(self) -> tuple[FloatArray, FloatArray] | None:
        """V of the proposals, (c C, p), and the C R sums, once all have answered.

        Raises
        ------
        WrongReportError
            The sums of the first and of the second holders differ, or do not belong
            to V.
        """
        stage = self._stage
        if stage is None or set(stage.words) != set(self.strategy.clients):
            return None
        count, R = len(self._kinds(shared=True)), self._numbers()
        count *= self.strategy.classes
        p = len(self.alignment.feature_names)
        total = np.zeros((count, p), dtype=np.uint64)
        ends = np.zeros(4 * R, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for name, words in stage.words.items():
                columns = self.alignment.columns[name]
                rows = words[: -4 * R].reshape(count, len(columns))
                total[:, columns] += rows
                ends += words[-4 * R :]
        V = from_words(total)
        first, second = whole_number(ends[: 2 * R]), whole_number(ends[2 * R :])
        self._check_reports(V, first, second)
        return V, first

    def _check_reports(
        self, V: FloatArray, first: FloatArray, second: FloatArray
    ) -> None:
        """Two holders' sums are one, and V belongs to them.

        With z_i = x_iᵀ w, Σ a_i z_i = λN vᵀw for every proposal a, and for α.
        """
        scale = np.maximum(np.abs(first), np.abs(second)) + self.alignment.num_samples
        if not (np.abs(first - second) <= _SAME * scale).all():
            names = sorted({*map(self._reporter, self._second), *self._second.values()})
            raise WrongReportError(
                "the sums of losses of two sets of holders differ, by up to "
                f"{np.abs(first - second).max():.3g}: one of client {', '.join(names)} "
                "reports what is not so"
            )
        (unit,) = self.units
        if self.strategy.noisy or self.strategy.slots == "chosen":
            return  # v is not exact; z is not known of all samples
        C = self.strategy.classes
        assert unit.snapshot is not None
        λN = self.strategy.regularization * self.alignment.num_samples
        alphas, _ = self.bundle.contribution(0)
        for c, alpha in enumerate(alphas):
            w, v = np.atleast_2d(unit.snapshot)[c], np.vstack([alpha, V[c::C]])
            ours, theirs = λN * (v @ w), first.reshape(C, -1)[c, -len(v) :]
            size = λN * (np.abs(v) @ np.abs(w)) + self.alignment.num_samples
            if not (np.abs(ours - theirs) <= _SAME * size).all():
                raise WrongReportError(
                    "the sums over all clients contradict their inner products, by up "
                    f"to {np.abs(ours - theirs).max():.3g}: a client reports what is "
                    "not so"
                )
