"""What the server sends its clients in a run, and what it makes of their answers.

Requests travel through any Flower grid, or, where nobody could see a message, straight
to the nodes of this process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from logging import WARNING
from math import ceil
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.exchange import (
    NO_ANSWER,
    Awaited,
    Reason,
    Registry,
    exchange,
    listed,
)
from fedtrellis.wire.flower_internals import filled, log
from fedtrellis.wire.local_grid import LocalGrid
from fedtrellis.wire.protocol import (
    AGREED,
    CONFIG,
    EXAMPLES,
    LARGEST,
    MODEL,
    RESTORE,
    NodeReply,
    NodeRequest,
    check_moderate,
    identity_order,
    moderate_norm,
)

#: What clients are sent, by their names.
Entries = Mapping[str, Mapping[str, Any]]

#: The clients have to agree before round 1, whatever is lost on the way.
SETUP_ATTEMPTS = 30


@dataclass(slots=True)
class Answer:
    """A client's answer that passed every check of the wire.

    Attributes
    ----------
    client : str
        Who answered.
    arrays : sequence of ndarray
        What ``fit`` returned; read-only.
    metrics : dict
        Its metrics.
    numbers : ndarray of float64
        The vector that it left in ``self.numbers``; empty if none.
    version : int or None
        The model version that the client has now, if it keeps the model.
    server_round : int
        The round that it was asked in.
    norm : float or None
        ‖a‖ of its only array a, where that is known already.
    basis : object
        Of a late answer what the strategy's ``_basis`` was when it was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import Answer
    >>> answer = Answer("3", [np.array([1.0, -1.0])], {"steps": 5})
    >>> answer.client, answer.metrics["steps"], answer.numbers.size
    ('3', 5, 0)
    """

    client: str
    arrays: Sequence[NDArray[Any]]
    metrics: dict[str, Any]
    numbers: FloatArray = field(default_factory=lambda: np.empty(0))
    version: int | None = None
    server_round: int = 0
    norm: float | None = None
    basis: Any = None


@dataclass(slots=True)
class Asked:
    """A request that may be answered in a later round."""

    node_id: int
    expected: dict[str, Any]
    basis: Any


def scalars_of(answer: Answer, count: int) -> FloatArray:
    """The scalars of an answer that is nothing else; ValueError if it is not."""
    if answer.arrays or answer.numbers.shape != (count,):
        raise ValueError(
            f"the answer has {answer.numbers.size} scalars and {len(answer.arrays)} "
            f"arrays, expected {count} and none"
        )
    return answer.numbers


def refusal_of(status: Mapping[str, Any]) -> Reason | None:
    """A client will not do what it was asked: its words, and its error's code."""
    code, why = status.get("refused"), status.get("why")
    if not (isinstance(code, str) and code and isinstance(why, str)):
        return None
    return Reason(why, code)


