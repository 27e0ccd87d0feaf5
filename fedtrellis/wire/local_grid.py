"""A Flower ``Grid`` in this process: same strategy, same ClientApp, same Messages.

No Ray and no SuperLink: a message is handled when it is pushed. The grid can encode
every message to bytes and back, as a SuperLink would, and can lose, delay, repeat and
spoil messages and set clients back, so that tests of the wire and of faults need no
cluster. Where nobody could see a message, our own strategies ask its nodes directly.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, refused
from fedtrellis.signals import window
from fedtrellis.wire.arrays import array_record, record_arrays
from fedtrellis.wire.broadcast import ReceivedModel
from fedtrellis.wire.client import MethodApp, advance, serve_together, serving
from fedtrellis.wire.exchange import Reason, Traffic, failure
from fedtrellis.wire.flower_internals import (
    CHUNK_SIZE,
    Encoded,
    ErrorCode,
    NodeInfo,
    Run,
    envelope_bytes,
    join_run,
    message_bytes,
    name_message,
    records_from_bytes,
    records_to_bytes,
    through_bytes,
)
from fedtrellis.wire.protocol import (
    CONFIG,
    DEADLINE,
    METRICS,
    STEPS,
    NodeContext,
    NodeReply,
    NodeRequest,
    client_identity,
    is_request,
)
from fedtrellis.wire.workers import Workers

# As long as those that Flower draws, so that messages have the bytes they have there.
_RUN_ID = 2**63 - 1
_RAISED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
# Kinds of messages whose bytes are known at a time.
_COUNTED = 4096

#: Probabilities, by message, of what can go wrong, and when it strikes.
FAULTS = {
    "request_loss": "the node never sees the request",
    "wipe": "the node lost all state before the request",
    "crash": "the client raises after it has written its state",
    "state_loss": "the reply arrives, but the node did not store its new state",
    "reply_loss": "the node handled the request, the reply is lost",
    "late_reply": "the reply arrives one wave too late",
    "garbage": "the reply arrives spoilt",
    "duplicate": "the reply arrives twice",
}


class Nodes:
    """Some of a grid's nodes: the app that serves them, and their contexts by id."""

    def __init__(
        self, app: ClientApp, contexts: Mapping[int, NodeContext], batched: bool
    ) -> None:
        self.app, self.contexts, self.batched = app, contexts, batched
        #: Whether no further request is to be handled.
        self.stopped: Callable[[], bool] = lambda: False

    def ask(
        self, asked: Sequence[tuple[int, Any]], paces: Mapping[int, tuple[float, int]]
    ) -> list[Any]:
        """The replies of nodes, or texts that say why there is none, in their order.

        At most one to a node: to requests for a ``MethodApp``'s functions, or else to
        whole messages. ``paces`` has virtual seconds of a step, and steps, by node.
        """
        contexts, received = self.contexts, dict[Any, ReceivedModel]()
        for node_id in paces.keys() & contexts.keys():
            # read at the start, and after every step
            vars(contexts[node_id])["clock"] = count(0.0, paces[node_id][0]).__next__
        app: Any = self.app
        replies: list[Any] = [InterruptedError("the wave was given up")] * len(asked)
        begin = {
            place: partial(serving, app, request, contexts[node_id], received)
            for place, (node_id, request) in enumerate(asked)
            if isinstance(request, NodeRequest)
        }
        if self.batched and len(begin) == len(asked) and not self.stopped():
            serve_together(list(begin.values()), replies)
            asked = []
        for place, (node_id, request) in enumerate(asked):
            if self.stopped():
                break
            try:
                ours, context = begin.get(place), contexts[node_id]
                replies[place] = advance(ours()) if ours else app(request, context)
            except Exception as error:
                replies[place] = error
        for place, reply in enumerate(replies):
            if isinstance(reply, Exception):
                replies[place] = f"{type(reply).__name__}: {reply}"
        return replies

    def states(self, names: Collection[str] | None = None) -> dict[str, bytes]:
        """Nodes' states as bytes, by client identity; None: every node's."""
        known = {client_identity(c): c for c in self.contexts.values()}
        wanted = [name for name in known if names is None or name in names]
        return {name: records_to_bytes(known[name].state) for name in wanted}

    def load(self, states: Mapping[str, bytes]) -> None:
        """Inverse of :meth:`states`; nodes that are not named keep theirs."""
        for context in self.contexts.values():
            data = states.get(client_identity(context))
            if data is not None:
                context.state = records_from_bytes(data)


