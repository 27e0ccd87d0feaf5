"""All that this package uses of Flower beyond its public modules.

Flower promises nothing of these and moves them now and then. What every run needs is
imported here; what only a :class:`~fedtrellis.wire.local_grid.LocalGrid` or the command
line needs, when it is used. If something is not where it was, one line names the
version of Flower, what is missing, and the versions that were run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flwr.app import Message, Metadata, RecordDict

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo as NodeInfo
    from flwr.supercore.run import Run as Run

#: Versions of Flower that the tests were run with, the deployed ones among them.
TESTED_FLOWER = ("1.41.0",)


@contextmanager
def _flower() -> Iterator[None]:
    """Name in one line what a version of Flower lacks."""
    try:
        yield
    except ImportError as error:
        reason = str(error).partition(" (/")[0]  # without the file's path
        raise ImportError(_unfit(reason), name=error.name) from error


def _unfit(reason: str) -> str:
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        installed = "of unknown version"
    first, last = TESTED_FLOWER[0], TESTED_FLOWER[-1]
    tested = first if first == last else f"{first} to {last}"
    return (
        f"flwr {installed} does not fit fedtrellis: {reason}; fedtrellis was run with "
        f"flwr {tested}: pip install 'flwr[simulation]=={last}'"
    )


with _flower():
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK_SIZE
    from flwr.common.constant import ErrorCode
    from flwr.common.logger import LOGGER_NAME, ConsoleHandler, log
    from flwr.common.serde_utils import (
        error_to_proto,
        metadata_from_proto,
        metadata_to_proto,
    )
    from flwr.proto.message_pb2 import Message as _ProtoMessage
    from flwr.proto.message_pb2 import Metadata as _ProtoMetadata

__all__ = [
    "CHUNK_SIZE",
    "LOGGER_NAME",
    "TESTED_FLOWER",
    "ConsoleHandler",
    "ErrorCode",
    "advice_on",
    "alike_to",
    "empty_run",
    "encode_message",
    "envelope_bytes",
    "envelope_from_bytes",
    "envelope_to_bytes",
    "is_simulation",
    "join_run",
    "log",
    "name_message",
    "node_infos",
    "records_from_bytes",
    "records_to_bytes",
    "reply_to",
]


# ------------------------------------------------------------------------- messages


def _envelope(message: Message) -> Any:
    if message.__dict__.get("_error") is None and _is_plain(message):
        kept = message.__dict__["_metadata"].__dict__
        # what is None is left out
        sent = {field: kept[name] for name, field in _SENT.items()}
        return _ProtoMessage(metadata=_ProtoMetadata(**sent))
    proto = metadata_to_proto(message.metadata)
    proto.message_id = ""
    error = error_to_proto(message.error) if message.has_error() else None
    return _ProtoMessage(metadata=proto, content=None, error=error)


def envelope_bytes(message: Message) -> int:
    """Bytes of a message's own object without its content: metadata and error."""
    size: int = _envelope(message).ByteSize()
    return size


def envelope_to_bytes(message: Message) -> bytes:
    """A message's own object without its content, and without its id."""
    data: bytes = _envelope(message).SerializeToString(deterministic=True)
    return data


def envelope_from_bytes(data: bytes, content: RecordDict, message_id: str) -> Message:
    """A message of its own object, its content and its id."""
    proto = _ProtoMessage.FromString(data).metadata
    made, known = Message.__new__(Message), _keeps_metadata_as_known()
    if known:
        metadata = Metadata.__new__(Metadata)
        kept = {name: getattr(proto, field) for name, field in _SENT.items()}
        for name in _OPTIONAL:
            if not proto.HasField(_SENT[name]):
                kept[name] = None
        metadata.__dict__.update(kept, _message_id=message_id, _delivered_at="")
    else:
        metadata = metadata_from_proto(proto)
        metadata.delivered_at = ""
    made.__dict__.update(_metadata=metadata, _content=content, _error=None)
    if not known:
        name_message(made, message_id)
    return made


@lru_cache(maxsize=1)
def _keeps_metadata_as_known() -> bool:
    """Whether this Flower reads the metadata of a message into what we write."""
    read = metadata_from_proto(_ProtoMetadata(message_type="train"))
    return vars(read).keys() | {"_delivered_at"} == _METADATA


# What Flower keeps of a message; a version that keeps something else is left to its own
# constructors, which take several times as long for what they check and look up.
_METADATA = frozenset(
    (
        *("_run_id", "_message_id", "_src_node_id", "_dst_node_id", "_src_task_id"),
        *("_dst_task_id", "_reply_to_message_id", "_group_id", "_created_at"),
        *("_ttl", "_message_type", "_delivered_at"),
    )
)
_MESSAGE = frozenset(("_metadata", "_content", "_error"))
# The fields that it sends of the metadata; two of them may be None, and are not sent.
_NOT_SENT = ("_message_id", "_delivered_at")
_SENT = {name: name[1:] for name in sorted(_METADATA.difference(_NOT_SENT))}
_OPTIONAL = ("_src_task_id", "_dst_task_id")


