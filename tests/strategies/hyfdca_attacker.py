"""A server of HyFDCA that departs from the protocol, once, and then goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedtrellis import LocalGrid
from fedtrellis.dual.group_steps import next_chain
from fedtrellis.dual.questions import inputs_digest, weights_mark
from fedtrellis.encryption import backend_class
from fedtrellis.server.answers import refusal_in
from fedtrellis.server.conversation import Conversation
from fedtrellis.wire.arrays import encode, record_arrays
from fedtrellis.wire.protocol import ARRAYS, RESTORE
from strategies import HyFDCA
from strategies.hybrid import ROWS
from tests.strategies.hyfdca_runs import Array, Part, Run, Split, small

Config = dict[str, Any]


@dataclass
class Hand:
    """What the server holds at the beginning of one wave.

    Attributes
    ----------
    honest : dict
        By client, what an honest server would ask now.
    chain : bytes
        How α had come about one step before.
    shares : dict
        By client, the ciphertexts of inner products that it sent in this round.
    """

    strategy: HyFDCA
    conversation: Conversation
    server_round: int
    kind: str
    honest: dict[str, Config]
    chain: bytes
    shares: dict[str, list[bytes]] = field(default_factory=dict)

    def send(
        self,
        name: str,
        entries: Mapping[str, Any],
        kind: str | None = None,
        restore: Mapping[str, Array] | None = None,
    ) -> RecordDict | str:
        """The answer to a message of the server's making, or why there is none.

        ``restore`` are arrays that the client is told to take for its state.
        """
        message = self.conversation.request(
            self.server_round, name, kind or self.kind, entries
        )
        if restore is not None:
            config = cast(ConfigRecord, message.content["config"])
            config["restore"] = config["restore-over"] = True
            record = ArrayRecord({k: encode(np.asarray(a)) for k, a in restore.items()})
            message.content[RESTORE] = record
        (reply,) = self._exchange([message])
        if reply.has_error():
            return str(reply.error.reason)
        refused = refusal_in(reply.content)
        return reply.content if refused is None else str(refused)

    def restored(self, name: str) -> dict[str, Array]:
        """What an honest server gives a client back; nothing is noted down."""
        steps, self.strategy._steps = self.strategy._steps, None
        arrays, _ = self.strategy.restore(name)
        self.strategy._steps = steps
        return arrays

    def _exchange(self, messages: list[Message]) -> list[Message]:
        return list(self.conversation.grid.send_and_receive(messages, timeout=60.0))

    def refused(self, name: str, entries: Mapping[str, Any], *rest: Any) -> str:
        """Why a client refuses; it has to."""
        found = self.send(name, entries, *rest)
        assert isinstance(found, str), f"client {name} answered"
        return found

    def words(self, name: str, entries: Mapping[str, Any]) -> Any:
        """What a client answers to ``train.propose``."""
        found = self.send(name, entries)
        assert not isinstance(found, str), found
        return record_arrays(cast(ArrayRecord, found[ARRAYS]))[0]

    def sealed(self, name: str, config: Config) -> Config:
        """A changed question of ``train.propose`` whose inputs are said to be it."""
        own = self.strategy.agreement.index(name)
        inputs = list(config["inputs"])
        inputs[own] = inputs_digest(config, config.get(ROWS, np.zeros((1, 0))))
        return {**config, "inputs": inputs}

    def at(self, name: str, config: Config, w: Array) -> Config:
        """A changed question of ``train.inner_product``: at another w."""
        marks = list(config["weights"])
        marks[self.strategy.agreement.index(name)] = weights_mark(w)
        return {**config, "weights": marks, ROWS: w[None]}

    def mixed(self, config: Config, weights: Sequence[float]) -> Config:
        """Other weights of the last mixture, for all groups, with a chain that fits."""
        count = config["mix-counts"][0]
        ids = config["mix-ids"][:count]
        keep = config["keep-ids"][: config["keep-counts"][0]]
        step, groups = config["steps"][0], len(config["groups"])
        chain = next_chain(self.chain, config["tag"], step, ids, weights, keep)
        return {**config, "mix-weights": [*weights] * groups, "chain": chain}


class Departs(HyFDCA):
    """Runs ``attack(hand)`` before one wave, and ``then(hand)`` before the next."""

    at: int = 4
    of: str = "train.propose"
    attack: Callable[[Hand], Any]
    then: Callable[[Hand], Any] | None = None
    done = False
    chain = b""
    shares: dict[str, list[bytes]]

    def ask(
        self,
        conversation: Conversation,
        server_round: int,
        kind: str,
        entries: Callable[[str], Mapping[str, Any]],
        clients: Sequence[str],
        *rest: Any,
        **options: Any,
    ) -> set[str]:
        if server_round == self.at and kind == self.of and not self.done:
            type(self).done = True
            honest = {name: dict(entries(name)) for name in clients}
            hand = Hand(
                self, conversation, server_round, kind, honest, self.chain, self.shares
            )
            type(self).attack(hand)
            entries = _again(entries)
        if server_round < self.at and self._steps is not None:
            units = getattr(self._steps, "units", None)
            type(self).chain = units[0].chain if units else b""
        if server_round == self.at and kind == "train.propose" and self.then:
            then, type(self).then = self.then, None
            honest = {name: dict(entries(name)) for name in clients}
            hand = Hand(
                self, conversation, server_round, kind, honest, self.chain, self.shares
            )
            then(hand)
        if kind == "train.inner_product":
            rest = (_noting(rest[0], self.shares), *rest[1:])
        return super().ask(
            conversation, server_round, kind, entries, clients, *rest, **options
        )


def _noting(take: Callable[[Any], None], shares: dict[str, list[bytes]]) -> Any:
    def noted(answer: Any) -> None:
        shares[answer.client] = [array.tobytes() for array in answer.arrays]
        take(answer)

    return noted


def _again(entries: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda name: dict(entries(name))


def departing(attack: Callable[[Hand], Any], **options: Any) -> type[HyFDCA]:
    """A strategy with one attack; ``at`` and ``of`` say before which wave."""
    body = {"attack": staticmethod(attack), "shares": {}, **options}
    found: Any = type("Departing", (Departs,), body)
    return cast(type[HyFDCA], found)


def attacked(
    attack: Callable[[Hand], Any],
    *,
    split: Split | None = None,
    at: int = 4,
    of: str = "train.propose",
    then: Callable[[Hand], Any] | None = None,
    rounds: int = 7,
    backend: str = "stream",
    key: Any = None,
    grid: LocalGrid | None = None,
    client: dict[str, Any] | None = None,
    harmless: bool = True,
    **options: Any,
) -> Run:
    """A run with a real key, whose server departs from the protocol in one wave.

    With ``harmless``: keys and α are unharmed, and the run goes on as if nothing had
    been.
    """
    split = split or shared_and_local()
    kind = departing(attack, at=at, of=of, then=then and staticmethod(then))
    key = key or backend_class(backend).generate()
    client = {"key": key, **(client or {})}
    if grid is not None:
        client = {}
    if backend != "stream":
        options["context"] = key.evaluation_bytes()

    def check(run: Run, _: int) -> None:
        run.check()

    run = Run(
        split,
        rounds,
        strategy=kind,
        encryption=backend,
        client=client,
        grid=grid,
        each=check if harmless else None,
        **options,
    )
    assert cast(Any, kind).done, "there was no such wave"
    if harmless:
        duals = run.metric("dual")
        assert len(duals) == rounds
        assert (np.diff(duals) > 0).all()
    return run


def shared_and_local() -> Split:
    """Six clients, three holders a feature; each has samples of its own beside others.

    Clients 2k and 2k + 1 hold the two halves of the features, and share 16 samples.
    """
    first, second = np.arange(6), np.arange(6, 12)
    parts: list[Part] = []
    for start in range(0, 144, 48):
        parts += [
            (np.arange(start, start + 32), first),
            (np.arange(start + 16, start + 48), second),
        ]
    whole = small(parts=parts, n=144)
    held = np.zeros_like(whole.X)
    for rows, columns in parts:
        held[np.ix_(rows, columns)] = whole.X[np.ix_(rows, columns)]
    return Split(held, whole.y, parts, regularization=whole.regularization)
