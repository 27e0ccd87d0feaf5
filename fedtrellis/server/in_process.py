"""A wave to clients that are in this process, of which no messages are made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedtrellis.server.answers import Answer
from fedtrellis.signals import window
from fedtrellis.wire.arrays import filled
from fedtrellis.wire.flower_internals import alike_to, envelope_bytes, next_to
from fedtrellis.wire.message_size import content_bytes, framed_bytes
from fedtrellis.wire.protocol import CONFIG
from fedtrellis.wire.together import Asked, Heard

if TYPE_CHECKING:
    from fedtrellis.server.conversation import Conversation

__all__ = ["hear_together"]


@window()
def hear_together(
    conversation: Conversation,
    server_round: int,
    kind: str,
    entries: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
) -> list[Answer]:
    """The answers of those whom the grid can ask without messages.

    Parameters
    ----------
    conversation : Conversation
        Whose traffic counts what the messages would have been.
    server_round : int
    kind : str
        The requests' type.
    entries : mapping
        By client, what the method has to say to it.
    names : sequence of str
        The clients.

    Returns
    -------
    list of Answer
        In the order of the names. Of clients that are missing, whom messages have to be
        sent to, nothing has changed: see :meth:`LocalGrid.answer_together
        <fedtrellis.wire.local_grid.LocalGrid.answer_together>`.
    """
    grid = conversation.grid
    answer_together = getattr(grid, "answer_together", None)
    # of a grid within another one, that one sees the messages
    own = getattr(answer_together, "__self__", None) is grid
    if answer_together is None or not own or kind != "train":
        return []
    # What a wave makes for each client it drops at the end, and it makes no cycles.
    # Python would go through all nodes again and again to find that out; cycles that
    # clients make are looked for each time that so many of them have answered.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _hear(conversation, server_round, kind, entries, names, answer_together)
    finally:
        if collects:
            gc.enable()


def _hear(
    conversation: Conversation,
    server_round: int,
    kind: str,
    entries: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    answer_together: Callable[[Sequence[Asked]], Sequence[Heard | None] | None],
) -> list[Answer]:
    policy = conversation.policy
    version = policy.model_version if policy.keep_model else None
    # by what a request depends on, which is kept so that no id is another's
    made: dict[Any, tuple[Message, Any]] = {}
    asked: list[Asked] = []
    clients = conversation.registry.clients
    alike = policy.one_model and not policy.stateful
    for name in names:
        client, said = clients[name], entries[name]
        if alike and id(said) in made:
            asked.append(Asked(name, client.node_id, made[id(said)][0]))
            continue
        own = dict(said)
        model = policy.model_for(name, own)
        if version is not None and model[1].get("model-version") != version:
            continue
        key: Any = id(said)
        if not alike:
            key = id(said), id(model[0]), id(model[1])
        if policy.stateful:
            restored = not client.ready or policy.replaces_state(name)
            key += client.used_round, client.epoch, name if restored else ""
        if key not in made:
            config, records = conversation.said(server_round, name, kind, own, model)
            record = filled(ConfigRecord(), config)
            content = filled(RecordDict(), {CONFIG: record, **records})
            group = str(server_round)
            earlier = conversation.earlier
            if earlier is None:
                request = Message(
                    content,
                    dst_node_id=client.node_id,
                    message_type=kind,
                    group_id=group,
                )
            else:
                request = next_to(earlier, content, group)
            conversation.earlier = request
            made[key] = request, (said, model)
        asked.append(Asked(name, client.node_id, made[key][0]))
    answers: list[Answer] = []
    found = answer_together(asked)
    if found is None:
        return answers
    contents = {id(m): content_bytes(m.content) for m, _ in made.values()}
    envelopes, digits = conversation.envelopes, len(str(server_round))
    up = down = 0
    for (name, node_id, request), heard in zip(asked, found, strict=True):
        if heard is None:
            continue
        place = digits, node_id.bit_length()
        if place not in envelopes:
            envelope = envelope_bytes(alike_to(request, node_id, request.content))
            envelopes[place] = framed_bytes(envelope)
        down += envelopes[place] + contents[id(request)]
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
