"""How many bytes a Message takes on the wire, without encoding it.

Flower splits a Message into objects (the message, its records, its arrays, their
chunks), names each by the SHA-256 of its bytes, and sends objects of one name once.
The lengths are known without any hash: that is what makes counting the traffic of
every round affordable. The tests compare with real encodings.
"""

from __future__ import annotations

import json
from typing import Any

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.common.serde_utils import error_to_proto, metadata_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

__all__ = ["message_bytes"]

_HASH = "0" * 64


def _framed(name: str, children: int, body: int) -> int:
    """Length of an object: "name child,... body-length", a zero byte, the body."""
    hashes = 65 * children - 1 if children else 0
    return len(name) + 1 + hashes + 1 + len(str(body)) + 1 + body


def _array_bytes(array: Array) -> int:
    size = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    if len(array.data) <= size:
        chunks, order = [array.data], [0]
    else:
        pieces = [array.data[i : i + size] for i in range(0, len(array.data), size)]
        chunks = list(dict.fromkeys(pieces))
        order = [chunks.index(piece) for piece in pieces]
    body = json.dumps(
        {
            "dtype": array.dtype,
            "shape": array.shape,
            "stype": array.stype,
            "arraychunk_ids": order,
        }
    )
    total = _framed("Array", len(chunks), len(body))
    return total + sum(_framed("ArrayChunk", 0, len(chunk)) for chunk in chunks)


def _varint(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)


def _field(length: int) -> int:
    """A length-delimited field with a one-byte tag."""
    return 1 + _varint(length) + length


def _value_bytes(value: Any) -> int:
    """A ConfigRecordValue or MetricRecordValue, without its own tag and length."""
    if isinstance(value, bool):
        return 2
    if isinstance(value, float):
        return 9
    if isinstance(value, int):  # sint64 (zigzag) from 0 to 2^63 − 1, else uint64
        return 1 + _varint(value if value >= 2**63 else (value << 1) ^ (value >> 63))
    if isinstance(value, str):
        return _field(len(value.encode()))
    if isinstance(value, bytes):
        return _field(len(value))
    return -1


def _item_bytes(key: str, value: Any) -> int:
    if isinstance(value, list):
        # a repeated scalar field (packed) or repeated text, inside a message
        if value and isinstance(value[0], str | bytes):
            inner = sum(_value_bytes(item) for item in value)
        else:
            packed = sum(_value_bytes(item) - 1 for item in value)
            inner = _field(packed) if value else 0
        size = 2 + _varint(inner) + inner  # the lists' field numbers need two bytes
    else:
        size = _value_bytes(value)
    return _field(_field(len(key.encode())) + _field(size))


def _record_bytes(record: object) -> int:
    if isinstance(record, ConfigRecord | MetricRecord):
        body = sum(_item_bytes(key, value) for key, value in record.items())
        return _framed(type(record).__name__, 0, body)
    assert isinstance(record, ArrayRecord)
    names = json.dumps(dict.fromkeys(record, _HASH))
    distinct = {(array.dtype, array.shape, array.data) for array in record.values()}
    total = _framed("ArrayRecord", len(distinct), len(names))
    if len(distinct) == len(record):
        return total + sum(_array_bytes(array) for array in record.values())
    arrays = {(a.dtype, a.shape, a.data): a for a in record.values()}
    return total + sum(_array_bytes(array) for array in arrays.values())


def message_bytes(message: Message, known: dict[int, int] | None = None) -> int:
    """Bytes of all the objects that ``message`` is split into.

    Parameters
    ----------
    message : Message
        With content or with an error.
    known : dict of int to int, optional
        Cache by ``id`` of a record, for records shared between the messages of a
        round; it must not outlive them.
    """
    proto = metadata_to_proto(message.metadata)
    proto.message_id = ""
    error = error_to_proto(message.error) if message.has_error() else None
    body = ProtoMessage(metadata=proto, content=None, error=error).ByteSize()
    if not message.has_content():
        return _framed("Message", 0, body)
    total = _framed("Message", 1, body)
    content: RecordDict = message.content
    names = json.dumps(dict.fromkeys(content, _HASH))
    total += _framed("RecordDict", len(content), len(names))
    for record in content.values():
        if known is None:
            total += _record_bytes(record)
            continue
        if id(record) not in known:
            known[id(record)] = _record_bytes(record)
        total += known[id(record)]
    return total