def _resembling(message: Message, content: RecordDict, **changes: Any) -> Message:
    """A message with the metadata of another, but for some changes."""
    made, metadata = Message.__new__(Message), Metadata.__new__(Metadata)
    metadata.__dict__.update(message.metadata.__dict__, _message_id="", **changes)
    made.__dict__.update(_metadata=metadata, _content=content, _error=None)
    return made


def _is_plain(message: Message) -> bool:
    kept = message.__dict__
    return kept.keys() >= _MESSAGE and kept["_metadata"].__dict__.keys() == _METADATA


def reply_to(request: Message, content: RecordDict) -> Message:
    """A reply: ``Message(content, reply_to=request)``, in less time."""
    if not _is_plain(request):
        return Message(content, reply_to=request)
    given, now = request.metadata.__dict__, time.time()
    return _resembling(
        request,
        content,
        _src_node_id=given["_dst_node_id"],
        _dst_node_id=given["_src_node_id"],
        _reply_to_message_id=given["_message_id"],
        _created_at=now,
        _ttl=given["_created_at"] + given["_ttl"] - now,
        _src_task_id=given["_dst_task_id"],
        _dst_task_id=given["_src_task_id"],
        _delivered_at="",
    )


def alike_to(request: Message, node_id: int, content: RecordDict) -> Message:
    """A request like another that has just been made, to another node."""
    if not _is_plain(request):
        metadata = request.metadata
        return Message(
            content,
            dst_node_id=node_id,
            message_type=metadata.message_type,
            group_id=metadata.group_id,
        )
    return _resembling(request, content, _dst_node_id=node_id)


def name_message(message: Message, message_id: str) -> None:
    """Give a message the id that a SuperLink would give it.

    Raises
    ------
    ImportError
        If Flower keeps the id somewhere else.
    """
    metadata = message.metadata
    metadata.__dict__["_message_id"] = message_id
    if metadata.message_id != message_id:
        raise ImportError(_unfit("Metadata keeps no '_message_id'"))


def encode_message(message: Message) -> tuple[Message, int]:
    """Encode a message to bytes as Flower does, and decode it again.

    Returns
    -------
    (Message, int)
        The decoded message, and how many bytes its objects took.
    """
    with _flower():
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            no_object_id_recompute,
        )
        from flwr.supercore.inflatable.inflatable_utils import (
            inflate_object_from_contents,
        )

    with no_object_id_recompute():
        objects = get_all_nested_objects(message)
        contents = {name: item.deflate() for name, item in objects.items()}
        size = sum(len(content) for content in contents.values())
        decoded = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(decoded, Message)
    name_message(decoded, message.metadata.message_id)
    return decoded, size


def records_to_bytes(records: RecordDict) -> bytes:
    """Records as the bytes that Flower sends."""
    with _flower():
        from flwr.common.serde import recorddict_to_proto

    data: bytes = recorddict_to_proto(records).SerializeToString()
    return data


def records_from_bytes(data: bytes) -> RecordDict:
    """Inverse of :func:`records_to_bytes`."""
    with _flower():
        from flwr.common.serde import recorddict_from_proto
        from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

    return recorddict_from_proto(ProtoRecordDict.FromString(data))


def advice_on(reason: str, kind: str) -> str:
    """What to do about a ClientApp that Flower says has nothing for a type of message.

    Flower words it in one way for ``ClientApp(client_fn=...)`` and in another for an
    app of functions.
    """
    if f"Invalid message type: {kind}" in reason or "No query function" in reason:
        return (
            " (the nodes' ClientApp was not made by fedtrellis; make it with "
            "app = fedtrellis.client_app(client_fn))"
        )
    return ""


# ---------------------------------------------------------------- a grid of one's own


def empty_run(run_id: int) -> Run:
    """What Flower knows of a run, with nothing but its id."""
    with _flower():
        from flwr.supercore.run import Run

    return Run.create_empty(run_id=run_id)


def join_run(run_id: int) -> None:
    """Give this process a place in a run, unless it has one.

    Flower's messages can be made only in a process that has one.
    """
    with _flower():
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.supercore.task_identity import TaskIdentity

    if not hasattr(TaskIdentity, "_run_id"):
        raise ImportError(_unfit("TaskIdentity keeps no '_run_id'"))
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = 1


def is_simulation(grid: Any) -> bool:
    """Whether a grid is that of Flower's simulation, whose nodes Ray's actors are."""
    with _flower():
        from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


def node_infos(node_ids: Iterable[int]) -> list[NodeInfo]:
    """Nodes as Flower describes them."""
    with _flower():
        from flwr.proto.node_pb2 import NodeInfo

    return [NodeInfo(node_id=node_id) for node_id in node_ids]
