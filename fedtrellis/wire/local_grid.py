"""A Flower ``Grid`` in this process: same strategy, same ClientApp, same Messages.

No Ray and no SuperLink: a message is handled when it is pushed. The grid can encode
every message to bytes and back, as a SuperLink would, and can lose, delay, repeat and
spoil messages and set clients back, so that tests of the wire and of faults need no
cluster.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError
from fedtrellis.wire.client import MethodApp
from fedtrellis.wire.encoding import Encoder
from fedtrellis.wire.faults import FAULTS, Faults, Parcel, checked_faults, spoilt
from fedtrellis.wire.flower_internals import (
    ErrorCode,
    empty_run,
    encode_message,
    join_run,
    name_message,
    node_infos,
)
from fedtrellis.wire.handling import Wave
from fedtrellis.wire.node_context import NodeContext
from fedtrellis.wire.nodes import Nodes
from fedtrellis.wire.workers import Workers

if TYPE_CHECKING:
    from fedtrellis.wire.flower_internals import NodeInfo, Run
    from fedtrellis.wire.reply_sizes import Asked
    from fedtrellis.wire.together import Heard

__all__ = ["FAULTS", "LocalGrid", "encode_message"]

# As long as those that Flower draws, so that messages have the bytes they have there.
_RUN_ID = 2**63 - 1


def _number_of(message: Message) -> int:
    """How many messages there have been, this one among them."""
    return int(message.metadata.message_id)


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
    **faults : float
        Probabilities in [0, 1] of the faults of :data:`FAULTS`, drawn for every train
        and evaluate message on its own. Introductions (queries) are spared.

    Raises
    ------
    SettingsError
        If a number is out of range or a fault is not known.

    Examples
    --------
    Ten nodes with a c_i each find its mean, although one answer in ten is lost:

    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import FedGiAClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import FedGiA
    >>> def client_fn(context):
    ...     c = np.full(2, float(context.node_config["partition-id"]))
    ...     return FedGiAClient(context, LeastSquares(np.eye(2), c))
    >>> grid = LocalGrid(client_app(client_fn), num_nodes=10, reply_loss=0.1)
    >>> result = FedGiA().start(grid, ArrayRecord([np.zeros(2)]), num_rounds=50)
    >>> result.arrays.to_numpy_ndarrays()[0].round(3)
    array([4.5, 4.5])
    >>> grid.fault_counts["reply_loss"] > 0
    True
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
        **faults: Unpack[Faults],
    ) -> None:
        if num_nodes < 1:
            raise SettingsError(f"num_nodes = {num_nodes} must be at least 1")
        if workers < 1:
            raise SettingsError(f"workers = {workers} must be at least 1")
        if node_configs is not None and len(node_configs) != num_nodes:
            raise SettingsError(
                f"node_configs has {len(node_configs)} entries for {num_nodes} nodes"
            )
        chances = checked_faults(faults)
        self.encode = encode
        self.batched, self.workers = batched, workers
        self.faults = chances
        self.fault_counts = dict.fromkeys(FAULTS, 0)
        self.bytes_up = self.bytes_down = 0
        self._seed = seed
        # ids that look as arbitrary as Flower's, so that nobody counts on their order
        ids = generator(seed, "node ids").choice(2**62, size=num_nodes, replace=False)
        self._contexts: dict[int, Context] = {
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
        self._handled = 0  # numbers the messages, for their ids and their faults
        self._replies: dict[str, Message] = {}
        self._late: list[Message] = []
        self._sizes: dict[str, int] = {}  # of replies, by their ids
        # what messages that are pushed together have in common
        self._encode, self._wave = Encoder(), Wave()
        self._run = empty_run(_RUN_ID)
        self._own = frozenset(vars(self)) | {"_own"}
        join_run(_RUN_ID)

    # ------------------------------------------------------------- Flower's interface

    def set_run(self, run: Run) -> None:
        """Set what :attr:`run` returns."""
        self._run = run

    @property
    def client_app(self) -> ClientApp:
        """What handles the nodes' messages; to be set before workers begin."""
        return self._nodes.app

    @client_app.setter
    def client_app(self, app: ClientApp) -> None:
        if isinstance(self._nodes, Workers):
            raise RuntimeError("the worker processes have begun with another app")
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
        return node_infos(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let every node handle its message; the replies wait to be pulled."""
        late, self._late, self._sizes = self._late, [], {}
        message_ids, together = [], []
        one_by_one = self.workers == 1 and not self.batched
        self._encode = Encoder(sharing=self.shares_contents())
        self._wave = Wave()
        for message in messages:
            self._handled += 1
            message_id = f"{self._handled:036d}"  # as long as a UUID
            name_message(message, message_id)
            message_ids.append(message_id)
            if one_by_one:
                self._deliver(message)
            else:
                together.append(message)
        # a node's second message finds what its first one left behind
        if len({message.metadata.dst_node_id for message in together}) == len(together):
            self._deliver_all(together)
        else:
            for message in together:
                self._deliver(message)
        self._encode, self._wave = Encoder(), Wave()
        for reply in late:
            self._replies[reply.metadata.message_id] = reply
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies to the given messages, and late ones that nobody asks for any more.

        Flower would not show the latter; a strategy has to cope with them anyway.
        """
        asked = set(message_ids)
        taken = [
            key
            for key, reply in self._replies.items()
            if reply.metadata.reply_to_message_id in asked or "late" in key
        ]
        return [self._replies.pop(key) for key in taken]

    def bytes_of(self, reply: Message) -> int | None:
        """What a reply to a message of the last wave took as bytes, if it was."""
        return self._sizes.get(reply.metadata.message_id)

    def settled(self, message_ids: Iterable[str]) -> bool:
        """Whether nothing more will come for these messages."""
        asked = set(message_ids)
        return not any(
            reply.metadata.reply_to_message_id in asked
            for reply in self._replies.values()
        )

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push, and pull whatever came back."""
        return self.pull_messages(self.push_messages(messages))

    def shares_contents(self) -> bool:
        """Whether requests that say the same may have their content in common.

        Not where somebody could change one of them on its way: mods of the client app,
        or whoever has overridden what messages go through.
        """
        app = self._nodes.app
        return (
            isinstance(app, MethodApp)
            and app.plain
            and type(self) is LocalGrid
            and vars(self).keys() <= self._own
        )

    def answers_together(self) -> bool:
        """Whether clients of a ``train`` wave can answer without messages.

        Not where these would travel as bytes or to another process, where something may
        happen to them, or where somebody could look at them.
        """
        return (
            self.batched
            and self.workers == 1
            and not self.encode
            and not self._late
            and not any(self.faults.values())
            and self.shares_contents()
        )

    def answer_together(self, asked: Sequence[Asked]) -> list[Heard | None]:
        """What the clients of a ``train`` wave answer, without a message made of it.

        None for a client that has to be sent one. Where :meth:`answers_together`.
        """
        nodes = self._nodes
        assert isinstance(nodes, Nodes)
        assert nodes.together is not None
        heard = nodes.together.answer(asked)
        self._handled += sum(each is not None for each in heard)
        return heard

    # -------------------------------------------------------------------- the nodes

    def _deliver(self, message: Message) -> None:
        """Take a message to its node, and the node's reply back."""
        self._deliver_all([message])

    def _deliver_all(self, messages: Sequence[Message]) -> None:
        """Take messages to nodes, each to another one, and their replies back."""
        parcels = [Parcel(message) for message in messages]
        arrived = [parcel for parcel in parcels if self._arrives(parcel)]
        deliveries = [parcel.delivery() for parcel in arrived]
        answers = self._handlers().answer(deliveries, self._wave)
        for parcel, answer in zip(arrived, answers, strict=True):
            self._leaves(parcel, answer)

    def _handlers(self) -> Nodes | Workers:
        """What handles messages: this process, or others, which begin when needed."""
        if self.workers > 1 and isinstance(self._nodes, Nodes):
            count = min(self.workers, len(self._contexts))
            self._nodes = Workers(self._nodes.app, self._contexts, self.batched, count)
            self._closing = weakref.finalize(self, self._nodes.close)
        return self._nodes

    def close(self) -> None:
        """End the worker processes, and with them their nodes' states.

        They also end with this object, and with the process that it is in.
        """
        if isinstance(self._nodes, Workers):
            self._closing()

    def _arrives(self, parcel: Parcel) -> bool:
        """Whether a message reaches its node."""
        message = parcel.message
        if message.metadata.dst_node_id not in self._contexts:
            error = Error(ErrorCode.NODE_UNAVAILABLE, "no such node")
            self._post(Message(error, reply_to=message), "")
            return False
        parcel.strikes = self._strikes(message)
        if "request_loss" in parcel.strikes:
            return False
        if self.encode:
            parcel.message, size = self._encode(message)
            self.bytes_down += size
        return True

    def _leaves(self, parcel: Parcel, answer: Message | str) -> None:
        """Take a node's reply back, with what happens to it."""
        message, strikes, size = parcel.message, parcel.strikes, 0
        if "crash" in strikes and not isinstance(answer, str):
            answer = "RuntimeError: injected: the client raised after writing state"
        if isinstance(answer, str):
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            reply = Message(Error(code, answer), reply_to=message)
        else:
            reply = answer
        if "reply_loss" in strikes:
            return
        if "garbage" in strikes and reply.has_content():
            reply = self._spoil(reply, message)
        if self.encode:
            reply, size = Encoder()(reply)
            self.bytes_up += size
        if "late_reply" in strikes:
            name_message(reply, f"late-{_number_of(message)}")
            self._late.append(reply)
            return
        self._post(reply, "")
        if self.encode:
            self._sizes[reply.metadata.message_id] = size
        if "duplicate" in strikes:
            self._post(reply, "-again")

    def _post(self, reply: Message, suffix: str) -> None:
        if not suffix:
            reply_id = f"{reply.metadata.reply_to_message_id}-reply"
            name_message(reply, reply_id)
        self._replies[reply.metadata.message_id + suffix] = reply

    def _strikes(self, message: Message) -> set[str]:
        if not any(self.faults.values()):
            return set()
        if message.metadata.message_type.startswith("query"):
            return set()
        draws = generator(self._seed, "faults", _number_of(message)).random(len(FAULTS))
        strikes = {
            name
            for name, draw in zip(FAULTS, draws, strict=True)
            if draw < self.faults[name]
        }
        for name in strikes:
            self.fault_counts[name] += 1
        return strikes

    def _spoil(self, reply: Message, message: Message) -> Message:
        """A reply with one thing wrong."""
        rng = generator(self._seed, "garbage", _number_of(message))
        return Message(spoilt(reply.content, rng), reply_to=message)

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
