"""The nodes of a process: their contexts, and what handles the messages to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtrellis.wire.cohort import Cohort, answer_alone
from fedtrellis.wire.flower_internals import records_from_bytes, records_to_bytes
from fedtrellis.wire.handling import Wave
from fedtrellis.wire.protocol import client_identity
from fedtrellis.wire.together import Together

__all__ = ["Delivery", "Nodes"]


@dataclass
class Delivery:
    """A message for a node, and what happens to the node's state with it.

    Attributes
    ----------
    message : Message
    wiped : bool
        Whether the node has lost its state before.
    forgotten : bool
        Whether it does not keep the new one.
    """

    message: Message
    wiped: bool = False
    forgotten: bool = False


class Nodes:
    """Some of a grid's nodes.

    Parameters
    ----------
    app : ClientApp
        Handles the messages to all of them.
    contexts : mapping
        By node id.
    batched : bool
        Whether messages that come together are handled together.
    """

    def __init__(
        self, app: ClientApp, contexts: Mapping[int, Context], batched: bool
    ) -> None:
        self.app, self.contexts, self.batched = app, contexts, batched
        self.cohort = Cohort.of(app)
        self.together: Together | None = None
        if self.cohort is not None:
            self.together = Together(self.cohort.app, contexts)

    def answer(
        self,
        deliveries: Sequence[Delivery],
        wave: Wave,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[Message | str]:
        """The replies to messages, or why there is none, in their order.

        Parameters
        ----------
        deliveries : sequence of Delivery
            At most one to a node.
        wave : Wave
            What they have in common.
        stopped : callable
            Asked before each message: whether the rest is not to be handled any more.
        """
        before: dict[int, RecordDict] = {}
        requests = []
        for delivery in deliveries:
            context = self.contexts[delivery.message.metadata.dst_node_id]
            if delivery.wiped:
                context.state = RecordDict()
            if delivery.forgotten:
                kept = {name: record.copy() for name, record in context.state.items()}
                before[context.node_id] = RecordDict(kept)
            requests.append((delivery.message, context))
        cohort = self.cohort
        answers: list[Message | Exception] = []
        # an app that looks at its messages for itself may have changed meanwhile
        if cohort is not None and not cohort.app.plain:
            cohort = None
        if cohort is not None and self.batched and len(requests) > 1 and not stopped():
            answers = cohort.answer(requests, wave)
        else:
            for message, context in requests:
                if stopped():
                    answers.append(InterruptedError("the wave was given up"))
                elif cohort is None:
                    answers.append(answer_alone(self.app, message, context))
                else:
                    answers.append(cohort.answer_one(message, context, wave))
        for node_id, state in before.items():
            self.contexts[node_id].state = state
        return [
            f"{type(answer).__name__}: {answer}"
            if isinstance(answer, Exception)
            else answer
            for answer in answers
        ]

    def states(self) -> dict[str, bytes]:
        """Every node's state as bytes, by client identity."""
        return {
            client_identity(context): records_to_bytes(context.state)
            for context in self.contexts.values()
        }

    def load(self, states: Mapping[str, bytes]) -> None:
        """Inverse of :meth:`states`; nodes that are not named keep theirs."""
        for context in self.contexts.values():
            data = states.get(client_identity(context))
            if data is not None:
                context.state = records_from_bytes(data)
