"""Rounds of one wave of messages, which is what most methods take."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from fedtrellis.server.aggregation import Sealed
from fedtrellis.server.conversation import Answer, Conversation, Entries
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.model_mods import NORM_BIT
from fedtrellis.wire.protocol import ANSWER_BOUND, STEPS


class RoundStrategy(LoopStrategy):
    """Base class: a strategy is what it sends, what it checks, and what it aggregates.

    A subclass implements :meth:`setup`, :meth:`instruction`, :meth:`check` and
    :meth:`aggregate`; if its clients have state, :meth:`client_state` and
    :meth:`state`, :meth:`load_state` too. Parameters and attributes are those of
    :class:`~fedtrellis.server.loop.LoopStrategy`.

    Examples
    --------
    Gradient descent, with clients that send their gradients:

    >>> import numpy as np
    >>> from fedtrellis import RoundStrategy, setting
    >>> class GradientDescent(RoundStrategy):
    ...     stateful = keep_model = False
    ...     step_size: float = setting(0.5, "of a round", above=0.0)
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
    >>> GradientDescent(participation=0.5).step_size
    0.5
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

        ValueError: it is malformed or not finite, and as if it had been lost; the
        message is the reason that the log and the history give.
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

    @property
    def _one_wave(self) -> bool:  # type: ignore[override]
        return type(self).run_round is RoundStrategy.run_round

    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One round: a wave, and what the method makes of it."""
        answers: Sequence[Answer] = ()
        entries = self._entries(server_round, config)
        if entries or conversation.asked:
            answers = self.aggregator.ask(conversation, server_round, entries, timeout)
        metrics = self._use(server_round, answers)
        if self.options.quorum != 1.0:
            self._count_silence()
        return metrics

    def _entries(self, server_round: int, config: ConfigRecord) -> Entries:
        """Draw a round's clients; its requests, one object where they are the same."""
        drawn, busy = self.sample(server_round), set[str]()
        if self.conversation.asked:
            busy = self.conversation.busy
            drawn = [name for name in drawn if name not in busy]
        asked = self.aggregator.cohort(server_round, drawn)
        self.sampled = [*asked, *busy]  # whose answers may come
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
                common["sum-largest"] = float(max(self._examples_of(self.clients)))
        made: dict[str, Mapping[str, Any]] = {}
        entries: dict[str, Mapping[str, Any]] = {}
        for name in asked:
            own = self.instruction(server_round, name)
            # equal ones are sent as one; arrays go with the client's own model
            alone = np.ndarray in map(type, own.values())
            entries[name] = made.setdefault(name if alone else repr(own), common | own)
        return entries

    def _normalised(
        self, checked: dict[str, Any], answers: Sequence[Answer]
    ) -> dict[str, Any]:
        """What was checked, as if all clients had taken as many local steps."""
        return checked

    def _use(
        self, server_round: int, answers: Sequence[Answer]
    ) -> dict[str, float] | None:
        """Check the answers, aggregate the good ones and remember whose they were."""
        conversation, aggregator = self.conversation, self.aggregator
        checked: dict[str, Any] = {}
        for answer in answers:
            try:
                checked[answer.client] = self.check(answer)
            except ValueError as error:
                conversation.reject(answer.client, str(error))
        answers = [answer for answer in answers if answer.client in checked]
        conversation.note_version(*answers)
        count = len(checked)
        if checked and self._least_answers == 1:  # clients' last vectors count, too
            count = len({*self._members, *checked})
        why = aggregator.lost(count, self._least_answers)
        self.used = [] if why else list(checked)
        if conversation.silent:
            self._welcome(checked)
        metrics: dict[str, float] | None = None
        if why:
            for name in checked:
                conversation.reject(name, why)
        else:
            self._loop.whole = None
            given = checked
            if self.options.local_deadline is not None:
                given = self._normalised(checked, answers)
            if aggregator.seen_by == "server":
                given = {name: Sealed(value) for name, value in given.items()}
            metrics = self.aggregate(server_round, given)
            bits = [answer.metrics.get(NORM_BIT) for answer in answers]
            if aggregator.seen_by == "method" and None not in bits:
                metrics = metrics | {"norm-bit": float(np.mean(list(map(bool, bits))))}
            for answer in answers:  # a late one is of a round before
                conversation.note_used(answer.server_round, answer.client)
            if self.options.quorum != 1.0:
                late = sum(answer.basis is not None for answer in answers)
                metrics = metrics | {"late": late, "members": len(self._members)}
            if self.options.local_deadline is not None:
                taken = [answer.metrics[STEPS] for answer in answers]
                metrics = metrics | {STEPS: float(np.mean(taken))}
            self._zeroed.difference_update(checked)
            for part in self._parts:
                metrics = metrics | part.metrics()
        if self._anew:  # not before the others' answers are used
            self._forget(sorted(self._anew))
            self._anew = set()
        return metrics
