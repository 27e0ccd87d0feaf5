"""The round loop: one base class for every strategy of fedtrellis.

Flower's own loop sends one wave of messages a round and cannot stop, resume or tell
anybody how it goes. This one waits for the nodes, goes through the rounds, evaluates,
calls callbacks, keeps checkpoints, and gives up when nobody answers any more. What a
round is, a subclass says: one wave (:class:`~fedtrellis.RoundStrategy`) or several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedtrellis.server.callbacks import Callback, RoundRecord, observers
from fedtrellis.server.checkpoint import (
    Checkpoint,
    pack_checkpoint,
    write_checkpoint,
)
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.endings import check_ended, unanswered
from fedtrellis.server.guarded import GuardedMethod
from fedtrellis.server.metrics import plain_metrics
from fedtrellis.server.progress import RoundLog
from fedtrellis.server.same_code import check_same_code
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.signals import check_signals, deferred, signals_heard
from fedtrellis.wire.arrays import encode, record_arrays
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import EXAMPLES

__all__ = ["LoopStrategy"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class LoopStrategy(GuardedMethod, options=True):
    """Base class: the loop, callbacks, checkpoints and evaluations of a run.

    A method of one wave a round is a :class:`~fedtrellis.RoundStrategy`. One of several
    implements :meth:`setup` and :meth:`run_round`, which asks the clients whatever it
    likes through the conversation.

    Attributes
    ----------
    history : list of RoundRecord
    refused : list of (str, str)
        Nodes that could not introduce themselves before round 1, and why.
    planned_rounds : int
        T of a schedule that needs one: the rounds that the run was planned with when it
        began, also if it goes on with more. Known from :meth:`setup` on.

    Examples
    --------
    Steepest descent with a search along the line takes two waves a round, for the
    gradients and for the values on that line:

    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, LoopStrategy, MethodClient, client_app
    >>> class LineSearch(LoopStrategy):
    ...     stateful = keep_model = False
    ...     def setup(self, point, layout):
    ...         pass
    ...     def run_round(self, conversation, server_round, config, timeout):
    ...         # whom the round asks, and whose answers it uses
    ...         self._sampled = self._used = list(self.clients)
    ...
    ...         def mean_of(phase, said):
    ...             asked = {client: said for client in self.clients}
    ...             answers = conversation.ask(server_round, phase, asked, timeout)
    ...             return np.mean([answer.arrays[0] for answer in answers], axis=0)
    ...
    ...         x, steps = self.broadcast.model, np.array([0.01, 0.1, 1.0])
    ...         g = mean_of("train.slope", {})
    ...         values = mean_of("train.values", {"g": g.tolist(), "s": steps.tolist()})
    ...         self.broadcast.replace(x - steps[values.argmin()] * g)
    ...         return {"value": float(values.min())}
    >>> class LineClient(MethodClient):    # of f_i(x) = (x − c_i)²/2
    ...     def __init__(self, c):
    ...         self.c = c
    ...     def fit_slope(self, parameters, config):
    ...         return [parameters[0] - self.c], 1, {}
    ...     def fit_values(self, parameters, config):
    ...         g, steps = np.array(config["g"]), np.array(config["s"])
    ...         return [(parameters[0] - steps * g - self.c) ** 2 / 2], 1, {}
    >>> def client_fn(context):
    ...     return LineClient(float(context.node_config["partition-id"]))
    >>> grid = LocalGrid(client_app(client_fn), num_nodes=5)
    >>> result = LineSearch().start(grid, ArrayRecord([np.zeros(1)]), num_rounds=2)
    >>> result.arrays.to_numpy_ndarrays()[0].round(6)
    array([2.])
    """

    #: Whether the method's numbers depend on ``planned_rounds``.
    needs_planned_rounds = False

    callbacks: Sequence[Callback] = given(
        "told of every round; any of them can stop the run", default=(), shown=False
    )
    checkpoint: str | Path | None = given(
        "file to keep the run's state in, replaced in one step, so that a run killed "
        "at any moment leaves a whole one",
        default=None,
        shown=False,
    )
    checkpoint_every: int = setting(
        10, "rounds between checkpoints", minimum=1, shown=False
    )
    resume: str | Path | None = given(
        "checkpoint to go on from", default=None, shown=False
    )
    evaluate_every: int = setting(
        1,
        "rounds between evaluations",
        note="the last round is always evaluated",
        minimum=1,
        shown=False,
    )
    client_evaluate_every: int = setting(
        0,
        "rounds between evaluations on the clients; 0: never, but with nodes' own data "
        "as evaluate-every says",
        minimum=0,
        shown=False,
    )
    min_nodes: int = setting(
        1,
        "nodes to wait for before the start",
        note="the run begins once no further ones connect; all that are there then are "
        "the clients, and with methods that keep nothing of a single one (the FedAvg "
        "family) later ones too",
        minimum=1,
        shown=False,
    )
    start_timeout: float = given(
        "seconds to wait for them", default=600.0, above=0.0, shown=False
    )
    max_failed_rounds: int = setting(
        5,
        "rounds in a row without a usable answer that end the run",
        minimum=1,
        shown=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        logged = any(callback.tells_of_rounds for callback in self.callbacks)
        logs = () if logged else (RoundLog(),)
        self.callbacks = [*self.callbacks, *observers.get(), *logs]
        self._checkpoint = None if self.checkpoint is None else Path(self.checkpoint)
        self._resume = None if self.resume is None else Path(self.resume)
        self.history: list[RoundRecord] = []
        self.refused: list[tuple[str, str]] = []
        self.planned_rounds = 0
        self._used: list[str] = []
        # of which finished round the state is, None while it is changed; and, where it
        # is changed and something is waited for, the checkpoint from before
        self._whole: int | None = None
        self._snapshot: dict[str, Any] | None = None

    def summary(self) -> None:
        """Log the strategy's settings."""
        for name, value in self.settings().items():
            log(INFO, "\t├── %s: %s", name, value)

    def refuse_newcomer(self, properties: Mapping[str, Any]) -> str:
        """As the method has it, and where its numbers rest on who was there."""
        for name, planned in (
            ("privacy", self.privacy != "none"),
            ("aggregation", self.aggregator.sums_only),
        ):
            if planned:
                return f"{name} is planned for the clients of the start"
        if self.client_weights == "examples" and not properties.get(EXAMPLES):
            return "client_weights = 'examples', and it declares none"
        return super().refuse_newcomer(properties)

    # --------------------------------------------------------------------- the loop

    def _model_record(self) -> ArrayRecord:
        """The model under the names, and in the dtypes, of the arrays it began with."""
        layers = self.result_layout.layers(self.result_point())
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
            Before round 1: the model or a setting does not fit, or a simulation would
            run other code than the app's.
        TimeoutError
            If too few nodes connect.
        RuntimeError
            If no client could be used for ``max_failed_rounds`` rounds in a row, or in
            the whole run; or the run diverged.
        """
        if num_rounds < 1:
            raise SettingsError(f"num_rounds = {num_rounds} must be at least 1")
        if not isinstance(initial_arrays, ArrayRecord):
            raise TypeError(
                f"initial_arrays is a {type(initial_arrays).__name__}, expected a "
                "flwr.app.ArrayRecord, for example ArrayRecord([x0])"
            )
        check_same_code(grid)
        arrays = record_arrays(initial_arrays)
        layout = self.layout_of(arrays)
        if not np.isfinite(layout.point(arrays)).all():
            raise ValueError("initial_arrays are not finite")
        point = layout.rounded(layout.point(arrays))
        self.check_model(layout)
        self._dtypes = {n: np.dtype(array.dtype) for n, array in initial_arrays.items()}
        self.num_rounds = num_rounds
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self.history, self._history_saved = [], 0
        conversation = self.conversation = Conversation(grid, self)
        log(INFO, "Starting %s: %d rounds", type(self).__name__, num_rounds)
        self.summary()

        self.meet(conversation, self.min_nodes, self.start_timeout, self._resume)
        self.refused = list(conversation.traffic.rejected)
        for callback in self.callbacks:
            callback.on_meeting(self)
        self.broadcast = ModelBroadcast(layout, point)
        self.planned_rounds = self._planned_rounds()
        self.setup(point, layout)
        del arrays, point  # one model is enough for the rounds
        result, first_round = Result(), 1
        if self._resume is not None:
            self.history = Checkpoint(self._resume).load(self, grid)
            first_round = 1 + self.history[-1].round
            for record in self.history:
                for metrics, by_round in (
                    (record.train, result.train_metrics_clientapp),
                    (record.client_evaluation, result.evaluate_metrics_clientapp),
                    (record.evaluation, result.evaluate_metrics_serverapp),
                ):
                    if metrics:
                        by_round[record.round] = MetricRecord({**metrics})
            log(INFO, "Resumed: going on with round %d", first_round)
        self._whole, self._snapshot = first_round - 1, None
        for callback in self.callbacks:
            callback.on_start(self, first_round, num_rounds)
        # a signal has to wait until the state is whole: that of a finished round, with
        # nothing of the next but messages
        with deferred(), self._ending_in_order():
            self.aggregator.prepare(conversation, self.clients, timeout)
            self.prepare(conversation, timeout)
            if first_round == 1 and evaluate_fn is not None:
                evaluation = self._evaluate(evaluate_fn, 0, result)
                self._tell(RoundRecord(round=0, evaluation=evaluation))
            failed = 0
            for server_round in range(first_round, num_rounds + 1):
                check_signals()
                record = self._one_round(
                    server_round, train_config, evaluate_config, timeout, result
                )
                failed = 0 if self._used or not self._sampled else failed + 1
                if failed == self.max_failed_rounds:
                    self._tell(record)
                    raise unanswered(f"{failed} rounds in a row", record)
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
                self._whole, self._snapshot = server_round, None
                if self._checkpoint is not None and (
                    last or server_round % self.checkpoint_every == 0
                ):
                    self._save(self._pack(server_round))
                if last:
                    break
            check_ended(self)
            result.arrays = self._model_record()
            for callback in self.callbacks:
                callback.on_end(self, result)
        return result

    def _planned_rounds(self) -> int:
        if self._resume is None or not self.needs_planned_rounds:
            return self.num_rounds
        planned = Checkpoint(self._resume).planned_rounds
        if planned != self.num_rounds:
            log(
                INFO,
                "The schedule goes on with T = %d, the rounds planned when the run "
                "began, not with %d",
                planned,
                self.num_rounds,
            )
        return planned

    @contextmanager
    def _ending_in_order(self) -> Iterator[None]:
        """Clean up after the rounds, also when they end badly."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self._save_last()
            for callback in self.callbacks:
                callback.on_failure(self, error)
            raise
        finally:
            with deferred():  # the signal is known, it need not end this wave too
                self.finish(self.conversation)
                self.aggregator.finish(self.clients)

    def _save_last(self) -> None:
        """Save the state after the last finished round, if it is still there."""
        if self._checkpoint is None or not (self._whole or self._snapshot):
            return
        try:
            self._save(self._snapshot or self._pack(self._whole or 0))
        except OSError as error:
            log(WARNING, "the last checkpoint was not saved: %s", error)

    def _pack(self, server_round: int) -> dict[str, Any]:
        grid = self.conversation.grid
        return pack_checkpoint(self, grid, server_round, self.planned_rounds)

    def _save(self, arrays: dict[str, Any]) -> None:
        assert self._checkpoint is not None
        write_checkpoint(self._checkpoint, arrays, self.history, self._history_saved)
        self._history_saved = len(self.history)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Wait for a round's answers so that a signal leaves the state before it.

        A round of several waves changes the state between them. Where a wave can take
        long, because its clients are elsewhere, the state before is kept meanwhile.
        """
        grid = self.conversation.grid
        if getattr(grid, "client_states", None) is not None:
            self._whole = None
            with deferred():
                yield
        else:
            if self._checkpoint is not None and self._whole and signals_heard():
                packed = self._pack(self._whole)
                self._snapshot = {name: np.array(a) for name, a in packed.items()}
            self._whole = None
            yield

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
        with self._interruptible():
            metrics = self.run_round(conversation, server_round, train_config, timeout)
        if metrics:
            result.train_metrics_clientapp[server_round] = MetricRecord({**metrics})
        waves = conversation.traffic.waves
        evaluated = None
        if self._evaluates_clients(server_round):
            with deferred():  # the round is not finished yet, but the state is the next
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
            rejected=list(traffic.rejected),
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
