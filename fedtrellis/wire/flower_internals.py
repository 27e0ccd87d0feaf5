"""All that this package uses of Flower beyond its public modules.

Flower promises nothing of these and moves them now and then: one line says then what
is missing in which version.

Flower splits a Message into objects (the message, its records, its arrays, their
chunks), names each by the SHA-256 of its bytes, and sends objects of one name once. An
object is a head, "kind names-of-its-parts length" and a zero byte, and a body. Here
messages travel as the same bodies, and their objects' bytes are counted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

#: Versions of Flower that the tests were run with, the deployed ones among them.
TESTED_FLOWER = ("1.41.0", "1.42.0")


def _unfit(reason: str) -> str:
    tested = TESTED_FLOWER[-1]
    return (
        f"flwr {version('flwr')} does not fit fedtrellis: {reason}; fedtrellis was run "
        f"with flwr {tested}: pip install 'flwr[simulation]=={tested}'"
    )


try:
    from flwr.app.message import make_message
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK_SIZE
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.common.logger import LOGGER_NAME, ConsoleHandler, log
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.common.serde_utils import (
        error_from_proto,
        error_to_proto,
        metadata_from_proto,
        metadata_to_proto,
    )
    from flwr.proto.message_pb2 import Message as _ProtoMessage
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.proto.recorddict_pb2 import ConfigRecord as _ProtoConfig
    from flwr.proto.recorddict_pb2 import MetricRecord as _ProtoMetrics
    from flwr.proto.recorddict_pb2 import RecordDict as _ProtoRecords
    from flwr.supercore.exit import add_exit_handler
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:
    reason = str(error).partition(" (/")[0]  # without the file's path
    raise ImportError(_unfit(reason), name=error.name) from error

__all__ = [
    "CHUNK_SIZE",
    "LOGGER_NAME",
    "ConsoleHandler",
    "ErrorCode",
    "NodeInfo",
    "Run",
    "log",
    "make_message",
]


# -------------------------------------------------------------------------- records

_TYPES: tuple[type, ...] = (bool, int, float, str, bytes)
_PLAIN = frozenset((*_TYPES, list))
T = TypeVar("T", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)


def filled(record: T, items: Mapping[str, Any]) -> T:
    """Put items into a new record at once, unchecked if they plainly may be there.

    Flower checks each item's type as it is set, which takes a fifth of a round trip in
    this process; this is for items that have just been made.
    """
    data = record.__dict__.get("_data")
    if isinstance(data, dict) and (
        not isinstance(record, ConfigRecord)
        or _PLAIN.issuperset(map(type, items.values()))
    ):
        data.update(items)
    else:
        record.update(items)
    return record


# Fields of an item's value, by the value's type, and by that of a list's entries.
_ONE = dict(zip(_TYPES, ("bool", "sint64", "double", "string", "bytes"), strict=True))
_LISTS = "bool_list", "sint_list", "double_list", "string_list", "bytes_list"
_MANY = dict(zip(_TYPES, _LISTS, strict=True))
_PROTOS: dict[type, Any] = {ConfigRecord: _ProtoConfig, MetricRecord: _ProtoMetrics}


def items_to_bytes(kind: type, items: Mapping[str, Any]) -> bytes:
    """The body of a ConfigRecord or MetricRecord of these items, as Flower makes it."""
    made: list[dict[str, Any]] = []
    try:
        for key, value in items.items():
            one = _ONE.get(type(value))
            if one is None:
                one, value = _MANY[type(value[0])], {"vals": value}
            made.append({"key": key, "value": {one: value}})
        return bytes(_PROTOS[kind](items=made).SerializeToString())
    except (KeyError, IndexError, TypeError, ValueError):
        # an empty list, an integer above 2⁶³ − 1, or a type that Flower looks closer at
        content: bytes = kind(dict(items)).deflate()
        return content[content.index(0) + 1 :]


def items_from_bytes(kind: type, body: bytes) -> dict[str, Any]:
    """Inverse of :func:`items_to_bytes`."""
    items: dict[str, Any] = {}
    for item in _PROTOS[kind].FromString(body).items:
        field = item.value.WhichOneof("value")
        value = getattr(item.value, field)
        items[item.key] = list(value.vals) if field.endswith("_list") else value
    return items


def records_to_bytes(records: RecordDict) -> bytes:
    """Records as the bytes of one object, for a checkpoint."""
    return bytes(recorddict_to_proto(records).SerializeToString())


def records_from_bytes(data: bytes) -> RecordDict:
    """Inverse of :func:`records_to_bytes`."""
    return recorddict_from_proto(_ProtoRecords.FromString(data))


# ------------------------------------------------------------------ bytes of messages


@lru_cache(maxsize=4096)
def object_bytes(kind: str, parts: int, body: int) -> int:
    """Bytes of an object that names so many others, and has so long a body."""
    # the names, of 64 characters, have commas between them
    return len(kind) + max(65 * parts - 1, 0) + len(str(body)) + 3 + body


def _naming(kind: str, parts: Mapping[str, Hashable]) -> int:
    """Bytes of an object that names others, and whose body is JSON of their names."""
    # of each "key": "name", with a comma or a bracket
    body = sum(map(len, map(_quoted, parts))) + 70 * len(parts)
    return object_bytes(kind, len(set(parts.values())), max(body, 2))


_quoted = lru_cache(maxsize=1024)(json.dumps)


@lru_cache(maxsize=1024)
def _array_json(
    dtype: str, shape: tuple[int, ...], stype: str, places: tuple[int, ...]
) -> str:
    body = {"dtype": dtype, "shape": shape, "stype": stype, "arraychunk_ids": places}
    return json.dumps(body)


def _encoded(content: RecordDict) -> tuple[dict[str, tuple[type, Any]], int]:
    """Each record's class and body (or arrays); and bytes of all objects sent."""
    body: Any
    encoded: dict[str, tuple[type, Any]] = {}
    sizes: dict[Hashable, int] = {}  # of objects that differ, by what they are made of
    keys: dict[str, Hashable] = {}
    for name, record in content.items():
        kind = type(record)
        if kind is not ArrayRecord:
            body = items_to_bytes(kind, dict(record.items()))
            key: Hashable = kind, body
            sizes[key] = object_bytes(kind.__name__, 0, len(body))
        else:
            body, arrays = dict(record.items()), dict[str, Hashable]()
            for label, array in body.items():
                data, chunks = array.data, [array.data]
                if len(data) > CHUNK_SIZE:
                    starts = range(0, len(data), CHUNK_SIZE)
                    chunks = [data[start : start + CHUNK_SIZE] for start in starts]
                places = {chunk: i for i, chunk in enumerate(dict.fromkeys(chunks))}
                for chunk in places:
                    sizes[chunk] = object_bytes("ArrayChunk", 0, len(chunk))
                order = tuple(map(places.__getitem__, chunks))
                shape = tuple(array.shape)
                described = _array_json(array.dtype, shape, array.stype, order)
                arrays[label] = key = described, *places
                sizes[key] = object_bytes("Array", len(places), len(described))
            key = kind, *arrays.items()
            sizes[key] = _naming(kind.__name__, arrays)
        encoded[name], keys[name] = (kind, body), key
    return encoded, sum(sizes.values()) + _naming("RecordDict", keys)


