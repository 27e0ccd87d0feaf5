"""The round loop: one base class for every strategy of fedtrellis.

Flower's own loop sends one wave of messages a round and cannot stop, resume or tell
anybody how it goes. This one waits for the nodes, goes through the rounds, evaluates,
calls callbacks, keeps checkpoints, and gives up when nobody answers any more. What a
round is, a subclass says: one wave (:class:`~fedtrellis.RoundStrategy`) or several.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.checkpoint import load_checkpoint, save_checkpoint
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.method import Method
from fedtrellis.server.metrics import mean_metrics, plain_metrics
from fedtrellis.settings import SettingsError, check_choice
from fedtrellis.wire.arrays import Layout, encode, record_arrays
from fedtrellis.wire.broadcast import ModelBroadcast

__all__ = ["SAMPLINGS", "LoopStrategy"]

SAMPLINGS = ("bernoulli", "fixed")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class LoopStrategy(Method):
    """Base class: the loop, callbacks, checkpoints and evaluations of a run.

    A method of one wave a round is a :class:`~fedtrellis.RoundStrategy`. One of several
    implements :meth:`setup` and :meth:`run_round`, which asks the clients whatever it
    likes through the conversation.

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

    Attributes
    ----------
    history : list of RoundRecord
    refused : list of (str, str)
        Nodes that could not introduce themselves before round 1, and why.
    """

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
        self.refused: list[tuple[str, str]] = []
        self.num_rounds = 0
        self._sampled: list[str] = []
        self._used: list[str] = []

    # ------------------------------------------------------- what a subclass may say

    @abstractmethod
    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One round, in as many waves as it takes.

        Notes down in ``self._sampled`` whom it asked, and in ``self._used`` whose
        answers it used.

        Parameters
        ----------
        conversation : Conversation
            With the clients.
        server_round : int
            From 1.
        config : ConfigRecord
            The run's own entries for the clients' ``config``.
        timeout : float
            Seconds to wait for the answers of one wave.

        Returns
        -------
        dict or None
            The round's metrics; None if no answer was used.
        """

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Waves before round 1, for a method whose clients have to agree on something.

        Also called when a run goes on from a checkpoint, after :meth:`load_state`.
        """

    def finish(self, conversation: Conversation) -> None:
        """After the last round, and after a failure: what clients have to clean up."""

    def evaluate_clients(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> MetricRecord | None:
        """Mean of the clients' metrics of their own data, where an evaluation is due.

        Parameters are those of :meth:`run_round`.
        """
        entries: dict[str, Mapping[str, Any]] = {
            name: dict(config) for name in self.clients
        }
        answers = conversation.ask(server_round, "evaluate", entries, timeout)
        for answer in answers:
            conversation.note_version(answer)
        return mean_metrics([answer.metrics for answer in answers])

    def summary(self) -> None:
        """Log the strategy's settings."""
        for name, value in self.settings().items():
            log(INFO, "\t├── %s: %s", name, value)

    # --------------------------------------------------------------------- the loop

    def _model_record(self) -> ArrayRecord:
        """The model under the names, and in the dtypes, of the arrays it began with."""
        layers = self.broadcast.layout.layers(self.result_point())
        record = ArrayRecord()
        for (name, dtype), layer in zip(self._dtypes.items(), layers, strict=True):
            kept = layer.astype(dtype, copy=False) if dtype.kind == "f" else layer
            record[name] = encode(kept)
        return record

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
            Rounds planned. The method's own stop rule, or a callback, may end the run
            before.
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
        if not isinstance(initial_arrays, ArrayRecord):
            raise TypeError(
                f"initial_arrays is a {type(initial_arrays).__name__}, expected a "
                "flwr.app.ArrayRecord, for example ArrayRecord([x0])"
            )
        arrays = record_arrays(initial_arrays)
        layout = Layout.of(arrays)
        point = layout.point(arrays)
        if not np.isfinite(point).all():
            raise ValueError("initial_arrays are not finite")
        self.check_model(layout)
        self._dtypes = {n: np.dtype(array.dtype) for n, array in initial_arrays.items()}
        self.num_rounds = num_rounds
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self.history, self._history_saved = [], 0
        conversation = self.conversation = Conversation(grid, self)
        log(INFO, "Starting %s: %d rounds", type(self).__name__, num_rounds)
        self.summary()

        conversation.meet(self.min_nodes, self.start_timeout)
        self.refused = list(conversation.traffic.rejected)
        self.broadcast = ModelBroadcast(layout, point)
        self.setup(point, layout)
        result, first_round = Result(), 1
        if self.resume is not None:
            first_round = 1 + load_checkpoint(self.resume, self, grid, result)
            log(INFO, "Resumed: going on with round %d", first_round)
        for callback in self.callbacks:
            callback.on_start(self, first_round, num_rounds)
        try:
            self.prepare(conversation, timeout)
            if first_round == 1 and evaluate_fn is not None:
                evaluation = self._evaluate(evaluate_fn, 0, result)
                self._tell(RoundRecord(round=0, evaluation=evaluation))
            failed = 0
            for server_round in range(first_round, num_rounds + 1):
                record = self._one_round(
                    server_round, train_config, evaluate_config, timeout, result
                )
                failed = 0 if self._used or not self._sampled else failed + 1
                if failed == self.max_failed_rounds:
                    self._tell(record)
                    who, why = (record.rejected or [("?", "nobody was asked")])[-1]
                    raise RuntimeError(
                        f"no usable answer in {failed} rounds in a row; "
                        f"the last: client {who}: {why}"
                    )
                converged = self.converged()
                if converged:
                    log(INFO, "Converged in round %d", server_round)
                last = converged or server_round == num_rounds
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
        finally:
            self.finish(conversation)
        result.arrays = self._model_record()
        for callback in self.callbacks:
            callback.on_end(self, result)
        return result

    def _one_round(
        self,
        server_round: int,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        timeout: float,
        result: Result,
    ) -> RoundRecord:
        began = time.perf_counter()
        conversation = self.conversation
        conversation.meet_again(timeout)
        metrics = self.run_round(conversation, server_round, train_config, timeout)
        if metrics:
            result.train_metrics_clientapp[server_round] = MetricRecord({**metrics})
        waves = conversation.traffic.waves
        evaluated = None
        if self._evaluates_clients(server_round):
            evaluated = self.evaluate_clients(
                conversation, server_round, evaluate_config, timeout
            )
        if evaluated is not None:
            result.evaluate_metrics_clientapp[server_round] = evaluated
        traffic = conversation.take_traffic()
        return RoundRecord(
            round=server_round,
            sampled=len(self._sampled),
            used=len(self._used),
            rejected=traffic.rejected,
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            seconds=time.perf_counter() - began,
            round_trips=waves,
            train=metrics or {},
            client_evaluation=plain_metrics(evaluated),
        )

    def _evaluates_clients(self, server_round: int) -> bool:
        """Whether the clients are asked for an evaluation in this round."""
        every = self.client_evaluate_every
        return bool(every) and server_round % every == 0

    def _evaluate(
        self, evaluate_fn: EvaluateFn, server_round: int, result: Result
    ) -> dict[str, float]:
        metrics = evaluate_fn(server_round, self._model_record())
        if metrics is None:
            return {}
        result.evaluate_metrics_serverapp[server_round] = metrics
        return plain_metrics(metrics)

    def _tell(self, record: RoundRecord) -> bool:
        """Give a round to the history and to the callbacks; whether one said stop."""
        self.history.append(record)
        stop = False
        for callback in self.callbacks:  # each hears of it, also after a stop
            stop = bool(callback.on_round(self, record)) or stop
        return stop
