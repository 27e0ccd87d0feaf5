"""How many bytes the replies of a wave would have taken, had they been messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import alike_to, envelope_bytes, reply_to
from fedtrellis.wire.handling import opening
from fedtrellis.wire.message_size import (
    framed_bytes,
    items_bytes,
    records_bytes,
)
from fedtrellis.wire.protocol import ARRAYS, METRICS, STATUS

__all__ = ["Asked", "ReplySizes"]


class Asked(NamedTuple):
    """A request to a client.

    Attributes
    ----------
    client : str
    node_id : int
    request : Message
        One that says what this client is told, to whichever node.
    """

    client: str
    node_id: int
    request: Message


class ReplySizes:
    """Bytes of the replies of a wave.

    Parameters
    ----------
    envelopes, names, contents : dict
        What replies without content take, clients' names, and records of so many bytes;
        kept from wave to wave.
    """

    def __init__(
        self,
        envelopes: dict[tuple[str, int, int], int],
        names: dict[str, int],
        contents: dict[tuple[int, int, int], int],
    ) -> None:
        self._envelopes, self._names, self._contents = envelopes, names, contents
        self._common: dict[tuple[int, int | None], int] = {}
        self._kinds: dict[int, tuple[str, int]] = {}
        # of replies with neither metrics nor numbers
        self._plain: dict[Any, int] = {}

    def _envelope(self, asked: Asked) -> int:
        request, node_id = asked.request, asked.node_id
        kind = self._kinds.get(id(request))
        if kind is None:
            metadata = request.metadata
            kind = metadata.message_type, len(metadata.group_id.encode())
            self._kinds[id(request)] = kind
        key = *kind, node_id.bit_length()
        if key not in self._envelopes:
            reply = reply_to(alike_to(request, node_id, RecordDict()), RecordDict())
            # the request's id, as long as a UUID
            reply.metadata.__dict__["_reply_to_message_id"] = "0" * 36
            self._envelopes[key] = framed_bytes(envelope_bytes(reply))
        return self._envelopes[key]

    def of(
        self,
        asked: Asked,
        config: Mapping[str, Any],
        version: int | None,
        arrays: int,
        metrics: Mapping[str, Any],
        numbers: FloatArray | None,
    ) -> int:
        """Bytes of a reply.

        Parameters
        ----------
        asked : Asked
        config : mapping
            The request's.
        version : int or None
            Of the model, where the reply names it.
        arrays : int
            Bytes of its arrays, see :func:`~.message_size.arrays_bytes`.
        metrics : mapping
        numbers : ndarray or None
        """
        own = self._names.get(asked.client)
        if own is None:
            own = items_bytes({"client-id": asked.client})
            self._names[asked.client] = own
        if metrics or numbers is not None:
            return self._of(asked, config, version, arrays, metrics, numbers, own)
        bits = asked.node_id.bit_length()
        key = id(asked.request), own, bits, id(config), version, arrays
        size = self._plain.get(key)
        if size is None:
            size = self._of(asked, config, version, arrays, metrics, None, own)
            self._plain[key] = size
        return size

    def _of(
        self,
        asked: Asked,
        config: Mapping[str, Any],
        version: int | None,
        arrays: int,
        metrics: Mapping[str, Any],
        numbers: FloatArray | None,
        own: int,
    ) -> int:
        common = self._common.get((id(config), version))
        if common is None:
            status = opening("", config)
            del status["client-id"]
            if version is not None:
                status["model-version"] = version
            common = self._common[id(config), version] = items_bytes(status)
        if numbers is not None:
            own += items_bytes({"numbers": numbers.tobytes()})
        measured = items_bytes(metrics) if metrics else -1
        key = common + own, arrays, measured
        size = self._contents.get(key)
        if size is None:
            records: dict[str, tuple[type[Any], int]] = {
                STATUS: (ConfigRecord, key[0]),
                ARRAYS: (ArrayRecord, arrays),
            }
            if metrics:
                records[METRICS] = MetricRecord, measured
            size = self._contents[key] = records_bytes(records)
        return size + self._envelope(asked)
