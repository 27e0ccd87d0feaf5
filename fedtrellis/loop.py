"""The round loop: one base class for every strategy of fedtrellis.

Flower's own loop sends one wave of messages a round and cannot stop, resume or tell
anybody how it goes. This one samples clients by their stable identities, sends each its
own message, polls both kinds of grid with a short, growing wait, refuses answers that
are late, wrong or not finite with a reason, brings clients that lost their state back
in line within the round, and calls callbacks.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedtrellis.arrays import (
    FloatArray,
    Layout,
    array_record,
    encode,
    filled,
    record_arrays,
)
from fedtrellis.broadcast import ModelBroadcast
from fedtrellis.callbacks import Callback, RoundRecord
from fedtrellis.checkpoint import load_checkpoint, save_checkpoint
from fedtrellis.protocol import (
    ARRAYS,
    CONFIG,
    METRICS,
    MODEL,
    RESTORE,
    STATUS,
    identity_order,
    pack_restore,
)
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, check_choice
from fedtrellis.wire import Registry, Traffic, exchange

__all__ = ["SAMPLINGS", "Answer", "RoundStrategy"]

SAMPLINGS = ("bernoulli", "fixed")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


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
    """

    client: str
    arrays: list[NDArray[Any]]
    metrics: dict[str, Any]


