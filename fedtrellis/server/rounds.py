"""Rounds of one wave of messages, which is what most methods take."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedtrellis.server.aggregation import Sealed
from fedtrellis.server.conversation import Answer, Conversation
from fedtrellis.server.loop import LoopStrategy, plain_metrics
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.client import speaks_for
from fedtrellis.wire.protocol import ANSWER_BOUND


class RoundStrategy(LoopStrategy):
    """Base class: a strategy is what it sends, what it checks, and what it aggregates.

    A subclass implements :meth:`setup`, :meth:`instruction`, :meth:`check` and
    :meth:`aggregate`; if its clients have state, :meth:`client_state` and
    :meth:`state`, :meth:`load_state` too. Parameters and attributes are those of
    :class:`~fedtrellis.server.loop.LoopStrategy`.

    Examples
    --------
    Gradient descent, both halves of it:

    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, MethodClient, RoundStrategy
    >>> from fedtrellis import client_app, setting
    >>> class GradientDescent(RoundStrategy):
    ...     stateful = keep_model = False
    ...     step_size: float = setting(0.5, "of a round", above=0.0)
    ...
    ...     def setup(self, point, layout):
    ...         pass
    ...     def instruction(self, server_round, client):
    ...         return {}
    ...     def check(self, answer):
    ...         return answer.arrays[0]
    ...     def aggregate(self, server_round, answers):
    ...         g = np.mean(list(answers.values()), axis=0)
    ...         self.broadcast.replace(self.broadcast.model - self.step_size * g)
    ...         return {"norm": float(np.linalg.norm(g))}
    >>> class GradientClient(MethodClient):    # of f_i(x) = (x − c_i)²/2
    ...     def __init__(self, c):
    ...         self.c = c
    ...     def fit(self, parameters, config):
    ...         return [parameters[0] - self.c], 1, {}
    >>> def client_fn(context):
    ...     return GradientClient(float(context.node_config["partition-id"]))
    >>> grid = LocalGrid(client_app(client_fn), num_nodes=5)
    >>> strategy = GradientDescent(step_size=0.5)
    >>> result = strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds=30)
    >>> result.arrays.to_numpy_ndarrays()[0].round(6)
    array([2.])
    """

    @abstractmethod
    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The entries of the ``config`` that one client's ``fit`` gets, by name.

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
        """Change ``self.broadcast``'s model by a round's checked answers; its metrics.

        ``answers`` has what :meth:`check` returned, by client, in the order of
        :func:`~fedtrellis.wire.protocol.identity_order`, whatever order they came in.
        It is never empty, but where ``aggregation`` is ``"private"``; then only
        :meth:`average` and :meth:`mean_of` can make something of them. With
        ``"secure-sum"`` each is the mean of its block. Rounds count from 1.
        """

    def audience(self, server_round: int, client: str) -> Hashable:
        """What a client's :meth:`instruction` depends on: equal ones get the same.

        By default its name, so that each is asked for. A method that overrides it saves
        the server a look at each; a subclass with another :meth:`instruction` overrides
        both, or does without.
        """
        return client

    def _all_alike(self, server_round: int, client: str) -> None:
        """An :meth:`audience` of all clients: one instruction for everybody."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        # what is said of a round by one class need not hold of a class below it
        if not speaks_for(cls, "audience", "instruction"):
            cls.audience = RoundStrategy.audience  # type: ignore[method-assign]
        cls._one_wave = cls.run_round is RoundStrategy.run_round

    _one_wave = True

    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One round: a wave, and what the method makes of it."""
        if not self._overridden("train"):
            answers: Sequence[Answer] = ()
            if entries := self._entries(server_round, config):
                ask = self.aggregator.ask
                answers = ask(conversation, server_round, entries, timeout)
            return self._use(server_round, answers)
        asked = self.configure_train, server_round, config, timeout
        replies, self.sampled = conversation.send(*asked)
        self.used = [name for name, reply in replies.items() if reply.has_content()]
        arrays, metrics = self.aggregate_train(server_round, list(replies.values()))
        if arrays is not None:
            layers = record_arrays(arrays)
            ours = record_arrays(self._loop.model_record())
            # the model becomes what the hook returned, where that is another one
            if not all(map(np.array_equal, layers, ours)):
                self.broadcast.replace(self.broadcast.layout.point(layers))
        return None if metrics is None else plain_metrics(metrics)

    def _entries(
        self, server_round: int, config: ConfigRecord
    ) -> dict[str, Mapping[str, Any]]:
        """Draw a round's clients; its requests, one object where they are the same."""
        asked = self.sampled = self.sample(server_round)
        if not asked:
            return {}
        common: dict[str, Any] = {**config, "num-clients": len(self.clients)}
        if self.options.answer_bound != ANSWER_BOUND:
            common["answer-bound"] = self.options.answer_bound
        for part in self._parts:
            common |= part.entries(asked)
        if self.aggregator.seen_by == "client":
            common["sum-points"] = self._sent_arrays[0]
            if self.options.client_weights == "examples":
                common["sum-largest"] = max(self._examples_of(self.clients))
        if type(self).audience is RoundStrategy._all_alike:
            common |= self.instruction(server_round, asked[0])
            return dict.fromkeys(asked, common)
        made: dict[Hashable, Mapping[str, Any]] = {}
        entries: dict[str, Mapping[str, Any]] = {}
        for name in asked:
            key = self.audience(server_round, name)
            if key not in made:
                made[key] = common | self.instruction(server_round, name)
            entries[name] = made[key]
        return entries

    def _use(
        self, server_round: int, answers: Sequence[Answer]
    ) -> dict[str, float] | None:
        """Check the answers, aggregate the good ones and remember whose they were."""
        conversation, aggregator = self.conversation, self.aggregator
        points = self._sent_arrays[0]
        answers, anew = aggregator.opened(conversation, answers, points)
        checked: dict[str, Any] = {}
        for answer in answers:
            try:
                checked[answer.client] = self.check(answer)
            except ValueError as error:
                conversation.reject(answer.client, str(error))
        conversation.note_version(*[a for a in answers if a.client in checked])
        why = aggregator.lost(len(checked), self._least_answers)
        self.used = [] if why else list(checked)
        metrics: dict[str, float] | None = None
        if why:
            for name in checked:
                conversation.reject(name, why)
        else:
            self._loop.whole = None
            given = checked
            if aggregator.seen_by == "server":
                given = {name: Sealed(value) for name, value in checked.items()}
            metrics = self.aggregate(server_round, given)
            conversation.note_used(server_round, *checked)
            self._zeroed.difference_update(checked)
            for part in self._parts:
                metrics = metrics | part.metrics()
        if anew:  # not before the others' answers are used
            self._forget(sorted(anew))
        return metrics

    # -------------------------------------------------------------- Flower's own loop

    def _in_a_run(self) -> Conversation:
        """The run's conversation, which only our own ``start`` begins."""
        if not hasattr(self, "conversation"):
            self._driven()
        return self.conversation

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages of a round's wave."""
        conversation = self._in_a_run()
        entries = self._entries(server_round, config)
        return conversation.messages(server_round, "train", entries)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and aggregate the replies of a round's wave."""
        answers = self._in_a_run().read(server_round, replies)
        metrics = self._use(server_round, answers)
        if metrics is None:
            return None, None
        return self._loop.model_record(), MetricRecord(dict(metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages of an evaluation on all clients' own data, if this round has one."""
        conversation, every = self._in_a_run(), self.options.client_evaluate_every
        asked = self.clients if every and server_round % every == 0 else []
        entries = {name: dict(config) for name in asked}
        return conversation.messages(server_round, "evaluate", entries)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean of the clients' metrics, weighted by ``evaluation_weights``."""
        return self._mean_evaluation(self._in_a_run().read(server_round, replies))
