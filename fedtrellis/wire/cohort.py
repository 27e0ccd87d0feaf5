"""The clients of a wave, one by one or many at once.

What arrives is taken, and what leaves is made, message by message as ever
(:mod:`fedtrellis.wire.handling`), but what messages have in common is looked at once.
Many at once, clients take their steps side by side in between
(:mod:`fedtrellis.wire.cohort_work`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtrellis.settings import CodedError
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.client import MethodApp
from fedtrellis.wire.cohort_work import run_together
from fedtrellis.wire.handling import Handling, Wave
from fedtrellis.wire.method_client import takes_steps

__all__ = ["Cohort", "answer_alone", "most_of", "parts"]

# Entries of the clients' points together: 2 MiB, so that a few arrays of them stay in
# the cache. A client with as many by itself gains nothing from company.
_ENTRIES = 2**18

Answer = Message | Exception


def answer_alone(app: ClientApp, message: Message, context: Context) -> Answer:
    """An app's reply to a message, or what it raised."""
    try:
        return app(message, context)
    except Exception as error:
        return error


def _failed(handling: Handling, error: Exception) -> Answer:
    """The reply of a client that refuses, or what it raised."""
    try:
        return handling.refused(error) if isinstance(error, CodedError) else error
    except CodedError:
        return error


class Cohort:
    """Handles the requests of a wave; each is answered as if it had come alone.

    Parameters
    ----------
    app : MethodApp
        A plain one.
    """

    def __init__(self, app: MethodApp) -> None:
        self.app = app

    @classmethod
    def of(cls, app: ClientApp) -> Cohort | None:
        """An app's, or None if it handles one message at a time."""
        return cls(app) if isinstance(app, MethodApp) and app.plain else None

    def answer_one(self, message: Message, context: Context, wave: Wave) -> Answer:
        """The reply to a request of a wave, or what the client raised."""
        if message.metadata.message_type != "train":
            return answer_alone(self.app, message, context)
        handling = Handling(self.app.node, "fit", message, context)
        try:
            with handling:
                taken = handling.begin(wave)
        except Exception as error:
            return _failed(handling, error)
        return _reply(handling) if taken else handling.reply

    def answer(
        self, requests: Sequence[tuple[Message, Context]], wave: Wave
    ) -> list[Answer]:
        """The replies to requests, or what the clients raised, in their order.

        Parameters
        ----------
        requests : sequence of (Message, Context)
            At most one to a node.
        wave : Wave
            What they have in common.
        """
        together: dict[Layout, list[int]] = defaultdict(list)
        alone: list[int] = []
        answers: dict[int, Answer] = {}
        begun: dict[int, Handling] = {}
        try:
            for index, (message, context) in enumerate(requests):
                if message.metadata.message_type != "train":
                    answers[index] = answer_alone(self.app, message, context)
                    continue
                handling = Handling(self.app.node, "fit", message, context)
                begun[index] = handling
                try:
                    if not handling.begin(wave):
                        answers[index] = handling.reply
                    elif takes_steps(handling.client):
                        together[handling.model.layout].append(index)
                    else:
                        alone.append(index)
                except Exception as error:
                    handling.undo()
                    answers[index] = _failed(handling, error)
            for index in alone:
                answers[index] = _reply(begun[index])
            for layout, members in together.items():
                for part in parts(members, layout):
                    self._answer({i: begun[i] for i in part}, answers)
        except BaseException:
            for index in begun.keys() - answers.keys():
                begun[index].undo()
            raise
        return [answers[index] for index in range(len(requests))]

    def _answer(
        self, handlings: Mapping[int, Handling], answers: dict[int, Answer]
    ) -> None:
        """Let clients take their steps side by side."""
        shared: dict[int, Any] = {}
        each = handlings.values()
        results = run_together(
            [handling.client for handling in each],
            [shared.setdefault(id(h.model), h.layers) for h in each],
            [handling.config for handling in each],
        )
        for (index, handling), result in zip(handlings.items(), results, strict=True):
            if isinstance(result, Exception):
                # it says so in the words of a client alone
                handling.undo()
                answers[index] = answer_alone(
                    self.app, handling.message, handling.context
                )
            else:
                answers[index] = _reply(handling, result)


def _reply(handling: Handling, result: Any = None) -> Answer:
    """The reply to what a client has taken, or what it raised.

    Parameters
    ----------
    handling : Handling
    result : tuple, optional
        What its work came to; None: its method is still to be called.
    """
    try:
        if result is None:
            handling.stand_alone()
            result = handling.call()
        handling.finish(result)
    except Exception as error:
        handling.undo()
        return _failed(handling, error)
    return handling.reply


def most_of(layout: Layout) -> int:
    """So many clients that what is made of their points stays small."""
    return max(1, _ENTRIES // max(1, layout.size))


def parts(members: list[int], layout: Layout) -> list[list[int]]:
    """As many clients at a time."""
    most = most_of(layout)
    return [members[i : i + most] for i in range(0, len(members), most)]
