"""What the server sends its clients in a run, and what it makes of their answers.

What a method decides of its messages, the :class:`Conversation` asks its
:class:`Policy`. They travel through any Flower grid, or, where nobody could see a
message, straight to the nodes of this process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedtrellis.server.answers import (
    Answer,
    ClientRefusalError,
    open_answer,
    refusal_in,
)
from fedtrellis.server.callbacks import listed
from fedtrellis.settings import SettingsError
from fedtrellis.signals import window
from fedtrellis.wire.exchange import (
    Client,
    Reason,
    Registry,
    Traffic,
    exchange,
    failure,
)
from fedtrellis.wire.flower_internals import ErrorCode, filled, log
from fedtrellis.wire.local_grid import LocalGrid
from fedtrellis.wire.protocol import (
    CONFIG,
    MODEL,
    RESTORE,
    NodeReply,
    NodeRequest,
    identity_order,
)

__all__ = ["SETUP_ATTEMPTS", "Conversation", "Policy", "ask_again", "ask_everyone"]

#: The clients have to agree before round 1, whatever is lost on the way.
SETUP_ATTEMPTS = 30


class Policy(Protocol):
    """What a method decides of its messages, as ``Method`` describes its fields."""

    stateful: bool
    keep_model: bool
    keep_old_state: bool

    @property
    def client_keys(self) -> str | None:
        """Whether clients keep their nodes' keys, as a ``Registry`` takes it."""

    @property
    def model_version(self) -> int:
        """The version of the model that requests bring, which answers have to name."""

    def refuse_newcomer(self, properties: Mapping[str, Any]) -> str:
        """Why a client that comes after the start cannot take part; empty if it can."""

    def model_for(
        self, client: str, entries: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """The model as one client is sent it, and the entries on its encoding.

        ``entries`` are the request's; what they hold for the model is taken out.
        """

    def state_for(self, client: str) -> tuple[ArrayRecord, dict[str, Any]]:
        """The state for a client that has none, and the entries on it."""

    def replaces_state(self, client: str) -> bool:
        """Whether a client's own state no longer counts, only :meth:`state_for`."""


class Conversation:
    """A run's messages to its clients, and their answers.

    Parameters
    ----------
    grid : Grid
        Flower's, or a :class:`~fedtrellis.LocalGrid`.
    policy : Policy
        The method's.

    Attributes
    ----------
    registry : Registry
        Who the clients are, and what each is known to have.
    session : str
        Of this run, for good: state of another session is never used.
    epoch : str
        Of this server's time in the session; empty until it goes on from a checkpoint.
    traffic : Traffic
        Bytes, waves and dropped answers since :meth:`take_traffic`.
    """

    def __init__(self, grid: Grid, policy: Policy) -> None:
        self.grid = grid
        self.policy = policy
        self.registry = Registry(policy.client_keys, policy.refuse_newcomer)
        self.session, self.epoch = secrets.token_hex(4), ""
        self.traffic = Traffic()

    # ----------------------------------------------------------------- who is there

    @property
    def names(self) -> list[str]:
        """Identities of the run's clients, in order."""
        return self.registry.names

    def client(self, name: str) -> Client:
        """What is known of a client."""
        return self.registry[name]

    def meet(self, count: int, timeout: float) -> None:
        """Wait for so many nodes, and until no more come: the run's clients.

        Raises
        ------
        TimeoutError, SettingsError, RuntimeError
            Too few came, two of them have one identity, or none can be used.
        """
        self.registry.gather(self.grid, count, timeout, self.traffic)

    def meet_again(self, timeout: float) -> None:
        """Take in clients that have come back on another node, or newcomers."""
        self.registry.introduce(self.grid, timeout, self.traffic, started=True)

    # ---------------------------------------------------------- what is noted of them

    def note_used(self, name: str, server_round: int) -> None:
        """Note down that a client's answer was used, which decides about its state."""
        client = self.registry[name]
        client.used_round, client.epoch = server_round, self.epoch
        client.ready = True

    def note_version(self, answer: Answer) -> None:
        """Note down which model a client has, of an answer that is used."""
        if answer.version is not None:
            self.registry[answer.client].version = answer.version

    def note_lost(self, name: str) -> None:
        """Note down that a client is out of step: it is given state and model whole."""
        client = self.registry[name]
        client.ready, client.version = False, None

    def reject(self, who: str, reason: str) -> None:
        """Note down and log why an answer is dropped."""
        self.traffic.reject(who, reason)

    def take_traffic(self) -> Traffic:
        """What was moved since the last call, or since the beginning."""
        traffic, self.traffic = self.traffic, Traffic()
        return traffic

    # --------------------------------------------------------------------- requests

    def request(
        self, server_round: int, name: str, kind: str, entries: Mapping[str, Any]
    ) -> Message:
        """A message to one client, with the model and, if it has none, its state.

        Parameters
        ----------
        server_round : int
        name : str
            The client.
        kind : str
            The message's type: ``"train"``, ``"train.NAME"`` or ``"evaluate"``.
        entries : mapping
            The method's, for the client's ``config``.
        """
        request = self._request(server_round, name, kind, entries)
        node_id, group = self.registry[name].node_id, str(server_round)
        return Message(request.content, node_id, kind, group_id=group)

    def _request(
        self,
        server_round: int,
        name: str,
        kind: str,
        entries: Mapping[str, Any],
        made: dict[Any, NodeRequest] | None = None,
    ) -> NodeRequest:
        """A request to one client; one of ``made`` where that has all in common."""
        client, policy = self.registry[name], self.policy
        own = dict(entries)
        model, model_config = policy.model_for(name, own)
        stateful = policy.stateful and kind != "evaluate"
        replace = stateful and policy.replaces_state(name)
        restore = replace or (stateful and not client.ready)
        # what a request depends on: all of it exists while others of the wave are made
        state = (client.used_round, client.epoch, name if restore else "")
        key = id(entries), id(model), state if stateful else None
        if made is not None and key in made:
            return made[key]
        config: dict[str, Any] = {
            "session": self.session,
            "server-round": server_round,
            **model_config,
            **own,
        }
        records: dict[str, Any] = {MODEL: model}
        if not policy.keep_model:
            config["keep-model"] = False
        if stateful:
            config["used-round"] = client.used_round
            # without a server that was started again, neither is there
            if client.epoch:
                config["used-epoch"] = client.epoch
            if self.epoch:
                config["epoch"] = self.epoch
        if restore:
            given, restore_config = policy.state_for(name)
            config.update(restore_config)
            if replace or not policy.keep_old_state:
                config["restore-alone"] = True
            if replace:
                config["restore-over"] = True
            if given:
                records[RESTORE] = given
        record = filled(ConfigRecord(), config)
        content = filled(RecordDict(), {CONFIG: record, **records})
        request = NodeRequest(kind, content)
        if made is not None:
            made[key] = request
        return request

    def ask(
        self,
        server_round: int,
        kind: str,
        entries: Mapping[str, Mapping[str, Any]],
        timeout: float,
    ) -> list[Answer]:
        """Send one wave to the named clients, and again to those out of step.

        Parameters
        ----------
        server_round : int
        kind : str
            The messages' type, as :meth:`request` takes it.
        entries : mapping
            The method's, by client.
        timeout : float
            Seconds to wait for the answers of the wave.

        Returns
        -------
        list of Answer
            Those that passed the checks, in the clients' order; why the others did
            not is in :attr:`traffic`.
        """
        grid, answers = self.grid, []
        local = grid if isinstance(grid, LocalGrid) else None
        made: dict[Any, NodeRequest] | None = None
        if local is not None and local.untouched:
            made = {}  # nobody can change what requests have in common
        todo = sorted(entries, key=identity_order)
        for attempt in (1, 2):
            requests = {
                name: self._request(server_round, name, kind, entries[name], made)
                for name in todo
            }
            self.traffic.waves += 1
            replies: Mapping[str, Message | NodeReply | Reason]
            ids = [self.registry[name].node_id for name in todo]
            if local is not None and local.asks(kind, ids):
                replies = self._ask_nodes(local, server_round, requests)
            else:
                replies = self._exchange(server_round, kind, requests, timeout)
            silent = [
                name
                for name, reply in replies.items()
                if isinstance(reply, Reason) and reply.code == "no-answer"
            ]
            if silent:
                names = listed(sorted(silent, key=identity_order), 20)
                log(WARNING, "round %d: no answer from client %s", server_round, names)
            behind: list[str] = []
            for name, reply in replies.items():
                if isinstance(reply, Reason):
                    self.reject(name, reply)
                    continue
                answers += self._checked(reply, server_round, name, kind, behind)
                if attempt == 2 and name in behind:
                    self.reject(name, "its state could not be restored")
            todo = sorted(behind, key=identity_order)
            if not todo:
                break
        if attempt == 1 and len(answers) == len(entries):
            return answers
        return sorted(answers, key=lambda answer: identity_order(answer.client))

    def _exchange(
        self,
        server_round: int,
        kind: str,
        requests: Mapping[str, NodeRequest],
        timeout: float,
    ) -> dict[str, Message | Reason]:
        """What clients reply to messages, or why they do not."""
        group = str(server_round)
        clients = [self.registry[name] for name in requests]
        messages = [
            Message(request.content, client.node_id, kind, group_id=group)
            for client, request in zip(clients, requests.values(), strict=True)
        ]
        found = exchange(self.grid, messages, timeout, self.traffic, clients)
        # whatever order they came in
        pairs = zip(requests, clients, strict=True)
        return {name: found[client.node_id] for name, client in pairs}

    @window()
    def _ask_nodes(
        self, grid: LocalGrid, server_round: int, requests: Mapping[str, NodeRequest]
    ) -> dict[str, NodeReply | Reason]:
        """As :meth:`_exchange`, of nodes of this process, without messages."""
        asked = [(self.registry[name].node_id, r) for name, r in requests.items()]
        found, down, up = grid.ask(asked, server_round)
        self.traffic.down += down
        self.traffic.up += up
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return {
            name: failure(code, reply) if isinstance(reply, str) else reply
            for name, reply in zip(requests, found, strict=True)
        }

    def send(
        self, messages: Iterable[Message], timeout: float
    ) -> tuple[dict[str, Message], list[str]]:
        """One wave of messages that somebody else has made of :meth:`request`'s.

        Returns
        -------
        (dict, list of str)
            The replies by client, and the clients that were asked, in their order.
        """
        requests = list(messages)
        by_node = {self.registry[name].node_id: name for name in self.names}
        asked = [by_node[m.metadata.dst_node_id] for m in requests]
        self.traffic.waves += bool(requests)
        clients = [self.registry[name] for name in asked]
        found = exchange(self.grid, requests, timeout, self.traffic, clients)
        replies = {}
        for name in sorted(asked, key=identity_order):
            reply = found[self.registry[name].node_id]
            if not isinstance(reply, Message):
                self.reject(name, reply)
            elif reply.has_content() and (error := refusal_in(reply.content)):
                self.reject(name, Reason(str(error), "refused", error.code))
            else:
                replies[name] = reply
        return replies, sorted(asked, key=identity_order)

    # ---------------------------------------------------------------------- answers

    def read(self, server_round: int, replies: Iterable[Message]) -> list[Answer]:
        """The answers among replies to :meth:`request` that another loop has collected.

        There is no second attempt: the next request restores who is out of step.
        """
        by_node = {self.registry[name].node_id: name for name in self.names}
        answers: list[Answer] = []
        for reply in replies:
            name = by_node.get(reply.metadata.src_node_id)
            if name is None or reply.has_error():
                self.reject(name or "an unknown node", "no usable reply")
            else:
                kind = reply.metadata.message_type
                answers += self._checked(reply, server_round, name, kind, [])
        return answers

    def _checked(
        self,
        reply: Message | NodeReply,
        server_round: int,
        name: str,
        kind: str,
        behind: list[str],
    ) -> list[Answer]:
        """One answer or none; a client that is out of step is added to ``behind``."""
        try:
            answer = self.open(reply, server_round, name, kind)
        except ClientRefusalError as error:
            self.reject(name, Reason(str(error), "refused", error.code))
            return []
        except Exception as error:  # the content is the client's: anything goes
            self.reject(name, str(error) or type(error).__name__)
            return []
        if answer is None:
            self.note_lost(name)
            behind.append(name)
            return []
        return [answer]

    def open(
        self, reply: Message | NodeReply, server_round: int, name: str, kind: str
    ) -> Answer | None:
        """Check a reply, see :func:`~fedtrellis.server.answers.open_answer`.

        Nothing changes here: what an answer holds counts once it is used.
        """
        if isinstance(reply, Message):
            reply = NodeReply.of(reply.content)
        policy = self.policy
        version = policy.model_version if policy.keep_model else None
        phase = kind.partition(".")[2] or None  # "propose" of "train.propose"
        return open_answer(reply, name, self.session, server_round, version, phase)


def ask_again(
    conversation: Conversation,
    server_round: int,
    kind: str,
    entries: Callable[[str], Mapping[str, Any]],
    take: Callable[[Answer], None],
    timeout: float,
    clients: Sequence[str],
    attempts: int,
    code: str = SettingsError.code,
) -> set[str]:
    """One wave, and again for those whose answer was lost, ``attempts`` at most.

    ``entries`` makes what a client is sent, by its name and anew for each attempt;
    ``take`` uses an answer, or raises ValueError with the reason to drop it. Returns
    the clients whose answers were taken; SettingsError where a client refused with
    ``code``, or with any if that is empty.
    """
    taken: set[str] = set()
    for _ in range(attempts):
        missing = [name for name in clients if name not in taken]
        if not missing:
            break
        before = len(conversation.traffic.rejected)
        wave = {name: entries(name) for name in missing}
        answers = conversation.ask(server_round, kind, wave, timeout)
        for name, why in conversation.traffic.rejected[before:]:
            if why.refusal and code in ("", why.refusal):
                who = f"client {name}"
                raise SettingsError(why if why.startswith(who) else f"{who}: {why}")
        for answer in answers:
            try:
                take(answer)
            except ValueError as error:
                conversation.reject(answer.client, str(error))
            else:
                taken.add(answer.client)
    return taken


def ask_everyone(
    conversation: Conversation,
    kind: str,
    entries: Callable[[str], Mapping[str, Any]],
    take: Callable[[Answer], None],
    timeout: float,
    clients: Sequence[str],
) -> None:
    """Ask before round 1, as :func:`ask_again` does, until each client has answered.

    SettingsError where one refused, TimeoutError where one never answered, or never
    well.
    """
    taken = ask_again(
        conversation, 0, kind, entries, take, timeout, clients, SETUP_ATTEMPTS, ""
    )
    if missing := sorted(set(clients) - taken, key=identity_order):
        names = ", ".join(missing)
        raise TimeoutError(f"client {names} did not answer before round 1 ({kind})")
