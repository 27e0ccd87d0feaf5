"""The round loop: what runs a method, and the base class that has it.

Flower's own loop sends one wave of messages a round and cannot stop, resume or report
how it goes. This one waits for the nodes, goes through the rounds, evaluates, calls
callbacks, keeps checkpoints, and gives up when nobody answers any more. What a round
is, is the method's: one wave (:class:`~fedtrellis.RoundStrategy`) or several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from logging import INFO, WARNING
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedtrellis.server.aggregation import Cohorts
from fedtrellis.server.answers import plain_metrics
from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.server.checkpoint import (
    Checkpoint,
    pack_checkpoint,
    write_checkpoint,
)
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.method import Method
from fedtrellis.server.same_code import check_same_code
from fedtrellis.settings import SettingsError
from fedtrellis.signals import check_signals, deferred, signals_heard
from fedtrellis.wire.arrays import Layout, encode, record_arrays
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import EXAMPLES

__all__ = ["HOOKS", "Loop", "LoopStrategy"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

#: Parts of Flower's own loop, which a subclass may override where a round is one wave.
HOOKS = (
    *("configure_train", "aggregate_train"),
    *("configure_evaluate", "aggregate_evaluate"),
)
# where the base classes of strategies are
_BASES = ("fedtrellis.server.loop", "fedtrellis.server.rounds")

# No method's loss rises by this factor and is on its way: not one of them is so random.
_BEYOND = 1e6


class Loop:
    """A run of a method: clients, rounds, callbacks, evaluations, checkpoints.

    It is the :class:`~fedtrellis.server.conversation.Policy` of the conversation.
    """

    def __init__(self, method: LoopStrategy, grid: Grid) -> None:
        self.method, self.options, self.grid = method, method.options, grid
        self.stateful, self.keep_model = method.stateful, method.keep_model
        self.keep_old_state = method._keep_old_state
        self.client_keys = method.options.client_keys
        self.model_for, self.state_for = method._model_for, method._state_for
        self.replaces_state = method._replaces_state
        # what the run goes on from, until it does
        self.resumed: Checkpoint | None = None
        checkpoint = self.options.checkpoint
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        # of which finished round the state is, None while it is changed; and, where it
        # is changed and something is waited for, the checkpoint from before
        self.whole: int | None = None
        self.snapshot: dict[str, Any] | None = None
        # rounds that the history beside the checkpoint has
        self._saved = 0
        self.result = Result()
        # of the arrays that the run begins with, by name
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.conversation = Conversation(grid, self)

    # -------------------------------------------- what the conversation asks the method

    @property
    def model_version(self) -> int:
        """The version of the model that requests bring, which answers have to name."""
        return self.method.broadcast.version

    def refuse_newcomer(self, properties: Mapping[str, Any]) -> str:
        """Why a client that comes after the start cannot take part; empty if it can."""
        if self.options.privacy != "none":
            return "privacy is planned for the clients of the start"
        if self.method.aggregator.seen_by != "method":
            return "aggregation is planned for the clients of the start"
        if self.options.client_weights == "examples" and not properties.get(EXAMPLES):
            return "client_weights = 'examples', and it declares none"
        newcomers = self.method._newcomers
        return "" if newcomers else "the method's clients are those of the start"

    # --------------------------------------------------------------- before the rounds

    def layout_of(self, arrays: ArrayRecord) -> Layout:
        """Shapes and dtype of the model that begins as these arrays."""
        layout, dtypes = Layout.of(record_arrays(arrays)), self.method.dtypes
        found = layout.dtype if layout.dtype in dtypes else "float64"
        return Layout(layout.shapes, self.options.dtype or found)

    def meet(self) -> None:
        """Wait for the clients, and look at what they declare.

        Raises
        ------
        SettingsError
            There are too few for the aggregation; or what
            :meth:`~fedtrellis.server.conversation.Conversation.meet` raises.
        """
        method, options = self.method, self.options
        method._check_hooks()
        if options.resume is not None:
            self.resumed = Checkpoint(Path(options.resume))
            self.conversation.registry.remember(self.resumed.keys)
        self.conversation.meet(options.min_nodes, options.start_timeout)
        method.clients = self.conversation.names
        fixed = method._fixed_count() if options.sampling == "fixed" else None
        cohorts = Cohorts(
            method.clients,
            options.participation,
            fixed,
            method._expected_participation,
            method.num_rounds,
        )
        for part in method._parts:
            part.begin(cohorts)
        if options.client_weights == "examples":
            for client in method.clients:
                if not method._client_properties(client).get(EXAMPLES):
                    raise SettingsError(
                        f"client_weights = 'examples': client {client} declared none; "
                        "its objective needs num_examples"
                    )
        method.refused = list(self.conversation.traffic.rejected)
        for callback in options.callbacks:
            callback.on_meeting(method)

    def go_on(self) -> int:
        """Load the checkpoint to go on from, if there is one; the round before."""
        if self.resumed is None:
            return 0
        history = self.method.history = self.resumed.load(self.method, self.grid)
        self.resumed = None  # its arrays have gone where they belong
        for record in history:
            for metrics, by_round in (
                (record.train, self.result.train_metrics_clientapp),
                (record.client_evaluation, self.result.evaluate_metrics_clientapp),
                (record.evaluation, self.result.evaluate_metrics_serverapp),
            ):
                if metrics:
                    by_round[record.round] = MetricRecord({**metrics})
        last_round = history[-1].round
        log(INFO, "Resumed: going on with round %d", last_round + 1)
        return last_round

    def planned_rounds(self) -> int:
        """T of a schedule: the rounds that the run was planned with when it began."""
        before = self.resumed
        return self.method.num_rounds if before is None else before.planned_rounds

    # ---------------------------------------------------------------------- the rounds

    def run(
        self,
        before: int,
        evaluate_fn: EvaluateFn | None,
        configs: tuple[ConfigRecord, ConfigRecord],
        timeout: float,
    ) -> None:
        """The rounds after so many, until the last one or a stop."""
        method, options, num_rounds = self.method, self.options, self.method.num_rounds
        if not before and evaluate_fn is not None:
            evaluation = self._evaluate(evaluate_fn, 0)
            self._finished(RoundRecord(round=0, evaluation=evaluation))
        failed = 0
        for server_round in range(before + 1, num_rounds + 1):
            check_signals()
            record = self._round(server_round, configs, timeout)
            failed = 0 if method.used or not method.sampled else failed + 1
            if failed == options.max_failed_rounds:
                self._finished(record)
                raise _unanswered(f"{failed} rounds in a row", record)
            converged = method.converged()
            if converged:
                log(INFO, "Converged in round %d", server_round)
            last = converged or server_round == num_rounds
            if evaluate_fn and (last or server_round % options.evaluate_every == 0):
                record.evaluation = self._evaluate(evaluate_fn, server_round)
            if self._finished(record) and not last:
                log(INFO, "Stopped after round %d", server_round)
                last = True
            self.whole, self.snapshot = server_round, None
            due = last or server_round % options.checkpoint_every == 0
            if self.checkpoint is not None and due:
                self._save(self._pack(server_round))
            if last:
                return

    def _round(
        self,
        server_round: int,
        configs: tuple[ConfigRecord, ConfigRecord],
        timeout: float,
    ) -> RoundRecord:
        began = time.perf_counter()
        method, conversation, result = self.method, self.conversation, self.result
        conversation.meet_again(timeout)
        method.clients = conversation.names
        with self._interruptible():
            metrics = method.run_round(conversation, server_round, configs[0], timeout)
        if metrics:
            result.train_metrics_clientapp[server_round] = MetricRecord({**metrics})
        waves = conversation.traffic.waves
        evaluated = None
        if self.evaluates_clients(server_round):
            with deferred():  # the round is not finished yet, but the state is the next
                evaluated = method._evaluate_clients(
                    conversation, server_round, configs[1], timeout
                )
        if evaluated is not None:
            result.evaluate_metrics_clientapp[server_round] = evaluated
        traffic = conversation.take_traffic()
        return RoundRecord(
            round=server_round,
            sampled=len(method.sampled),
            used=len(method.used),
            rejected=list(traffic.rejected),
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            seconds=time.perf_counter() - began,
            round_trips=waves,
            train=metrics or {},
            client_evaluation=plain_metrics(evaluated),
        )

    def evaluates_clients(self, server_round: int) -> bool:
        """Whether the clients are asked for an evaluation in this round."""
        every = self.options.client_evaluate_every
        return bool(every) and server_round % every == 0

    def _evaluate(self, evaluate_fn: EvaluateFn, server_round: int) -> dict[str, float]:
        metrics = evaluate_fn(server_round, self.model_record())
        if metrics is None:
            return {}
        self.result.evaluate_metrics_serverapp[server_round] = metrics
        return plain_metrics(metrics)

    def _finished(self, record: RoundRecord) -> bool:
        """Give a round to the history and the callbacks; whether one stops the run."""
        self.method.history.append(record)
        # each gets it, also after a stop
        stops = [one.on_round(self.method, record) for one in self.options.callbacks]
        return any(stops)

    def model_record(self) -> ArrayRecord:
        """The model under the names, and in the dtypes, of the arrays it began with."""
        layers = self.method._result_layout.layers(self.method._result_point())
        record = ArrayRecord()
        for (name, dtype), layer in zip(self.dtypes.items(), layers, strict=True):
            kept = layer.astype(dtype, copy=False) if dtype.kind == "f" else layer
            record[name] = encode(kept)
        return record

    # --------------------------------------------------------------------- its endings

    @contextmanager
    def ending_in_order(self, timeout: float) -> Iterator[None]:
        """Agree before the rounds; clean up after them, also when they end badly."""
        method, callbacks = self.method, self.options.callbacks
        try:
            method.aggregator.prepare(self.conversation, timeout)
            method.prepare(self.conversation, timeout)
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self._save_last()
            for callback in callbacks:
                callback.on_failure(method, error)
            raise
        finally:
            with deferred():  # the signal is known, it need not end this wave too
                method.finish(self.conversation)
                method.aggregator.finish(self.conversation)

    def _save_last(self) -> None:
        """Save the state after the last finished round, if it is still there."""
        if self.checkpoint is None or not (self.whole or self.snapshot):
            return
        try:
            self._save(self.snapshot or self._pack(self.whole or 0))
        except OSError as error:
            log(WARNING, "the last checkpoint was not saved: %s", error)

    def _pack(self, server_round: int) -> dict[str, Any]:
        return pack_checkpoint(
            self.method, self.grid, server_round, self.method.planned_rounds
        )

    def _save(self, arrays: dict[str, Any]) -> None:
        assert self.checkpoint is not None
        write_checkpoint(self.checkpoint, arrays, self.method.history, self._saved)
        self._saved = len(self.method.history)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Wait for a round's answers so that a signal leaves the state before it.

        A round of several waves changes the state between them. Where a wave can take
        long, because its clients are elsewhere, the state before is kept meanwhile.
        """
        if self.method._one_wave:  # it changes nothing until it has its answers
            yield
        elif getattr(self.grid, "client_states", None) is not None:
            self.whole = None
            with deferred():
                yield
        else:
            if self.checkpoint is not None and self.whole and signals_heard():
                packed = self._pack(self.whole)
                self.snapshot = {name: np.array(a) for name, a in packed.items()}
            self.whole = None
            yield


