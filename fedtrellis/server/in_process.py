"""A wave to clients that are in this process, of which no messages are made."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import Message

from fedtrellis.server.answers import Answer
from fedtrellis.server.requests import Requests
from fedtrellis.signals import window
from fedtrellis.wire.flower_internals import alike_to, envelope_bytes
from fedtrellis.wire.grids import own_method
from fedtrellis.wire.message_size import content_bytes, framed_bytes
from fedtrellis.wire.together import Asked, Heard

if TYPE_CHECKING:
    from fedtrellis.server.conversation import Conversation

__all__ = ["hear_together"]


@window()
def hear_together(
    conversation: Conversation, requests: Requests, names: Sequence[str]
) -> list[Answer]:
    """The answers of those whom the grid can ask without messages.

    Parameters
    ----------
    conversation : Conversation
        Whose traffic counts what the messages would have been.
    requests : Requests
        To be made.
    names : sequence of str
        The clients.

    Returns
    -------
    list of Answer
        In the order of the names. Of clients that are missing, whom messages have to be
        sent to, nothing has changed: see :meth:`LocalGrid.answer_together
        <fedtrellis.wire.local_grid.LocalGrid.answer_together>`.
    """
    answers_together = own_method(conversation.grid, "answers_together")
    if requests.kind != "train" or not (answers_together and answers_together()):
        return []
    # What a wave makes for each client it drops at the end, and it makes no cycles.
    # Python would go through all nodes again and again to find that out; cycles that
    # clients make are looked for each time that so many of them have answered.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _hear(conversation, requests, names)
    finally:
        if collects:
            gc.enable()


def _hear(
    conversation: Conversation, requests: Requests, names: Sequence[str]
) -> list[Answer]:
    policy, server_round = conversation.policy, requests.server_round
    version = policy.model_version if policy.keep_model else None
    clients = conversation.registry.clients
    asked: list[Asked] = []
    for name in names:
        request, brings = requests.wording(name)
        if version is None or brings == version:
            asked.append(Asked(name, clients[name].node_id, request))
    grid: Any = conversation.grid
    found: Sequence[Heard | None] = grid.answer_together(asked)
    contents = {
        id(request): content_bytes(request.content) for request, _ in requests.wordings
    }
    digits = len(str(server_round))
    answers: list[Answer] = []
    up = down = 0
    # by wording and length of the node's id
    sizes: dict[tuple[int, int], int] = {}
    for (name, node_id, request), heard in zip(asked, found, strict=True):
        if heard is None:
            continue
        place = id(request), node_id.bit_length()
        size = sizes.get(place)
        if size is None:
            envelope = _envelope(conversation, request, node_id, digits)
            size = sizes[place] = envelope + contents[id(request)]
        down += size
        up += heard.size
        answers.append(
            Answer(
                name,
                heard.arrays,
                heard.metrics,
                heard.numbers,
                version,
                server_round,
                heard.norm,
            )
        )
    conversation.traffic.up += up
    conversation.traffic.down += down
    return answers


def _envelope(
    conversation: Conversation, request: Message, node_id: int, digits: int
) -> int:
    """Bytes of a request without its content, in a round of so many digits."""
    known, place = conversation.envelopes, (digits, node_id.bit_length())
    if place not in known:
        envelope = envelope_bytes(alike_to(request, node_id, request.content))
        known[place] = framed_bytes(envelope)
    return known[place]
