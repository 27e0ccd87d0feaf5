"""Rounds of one wave of messages, which is what most methods take."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.protocol import ANSWER_BOUND

__all__ = ["RoundStrategy"]


class RoundStrategy(LoopStrategy):
    """Base class: a strategy is what it sends, what it checks, and what it aggregates.

    A subclass implements :meth:`setup`, :meth:`instruction`, :meth:`check` and
    :meth:`aggregate`; if its clients have state, :meth:`client_state` and
    :meth:`state`, :meth:`load_state` too. Parameters and attributes are those of
    :class:`~fedtrellis.server.loop.LoopStrategy`.
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

    def request_entries(self, server_round: int, client: str) -> dict[str, Any]:
        """The :meth:`instruction`, and what every method says beside it."""
        entries: dict[str, Any] = {"num-clients": self.num_clients}
        if self.answer_bound != ANSWER_BOUND:
            entries["answer-bound"] = self.answer_bound
        return entries | self.instruction(server_round, client)

    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One round: a wave, and what the method makes of it."""
        self._sampled = self.sample(server_round)
        entries = {
            name: {**config, **self.request_entries(server_round, name)}
            for name in self._sampled
        }
        if not entries:
            self._used = []
            return None
        answers = conversation.ask(server_round, "train", entries, timeout)
        return self._use(server_round, answers)

    def _use(
        self, server_round: int, answers: Sequence[Answer]
    ) -> dict[str, float] | None:
        """Check the answers, aggregate the good ones and remember whose they were."""
        checked: dict[str, Any] = {}
        for answer in answers:
            try:
                checked[answer.client] = self.check(answer)
            except ValueError as error:
                self.conversation.reject(answer.client, str(error))
            else:
                self.conversation.note_version(answer)
        why = self.too_few(len(checked))
        for name in checked if why else ():
            self.conversation.reject(name, why)
        self._used = [] if why else list(checked)
        if not self._used:
            return None
        self._whole = None
        metrics = self.aggregate(server_round, checked)
        for name in checked:
            self.conversation.note_used(name, server_round)
        return metrics

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        # the only wave changes nothing until _use has its answers
        if type(self).run_round is RoundStrategy.run_round:
            yield
        else:
            with super()._interruptible():
                yield

    # -------------------------------------------------------------- Flower's own loop

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages of a round's wave."""
        self._sampled = self.sample(server_round)
        return [
            self.conversation.request(
                server_round,
                name,
                "train",
                {**config, **self.request_entries(server_round, name)},
            )
            for name in self._sampled
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and aggregate the replies of a round's wave."""
        answers = self.conversation.read(server_round, replies)
        metrics = self._use(server_round, answers)
        if metrics is None:
            return None, None
        return self._model_record(), MetricRecord(dict(metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages of an evaluation on all clients' own data, if this round has one."""
        if not self._evaluates_clients(server_round):
            return []
        return [
            self.conversation.request(server_round, name, "evaluate", dict(config))
            for name in self.clients
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean of the clients' metrics, as :meth:`mean_evaluation` takes it."""
        return self.mean_evaluation(self.conversation.read(server_round, replies))
