"""How many bytes the replies of a wave would have taken, had they been messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import alike_to, envelope_bytes, reply_to
from fedtrellis.wire.handling import opening
from fedtrellis.wire.message_size import (
    arrays_bytes,
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
    envelopes : dict
        Bytes of replies without content, kept from wave to wave.
    """

    def __init__(self, envelopes: dict[tuple[str, int, int], int]) -> None:
        self._envelopes = envelopes
        self._common: dict[tuple[int, int | None], int] = {}
        self._contents: dict[tuple[int, ...], int] = {}

    def _envelope(self, asked: Asked) -> int:
        metadata = asked.request.metadata
        length, bits = len(metadata.group_id.encode()), asked.node_id.bit_length()
        key = metadata.message_type, length, bits
        if key not in self._envelopes:
            request = alike_to(asked.request, asked.node_id, RecordDict())
            reply = reply_to(request, RecordDict())
            # the request's id, as long as a UUID
            reply.metadata.__dict__["_reply_to_message_id"] = "0" * 36
            self._envelopes[key] = framed_bytes(envelope_bytes(reply))
        return self._envelopes[key]

    def of(
        self,
        asked: Asked,
        config: Mapping[str, Any],
        version: int | None,
        arrays: Sequence[NDArray[Any]],
        metrics: Mapping[str, Any],
        numbers: FloatArray | None,
    ) -> int | None:
        """Bytes of a reply; None where that depends on what is in its arrays.

        Parameters
        ----------
        asked : Asked
        config : mapping
            The request's.
        version : int or None
            Of the model, where the reply names it.
        arrays : sequence of ndarray
        metrics : mapping
        numbers : ndarray or None
        """
        body = arrays_bytes(tuple((array.dtype, array.shape) for array in arrays))
        if body is None:
            return None
        common = self._common.get((id(config), version))
        if common is None:
            status = opening("", config)
            del status["client-id"]
            if version is not None:
                status["model-version"] = version
            common = self._common[id(config), version] = items_bytes(status)
        own: dict[str, Any] = {"client-id": asked.client}
        if numbers is not None:
            own["numbers"] = numbers.tobytes()
        measured = items_bytes(metrics) if metrics else -1
        key = common + items_bytes(own), body, measured
        size = self._contents.get(key)
        if size is None:
            records: dict[str, tuple[type[Any], int]] = {
                STATUS: (ConfigRecord, key[0]),
                ARRAYS: (ArrayRecord, body),
            }
            if metrics:
                records[METRICS] = MetricRecord, measured
            size = self._contents[key] = records_bytes(records)
        return size + self._envelope(asked)