class LocalGrid(Grid):
    """Flower's grid without Flower's processes.

    Parameters
    ----------
    client_app : ClientApp
        Flower's, for example one made by :func:`fedtrellis.client_app`.
    num_nodes : int
        Number of simulated nodes; each has a ``partition-id`` from 0 and
        ``num-partitions`` in its node config, as in Flower's simulation.
    seed : int
        Of the node ids and of the faults.
    run_config : mapping, optional
        The nodes' ``context.run_config``.
    node_configs : sequence of mapping, optional
        More entries for each node's config.
    encode : bool
        Whether messages travel as bytes. ``bytes_down`` and ``bytes_up`` then count
        them.
    batched : bool
        Whether the clients of a wave take their ``steps`` side by side, where they have
        no ``fit`` of their own. Messages, states and faults are the same, and models to
        rounding.
        A ``client_app`` that :func:`fedtrellis.client_app` did not make, and one with
        mods or a lifespan, handles one message at a time.
    workers : int
        Processes that the nodes are spread over, where clients take long: a node's
        state stays with its process. More than 1 takes a system that can fork; what
        ``client_fn`` changes is changed in its process alone. See :meth:`close`.
    delay : callable, optional
        ``delay(index, number)``: how many seconds of virtual time node ``index`` takes
        for message ``number`` of the grid. Nobody waits for them: :meth:`clock` moves
        on to the next answer. Every node computes at once, with what it was sent. Its
        local steps take the same time each, of which a ``local_deadline`` allows some.
    **faults : float
        Probabilities in [0, 1] of the faults of :data:`FAULTS`, drawn for every train
        and evaluate message on its own. Introductions (queries) are spared.

    Raises
    ------
    SettingsError
        If a number is out of range, a fault is not known or ``delay`` is no callable.

    Examples
    --------
    Ten nodes, of which one in ten answers is lost:

    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import FedGiAClient
    >>> def client_fn(context):
    ...     return FedGiAClient(context, objective=my_loss(context))
    >>> grid = LocalGrid(client_app(client_fn), num_nodes=10, reply_loss=0.1)
    >>> len(grid.get_node_ids()), grid.fault_counts["reply_loss"]
    (10, 0)
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        *,
        seed: int = 0,
        run_config: Mapping[str, Any] | None = None,
        node_configs: Sequence[Mapping[str, Any]] | None = None,
        encode: bool = False,
        batched: bool = False,
        workers: int = 1,
        delay: Callable[[int, int], float] | None = None,
        **faults: float,
    ) -> None:
        if num_nodes < 1:
            raise SettingsError(f"num_nodes = {num_nodes} must be at least 1")
        if workers < 1:
            raise SettingsError(f"workers = {workers} must be at least 1")
        if node_configs is not None and len(node_configs) != num_nodes:
            raise SettingsError(
                f"node_configs has {len(node_configs)} entries for {num_nodes} nodes"
            )
        if not (delay is None or callable(delay)):
            why = "must be a callable (index, number) -> seconds"
            raise refused("delay", delay, why)
        for name, chance in faults.items():
            if name not in FAULTS:
                allowed = ", ".join(FAULTS)
                raise SettingsError(f"{name!r} is no fault; allowed: {allowed}")
            if not 0.0 <= chance <= 1.0:
                raise refused(name, chance, "must be at least 0 and at most 1")
        self.faults = {name: float(faults.get(name, 0.0)) for name in FAULTS}
        self.encode, self.batched, self.workers = encode, batched, workers
        self.fault_counts = dict.fromkeys(FAULTS, 0)
        self.bytes_up = self.bytes_down = 0
        self._seed = seed
        # ids that look as arbitrary as Flower's, so that nobody counts on their order
        ids = generator(seed, "node ids").choice(2**62, size=num_nodes, replace=False)
        self._contexts: dict[int, NodeContext] = {
            int(node_id): NodeContext(
                run_id=_RUN_ID,
                node_id=int(node_id),
                node_config={
                    "partition-id": index,
                    "num-partitions": num_nodes,
                    **(node_configs[index] if node_configs else {}),
                },
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for index, node_id in enumerate(ids)
        }
        self._nodes: Nodes | Workers = Nodes(client_app, self._contexts, batched)
        self.delay, self._time = delay, 0.0
        # virtual seconds of a step of nodes, and the steps that they are asked for
        self._paces: dict[int, tuple[float, int]] = {}
        self._handled = 0  # numbers the messages, for their ids and their faults
        # answers, from which virtual time on they can be pulled; those of the next wave
        self._replies: list[tuple[float, Message]] = []
        self._late: list[tuple[float, Message]] = []
        self._sizes: dict[str, int] = {}  # of the last wave's messages, by their ids
        self._shared: Encoded | None = None  # contents that messages have in common
        #: Bytes of messages that were not made, by what these depend on.
        self._counted: dict[Any, tuple[int, int]] = {}
        self._run = Run.create_empty(run_id=_RUN_ID)
        join_run(_RUN_ID)

    # ------------------------------------------------------------- Flower's interface

    def set_run(self, run: Run) -> None:
        """Set what :attr:`run` returns."""
        self._run = run

    @property
    def client_app(self) -> ClientApp:
        """What handles the nodes' messages; to be set before workers start."""
        return self._nodes.app

    @client_app.setter
    def client_app(self, app: ClientApp) -> None:
        if isinstance(self._nodes, Workers):
            raise RuntimeError("the worker processes have started with another app")
        self._nodes = Nodes(app, self._contexts, self.batched)

    @property
    def run(self) -> Run:
        """Run information."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message (Flower's older way to say ``Message(...)``)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Node ids, in no order that means anything."""
        return list(self._contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Nodes as Flower describes them."""
        return [NodeInfo(node_id=node_id) for node_id in self._contexts]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let every node handle its message; the replies wait to be pulled."""
        late, self._late, self._sizes = self._late, [], {}
        wave = list(messages)
        for message in wave:
            self._handled += 1
            name_message(message, f"{self._handled:036d}")  # as a UUID
        self._shared = {} if self.untouched else None
        distinct = {message.metadata.dst_node_id for message in wave}
        # a node's second message finds what its first one left behind
        together = len(distinct) == len(wave)
        for part in [wave] if together else [[message] for message in wave]:
            self._deliver(part)
        self._shared = None
        self._replies += late
        return [message.metadata.message_id for message in wave]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies to the given messages, and late ones, which Flower would not show."""
        asked, waiting, taken = set(message_ids), [], []
        for due, reply in self._replies:
            answers = reply.metadata.reply_to_message_id in asked
            answers |= reply.metadata.message_id.startswith("late")
            if answers and due <= self._time:
                taken.append(reply)
            else:
                waiting.append((due, reply))
        self._replies = waiting
        return taken

    def wait(self, until: float) -> None:
        """Let virtual time pass until something comes, or that second is reached."""
        later = [due for due, _ in self._replies if due > self._time]
        self._time = max(self._time, min([*later, until]))

    def clock(self) -> float:
        """Seconds of virtual time so far, where nodes have a ``delay``."""
        return self._time

    def bytes_of(self, message: Message) -> int:
        """What a message of the last wave, or a reply to one, takes as bytes."""
        size = self._sizes.get(message.metadata.message_id)
        return message_bytes(message) if size is None else size

    def settled(self, message_ids: Iterable[str]) -> bool:
        """Whether nothing more will come for these messages."""
        answered = {reply.metadata.reply_to_message_id for _, reply in self._replies}
        return answered.isdisjoint(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push, and pull whatever comes back."""
        sent = self.push_messages(messages)
        replies = self.pull_messages(sent)
        while not self.settled(sent):
            self.wait(inf)
            replies += self.pull_messages(sent)
        return replies

    @property
    def untouched(self) -> bool:
        """Whether messages go to our own clients, with no mods or methods around."""
        app = self._nodes.app
        return isinstance(app, MethodApp) and app.plain and type(self) is LocalGrid

    def asks(self, kind: str, node_ids: Iterable[int]) -> bool:
        """Whether nodes can be asked for this kind of thing by :meth:`ask`.

        Not where messages would travel as bytes, or something may happen to them.
        """
        return (
            self.untouched
            and not self.encode
            and not self._late
            and self.delay is None
            and not any(self.faults.values())
            and kind in cast(MethodApp, self._nodes.app).functions
            and self._contexts.keys() >= set(node_ids)
        )

    @window()
    def ask(
        self,
        asked: Mapping[str, tuple[int, NodeRequest]],
        server_round: int,
        traffic: Traffic,
    ) -> dict[str, NodeReply | Reason]:
        """The replies of nodes, or why there is none, where :meth:`asks` allows it.

        By the clients' names, at most one request to a node. ``traffic`` counts the
        bytes that messages would have taken, which are not made.
        """
        replies = self._handlers().ask(list(asked.values()), {})
        found: dict[str, NodeReply | Reason] = {}
        for name, reply in zip(asked, replies, strict=True):
            node_id, request = asked[name]
            down, up = self._bytes_of(server_round, node_id, request.kind, reply)
            traffic.down += down + request.nbytes
            traffic.up += up
            found[name] = failure(_RAISED, reply) if isinstance(reply, str) else reply
        return found

    def _bytes_of(
        self, server_round: int, node_id: int, kind: str, reply: NodeReply | str
    ) -> tuple[int, int]:
        """Bytes of a request without its records, and of its reply."""
        structure = reply if isinstance(reply, str) else reply.structure
        # Flower has a node's number in bytes of seven bits
        key = len(str(server_round)), -(-node_id.bit_length() // 7), kind, structure
        if key in self._counted:
            return self._counted[key]
        request = Message(RecordDict(), node_id, kind, group_id=str(server_round))
        name_message(request, "0" * 36)
        content = Error(_RAISED, reply) if isinstance(reply, str) else reply.content
        answer = Message(content, reply_to=request)
        counted = envelope_bytes(request), message_bytes(answer)
        records = answer.content.array_records if answer.has_content() else {}
        sent = [len(array.data) for r in records.values() for array in r.values()]
        # of equal arrays, or parts of a large one, one is sent
        if len(sent) <= 1 and sum(sent) <= CHUNK_SIZE:
            if len(self._counted) == _COUNTED:
                self._counted.clear()
            self._counted[key] = counted
        return counted

    # -------------------------------------------------------------------- the nodes

    def _deliver(self, messages: Sequence[Message]) -> None:
        """Take messages to nodes, each to another one, and their replies back."""
        app, nodes = self._nodes.app, self._handlers()
        struck: list[tuple[Message, set[str]]] = []
        self._paces = {}
        asked: list[tuple[int, Any]] = []
        wiped, forgetful = list[str](), list[str]()
        # an app that looks at its messages for itself may have changed meanwhile
        known = app.functions if isinstance(app, MethodApp) and app.plain else {}
        made: dict[Any, NodeRequest] = {}
        for message in messages:
            node_id = message.metadata.dst_node_id
            if node_id not in self._contexts:
                error = Error(ErrorCode.NODE_UNAVAILABLE, "no such node")
                self._replies.append((0.0, Message(error, reply_to=message)))
                continue
            strikes = self._strikes(message)
            if "request_loss" in strikes:
                continue
            client = client_identity(self._contexts[node_id])
            if "wipe" in strikes:
                wiped.append(client)
            if "state_loss" in strikes:
                forgetful.append(client)
            struck.append((message, strikes))
            if self.delay is not None:
                index = cast(int, self._contexts[node_id].node_config["partition-id"])
                seconds = self.delay(index, int(message.metadata.message_id))
                config: Any = message.content.get(CONFIG, {})
                steps = config[STEPS] if DEADLINE in config else 1
                self._paces[node_id] = seconds / steps, steps
            if self.encode:
                message, size = through_bytes(message, self._shared)
                self.bytes_down += size
                self._sizes[message.metadata.message_id] = size
            kind, content = message.metadata.message_type, message.content
            request: Any = message
            if kind in known and is_request(content):
                # those of one content are one
                made.setdefault((kind, id(content)), NodeRequest(kind, content))
                request = made[kind, id(content)]
            asked.append((node_id, request))
        if wiped:
            nodes.load(dict.fromkeys(wiped, b""))
        before = nodes.states(forgetful) if forgetful else {}
        answers = nodes.ask(asked, self._paces)
        if before:
            nodes.load(before)
        for (message, strikes), answer in zip(struck, answers, strict=True):
            self._answer(message, strikes, answer)

    def _answer(
        self, message: Message, strikes: set[str], answer: NodeReply | Message | str
    ) -> None:
        """Take a node's answer back, with what happens to it on its way."""
        if "crash" in strikes and not isinstance(answer, str):
            answer = "RuntimeError: injected: the client raised after writing state"
        if "reply_loss" in strikes:
            return
        if isinstance(answer, str):
            answer = Message(Error(_RAISED, answer), reply_to=message)
        elif isinstance(answer, NodeReply):
            answer = Message(answer.content, reply_to=message)
        number, late = message.metadata.message_id, "late_reply" in strikes
        due = self._time
        if self.delay is not None:
            pace, steps = self._paces[message.metadata.dst_node_id]
            found: Any = answer.content.get(METRICS, {}) if answer.has_content() else {}
            due += pace * min(steps, found.get(STEPS, steps))
        if "garbage" in strikes and answer.has_content():
            answer = self._spoil(answer, message)
        name_message(answer, f"late-{int(number)}" if late else f"{number}-reply")
        if self.encode:
            answer, size = through_bytes(answer)
            self.bytes_up += size
            self._sizes[answer.metadata.message_id] = size
        copies = 1 if late or "duplicate" not in strikes else 2
        (self._late if late else self._replies).extend([(due, answer)] * copies)

    def _handlers(self) -> Nodes | Workers:
        """What handles messages: this process, or others, started when needed."""
        if self.workers > 1 and isinstance(self._nodes, Nodes):
            app, ids = self._nodes.app, list(self._contexts)
            shares = [ids[number :: self.workers] for number in range(self.workers)]
            self._nodes = Workers(
                Nodes(app, {i: self._contexts[i] for i in share}, self.batched)
                for share in shares
                if share
            )
            self._closing = weakref.finalize(self, self._nodes.close)
        return self._nodes

    def close(self) -> None:
        """End the worker processes, and their nodes' states; this object's end does."""
        if isinstance(self._nodes, Workers):
            self._closing()

    def _spoil(self, reply: Message, message: Message) -> Message:
        """A reply with one thing wrong: NaN, a cut array, no records, another round."""
        rng = generator(self._seed, "garbage", int(message.metadata.message_id))
        records: dict[str, Any] = {k: v.copy() for k, v in reply.content.items()}
        status = [r for r in records.values() if isinstance(r, ConfigRecord)]
        kind = int(rng.integers(4))
        if kind == 1 and status:
            status[0]["server-round"] = 10**9
        elif kind < 2 or not any(isinstance(r, ArrayRecord) for r in records.values()):
            records = {}
        else:
            for name, record in records.items():
                if isinstance(record, ArrayRecord):
                    arrays = record_arrays(record)
                    for i, array in enumerate(arrays):
                        spoilt = kind == 2 and array.dtype.kind == "f"
                        cut = array.reshape(-1)[:-1]
                        arrays[i] = np.full_like(array, np.nan) if spoilt else cut
                    records[name] = array_record(arrays, join="joined" in record)
        return Message(RecordDict(records), reply_to=message)

    def _strikes(self, message: Message) -> set[str]:
        introduction = message.metadata.message_type.startswith("query")
        if introduction or not any(self.faults.values()):
            return set()
        number = int(message.metadata.message_id)
        draws = generator(self._seed, "faults", number).random(len(FAULTS))
        both = zip(FAULTS, draws, strict=True)
        strikes = {name for name, draw in both if draw < self.faults[name]}
        for name in strikes:
            self.fault_counts[name] += 1
        return strikes

    # ------------------------------------------------------------------- checkpoints

    def client_states(self) -> dict[str, bytes]:
        """Every node's state as bytes, by client identity; for a checkpoint."""
        states = self._handlers().states()
        return {**states, "": json.dumps({"handled": self._handled}).encode()}

    def load_client_states(self, states: Mapping[str, bytes]) -> None:
        """Inverse of :meth:`client_states`; nodes that are not named keep theirs."""
        if "" in states:
            # the faults to come are those that would have come
            self._handled = json.loads(states[""])["handled"]
        self._handlers().load(states)
