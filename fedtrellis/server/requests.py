"""The requests of a wave; those that say the same are made once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedtrellis.wire.arrays import filled
from fedtrellis.wire.flower_internals import alike_to, next_to
from fedtrellis.wire.protocol import CONFIG, MODEL, RESTORE

if TYPE_CHECKING:
    from fedtrellis.server.conversation import Conversation

__all__ = ["Requests", "Wording"]

Model = tuple[ArrayRecord, dict[str, Any]]


class Wording(NamedTuple):
    """What one client or several are told.

    Attributes
    ----------
    request : Message
        Which says it, to whichever node.
    version : int
        Of the model that it brings.
    """

    request: Message
    version: int


class Requests:
    """Makes a wave's requests.

    Parameters
    ----------
    conversation : Conversation
    server_round : int
    kind : str
        The messages' type: ``"train"``, ``"train.NAME"`` or ``"evaluate"``.
    entries : mapping
        By client, what the method has to say to it; not to be changed while this object
        is there.
    shared : bool
        Whether requests that say the same have one content.
    """

    def __init__(
        self,
        conversation: Conversation,
        server_round: int,
        kind: str,
        entries: Mapping[str, Mapping[str, Any]],
        shared: bool,
    ) -> None:
        self._conversation, self._policy = conversation, conversation.policy
        self._clients = conversation.registry.clients
        self.server_round, self.kind, self._entries = server_round, kind, entries
        self._shared = shared
        # whoever is told the same by the method is told the same
        self._alike = shared and self._policy.one_model and not self._policy.stateful
        # by what a wording depends on, which is kept so that no id is another's
        self._made: dict[Any, tuple[Wording, Any]] = {}
        self._first: Message | None = None

    @property
    def wordings(self) -> list[Wording]:
        """Those that are shared, so far."""
        return [wording for wording, _ in self._made.values()]

    def wording(self, name: str) -> Wording:
        """What a client is told."""
        said = self._entries[name]
        if self._alike and id(said) in self._made:
            return self._made[id(said)][0]
        client, policy = self._clients[name], self._policy
        own = dict(said)
        model = policy.model_for(name, own)
        if not self._shared:
            return self._new(name, own, model)
        key: Any = id(said)
        if not self._alike:
            key = id(said), id(model[0]), id(model[1])
        if policy.stateful:
            restored = not client.ready or policy.replaces_state(name)
            key += client.used_round, client.epoch, name if restored else ""
        if key not in self._made:
            self._made[key] = self._new(name, own, model), (said, model)
        return self._made[key][0]

    def to(self, name: str) -> Message:
        """The request to a client."""
        request = self.wording(name).request
        return alike_to(request, self._clients[name].node_id, request.content)

    def _new(self, name: str, entries: Mapping[str, Any], model: Model) -> Wording:
        config, records = self._said(name, entries, model)
        record = filled(ConfigRecord(), config)
        content = filled(RecordDict(), {CONFIG: record, **records})
        node_id = self._clients[name].node_id
        if self._first is not None:
            request = alike_to(self._first, node_id, content)
        else:
            group, earlier = str(self.server_round), self._conversation.earlier
            if earlier is not None and earlier.metadata.message_type == self.kind:
                request = next_to(earlier, node_id, content, group)
            else:
                request = Message(content, node_id, self.kind, group_id=group)
            self._first = self._conversation.earlier = request
        return Wording(request, model[1]["model-version"])

    def _said(
        self, name: str, entries: Mapping[str, Any], model: Model
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A request's config, and its other records."""
        conversation, policy = self._conversation, self._policy
        client = self._clients[name]
        arrays, model_config = model
        config: dict[str, Any] = {
            "session": conversation.session,
            "server-round": self.server_round,
            **model_config,
            **entries,
        }
        records: dict[str, Any] = {MODEL: arrays}
        if not policy.keep_model:
            config["keep-model"] = False
        if self.kind != "evaluate" and policy.stateful:
            config["used-round"] = client.used_round
            # without a server that was started again, neither is there
            if client.epoch:
                config["used-epoch"] = client.epoch
            if conversation.epoch:
                config["epoch"] = conversation.epoch
            replace = policy.replaces_state(name)
            if replace or not client.ready:
                restore, restore_config = policy.state_for(name)
                config.update(restore_config)
                if replace or not policy.keep_old_state:
                    config["restore-alone"] = True
                if replace:
                    config["restore-over"] = True
                if restore:
                    records[RESTORE] = restore
        return config, records