def _decoded(encoded: Mapping[str, tuple[type, Any]]) -> RecordDict:
    """Inverse of :func:`_encoded`: records that share nothing that can be changed."""
    records: dict[str, Any] = {}
    for name, (kind, body) in encoded.items():
        if kind is ArrayRecord:
            items = {}
            for label, array in body.items():
                items[label] = made = Array.__new__(Array)
                made.__dict__.update(array.__dict__)
        else:
            items = items_from_bytes(kind, body)
        records[name] = filled(kind(), items)
    return filled(RecordDict(), records)


def _envelope(message: Message) -> Any:
    """A message's own object, without its id."""
    metadata = metadata_to_proto(message.metadata)
    metadata.message_id = ""
    error = error_to_proto(message.error) if message.has_error() else None
    return _ProtoMessage(metadata=metadata, error=error)


Encoded = dict[int, tuple[RecordDict, RecordDict, int]]


def through_bytes(
    message: Message, shared: Encoded | None = None
) -> tuple[Message, int]:
    """A message encoded and read again, and how many bytes its objects took.

    Messages of one content may have its copy in common, kept in ``shared``.
    """
    size, decoded, own = 0, None, _envelope(message).SerializeToString()
    if message.has_content():
        content = message.content
        if shared is not None and id(content) in shared:
            _, decoded, size = shared[id(content)]
        else:
            encoded, size = _encoded(content)
            decoded = _decoded(encoded)
            if shared is not None:
                shared[id(content)] = content, decoded, size
    read = _ProtoMessage.FromString(own)
    error = error_from_proto(read.error) if decoded is None else None
    made = make_message(metadata_from_proto(read.metadata), decoded, error)
    name_message(made, message.metadata.message_id)
    return made, size + object_bytes("Message", decoded is not None, len(own))


def content_bytes(content: RecordDict) -> int:
    """Bytes of a message's records, without its own object."""
    return _encoded(content)[1]


def envelope_bytes(message: Message) -> int:
    """Bytes of a message's own object."""
    own = _envelope(message).ByteSize()
    return object_bytes("Message", int(message.has_content()), own)


def message_bytes(message: Message) -> int:
    """Bytes of all the objects that a message becomes."""
    content = content_bytes(message.content) if message.has_content() else 0
    return envelope_bytes(message) + content


def name_message(message: Message, message_id: str) -> None:
    """Give a message the id that a SuperLink would give it."""
    metadata = message.metadata
    metadata.__dict__["_message_id"] = message_id
    if metadata.message_id != message_id:
        raise ImportError(_unfit("Metadata keeps no '_message_id'"))


def join_run(run_id: int) -> None:
    """Give this process a place in a run, which messages need, unless it has one."""
    if not hasattr(TaskIdentity, "_run_id"):
        raise ImportError(_unfit("TaskIdentity keeps no '_run_id'"))
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = 1


def at_exit(handler: Callable[[], None]) -> None:
    """Call a handler when Flower ends this process, and end Ray's then, for good.

    Both come before the five seconds after which Flower's exit is by force: it would
    leave some of Ray's processes. Threads that still ask an actor start no Ray anew.
    """

    def end() -> None:
        handler()
        if ray := sys.modules.get("ray"):
            ray._private.auto_init_hook.enable_auto_connect = False
            ray.shutdown()

    add_exit_handler(end, run_before_force_exit=True)


def is_simulation(grid: Any) -> bool:
    """Whether a grid is that of Flower's simulation, whose nodes Ray's actors are."""
    # its class is known by name, as its import takes half a second
    return type(grid).__name__ == "InMemoryGrid"
