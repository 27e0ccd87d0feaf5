"""What a strategy of fedtrellis says, and to whom: the base of the round loop.

A method is what its server sends, what it checks in an answer, and what it makes of the
answers. This base class draws the round's clients by their stable identities, packs
each its own request, refuses answers that are late, wrong or not finite with a reason,
and brings clients that lost their state back in line within the round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, ClassVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedtrellis.random import generator
from fedtrellis.server.callbacks import listed
from fedtrellis.settings import Declared, setting
from fedtrellis.wire.arrays import FloatArray, Layout, filled, record_arrays
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.exchange import NO_ANSWER, Registry, Traffic, exchange
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import (
    ARRAYS,
    CONFIG,
    LARGEST,
    METRICS,
    MODEL,
    RESTORE,
    STATUS,
    identity_order,
    pack_restore,
)

__all__ = ["SAMPLINGS", "Answer", "Method"]

SAMPLINGS = ("bernoulli", "fixed")


def _moderate(array: NDArray[Any]) -> bool:
    # NaN is not between anything
    return not array.size or (
        float(array.min()) >= -LARGEST and float(array.max()) <= LARGEST
    )


@dataclass
class Answer:
    """A client's answer that passed every check of the wire.

    Attributes
    ----------
    client : str
        Who answered.
    arrays : list of ndarray
        What ``fit`` returned; read-only.
    metrics : dict
        Its metrics.
    numbers : ndarray of float64
        The vector that it left in ``self.numbers``; empty if none.
    version : int or None
        The model version that the client has now, if it keeps the model.
    """

    client: str
    arrays: list[NDArray[Any]]
    metrics: dict[str, Any]
    numbers: FloatArray = field(default_factory=lambda: np.empty(0))
    version: int | None = None


class Method(Strategy, Declared):
    """A method as its hooks, and the requests and answers around them.

    Use :class:`~fedtrellis.RoundStrategy`, which adds the loop.
    """

    #: Whether the method's clients keep state (and so take part in the protocol).
    stateful = True
    #: Whether clients keep the model, to be sent the steps that they lack.
    keep_model = True
    #: Whether a client that is out of step keeps what it has of the entries that
    #: :meth:`client_state` does not give back, however old; else it starts without.
    keep_old_state = True
    #: Settings (names of attributes) that decide what :meth:`state` holds and means: a
    #: checkpoint is for runs that have the same.
    state_settings: tuple[str, ...] = ()

    #: What run configs call the method; its settings' keys begin with it.
    name: ClassVar[str] = ""
    #: A line for listings.
    about: ClassVar[str] = ""
    #: Where the model lives: "domain", a convex set; "whole", all of space;
    #: "manifold"; or "split", one vector of weights whose features lie with clients.
    space: ClassVar[str] = "whole"
    #: Whether a method on a domain needs a bounded one.
    bounded: ClassVar[bool] = False
    #: Metrics of a round that the method itself measures and a run may stop on.
    measures: ClassVar[tuple[str, ...]] = ()
    #: Settings that a run may go on from a checkpoint without.
    free_to_change: ClassVar[tuple[str, ...]] = ()

    participation: float = setting(
        1.0,
        "probability, or fraction, of the clients that take part in a round",
        symbol="p",
        above=0.0,
        maximum=1.0,
    )
    sampling: str = setting(
        "bernoulli",
        "a coin flip for each client, or a fixed number of them, ⌈p·n⌉",
        choices=SAMPLINGS,
    )
    seed: int = setting(0, "of everything random", minimum=0, shown=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.broadcast: ModelBroadcast
        self._registry = Registry()
        self._traffic = Traffic()
        self._session, self._epoch = "", ""

    # ------------------------------------------------------------------ the method

    def check_model(self, layout: Layout) -> None:
        """Raise ValueError if the model does not fit the method, say its domain.

        Called before any message is sent.
        """

    @abstractmethod
    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Prepare the server's state for ``self.num_clients`` clients.

        Parameters
        ----------
        point : ndarray of shape ``layout.point_shape``
            The model to start from, float64.
        layout : Layout
            Shapes of the model's arrays.

        Raises
        ------
        ValueError
            If the model does not fit the method, for example its domain.
        """

    @abstractmethod
    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The method's numbers for one client's ``fit``, as scalars by name.

        ``num-clients`` and ``server-round`` are added. A method whose clients draw
        random numbers sends its ``seed``.
        """

    @abstractmethod
    def check(self, answer: Answer) -> Any:
        """Turn an answer into what :meth:`aggregate` takes.

        Raises
        ------
        ValueError
            If the answer is malformed or not finite; its message is the reason that
            the log and the history give, and the answer is as if it had been lost.
        """

    @abstractmethod
    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Change ``self.broadcast``'s model by a round's checked answers.

        Parameters
        ----------
        server_round : int
            The round, from 1.
        answers : dict
            What :meth:`check` returned, by client, in the order of
            :func:`~fedtrellis.wire.protocol.identity_order`, whatever order they came
            in. Never empty.

        Returns
        -------
        dict
            The round's metrics.
        """

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """The state to give a client that has lost its own (or never had one).

        An entry that is the model itself (the same object) costs nothing to send.
        """
        return {}

    def replaces_state(self, client: str) -> bool:
        """Whether a client's own state no longer counts, only :meth:`client_state`."""
        return False

    def result_point(self) -> FloatArray:
        """The model that is evaluated and returned, where that is not what is sent."""
        return self.broadcast.model

    def converged(self) -> bool:
        """Whether the method's own stop rule holds; asked after every round."""
        return False

    def state(self) -> dict[str, NDArray[Any]]:
        """The method's own state, for a checkpoint; the model is kept by the loop.

        An entry that is not empty before round 1 keeps its shape.
        """
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`; called after :meth:`setup`."""

    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs, by name and symbol."""
        return self.described()

    def warnings(self) -> list[str]:
        """What a reader of a run's record must not overlook."""
        return []

    # ------------------------------------------------------------------- sampling

    @property
    def clients(self) -> list[str]:
        """Identities of the run's clients, in order."""
        return self._registry.names

    @property
    def num_clients(self) -> int:
        """Number of clients n, fixed for the run."""
        return len(self._registry.names)

    def client_properties(self, client: str) -> dict[str, Any]:
        """What a client answered to the introduction (its ``get_properties``)."""
        return self._registry[client].properties

    @property
    def expected_participation(self) -> float:
        """How likely a client is to take part in a round, p of the schedules.

        The setting itself, or ⌈p·n⌉/n where a round has a fixed number of the run's
        clients; before the start nobody knows their number n.
        """
        if self.sampling == "fixed" and self.num_clients:
            return self._fixed_count() / self.num_clients
        return self.participation

    def _fixed_count(self) -> int:
        # n·p may lie above a whole number by rounding alone: 0.07·100 is 7.0…01
        return int(np.ceil(self.num_clients * self.participation - 1e-9))

    def sample(self, server_round: int) -> list[str]:
        """The clients of a round; depends on the seed and the round alone."""
        clients = self.clients
        if self.participation == 1.0:
            return list(clients)
        rng = generator(self.seed, "participation", server_round)
        if self.sampling == "fixed":
            chosen = rng.choice(len(clients), size=self._fixed_count(), replace=False)
            return [clients[index] for index in sorted(chosen)]
        coins = rng.random(len(clients)) < self.participation
        return [c for c, heads in zip(clients, coins, strict=True) if heads]

    # ------------------------------------------------------------------- the wire

    def _request(
        self, server_round: int, name: str, kind: str, numbers: Mapping[str, Any]
    ) -> Message:
        """A message to one client, with the model and, if it has none, its state."""
        client = self._registry[name]
        numbers = dict(numbers)
        arrays, model_config = self._model_for(name, numbers)
        config: dict[str, Any] = {
            "session": self._session,
            "server-round": server_round,
            **model_config,
            **numbers,
        }
        records: dict[str, Any] = {MODEL: arrays}
        if not self.keep_model:
            config["keep-model"] = False
        if kind != "evaluate" and self.stateful:
            config["used-round"] = client.used_round
            # without a server that was started again, neither is there
            if client.epoch:
                config["used-epoch"] = client.epoch
            if self._epoch:
                config["epoch"] = self._epoch
            replace = self.replaces_state(name)
            if replace or not client.ready:
                restore, restore_config = self._state_for(name)
                config.update(restore_config)
                if replace or not self.keep_old_state:
                    config["restore-alone"] = True
                if replace:
                    config["restore-over"] = True
                if restore:
                    records[RESTORE] = restore
        content = filled(
            RecordDict(), {CONFIG: filled(ConfigRecord(), config), **records}
        )
        return Message(
            content,
            dst_node_id=client.node_id,
            message_type=kind,
            group_id=str(server_round),
        )

    def _model_for(
        self, name: str, numbers: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """The model as one client is sent it, and what to say of its encoding.

        ``numbers`` are the request's; what they hold for the model is taken out.
        """
        return self.broadcast.encode(self._registry[name].version)

    def _state_for(self, name: str) -> tuple[ArrayRecord, dict[str, Any]]:
        """The state for a client that has none, and what to say of it."""
        return pack_restore(self.client_state(name), self.broadcast.model)

    def _ask(
        self,
        grid: Grid,
        server_round: int,
        kind: str,
        numbers: Mapping[str, Mapping[str, Any]],
        timeout: float,
    ) -> list[Answer]:
        """Send one wave to the named clients, and again to those out of step."""
        answers: list[Answer] = []
        todo = sorted(numbers, key=identity_order)
        for attempt in (1, 2):
            requests = [
                self._request(server_round, name, kind, numbers[name]) for name in todo
            ]
            by_node = {self._registry[name].node_id: name for name in todo}
            self._traffic.waves += 1
            asked = [self._registry[name] for name in todo]
            replies = exchange(grid, requests, timeout, self._traffic, asked)
            silent = [
                by_node[node] for node, reply in replies.items() if reply == NO_ANSWER
            ]
            if silent:
                names = listed(sorted(silent, key=identity_order), 20)
                log(WARNING, "round %d: no answer from client %s", server_round, names)
            behind = []
            for node_id, reply in replies.items():
                name = by_node[node_id]
                if not isinstance(reply, Message):
                    self._traffic.reject(name, reply)
                    continue
                try:
                    answer = self._open(reply, server_round, name)
                except Exception as error:  # the content is the client's: anything goes
                    self._traffic.reject(name, str(error) or type(error).__name__)
                    continue
                if answer is not None:
                    answers.append(answer)
                    continue
                client = self._registry[name]
                client.ready, client.version = False, None
                if attempt == 1:
                    behind.append(name)
                else:
                    self._traffic.reject(name, "its state could not be restored")
            todo = sorted(behind, key=identity_order)
            if not todo:
                break
        return sorted(answers, key=lambda answer: identity_order(answer.client))

    def _open(self, reply: Message, server_round: int, name: str) -> Answer | None:
        """Check an answer's envelope; None if the client has to be restored.

        Nothing changes here: what an answer says counts once it is used.
        """
        content = reply.content
        if STATUS not in content:
            raise ValueError("the answer has no status")
        for record, kind in (
            (STATUS, ConfigRecord),
            (ARRAYS, ArrayRecord),
            (METRICS, MetricRecord),
        ):
            if record in content and not isinstance(content[record], kind):
                raise ValueError(
                    f"the answer's {record!r} is a {type(content[record]).__name__}, "
                    f"expected {kind.__name__}"
                )
        status = cast(ConfigRecord, content[STATUS])
        # of "train.propose"; none in a round of one wave
        phase = reply.metadata.message_type.partition(".")[2] or None
        for key, expected in (
            ("client-id", name),
            ("session", self._session),
            ("server-round", server_round),
            ("phase", phase),
        ):
            if status.get(key) != expected:
                raise ValueError(
                    f"the answer has {key} {status.get(key)!r}, not {expected!r}"
                )
        in_sync = status.get("in-sync")
        if not isinstance(in_sync, bool):
            raise ValueError(f"the answer has in-sync {in_sync!r}")
        if not in_sync:
            return None
        version = status.get("model-version")
        if self.keep_model and (
            type(version) is not int or version != self.broadcast.version
        ):
            raise ValueError(f"the answer is for model version {version!r}")
        arrays: list[NDArray[Any]] = []
        if ARRAYS in content:
            arrays = record_arrays(cast(ArrayRecord, content[ARRAYS]))
        data = status.get("numbers", b"")
        if not isinstance(data, bytes) or len(data) % 8:
            raise ValueError("the answer's numbers are not numbers of 8 bytes each")
        numbers = np.frombuffer(data, dtype="<f8")
        for array in (*arrays, numbers):
            if array.dtype.kind == "f" and not _moderate(array):
                raise ValueError(
                    f"the answer is not finite, or has numbers beyond ±{LARGEST:g}"
                )
        metrics: dict[str, Any] = {}
        if METRICS in content:
            metrics = dict(cast(MetricRecord, content[METRICS]))
        version = cast(int, version) if self.keep_model else None
        return Answer(name, arrays, metrics, numbers, version)

    def _note_version(self, answer: Answer) -> None:
        """Remember which model a client has, of an answer that is used."""
        if answer.version is not None:
            self._registry[answer.client].version = answer.version

    def _numbers(self, server_round: int, name: str) -> dict[str, Any]:
        return {
            "num-clients": self.num_clients,
            **self.instruction(server_round, name),
        }