class LoopStrategy(Method):
    """Base class: the loop, callbacks, checkpoints and evaluations of a run.

    A method of one wave a round is a :class:`~fedtrellis.RoundStrategy`. One of several
    implements :meth:`setup` and :meth:`run_round`, which asks the clients whatever it
    likes through the conversation.

    Attributes
    ----------
    options : RunOptions
        What every strategy takes; each is an attribute of the strategy as well.
    history : list of RoundRecord
    refused : list of (str, str)
        Nodes that could not introduce themselves before round 1, and why.
    clients : list of str
        Identities of the run's clients, in order; from the start of the run on.
    conversation : Conversation
        With the clients; from the start of the run on.
    num_rounds : int
        Rounds planned; from the start of the run on.
    planned_rounds : int
        T of a schedule that needs one: the rounds that the run was planned with when it
        began, also if it goes on with more. Known from :meth:`setup` on.
    broadcast : ModelBroadcast
        The model, and how it gets to the clients; from :meth:`setup` on.
    sampled, used : list of str
        Clients that the last round asked, and whose answers it used.
    aggregator : Aggregation
        The run's own.

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
    ...         self.sampled = self.used = list(self.clients)
    ...
    ...         def mean_of(phase, entries):
    ...             asked = {client: entries for client in self.clients}
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

    # Whether the method's numbers depend on planned_rounds.
    _needs_planned_rounds = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.planned_rounds = 0

    @property
    def _one_wave(self) -> bool:
        """Whether a round is one wave, which changes nothing before its answers."""
        return False

    def summary(self) -> None:
        """Log the strategy's settings."""
        for name, value in self._settings().items():
            log(INFO, "\t├── %s: %s", name, value)

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
        loop = self._loop = Loop(self, grid)
        self.conversation = loop.conversation
        layout = loop.layout_of(initial_arrays)
        point = layout.point(record_arrays(initial_arrays))
        if not np.isfinite(point).all():
            raise ValueError("initial_arrays are not finite")
        point = layout.rounded(point)
        self._check_model(layout)
        loop.dtypes = {n: np.dtype(array.dtype) for n, array in initial_arrays.items()}
        self.num_rounds, self.history = num_rounds, []
        log(INFO, "Starting %s: %d rounds", type(self).__name__, num_rounds)
        self.summary()

        loop.meet()
        self.broadcast = ModelBroadcast(layout, point)
        self.planned_rounds = loop.planned_rounds()
        if self.planned_rounds != num_rounds and self._needs_planned_rounds:
            log(
                INFO,
                "The schedule goes on with T = %d, the rounds planned when the run "
                "began, not with %d",
                self.planned_rounds,
                num_rounds,
            )
        self.setup(point, layout)
        del point  # one model is enough for the rounds
        before = loop.whole = loop.go_on()
        for callback in self.options.callbacks:
            callback.on_start(self, before + 1, num_rounds)
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        # a signal has to wait until the state is whole: that of a finished round, with
        # nothing of the next but messages
        with deferred(), loop.ending_in_order(timeout):
            loop.run(before, evaluate_fn, configs, timeout)
            _check_ended(self)
            loop.result.arrays = loop.model_record()
            for callback in self.options.callbacks:
                callback.on_end(self, loop.result)
        return loop.result

    # -------------------------------------------------------------- Flower's own loop

    def _overridden(self, ending: str = "") -> list[str]:
        """The parts of Flower's loop, whose names end so, that a subclass overrides."""
        kind = type(self)
        base = next(one for one in kind.__mro__ if one.__module__ in _BASES)
        hooks = [hook for hook in HOOKS if hook.endswith(ending)]
        return [
            hook for hook in hooks if getattr(kind, hook) is not getattr(base, hook)
        ]

    def _check_hooks(self, ending: str = "") -> None:
        """Raise TypeError if an overridden part of Flower's loop is never called."""
        if hooks := self._overridden(ending):
            raise TypeError(
                f"{type(self).__name__} overrides {hooks[0]}, but its rounds take "
                "several waves of messages, which Flower's loop does not have: "
                "override run_round, or use a callback"
            )

    def _not_one_wave(self, *arguments: Any, **more: Any) -> Any:
        """Refuse: a round is not one wave; RuntimeError."""
        raise RuntimeError(
            f"{type(self).__name__} takes several waves of messages a round, which "
            "Flower's own loop cannot send: use strategy.start"
        )

    configure_train = aggregate_train = _not_one_wave
    configure_evaluate = aggregate_evaluate = _not_one_wave