class RoundStrategy(Strategy):
    """Base class: a strategy is what it sends, what it checks, and what it aggregates.

    A subclass implements :meth:`setup`, :meth:`instruction`, :meth:`check` and
    :meth:`aggregate`; if its clients have state, :meth:`client_state` and
    :meth:`state`, :meth:`load_state` too.

    Parameters
    ----------
    participation : float
        Probability p, or fraction, of the clients that take part in a round; in (0, 1].
    sampling : {"bernoulli", "fixed"}
        An independent coin flip for each client, or a random set of ⌈p·n⌉ clients.
    seed : int
        Everything random in the run derives from it.
    callbacks : sequence of Callback
        Told of every round; any of them can stop the run.
    checkpoint : path, optional
        File to keep the run's state in, written after every ``checkpoint_every``
        rounds in one step, so that a run killed at any moment leaves a whole one.
    resume : path, optional
        Checkpoint to go on from.
    evaluate_every : int
        Rounds between calls of ``evaluate_fn``; the last round is always evaluated.
    client_evaluate_every : int
        Rounds between evaluations on the clients' own data; 0: never.
    min_nodes : int
        Nodes to wait for before round 1. All that are connected then are the clients.
    start_timeout : float
        Seconds to wait for them.
    max_failed_rounds : int
        Rounds in a row without one usable answer after which the run ends with an
        error.
    """

    #: Whether the method's clients keep state (and so take part in the protocol).
    stateful = True
    #: Whether clients keep the model, to be sent the steps that they lack.
    keep_model = True

    def __init__(
        self,
        *,
        participation: float = 1.0,
        sampling: str = "bernoulli",
        seed: int = 0,
        callbacks: Sequence[Callback] = (),
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 50,
        resume: str | Path | None = None,
        evaluate_every: int = 1,
        client_evaluate_every: int = 0,
        min_nodes: int = 1,
        start_timeout: float = 600.0,
        max_failed_rounds: int = 5,
    ) -> None:
        if not 0.0 < participation <= 1.0:
            raise SettingsError(
                f"participation = {participation!r} must be greater than 0 "
                "and at most 1"
            )
        check_choice("sampling", sampling, SAMPLINGS)
        for name, value in (
            ("checkpoint_every", checkpoint_every),
            ("evaluate_every", evaluate_every),
            ("min_nodes", min_nodes),
            ("max_failed_rounds", max_failed_rounds),
        ):
            if value < 1:
                raise SettingsError(f"{name} = {value!r} must be at least 1")
        self.participation = participation
        self.sampling = sampling
        self.seed = seed
        self.callbacks = list(callbacks)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.checkpoint_every = checkpoint_every
        self.resume = None if resume is None else Path(resume)
        self.evaluate_every = evaluate_every
        self.client_evaluate_every = client_evaluate_every
        self.min_nodes = min_nodes
        self.start_timeout = start_timeout
        self.max_failed_rounds = max_failed_rounds
        self.history: list[RoundRecord] = []
        self.num_rounds = 0
        self._registry = Registry()
        self._traffic = Traffic()
        self._sampled: list[str] = []
        self._used: list[str] = []

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
        """The method's numbers for one client's ``fit``, as scalars by name."""

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
            :func:`~fedtrellis.protocol.identity_order`, whatever order they came in.
            Never empty.

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

    def state(self) -> dict[str, NDArray[Any]]:
        """The method's own state, for a checkpoint; the model is kept by the loop."""
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`; called after :meth:`setup`."""

    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs."""
        return {"participation": self.participation, "sampling": self.sampling}

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

    def sample(self, server_round: int) -> list[str]:
        """The clients of a round; depends on the seed and the round alone."""
        clients = self.clients
        if self.participation == 1.0:
            return list(clients)
        rng = generator(self.seed, "participation", server_round)
        if self.sampling == "fixed":
            # n·p may lie above a whole number by rounding alone: 0.07·100 is 7.0…01
            count = int(np.ceil(len(clients) * self.participation - 1e-9))
            chosen = rng.choice(len(clients), size=count, replace=False)
            return [clients[index] for index in sorted(chosen)]
        coins = rng.random(len(clients)) < self.participation
        return [c for c, heads in zip(clients, coins, strict=True) if heads]

    # ------------------------------------------------------------------- the wire

    def _request(
        self, server_round: int, name: str, kind: str, numbers: Mapping[str, Any]
    ) -> Message:
        """A message to one client, with the model and, if it has none, its state."""
        client = self._registry[name]
        arrays, model_config = self.broadcast.encode(client.version)
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
            if not client.ready:
                state = self.client_state(name)
                restore, restore_config = pack_restore(state, self.broadcast.model)
                config.update(restore_config)
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
            replies = exchange(grid, requests, timeout, self._traffic)
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
        """Check an answer's envelope; None if the client has to be restored."""
        content = reply.content
        if STATUS not in content:
            raise ValueError("the answer has no status")
        status = cast(ConfigRecord, content[STATUS])
        for key, expected in (
            ("client-id", name),
            ("session", self._session),
            ("server-round", server_round),
        ):
            if status.get(key) != expected:
                raise ValueError(
                    f"the answer has {key} {status.get(key)!r}, not {expected!r}"
                )
        if not status["in-sync"]:
            return None
        client = self._registry[name]
        if self.keep_model:
            version = cast(int, status["model-version"])
            if version != self.broadcast.version:
                raise ValueError(f"the answer is for model version {version}")
            client.version = version
        arrays: list[NDArray[Any]] = []
        if ARRAYS in content:
            arrays = record_arrays(cast(ArrayRecord, content[ARRAYS]))
        for array in arrays:
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError("the answer is not finite")
        metrics: dict[str, Any] = {}
        if METRICS in content:
            metrics = dict(cast(MetricRecord, content[METRICS]))
        return Answer(name, arrays, metrics)

    # ------------------------------------------------------- Flower's Strategy methods

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages of a round's first wave."""
        self._sampled = self.sample(server_round)
        return [
            self._request(
                server_round,
                name,
                "train",
                {**config, **self._numbers(server_round, name)},
            )
            for name in self._sampled
        ]

    def _numbers(self, server_round: int, name: str) -> dict[str, Any]:
        return {
            "num-clients": self.num_clients,
            "seed": self.seed,
            **self.instruction(server_round, name),
        }

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and aggregate the replies of a round's first wave."""
        by_node = {self._registry[name].node_id: name for name in self.clients}
        answers = []
        for reply in replies:
            name = by_node.get(reply.metadata.src_node_id)
            if name is None or reply.has_error():
                self._traffic.reject(name or "an unknown node", "no usable reply")
                continue
            try:
                answer = self._open(reply, server_round, name)
            except Exception as error:
                self._traffic.reject(name, str(error))
                continue
            if answer is None:
                # this loop has no second wave: the next round's request restores it
                client = self._registry[name]
                client.ready, client.version = False, None
                continue
            answers.append(answer)
        metrics = self._use(server_round, answers)
        if metrics is None:
            return None, None
        return self._model_record(), MetricRecord(dict(metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages of an evaluation on all clients' own data, if this round has one."""
        every = self.client_evaluate_every
        if not every or server_round % every:
            return []
        return [
            self._request(server_round, name, "evaluate", dict(config))
            for name in self.clients
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean of the clients' metrics, weighted by their numbers of examples."""
        metrics = [
            dict(cast(MetricRecord, reply.content[METRICS]))
            for reply in replies
            if reply.has_content() and METRICS in reply.content
        ]
        return self._mean_metrics(metrics)

    def summary(self) -> None:
        """Log the strategy's settings."""
        for name, value in self.settings().items():
            log(INFO, "\t├── %s: %s", name, value)

    # --------------------------------------------------------------------- the loop

    @staticmethod
    def _mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> MetricRecord | None:
        weights = np.array([float(m.get("num-examples", 0)) for m in metrics])
        if not weights.sum() > 0:
            return None
        names = set.intersection(
            *({n for n, v in m.items() if isinstance(v, int | float)} for m in metrics)
        ) - {"num-examples"}
        mean = {
            name: float(np.average([m[name] for m in metrics], weights=weights))
            for name in sorted(names)
        }
        return MetricRecord({**mean, "num-examples": int(weights.sum())})

    def _model_record(self) -> ArrayRecord:
        return array_record(self.broadcast.layout.layers(self.broadcast.model))

    def _use(
        self, server_round: int, answers: Sequence[Answer]
    ) -> dict[str, float] | None:
        """Check the answers, aggregate the good ones and remember whose they were."""
        checked: dict[str, Any] = {}
        for answer in answers:
            try:
                checked[answer.client] = self.check(answer)
            except ValueError as error:
                self._traffic.reject(answer.client, str(error))
        self._used = list(checked)
        if not checked:
            return None
        metrics = self.aggregate(server_round, checked)
        for name in checked:
            client = self._registry[name]
            client.used_round, client.ready = server_round, True
        return metrics

    def run_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float
    ) -> dict[str, float] | None:
        """One round: a wave, and what the method makes of it.

        A method of several waves overrides this. Returns the round's metrics, or None
        if nothing was used.
        """
        self._sampled = self.sample(server_round)
        numbers = {
            name: {**config, **self._numbers(server_round, name)}
            for name in self._sampled
        }
        if not numbers:
            self._used = []
            return None
        answers = self._ask(grid, server_round, "train", numbers, timeout)
        return self._use(server_round, answers)

    def _evaluate_clients(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float
    ) -> MetricRecord | None:
        every = self.client_evaluate_every
        if not every or server_round % every:
            return None
        numbers: dict[str, Mapping[str, Any]] = {
            name: dict(config) for name in self.clients
        }
        answers = self._ask(grid, server_round, "evaluate", numbers, timeout)
        return self._mean_metrics([answer.metrics for answer in answers])

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the strategy; parameters and result are those of Flower's own.

        Parameters
        ----------
        grid : Grid
            Flower's, or a :class:`~fedtrellis.LocalGrid`.
        initial_arrays : ArrayRecord
            The model to start from.
        num_rounds : int
            Rounds planned. A callback may stop the run before.
        timeout : float
            Seconds to wait for the replies of one wave.
        train_config, evaluate_config : ConfigRecord, optional
            More entries for the clients' ``config``.
        evaluate_fn : callable, optional
            Called with the round and the model before round 1 and after every
            ``evaluate_every`` rounds; returns a ``MetricRecord`` or None.

        Returns
        -------
        Result
            The model and the metrics by round; ``self.history`` has all of a round.

        Raises
        ------
        SettingsError, ValueError
            Before round 1: the model or a setting does not fit.
        TimeoutError
            If too few nodes connect.
        RuntimeError
            If no client could be used for ``max_failed_rounds`` rounds in a row.
        """
        if num_rounds < 1:
            raise SettingsError(f"num_rounds = {num_rounds} must be at least 1")
        arrays = record_arrays(initial_arrays)
        layout = Layout.of(arrays)
        point = layout.point(arrays)
        if not np.isfinite(point).all():
            raise ValueError("initial_arrays are not finite")
        self.check_model(layout)
        self.num_rounds = num_rounds
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self.history, self._history_saved, self._registry = [], 0, Registry()
        self._session, self._traffic = secrets.token_hex(4), Traffic()
        log(INFO, "Starting %s: %d rounds", type(self).__name__, num_rounds)
        self.summary()

        self._registry.wait_for(grid, self.min_nodes, self.start_timeout)
        self._registry.introduce(grid, self.start_timeout, self._traffic, started=False)
        self.broadcast = ModelBroadcast(layout, point)
        self.setup(point, layout)
        result, first_round = Result(), 1
        if self.resume is not None:
            first_round = 1 + load_checkpoint(self.resume, self, grid, result)
        for callback in self.callbacks:
            callback.on_start(self, first_round, num_rounds)
        try:
            if first_round == 1 and evaluate_fn is not None:
                evaluation = self._evaluate(evaluate_fn, 0, result)
                self._tell(RoundRecord(round=0, evaluation=evaluation))
            failed = 0
            for server_round in range(first_round, num_rounds + 1):
                record = self._one_round(
                    grid, server_round, train_config, evaluate_config, timeout, result
                )
                failed = 0 if self._used or not self._sampled else failed + 1
                if failed == self.max_failed_rounds:
                    self._tell(record)
                    who, why = record.rejected[-1]
                    raise RuntimeError(
                        f"no usable answer in {failed} rounds in a row; "
                        f"the last: client {who}: {why}"
                    )
                last = server_round == num_rounds
                if evaluate_fn is not None and (
                    last or server_round % self.evaluate_every == 0
                ):
                    record.evaluation = self._evaluate(
                        evaluate_fn, server_round, result
                    )
                if self._tell(record) and not last:
                    log(INFO, "Stopped after round %d", server_round)
                    last = True
                if self.checkpoint is not None and (
                    last or server_round % self.checkpoint_every == 0
                ):
                    save_checkpoint(self.checkpoint, self, grid, server_round)
                if last:
                    break
        except BaseException as error:
            for callback in self.callbacks:
                callback.on_failure(self, error)
            raise
        result.arrays = self._final_arrays(initial_arrays)
        for callback in self.callbacks:
            callback.on_end(self, result)
        return result

    def _one_round(
        self,
        grid: Grid,
        server_round: int,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        timeout: float,
        result: Result,
    ) -> RoundRecord:
        began = time.perf_counter()
        self._registry.introduce(grid, timeout, self._traffic, started=True)
        metrics = self.run_round(grid, server_round, train_config, timeout)
        if metrics:
            result.train_metrics_clientapp[server_round] = MetricRecord({**metrics})
        evaluated = self._evaluate_clients(grid, server_round, evaluate_config, timeout)
        if evaluated is not None:
            result.evaluate_metrics_clientapp[server_round] = evaluated
        traffic, self._traffic = self._traffic, Traffic()
        return RoundRecord(
            round=server_round,
            sampled=len(self._sampled),
            used=len(self._used),
            rejected=traffic.rejected,
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            seconds=time.perf_counter() - began,
            train=metrics or {},
            client_evaluation=_plain(evaluated),
        )

    def _evaluate(
        self, evaluate_fn: EvaluateFn, server_round: int, result: Result
    ) -> dict[str, float]:
        metrics = evaluate_fn(server_round, self._model_record())
        if metrics is None:
            return {}
        result.evaluate_metrics_serverapp[server_round] = metrics
        return _plain(metrics)

    def _tell(self, record: RoundRecord) -> bool:
        """Give a round to the history and to the callbacks; whether one said stop."""
        self.history.append(record)
        stop = False
        for callback in self.callbacks:  # each hears of it, also after a stop
            stop = bool(callback.on_round(self, record)) or stop
        return stop

    def _final_arrays(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """The model under the names, and in the dtypes, of the arrays it began with."""
        layers = self.broadcast.layout.layers(self.broadcast.model)
        final = ArrayRecord()
        for (name, before), layer in zip(initial_arrays.items(), layers, strict=True):
            dtype = np.dtype(before.dtype)
            final[name] = encode(layer.astype(dtype) if dtype.kind == "f" else layer)
        return final


def _plain(metrics: MetricRecord | None) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in (metrics or {}).items()
        if isinstance(value, int | float)
    }
