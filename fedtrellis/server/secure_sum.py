"""The server's half of sums whose terms it does not see, in rounds of one wave.

What the clients do is in :mod:`fedtrellis.encryption.secure_sum`. A sum is over a whole
cohort or lost. So whoever does not answer is asked again, the same; where that is no
use the round is lost, with new directions or samples in the next one, and whoever was
silent sits out for a while. A sum over those who did answer is never asked for: its
difference from the whole one, which a late answer completes, would be one client's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import WARNING
from math import prod
from typing import Any

import numpy as np

from fedtrellis.encryption.masks import Words
from fedtrellis.encryption.secure_sum import LEAST_TERMS, Member, total_of
from fedtrellis.server.aggregation import Aggregation, Points
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation, ask_again, ask_everyone
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.flower_internals import log

__all__ = ["SecureSum"]

# How often a client that is silent is asked in one round
_ATTEMPTS = 3
_KEY_BYTES = 200
_NONCE_BYTES = 16
# Rounds that a client sits out at most
_LONGEST_REST = 64


class SecureSum(Aggregation):
    """Sums of what clients hide from the server.

    What a client is sent by :meth:`entries` makes it hide its vector under masks that
    cancel in the sum over the round's cohort
    (:class:`~fedtrellis.encryption.secure_sum.SumMember`); :meth:`take` checks what it
    sends, and :meth:`combine` adds. A method that admits it sends a vector whose mean
    is all that it needs, in the same units from every client.

    Raises
    ------
    SettingsError
        Before round 1: there are too few clients, or they do not agree on keys.
    TimeoutError
        One never answered.

    Examples
    --------
    >>> from fedtrellis import SecureSum
    >>> from fedtrellis.strategies import ZerothOrderSGD
    >>> strategy = ZerothOrderSGD(aggregation=SecureSum())
    >>> strategy.aggregator.seen_by
    'client'
    """

    name = "secure-sum"
    about = "masked sums over a round's clients, of which the server sees no term"
    seen_by = "client"
    no_resume = (
        "rounds after the checkpoint would be asked for again, of others perhaps, and "
        "the difference of two sums is what a client said; use initial-model"
    )
    # of a sum over fewer each client knows the others' part
    least = LEAST_TERMS

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Two waves in which the clients agree on keys."""
        clients = conversation.names
        # by client: silences in a row, and the last round that it sits out
        self._resting: dict[str, tuple[int, int]] = {}
        members: dict[str, Member] = {}

        def introduced(answer: Answer) -> None:
            members[answer.client] = _member(answer)
            conversation.note_version(answer)

        phase = "train.sum_keys"
        ask_everyone(conversation, phase, lambda name: {}, introduced, timeout, clients)
        agreed = [members[name] for name in clients]
        self._key = agreed[0].key
        agreement = {
            "members": [one.name for one in agreed],
            "member-keys": [one.key for one in agreed],
            "member-nonces": [one.nonce for one in agreed],
        }
        phase, take = "train.sum_agree", conversation.note_version
        ask_everyone(
            conversation, phase, lambda name: agreement, take, timeout, clients
        )

    def cohort(self, server_round: int, drawn: Sequence[str]) -> list[str]:
        """Whom of those drawn a round asks: nobody where a sum would show too much."""
        there = [
            name for name in drawn if self._resting.get(name, (0, 0))[1] < server_round
        ]
        if len(there) >= LEAST_TERMS:
            return there
        # those who were silent may be back
        return list(drawn) if len(drawn) >= LEAST_TERMS else []

    def entries(self, cohort: Sequence[str]) -> dict[str, Any]:
        """What each of a round's clients is sent."""
        return {"sum-cohort": list(cohort), "sum-key": self._key}

    def ask(
        self,
        conversation: Conversation,
        server_round: int,
        entries: Mapping[str, Mapping[str, Any]],
        timeout: float,
    ) -> list[Answer]:
        """Ask a cohort, and those who are silent again.

        Raises
        ------
        SettingsError
            A client refused for good, and with it everybody's sum.
        """
        answers: dict[str, Answer] = {}

        def take(answer: Answer) -> None:
            answers[answer.client] = answer

        clients, of = list(entries), entries.__getitem__
        ask_again(
            conversation, server_round, "train", of, take, timeout, clients, _ATTEMPTS
        )
        return list(answers.values())

    def take(self, answer: Answer, shape: tuple[int, ...], layout: Layout) -> Words:
        """A client's term of a vector of this size, and one more; else ValueError."""
        count = prod(shape)
        term: Any = answer.arrays[0] if len(answer.arrays) == 1 else np.zeros(0)
        if term.dtype != np.uint64 or term.shape != (count + 1,) or answer.numbers.size:
            raise ValueError(
                f"the answer has {len(answer.arrays)} arrays and {answer.numbers.size} "
                f"scalars, expected one of {count + 1} masked numbers"
            )
        words: Words = term
        return words

    def lost(
        self,
        server_round: int,
        cohort: Sequence[str],
        answers: Mapping[str, Any],
        least: int,
    ) -> str:
        """Why a round's sum cannot be had; empty if it can.

        ``answers`` are the terms. Whoever is missing sits out for a while.
        """
        missing = [name for name in cohort if name not in answers]
        for name in cohort:
            times = self._resting.pop(name, (0, 0))[0] + 1
            if name in missing:
                rest = min(2 ** (times - 1), _LONGEST_REST)
                self._resting[name] = times, server_round + rest
        if missing:
            who = ", ".join(missing[:5]) + ", ..." * (len(missing) > 5)
            return f"the sum over {len(cohort)} clients is lost without client {who}"
        try:
            total_of(list(answers.values()))
        except ValueError as error:
            return str(error)
        return ""

    def combine(self, points: Points, centre: FloatArray) -> FloatArray:
        """The mean of the terms of a cohort, whose masks cancel."""
        found: FloatArray = total_of(list(points)) / len(points)  # type: ignore[arg-type]
        return found

    def finish(self, conversation: Conversation) -> None:
        """Let the clients of a simulation remove the key that they made."""
        try:
            entries: dict[str, dict[str, Any]] = {n: {} for n in conversation.names}
            conversation.ask(0, "train.sum_finish", entries, 30.0)
        except Exception as error:
            log(WARNING, "the run's key may not have been removed: %s", error)


def _member(answer: Answer) -> Member:
    arrays = answer.arrays
    if len(arrays) != 2 or any(a.dtype != np.uint8 or a.ndim != 1 for a in arrays):
        raise ValueError("the answer is not a nonce and a key's name")
    nonce, key = (array.tobytes() for array in arrays)
    if len(nonce) != _NONCE_BYTES or not 0 < len(key) <= _KEY_BYTES:
        raise ValueError("the answer's nonce or key's name has another length")
    try:
        return Member(answer.client, key.decode("ascii"), nonce)
    except UnicodeDecodeError:
        raise ValueError("the key's name is no text") from None