def _unanswered(rounds: str, record: RoundRecord) -> RuntimeError:
    """The error of rounds in which nobody had a usable answer, the last of them."""
    who, why = (record.rejected or [("?", "nobody was asked")])[-1]
    return RuntimeError(f"no usable answer in {rounds}; the last: client {who}: {why}")


def _check_ended(strategy: Method) -> None:
    """Raise RuntimeError for a run that is not to be called completed.

    No client was used in any round; or the run diverged.

    The loss that ``evaluate_fn`` measured decides, where it did before round 1 and in
    the end: it must be finite, for no method a million times what it was, and where
    the method descends, as with noise for privacy, not above its start, but for
    rounding. Any other that ends above its start is warned of. Where nobody measured a
    loss the method's own measure decides.
    """
    if not any(record.used for record in strategy.history):
        # however few the rounds were: the model is the one they began with
        record = strategy.history[-1]
        raise _unanswered(f"all of the {record.round} rounds", record)
    if why := _diverged(strategy):
        for part in strategy._parts:
            if cause := part.why_failed():
                raise RuntimeError(f"the run came to nothing: {why}; {cause}")
        raise RuntimeError(f"the run diverged: {why}{_steps(strategy)}")


def _steps(strategy: Method) -> str:
    """The setting of the length of the method's steps; empty if it has none."""
    sizes = {
        field.name: getattr(strategy, field.name)
        for field in fields(strategy)
        if field.name in ("step_size", "local_step_size")
    }
    given = [f"{name} = {size:g}" for name, size in sizes.items() if size]
    return f"; {given[0]} may be too long" if given else ""


def _diverged(strategy: Method) -> str:
    """Why it did; empty if it did not."""
    history = strategy.history
    measured = [r.metrics["loss"] for r in history if "loss" in r.metrics]
    if measured and not isfinite(measured[-1]):
        return f"its loss ended at {measured[-1]}"
    start = history[0].evaluation.get("loss") if history else None
    if start is None or history[0].round != 0 or not isfinite(start):
        return strategy._diverged()
    end, dtype = measured[-1], strategy.broadcast.layout.dtype
    # bfloat16 has 8 bits
    bits = 2.0**-8 if dtype == "bfloat16" else float(np.finfo(dtype).eps)
    rounding = np.sqrt(bits) * abs(start)
    if not end <= start + _BEYOND * max(1.0, abs(start)):
        return f"its loss ended at {end:.3g} and was {start:.3g} before round 1"
    if not end <= start + rounding:
        above = f"its loss ended at {end:.3g}, above the {start:.3g} before round 1"
        if strategy._descends:
            return above
        log(WARNING, "%s%s", above, _steps(strategy))
    return ""
