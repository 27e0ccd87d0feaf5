"""The server's half of secure sums: blocks of clients, and what they come to.

What the clients do is in :mod:`fedtrellis.wire.summing`. Clients are dealt once into
fixed blocks; of a round the server learns the sum of each block whose members all
answered, and of those that did not, nothing. A block's mean then stands for the answer
of each of its members, so that a method whose server is linear in answers goes on as it
is, and keeps the blocks' vectors where it would keep the clients'.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from math import floor, isfinite, log2, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrellis.encryption.block_sum import (
    ATTEMPT_BYTES,
    LEAST,
    MOST_DEVIATION,
    Introduction,
    LostKeyError,
    deal,
    total_of,
)
from fedtrellis.encryption.fixed_point import Coding, Words
from fedtrellis.privacy import Accountant
from fedtrellis.server.aggregation import Cohorts, Mean
from fedtrellis.server.conversation import Answer, Conversation, ask_again, ask_everyone
from fedtrellis.settings import SettingsError, need, setting
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.summing import ATTEMPT

__all__ = ["ATTEMPTS", "SecureSum", "Take", "beginning", "introduction"]

#: Uses a client's arrays, or raises ValueError with the reason to drop them.
Take = Callable[[str, Sequence[NDArray[Any]]], object]

#: How often a client that is silent is asked in one round.
ATTEMPTS = 3
_FRESH_BYTES = 32
# Deviations of noise that a word has room for, in the sum
_ROOM = 8.0


class SecureSum(Mean):
    """The mean, of sums over fixed blocks of clients of which nobody sees a term.

    Every number is rounded to a multiple of 2^−f, f the largest with which a block's
    sum fits. A silent client costs its block the round. With ``clip`` a client's vector
    is shortened to that length, and takes 4 bytes a number instead of 8; with
    ``noise_multiplier`` z each of a block's m + t members, t of them colluding, adds
    noise of deviation z·clip/√m, of the discrete Gaussian.

    Raises
    ------
    SettingsError
        Before round 1: there are too few clients, or they do not agree on keys.
    TimeoutError
        One never answered.

    Examples
    --------
    >>> from fedtrellis import SecureSum
    >>> from fedtrellis.strategies import FedAvgGD
    >>> strategy = FedAvgGD(aggregation=SecureSum(block_size=5))
    >>> strategy.aggregator.seen_by
    'client'
    """

    name = "secure-sum"
    about = "the mean, of masked sums over fixed blocks of clients"
    seen_by = "client"

    least: int = setting(  # type: ignore[misc]
        LEAST, "clients of a block, at least", minimum=LEAST
    )
    colluders: int = setting(
        0,
        "clients that may share what they know with the server; a block has two more",
        symbol="t",
        minimum=0,
    )
    block_size: int = setting(
        None, "clients of a block; auto: one block of all", minimum=3
    )
    value_range: float = setting(
        1e5,
        "largest number that a client hides, without a clip; a larger one is refused",
        above=0.0,
    )
    clip: float = setting(
        None,
        "the length that a client's vector is clipped to; auto: none",
        symbol="C",
        above=0.0,
    )
    noise_multiplier: float = setting(
        0.0,
        "standard deviation of a block's noise, in units of the clip; 0: none",
        symbol="z",
        minimum=0.0,
    )
    delta: float = setting(
        1e-5, "the probability that ε does not hold", symbol="δ", above=0.0, below=1.0
    )
    exposed: Literal["refuse", "accept"] = setting(  # type: ignore[misc]
        "refuse",
        "whether clients' evaluations may travel in the clear",
        choices=("refuse", "accept"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier:
            need("dp_accounting", "secure-sum.noise-multiplier", "privacy")
            if self.clip is None:
                raise SettingsError(
                    f"secure-sum.noise-multiplier = {self.noise_multiplier:g} needs "
                    "secure-sum.clip, a length"
                )

    @property
    def no_resume(self) -> str:  # type: ignore[override]
        """With noise: no checkpoint knows what was released after it."""
        if not self.noise_multiplier:
            return ""
        return "ε would be too small: rounds after the checkpoint count, too"

    # --------------------------------------------------------------- before the rounds

    def begin(self, cohorts: Cohorts) -> None:
        """Deal the clients into blocks, and settle the fixed point and the noise."""
        clients = list(cohorts.clients)
        least = max(self.least, self.colluders + 2)
        size = max(self.block_size or len(clients), least)
        #: The clients, as they were dealt.
        self.blocks: list[list[str]] = deal(clients, size, least)
        self._block_of = {name: block for block in self.blocks for name in block}
        most, fewest = (f(map(len, self.blocks)) for f in (max, min))
        self._deviation, room = 0.0, self.value_range
        if self.clip is not None:
            members = fewest - self.colluders
            # σ/√m a client, and the sum is noisy enough without the colluders'
            deviation = self.noise_multiplier * self.clip / sqrt(members)
            room = self.clip + _ROOM * deviation
            self._deviation = deviation
        self._coding = Coding.of_range(room, most, 64 if self.clip is None else 32)
        if self._deviation:
            finest = floor(log2(MOST_DEVIATION / self._deviation))
            bits = min(self._coding.bits, finest)
            self._coding = replace(self._coding, bits=bits)
            self._accountant = Accountant(
                self.noise_multiplier, self.delta, mechanism="exponential"
            )
        self._asked = [0] * len(self.blocks)  # attempts, by block
        #: First members of the blocks that have no keys yet, or not any more.
        self.anew = {block[0] for block in self.blocks}
        sizes = ", ".join(str(len(block)) for block in self.blocks)
        log(INFO, "secure sums over blocks of %s clients", sizes)

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Two waves in which the members of each block agree on keys."""
        missing = [name for name in conversation.names if name not in self._block_of]
        if missing:
            log(INFO, "client %s waits for a block", ", ".join(missing))
        self._agree(conversation, self.blocks, timeout, everyone=True)

    def _agree(
        self,
        conversation: Conversation,
        blocks: Sequence[Sequence[str]],
        timeout: float,
        everyone: bool = False,
    ) -> None:
        def wave(step: str, entries: Mapping[str, Any], take: Take) -> None:
            def taken(answer: Answer) -> None:
                take(answer.client, answer.arrays)
                conversation.note_version(answer)

            of = entries.__getitem__
            asked = f"train.sum_{step}", of, taken, timeout, list(entries)
            if everyone:
                ask_everyone(conversation, *asked)
            else:
                ask_again(conversation, 0, *asked, ATTEMPTS)

        told = f"{self._coding} {self.clip} {self.noise_multiplier} {self.colluders}"
        self.agree(blocks, wave, told)

    def agree(
        self,
        blocks: Sequence[Sequence[str]],
        ask: Callable[[str, Mapping[str, Any], Take], None],
        told: str,
        members: Mapping[str, Introduction] | None = None,
    ) -> None:
        """Let the members of blocks agree on keys; who cannot stay in :attr:`anew`.

        ``ask`` sends a step's entries, by client, and has each answer taken; ``told``
        is what else all have to be sent alike; ``members`` is what they sent of
        themselves, where they need not be asked.
        """
        agreed: set[str] = set()
        if members is None:
            members = known = {}

            def take(name: str, arrays: Sequence[NDArray[Any]]) -> None:
                known[name] = introduction(name, arrays)

            names = [name for block in blocks for name in block]
            ask("keys", dict.fromkeys(names, beginning()), take)
        entries: dict[str, Any] = {}
        for block in blocks:
            if members.keys() >= set(block):
                keys = [members[name] for name in block]
                sent = {
                    "members": [one.name for one in keys],
                    "member-keys": [one.key for one in keys],
                    "member-fresh": [one.fresh for one in keys],
                    "sum-told": told.encode(),
                }
                entries |= dict.fromkeys(block, sent)
        ask("agree", entries, lambda name, _: agreed.add(name))
        self.anew -= {block[0] for block in blocks if agreed >= set(block)}

    def refused(self, name: str, code: str) -> None:
        """Note that a client refuses; without its keys its block begins anew."""
        if code == LostKeyError.code:
            self.anew.add(self._block_of[name][0])

    # --------------------------------------------------------------------- in a round

    def cohort(self, server_round: int, drawn: Sequence[str]) -> list[str]:
        """The blocks whose first member was drawn, whole; at least one."""
        there = set(drawn)
        blocks = [block for block in self.blocks if block[0] in there]
        blocks = blocks or [self.blocks[server_round % len(self.blocks)]]
        return [name for block in blocks for name in block]

    def entries(self, cohort: Sequence[str]) -> dict[str, Any]:
        """What each of a round's clients is sent."""
        coding = self._coding
        return {
            ATTEMPT: secrets.token_bytes(ATTEMPT_BYTES),
            "sum-bits": coding.bits,
            "sum-word": coding.word,
            "sum-terms": max(map(len, self.blocks)),
            "sum-clip": self.clip or 0.0,
            "sum-deviation": self._deviation * 2.0**coding.bits,
        }

    def ask(
        self,
        conversation: Conversation,
        server_round: int,
        entries: Mapping[str, Mapping[str, Any]],
        timeout: float,
    ) -> list[Answer]:
        """Ask whole blocks, and those who are silent again; keys anew where lost.

        Raises
        ------
        SettingsError
            A client refused for good.
        """
        answers: dict[str, Answer] = {}

        def take(answer: Answer) -> None:
            answers[answer.client] = answer

        for block in [block for block in self.blocks if block[0] in self.anew]:
            log(WARNING, "the block of client %s agrees on new keys", block[0])
            self._agree(conversation, [block], timeout)
        clients = [n for n in entries if self._block_of[n][0] not in self.anew]
        before = len(conversation.traffic.rejected)
        of = entries.__getitem__
        ask_again(
            conversation, server_round, "train", of, take, timeout, clients, ATTEMPTS
        )
        for name, why in conversation.traffic.rejected[before:]:
            self.refused(name, getattr(why, "refusal", ""))
        asked = set(clients)
        for index, block in enumerate(self.blocks):
            self._asked[index] += block[0] in asked
        return list(answers.values())

    def opened(
        self, conversation: Conversation, answers: Sequence[Answer], points: int
    ) -> tuple[list[Answer], set[str]]:
        """The answers of complete blocks: each member's is its block's mean."""
        strategy, by_name = conversation.strategy, {a.client: a for a in answers}
        result: list[Answer] = []
        anew: set[str] = set()
        for block in self.blocks:
            there = [name for name in block if name in by_name]
            if not there:
                continue
            missing = [name for name in block if name not in by_name]
            # who came without the state that it had before
            lost = [
                name
                for name in block
                if name not in strategy._zeroed
                and (client := conversation.client(name)).used_round > 0
                and not client.ready
            ]
            try:
                if missing:
                    names = ", ".join(missing)
                    raise ValueError(f"its block's sum is lost without client {names}")
                if strategy._replayed and lost:
                    anew.update(block)
                    names = ", ".join(lost)
                    raise ValueError(f"its block begins anew: client {names} had to")
                total = self.total({name: by_name[name].arrays for name in block})
                total /= sum(strategy._weights_in_sum(block))
                arrays, numbers = self._cut(total, strategy, points)
            except ValueError as error:
                for name in there:
                    conversation.reject(name, str(error))
                continue
            result += [
                replace(by_name[name], arrays=arrays, numbers=numbers, norm=None)
                for name in block
            ]
        return result, anew

    def total(self, answers: Mapping[str, Sequence[NDArray[Any]]]) -> FloatArray:
        """A block's sum, of what each member sent; ValueError if it is none."""
        terms: list[Words] = []
        for client, arrays in answers.items():
            term: Any = arrays[0] if len(arrays) == 1 else np.zeros(0)
            if term.dtype != self._coding.dtype or term.ndim != 1 or term.size < 2:
                raise ValueError(f"client {client} sent no term of a sum")
            terms.append(term)
        if len({term.size for term in terms}) > 1:
            raise ValueError("the block's terms have different lengths")
        return self._coding.values(total_of(terms, len(answers)))

    def _cut(
        self, values: FloatArray, strategy: Any, points: int
    ) -> tuple[list[NDArray[Any]], FloatArray]:
        """The arrays and scalars of a mean answer."""
        model, layout = strategy.broadcast.model, strategy.broadcast.layout
        (_, count), arrays, size = strategy._sent_arrays, [], model.size
        for index in range(count):
            part = values[index * size : (index + 1) * size].reshape(model.shape)
            point = part + model if index < points else part
            arrays.append(layout.to_wire(point.astype(layout.point_dtype)))
        return arrays, values[count * size :]

    # ---------------------------------------------------------------------- afterwards

    def metrics(self) -> dict[str, float]:
        """ε of the block that was asked most, void attempts included."""
        if not self._deviation:
            return {}
        epsilon = self._accountant.epsilon(max(self._asked))
        return {"epsilon": epsilon} if isfinite(epsilon) else {}

    def warning(self) -> str:
        """What ε is about."""
        if not self.noise_multiplier:
            return ""
        return "secure-sum: ε is about the models, for a client's whole data"

    def finish(self, conversation: Conversation) -> None:
        """Let the clients of a simulation remove the key that they made."""
        try:
            entries: dict[str, dict[str, Any]] = {n: {} for n in conversation.names}
            conversation.ask(0, "train.sum_finish", entries, 30.0)
        except Exception as error:
            log(WARNING, "the run's key may not have been removed: %s", error)


def beginning() -> dict[str, Any]:
    """What clients are sent who begin a block, another one each time."""
    return {"beginning": secrets.token_bytes(ATTEMPT_BYTES)}


def introduction(client: str, arrays: Sequence[NDArray[Any]]) -> Introduction:
    """What a client sent of itself; ValueError if it is something else."""
    if len(arrays) != 2 or any(a.dtype != np.uint8 or a.ndim != 1 for a in arrays):
        raise ValueError("the answer is not a key's name and a fresh key")
    key, fresh = (array.tobytes() for array in arrays)
    if len(fresh) != _FRESH_BYTES or not 0 < len(key) <= 200 or not key.isascii():
        raise ValueError("the answer's key, or its name, has another form")
    return Introduction(client, key.decode(), fresh)
