"""The clients of a wave, one by one or many at once.

What arrives is taken, and what leaves is made, message by message as ever
(:mod:`fedtrellis.wire.handling`), but what messages have in common is looked at once.
Many at once, a client class that has a ``fit_many`` computes in between for all of its
clients that were asked the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtrellis.settings import CodedError
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.client import MethodApp
from fedtrellis.wire.handling import Handling, Wave
from fedtrellis.wire.method_client import speaks_for
from fedtrellis.wire.protocol import ENTRY_TYPES

__all__ = ["Cohort", "Groups", "answer_alone", "most_of", "parts"]

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
                if handling.begin(wave):
                    handling.stand_alone()
                    handling.finish(handling.call())
        except Exception as error:
            return _failed(handling, error)
        return handling.reply

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
        groups = Groups()
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
                    if handling.begin(wave):
                        groups.add(
                            index,
                            handling.client,
                            handling.model.layout,
                            handling.config,
                        )
                    else:
                        answers[index] = handling.reply
                except Exception as error:
                    handling.undo()
                    answers[index] = _failed(handling, error)
            for kind, layout, members in groups:
                for part in parts(members, layout):
                    self._answer(kind, {i: begun[i] for i in part}, answers)
        except BaseException:
            for index in begun.keys() - answers.keys():
                begun[index].undo()
            raise
        return [answers[index] for index in range(len(requests))]

    def _answer(
        self,
        kind: type[Any],
        handlings: Mapping[int, Handling],
        answers: dict[int, Answer],
    ) -> None:
        """Let clients of one class compute together, or else one after the other."""
        results: Sequence[Any] | None = None
        if len(handlings) > 1 and speaks_for(kind, "fit_many", "fit"):
            shared: dict[int, Any] = {}
            layers = [
                shared.setdefault(id(each.model), each.layers)
                for each in handlings.values()
            ]
            clients = [each.client for each in handlings.values()]
            config = next(iter(handlings.values())).config
            try:
                results = kind.fit_many(clients, layers, config)
            except Exception:
                # whoever is at fault fails alone, and the others do not
                for index, handling in handlings.items():
                    handling.undo()
                    answers[index] = answer_alone(
                        self.app, handling.message, handling.context
                    )
                return
        for place, (index, handling) in enumerate(handlings.items()):
            try:
                if results is None:
                    handling.stand_alone()
                    handling.finish(handling.call())
                else:
                    handling.finish(results[place])
                answers[index] = handling.reply
            except Exception as error:
                handling.undo()
                answers[index] = _failed(handling, error)


class Groups:
    """Requests to clients of one class, with one thing to do and models of one layout.

    What the protocol has to say to each client does not matter to its method. Iterated
    over, it gives each group's class, layout and requests.
    """

    def __init__(self) -> None:
        self._members: dict[tuple[type[Any], Layout, int], list[int]] = {}
        self._asked: dict[Any, int] = {}
        self._numbers: dict[int, int] = {}  # by the config's identity
        # by class, and the identities of layout and config: hashing takes longer
        self._known: dict[tuple[type[Any], int, int], tuple[Layout, list[int]]] = {}

    def __iter__(self) -> Iterator[tuple[type[Any], Layout, list[int]]]:
        return (
            (kind, layout, members)
            for (kind, layout, _), members in self._members.items()
        )

    def add(
        self, index: int, client: Any, layout: Layout, config: Mapping[str, Any]
    ) -> None:
        """Put a request, by its number, where it belongs."""
        same = type(client), id(layout), id(config)
        known = self._known.get(same)
        if known is not None:
            known[1].append(index)
            return
        number = self._numbers.get(id(config))
        if number is None:
            asked = frozenset(
                (key, tuple(value) if isinstance(value, list) else value)
                for key, value in config.items()
                if key == "server-round" or key not in ENTRY_TYPES
            )
            number = self._asked.setdefault(asked, len(self._asked))
            self._numbers[id(config)] = number
        key = type(client), layout, number
        members = self._members.setdefault(key, [])
        members.append(index)
        self._known[same] = layout, members


def most_of(layout: Layout) -> int:
    """So many clients that what is made of their points stays small."""
    return max(1, _ENTRIES // max(1, layout.size))


def parts(members: list[int], layout: Layout) -> list[list[int]]:
    """As many clients at a time."""
    most = most_of(layout)
    return [members[i : i + most] for i in range(0, len(members), most)]