class Conversation(Registry):
    """A run's messages to its clients, and their answers.

    Parameters
    ----------
    grid : Grid
        Flower's, or a :class:`~fedtrellis.LocalGrid`.
    strategy : LoopStrategy
        The method.

    Attributes
    ----------
    names, clients : list of str, dict of str to Client
        Identities of the run's clients, in order; what each is known to have.
    session : str
        Of this run, for good: state of another session is never used.
    epoch : str
        Of this server's time in the session, if clients were not set back with it.
    traffic : Traffic
        Bytes, waves and dropped answers of the round so far.
    """

    # any: the module of strategies imports this one
    def __init__(self, grid: Grid, strategy: Any) -> None:
        super().__init__(grid, strategy.options.client_keys)
        self.strategy, self.refuse = strategy, strategy._refuse_newcomer
        self.agreed, self.method = strategy.agreed, type(strategy).__name__
        self.session, self.epoch = secrets.token_hex(4), ""
        #: Requests of earlier rounds that are not answered yet, by client.
        self.asked: dict[str, Asked] = {}
        self._awaited: Awaited = {}
        #: For how many rounds clients have owed an answer.
        self.silent: dict[str, int] = {}

    @property
    def busy(self) -> set[str]:
        """Clients that may still answer an earlier round, and are asked nothing new."""
        for name, asked in list(self.asked.items()):
            if self.clients[name].node_id != asked.node_id:  # it came back elsewhere
                del self.asked[name]
        return set(self.asked)

    def note_used(self, server_round: int, name: str) -> None:
        """Note down whose answer was used, which decides about its state."""
        client = self.clients[name]
        client.used_round, client.ready = server_round, True

    def note_version(self, *answers: Answer) -> None:
        """Note down which model clients have, of answers that are used."""
        for answer in answers:
            if answer.version is not None:
                self.clients[answer.client].version = answer.version

    def reject(self, who: str, reason: str) -> None:
        """Note down and log why an answer is dropped."""
        self.traffic.reject(who, reason)

    def _requests(
        self, server_round: int, kind: str, entries: Entries
    ) -> dict[str, tuple[int, NodeRequest]]:
        """What to ask the nodes of clients; one object where nobody can change it."""
        strategy, grid = self.strategy, self.grid
        shared = isinstance(grid, LocalGrid) and grid.untouched
        stateful = strategy.stateful and kind != "evaluate"
        made: dict[Any, NodeRequest] = {}
        asked = {}
        common = {"session": self.session, "server-round": server_round}
        if self.epoch:
            common["epoch"] = self.epoch
        if not strategy.keep_model:
            common["keep-model"] = False
        for name, own in entries.items():
            client, config = self.clients[name], dict(own)
            model, model_config = strategy._model_for(name, config)
            replace = stateful and strategy._replaces_state(name)
            restore = replace or (stateful and not client.ready)
            # a node that may have lost what it keeps is told of tables again
            tell = bool(self.agreed) and (restore or client.version is None)
            # what a request depends on: all of it exists while others are made
            state = client.used_round, name if restore else ""
            key = id(own), id(model), state if stateful else tell
            if not shared or key not in made:
                config = {**common, **model_config, **config}
                if stateful:
                    config["used-round"] = client.used_round
                records: dict[str, Any] = {MODEL: model}
                if tell:
                    records[AGREED] = ConfigRecord({AGREED: self.agreed})
                if restore:
                    given, restore_config = strategy._state_for(name)
                    config.update(restore_config)
                    if replace:
                        config["restore-over"] = True
                    if given:
                        records[RESTORE] = given
                record = filled(ConfigRecord(), config)
                content = filled(RecordDict(), {CONFIG: record, **records})
                made[key] = NodeRequest(kind, content)
            asked[name] = client.node_id, made[key]
        return asked

    def ask(
        self, server_round: int, kind: str, entries: Entries, timeout: float
    ) -> list[Answer]:
        """Send one wave to the named clients, and again to those out of step.

        ``kind`` is ``"train"``, ``"train.NAME"`` or ``"evaluate"``, ``entries`` are the
        method's by client, ``timeout`` is in seconds for a wave's answers. Returns
        those that passed the checks, in the clients' order; why the others did not is
        in :attr:`traffic`. With a ``quorum`` a wave of ``"train"`` ends once so many
        have answered, and answers of earlier rounds are among those of this one.
        """
        enough = None
        quorum: float = self.strategy.options.quorum
        if kind == "train" and quorum != 1.0:
            outstanding = len(entries) + len(self.busy)
            part = quorum * outstanding if quorum < 1.0 else quorum
            enough = min(outstanding, ceil(part - 1e-9))
        elif self.asked:
            busy = self.busy
            entries = {n: own for n, own in entries.items() if n not in busy}
        known = {"session": self.session, "server-round": server_round}
        expected: dict[str, Any] = {**known, "in-sync": True}
        if phase := kind.partition(".")[2]:  # "propose" of "train.propose"
            expected["phase"] = phase
        if self.strategy.keep_model or kind == "evaluate":
            expected["model-version"] = self.strategy.broadcast.version
        todo = [name for name in self.names if name in entries]
        answers: dict[str, Answer] = {}
        for tries in count(1):
            wave = {name: entries[name] for name in todo}
            self.traffic.waves += bool(wave) or tries == 1
            left = None if enough is None else max(0, enough - len(answers))
            replies = self._replies(server_round, kind, wave, timeout, left)
            todo, silent = [], []
            for name in wave.keys() - replies.keys():
                node_id = self.clients[name].node_id
                self.asked[name] = Asked(node_id, expected, self.strategy._basis)
            for name, reply in replies.items():
                late = None if name in wave else self.asked.pop(name)
                answer = self._open(reply, name, late.expected if late else expected)
                if isinstance(answer, Answer):
                    if late and late.expected["server-round"] != server_round:
                        answer.basis = late.basis
                    answers[name] = answer
                elif answer is None:
                    todo += [] if late else [name]  # else it is asked next round
                else:
                    self.reject(name, answer)
                    silent += [name] if answer is NO_ANSWER else []
            if silent:
                names = listed(sorted(silent, key=identity_order), 20)
                log(WARNING, "round %d: no answer from client %s", server_round, names)
            if tries > 1:
                for name in todo:
                    self.reject(name, "its state could not be restored")
                todo = []
            # answers of no use are not enough
            short = enough is not None and len(answers) < enough
            if not todo and not (short and self.busy and replies):
                break
        return [answers[name] for name in self.names if name in answers]

    def ask_again(
        self,
        server_round: int,
        kind: str,
        entries: Callable[[str], Mapping[str, Any]],
        take: Callable[[Answer], None] | None,
        timeout: float,
        clients: Sequence[str],
        attempts: int,
        code: str = SettingsError.code,
    ) -> dict[str, Answer]:
        """As :meth:`ask`, and again those whose answer was lost, in so many waves.

        ``entries`` makes what a client is sent, by its name and anew for each wave;
        ``take`` may raise ValueError with the reason to drop an answer. Returns those
        that were taken; SettingsError where a client refused with ``code``, or with any
        if that is empty.
        """
        taken: dict[str, Answer] = {}
        for _ in range(attempts):
            wave = {name: entries(name) for name in clients if name not in taken}
            if not wave:
                break
            before = len(self.traffic.rejected)
            answers = self.ask(server_round, kind, wave, timeout)
            for name, why in self.traffic.rejected[before:]:
                if why.refusal and code in ("", why.refusal):
                    who = f"client {name}"
                    raise SettingsError(why if why.startswith(who) else f"{who}: {why}")
            for answer in answers:
                try:
                    if take is not None:
                        take(answer)
                    taken[answer.client] = answer
                except ValueError as error:
                    self.reject(answer.client, str(error))
        return taken

    def ask_everyone(
        self,
        kind: str,
        entries: Callable[[str], Mapping[str, Any]],
        take: Callable[[Answer], None] | None,
        timeout: float,
        clients: Sequence[str],
    ) -> dict[str, Answer]:
        """As :meth:`ask_again`, before round 1, until each client has answered.

        SettingsError where one refused, TimeoutError where one never answered, or never
        well.
        """
        asked = kind, entries, take, timeout, clients, SETUP_ATTEMPTS, ""
        taken = self.ask_again(0, *asked)
        if missing := sorted(set(clients) - taken.keys(), key=identity_order):
            names = ", ".join(missing)
            last = "".join(f"; {why}" for _, why in self.traffic.rejected[-1:])
            what = f"did not answer before round 1 ({kind}){last}"
            raise TimeoutError(f"client {names} {what}")
        return taken

    def ask_in_the_end(self, kind: str, entries: Mapping[str, Any]) -> None:
        """Send all clients the same, so that they remove what they made for the run."""
        try:
            self.ask(0, kind, dict.fromkeys(self.names, entries), 30.0)
        except Exception as error:
            log(WARNING, "the run's key may not have been removed: %s", error)

    def _replies(
        self,
        server_round: int,
        kind: str,
        entries: Entries,
        timeout: float,
        enough: int | None = None,
    ) -> Mapping[str, Message | NodeReply | Reason]:
        """What clients reply to one wave, or why not, in the order of the entries."""
        grid = self.grid
        nodes = [self.clients[name].node_id for name in entries]
        local = isinstance(grid, LocalGrid) and grid.asks(kind, nodes)
        asked = self._requests(server_round, kind, entries)
        if isinstance(grid, LocalGrid) and local:
            return grid.ask(asked, server_round, self.traffic)
        group = str(server_round)
        messages = [
            Message(request.content, node_id, kind, group_id=group)
            for node_id, request in asked.values()
        ]
        of = dict(zip(nodes, entries, strict=True))
        if enough is not None:
            of |= {self.asked[name].node_id: name for name in self.busy}
        awaited = None if enough is None else self._awaited
        found = exchange(grid, messages, timeout, self.traffic, of, awaited, enough)
        return {name: found[node] for node, name in of.items() if node in found}

    def _open(
        self, reply: Message | NodeReply | Reason, name: str, expected: dict[str, Any]
    ) -> Answer | Reason | None:
        """Check a reply, of which nothing is trusted; None if it is out of step."""
        if isinstance(reply, Reason):
            return reply
        try:
            if isinstance(reply, Message):
                reply = NodeReply.of(reply.content)
            status, numbers = reply.status, np.empty(0)
            alike = reply.client == name and status == expected
            if not alike or status["in-sync"] is not True:  # 1 is not True
                if reply.client != name:
                    of = f"client-id {reply.client!r}, not {name!r}"
                    return Reason(f"the answer has {of}")
                for key in ("session", "server-round", "phase"):
                    if (found := status.get(key)) != (value := expected.get(key)):
                        return Reason(f"the answer has {key} {found!r}, not {value!r}")
                if "refused" in status and (refusal := refusal_of(status)):
                    return refusal
                if not isinstance(in_sync := status.get("in-sync"), bool):
                    return Reason(f"the answer has in-sync {in_sync!r}")
                if not in_sync:
                    client = self.clients[name]
                    client.ready, client.version = False, None
                    return None
                if data := status.get("numbers"):
                    check_moderate(numbers := np.frombuffer(data, dtype="<f8"))
            version = None
            if self.strategy.keep_model:
                version = status.get("model-version")
                if type(version) is not int or version != expected["model-version"]:
                    return Reason(f"the answer is for model version {version!r}")
            arrays = reply.arrays or []
            norm = moderate_norm(arrays[0]) if len(arrays) == 1 else None
            if norm is None:
                for array in arrays:
                    check_moderate(array)
            metrics, round_ = dict(reply.metrics), expected["server-round"]
            return Answer(name, arrays, metrics, numbers, version, round_, norm)
        except Exception as error:  # the content is the client's: anything goes
            return Reason(str(error) or type(error).__name__)


