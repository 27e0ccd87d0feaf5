"""One wave of messages: push, poll, match, count; and who the nodes are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from logging import INFO, WARNING
from typing import Any, Literal

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedtrellis.settings import SettingsError
from fedtrellis.signals import pause, window
from fedtrellis.wire.flower_internals import is_simulation, log, message_bytes
from fedtrellis.wire.protocol import (
    AGREED,
    CONFIG,
    EXAMPLES,
    HELLO,
    STATUS,
    identity_order,
    is_count,
)

#: Whether a client's name belongs to one key for good.
ClientKeys = Literal["bound", "free"]

# Seconds between two looks at which nodes are there grow from the one to the other.
_SHORTEST_WAIT, _LONGEST_WAIT = 0.005, 0.25
# A wave's answers are polled for after this share of its time so far. A request names
# every message waited for: polling n nodes costs n log n, at a fixed wait n times n.
_WAIT_SHARE = 0.05
# Seconds without a new node after which a run goes on with those that are there.
_STILL = 3.0
_REASON_LENGTH = 500
# Seconds between two lines of the log on whom a wait is for.
_SAID_EVERY = 10.0
# How a reason of Flower's begins where it is Ray's for an actor that is no more.
_DEAD_ACTOR = "<class 'ray.exceptions.ActorDiedError'>"


class RunError(RuntimeError):
    """What ended a run, in a line that says all of it."""


class Reason(str):
    """Why there is no usable answer, as people read it.

    ``refusal`` is the code of the client's :class:`~fedtrellis.settings.CodedError`, if
    it refused.
    """

    refusal: str

    def __new__(cls, text: str, refusal: str = "") -> Reason:
        """Make the text, and give it its code."""
        self = super().__new__(cls, text)
        self.refusal = refusal
        return self


def failure(code: int, reason: str | None) -> Reason:
    """Why there is an error instead of an answer."""
    text = (reason or "no reason given").strip()[-_REASON_LENGTH:]
    return Reason(f"error {code}: {text}")


NO_ANSWER = Reason("no answer")

#: Messages that were sent, by their ids: to which node, and until when to wait.
Awaited = dict[str, tuple[int, float]]


@dataclass
class Traffic:
    """What a round moved, and which answers were dropped with what reason."""

    up: int = 0
    down: int = 0
    rejected: list[tuple[str, Reason]] = field(default_factory=list)
    waves: int = 0  # round trips of the round itself, without introductions
    logged: set[str] = field(default_factory=set)

    def reject(self, who: str, reason: str) -> None:
        """Note down why an answer is dropped, and log each reason once."""
        why = reason if isinstance(reason, Reason) else Reason(reason)
        if len(why) > _REASON_LENGTH:  # it may quote what a client sent
            why = Reason(why[:_REASON_LENGTH] + " ...", why.refusal)
        self.rejected.append((who, why))
        if why is not NO_ANSWER and why not in self.logged:
            self.logged.add(why)
            log(WARNING, "answer of client %s dropped: %s", who, why)


def listed(names: Sequence[str], length: int = 5) -> str:
    """The first of many names, and how many more there are."""
    rest = len(names) - length
    return ", ".join(names[:length]) + (f" and {rest} more" if rest > 0 else "")


@window()
def exchange(
    grid: Grid,
    requests: Sequence[Message],
    timeout: float,
    traffic: Traffic,
    names: Mapping[int, str] | None = None,
    awaited: Awaited | None = None,
    enough: int | None = None,
) -> dict[int, Message | Reason]:
    """Send one wave, at most one message to a node, and wait for the replies.

    Returns for each node its reply, or the reason why there is none; ``traffic`` counts
    the bytes, and a signal may end the wait. A long one is logged with whom it is for,
    by the clients' ``names``. A grid with a method
    ``settled(message_ids)`` is asked whether waiting for the rest makes sense at all (a
    message that was lost in this process will not come), one with
    ``bytes_of(message)`` what a message took, and one with a
    ``delay`` what time it is, by its ``clock()``, and to let it pass.
    RunError: an actor of Ray has died.

    Once ``enough`` nodes have answered, the wave is over: nodes that have not are left
    out of what is returned, and in ``awaited``, whose answers count in the next one.
    """
    awaited = {} if awaited is None else awaited
    settled, size_of = getattr(grid, "settled", None), getattr(grid, "bytes_of", None)
    virtual: Any = grid if getattr(grid, "delay", None) else None
    clock = virtual.clock if virtual else time.monotonic
    # that of a grid within it may see other messages
    measured = getattr(size_of, "__self__", None) is grid
    if size_of is None or not measured:  # a grid may change what it sends
        size_of = message_bytes
        traffic.down += sum(map(size_of, requests))
    unsent = Reason("the request could not be sent")
    to = [request.metadata.dst_node_id for request in requests]
    result: dict[int, Message | Reason] = dict.fromkeys(to, unsent)
    message_ids = grid.push_messages(list(requests))
    began = spoke = clock()
    answered, deadline = 0, began + timeout
    for message_id, request in zip(message_ids, requests, strict=False):
        if message_id:
            awaited[message_id] = request.metadata.dst_node_id, deadline
    if measured:
        traffic.down += sum(map(size_of, requests))
    while awaited:
        for reply in grid.pull_messages(list(awaited)):
            # an unavailable node's error names another node: the id is what counts
            node_id, _ = awaited.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node_id is None:
                continue  # late, or a copy of one that was taken
            traffic.up += size_of(reply)
            if reply.has_error():
                actor_died = str(reply.error.reason).startswith(_DEAD_ACTOR)
                if actor_died and is_simulation(grid):
                    # Flower starts no other, and goes on giving it messages
                    raise RunError("an actor of Ray has died, and stays dead")
                result[node_id] = failure(reply.error.code, reply.error.reason)
            else:
                result[node_id] = reply
                answered += 1
        now, lost = clock(), bool(settled and settled(list(awaited)))
        for message_id, (node_id, until) in list(awaited.items()):
            if lost or now >= until:
                del awaited[message_id]
                result[node_id] = NO_ANSWER
        if not awaited:
            break
        if enough is not None and answered >= enough:
            for node_id, _ in awaited.values():
                result.pop(node_id, None)
            break
        if virtual:
            virtual.wait(min(until for _, until in awaited.values()))
            continue
        if now - spoke >= _SAID_EVERY:
            spoke = now
            nodes = [node_id for node_id, _ in awaited.values()]
            who = [(names or {}).get(node, f"on node {node}") for node in nodes]
            text = "waiting for client %s: %.0f of %g s"
            log(INFO, text, listed(who), now - began, timeout)
        wait = max(_SHORTEST_WAIT, _WAIT_SHARE * (now - began))
        pause(min(wait, max(deadline - now, _SHORTEST_WAIT)))
    return result


def _hello(node_id: int, agreed: str = "") -> Message:
    known = {AGREED: ConfigRecord({AGREED: agreed})} if agreed else {}
    content = RecordDict({**known})
    return Message(content, dst_node_id=node_id, message_type=HELLO, group_id="0")


def _gather(
    grid: Grid, count: int, timeout: float, look: Callable[[int], bool] | None = None
) -> int:
    """Wait for so many nodes, until no others come or a ``look`` at all is enough."""
    # in this process all are there from the beginning, or never will be
    here = hasattr(grid, "settled")
    began = grew = spoke = time.monotonic()
    wait, known = _SHORTEST_WAIT, set[int]()
    while True:
        there = set(grid.get_node_ids())
        few = len(there) < count
        if not few and not there <= known:
            if look is not None and look(len(there)):
                return len(there)
            known, grew, wait = there, time.monotonic(), _SHORTEST_WAIT
        now = time.monotonic()
        waited = now - (began if few else grew)
        if here or waited > (timeout if few else _STILL):
            if not few:
                return len(there)
            within = f"connected within {timeout:g} s"
            why = within if timeout and not here else "are all there will be"
            raise TimeoutError(f"min-nodes = {count}: {len(there)} nodes {why}")
        if few and now - spoke >= _SAID_EVERY:
            spoke = now
            text = "waiting for more nodes; %d connected: %.0f of %g s"
            log(INFO, text, len(there), waited, timeout)
        pause(wait)
        wait = min(2 * wait, _LONGEST_WAIT)


def await_nodes(grid: Grid, count: int, timeout: float) -> int:
    """Wait for the nodes before anything is computed for them.

    In a simulation until one has answered. By then all are registered, and Ray is up,
    whose processes are forked from this one: a fork while another thread computes ends
    the threads of OpenBLAS, and that thread never returns (or the fork does not).

    Returns how many there are; TimeoutError: fewer than ``count``.
    """
    if hasattr(grid, "settled") or not is_simulation(grid):
        return _gather(grid, count, timeout)
    _gather(grid, 1, timeout, lambda count: True)
    exchange(grid, [_hello(next(iter(grid.get_node_ids())))], timeout, Traffic())
    return _gather(grid, count, 0.0, lambda count: True)


@dataclass(frozen=True)
class Key:
    """What a SuperLink knows a node by."""

    #: SHA-256 of the node's public key, in hexadecimal; empty if it has none.
    digest: str = ""
    #: Whether the SuperLink's operator registered it under a name: a node that
    #: registers itself may have a new key each time it starts.
    lasting: bool = False


@dataclass
class Client:
    """What the server knows of one client."""

    node_id: int
    used_round: int = 0  # the last of its rounds whose answer was used; 0: none yet
    version: int | None = None  # the model version that it is known to have
    ready: bool = False  # whether it is known to have state of this session
    key: Key = Key()  # of the node that answers for it
    properties: dict[str, Any] = field(default_factory=dict)


class Registry:
    """The run's clients by their stable identities, whatever nodes they are on.

    By ``client_keys`` a client has to keep the key of the node that first answered for
    it; None: if that key is a lasting one.
    """

    def __init__(self, grid: Grid, client_keys: str | None = None) -> None:
        self.grid, self.client_keys = grid, client_keys
        self.traffic = Traffic()
        self.clients: dict[str, Client] = {}
        #: Why a client of such properties, that comes later, cannot take part.
        self.refuse: Callable[[Mapping[str, Any]], str] = lambda properties: ""
        #: By name, what clients of an earlier part of the run have.
        self.keys: dict[str, Key] = {}
        self.names: list[str] = []
        self._left_out: set[int] = set()
        self._greeted: Awaited = {}  # nodes that have not introduced themselves yet
        #: What every node's hello brings, see :data:`~fedtrellis.wire.protocol.AGREED`.
        self.agreed = ""
        #: The strategy's class, for errors.
        self.method = "the strategy"

    def gather(self, count: int, timeout: float) -> None:
        """Take in the nodes before the start, until no further ones come.

        TimeoutError: fewer than ``count`` came; else errors of :meth:`introduce`.
        """
        why = f"no other one has connected for {_STILL:g} s"

        def whole(count: int) -> bool:
            nonlocal why
            self.introduce(timeout, started=False)
            counts = [c.properties.get("num-partitions") for c in self.clients.values()]
            if not counts or any(number != count for number in counts):
                return False
            why = "the whole federation"
            return True

        _gather(self.grid, count, timeout, whole)
        if not hasattr(self.grid, "settled"):
            log(INFO, "The run goes with %d nodes: %s", len(self.clients), why)

    def introduce(
        self, timeout: float, started: bool, enough: int | None = None
    ) -> None:
        """Ask nodes that are not known yet who they are; see :func:`exchange`.

        Before the start every node becomes a client. Afterwards a known client that
        comes back on another node is taken in, and a new one unless it is refused.
        SettingsError: two connected nodes have one identity. RunError: no node can
        be used at all.
        """
        grid, traffic = self.grid, self.traffic
        connected = set(grid.get_node_ids())
        known = {client.node_id for client in self.clients.values()}
        greeted = {node_id for node_id, _ in self._greeted.values()}
        new = sorted(connected - known - self._left_out - greeted)
        if not new and not greeted:
            return
        strangers = {node_id: Client(node_id) for node_id in greeted.union(new)}
        for node in grid.get_nodes():
            if stranger := strangers.get(node.node_id):
                data = node.public_key
                digest = sha256(data).hexdigest() if data else ""
                stranger.key = Key(digest, bool(node.name))
        requests = [_hello(node_id, self.agreed) for node_id in new]
        waiting = self._greeted, enough
        replies = exchange(grid, requests, timeout, traffic, None, *waiting)
        first = ""
        for node_id, reply in replies.items():
            why = reply if isinstance(reply, str) else ""
            if isinstance(reply, Message):
                why = self._take_in(strangers[node_id], reply, connected, started)
            if why:
                first = first or f": {why}"
                traffic.reject(f"on node {node_id}", why)
        if not self.clients:
            raise RunError(
                f"none of {len(new)} nodes can be used by {self.method}{first} (their "
                "ClientApp has to be app = fedtrellis.client_app(client_fn), not one "
                "of Flower's own)"
            )
        self.names = sorted(self.clients, key=identity_order)

    @window()
    def await_return(self, timeout: float) -> None:
        """Where a client's node has gone, wait for another node, or that one again."""
        there = set(self.grid.get_node_ids())
        nodes = {name: self.clients[name].node_id for name in self.names}
        gone = [name for name, node_id in nodes.items() if node_id not in there]
        known = self._left_out.union(nodes.values())
        if not gone or there - known or hasattr(self.grid, "settled"):
            return
        log(INFO, "waiting for client %s to return, %g s", listed(gone), timeout)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and set(self.grid.get_node_ids()) <= there:
            pause(_LONGEST_WAIT)

    def _take_in(
        self, stranger: Client, hello: Message, connected: set[int], started: bool
    ) -> str:
        """Make a node a client, or the one that it was; or say why it is refused."""
        node_id, key = stranger.node_id, stranger.key
        status, properties = (hello.content.get(one) for one in (STATUS, CONFIG))
        name = status.get("client-id") if isinstance(status, ConfigRecord) else None
        if not isinstance(name, str) or not name:
            return f"the introduction names {name!r}, which is no client-id"
        if not isinstance(properties, ConfigRecord):
            return "the introduction has no properties"
        if not is_count(examples := properties.get(EXAMPLES, 0)):
            return f"the introduction declares {examples!r} examples"
        known = self.clients.get(name)
        first = self.keys.get(name, key) if known is None else known.key
        if key.digest == first.digest:
            stranger.key = first
        elif self.client_keys == "bound" or (not self.client_keys and first.lasting):
            # for good: a node's key does not change
            self._left_out.add(node_id)
            return f"client-id = {name!r} is bound to the key of another node"
        if known is None:
            stranger.properties = dict(properties.items())
            why = self.refuse(stranger.properties) if started else ""
            if why:
                self._left_out.add(node_id)
                log(WARNING, "client %s came after the start, left out: %s", name, why)
                return ""
            if started:
                log(INFO, "client %s came after the start and takes part", name)
            self.clients[name] = stranger
        elif known.node_id not in connected:
            known.node_id, known.key = node_id, stranger.key
        elif started:
            # a node that died counts as connected for a while; its successor is
            # asked again in the next round
            log(WARNING, "client %s came back while its old node is there", name)
        else:
            raise SettingsError(
                f"client-id = {name!r} is used by two nodes ({known.node_id} and "
                f"{node_id}); every node needs a client-id or partition-id of its own"
            )
        return ""