def mean_metrics(
    metrics: Sequence[Mapping[str, Any]], *, equal: bool = False, median: bool = False
) -> dict[str, float]:
    """Mean of several clients' metrics, weighted by their ``num-examples`` or equally.

    One without examples (no labels, say) does not take metrics away from the others.
    With ``median`` it is the weighted median: nobody with less than half of the weight
    can choose it. The result has the numbers that all with examples name, and the sum
    of ``num-examples``; it is empty if nobody has any.
    """
    counted = [m for m in metrics if m[EXAMPLES] > 0]
    if not counted:
        return {}
    weights = np.array([1.0 if equal else float(m[EXAMPLES]) for m in counted])
    # sums of what is larger would not be finite
    numbers = [
        {n for n, v in m.items() if isinstance(v, int | float) and abs(v) <= LARGEST}
        for m in counted
    ]
    result = {}
    for name in sorted(set.intersection(*numbers) - {EXAMPLES}):
        values = np.array([m[name] for m in counted], dtype=np.float64)
        middle = weighted_median if median else np.average
        result[name] = float(middle(values, weights=weights))
    return {**result, EXAMPLES: float(sum(m[EXAMPLES] for m in counted))}


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The value with at most half of the weight on either side; of two the mean."""
    order = np.argsort(values, kind="stable")
    ordered, below = values[order], np.cumsum(weights[order])
    half = 0.5 * below[-1]
    low, high = np.searchsorted(below, half), np.searchsorted(below, half, "right")
    return float(0.5 * (ordered[low] + ordered[min(high, len(ordered) - 1)]))
