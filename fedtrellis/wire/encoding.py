"""Messages as the bytes that Flower sends, and back; and how many bytes these are.

Flower splits a Message into objects (the message, its records, its arrays, their
chunks), names each by the SHA-256 of its bytes, and sends objects of one name once.
What it does object by object, each written twice and read with many a check, is done
here in one pass; bytes and names are the same, which the tests compare.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedtrellis.wire.arrays import contents, filled
from fedtrellis.wire.flower_internals import (
    CHUNK_SIZE,
    encode_message,
    envelope_bytes,
    envelope_from_bytes,
    envelope_to_bytes,
)

__all__ = [
    "Counted",
    "Encoder",
    "content_bytes",
    "items_from_bytes",
    "items_to_bytes",
    "message_bytes",
    "objects_of",
]

Record = ConfigRecord | MetricRecord
Kind = type[ConfigRecord] | type[MetricRecord]

# Longer items, most of which never come again, are not remembered.
_LONGEST = 96
_SCALARS = frozenset((bool, int, str, bytes))


# ------------------------------------------------------------------ items of records


def _item(kind: Kind, key: str, value: Any) -> bytes:
    made: Record = kind()
    made[key] = value
    content = made.deflate()
    return content[content.index(0) + 1 :]


@lru_cache(maxsize=8192, typed=True)
def _known_item(kind: Kind, key: str, value: Any) -> bytes:
    return _item(kind, key, value)


@lru_cache(maxsize=1024)
def _known_integers(kind: Kind, key: str, values: tuple[int, ...]) -> bytes:
    return _item(kind, key, list(values))


def items_to_bytes(kind: Kind, items: Mapping[str, Any]) -> bytes:
    """The body of a record with these items, as its ``deflate`` makes it.

    It is the bytes of its items one after the other, and most of a message's items are
    those of the one before: what Flower makes of an item is found out once.

    Parameters
    ----------
    kind : type
        ``ConfigRecord`` or ``MetricRecord``.
    items : mapping
        What such a record may hold.
    """
    parts = []
    for key, value in items.items():
        of = type(value)
        if of is float:
            # 0.0 and −0.0 are equal, and their bytes are not
            known = value != 0.0
        elif of is list:
            # so are 1, 1.0 and True
            if len(value) < _LONGEST // 8 and all(type(one) is int for one in value):
                parts.append(_known_integers(kind, key, tuple(value)))
                continue
            known = False
        else:
            known = of in _SCALARS and (of in (bool, int) or len(value) < _LONGEST)
        make = _known_item if known else _item
        parts.append(make(kind, key, value))
    return b"".join(parts)


@lru_cache(maxsize=8192)
def _known_value(kind: Kind, item: bytes) -> tuple[str, Any]:
    return _value(kind, item)


def _value(kind: Kind, item: bytes) -> tuple[str, Any]:
    record = kind.inflate(f"{kind.__name__}  {len(item)}\0".encode() + item)
    ((key, value),) = contents(record).items()
    return key, value


def items_from_bytes(kind: Kind, body: bytes) -> dict[str, Any]:
    """Inverse of :func:`items_to_bytes`.

    Raises
    ------
    ValueError
        These are not the bytes of items.
    """
    items: dict[str, Any] = {}
    place, end = 0, len(body)
    while place < end:
        # an item is field 1, of a length that comes seven bits a byte, the lowest first
        after, length, shift, byte = place + 1, 0, 0, 0x80
        while byte >= 0x80 and after < end:
            byte = body[after]
            after += 1
            length |= (byte & 0x7F) << shift
            shift += 7
        if body[place] != 0x0A or byte >= 0x80 or after + length > end:
            raise ValueError(f"the bytes of a {kind.__name__} are malformed")
        item = body[place : after + length]
        read = _known_value if len(item) < _LONGEST else _value
        key, value = read(kind, item)
        items[key] = list(value) if type(value) is list else value
        place = after + length
    return items


# --------------------------------------------------------------------------- objects


class _Objects:
    """The objects of a message, as Flower names them, and how long each is."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}

    def put(self, kind: str, children: Iterable[str], body: bytes) -> str:
        """Add an object: its kind, its children's names, its length, and its body."""
        names = ",".join(dict.fromkeys(children))
        head = f"{kind} {names} {len(body)}\0".encode()
        name = self.name(head, body)
        self.lengths[name] = len(head) + len(body)
        return name

    def name(self, head: bytes, body: bytes) -> str:
        """The name of an object."""
        digest = sha256(head)
        digest.update(body)
        return digest.hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all objects."""
        return sum(self.lengths.values())

    def put_content(self, content: RecordDict) -> dict[str, Callable[[], Any]]:
        """Add a message's records: what reads each of the bytes that it has become."""
        records = contents(content).items()
        put = {key: self.put_record(record) for key, record in records}
        self.put_names("RecordDict", {key: name for key, (name, _) in put.items()})
        return {key: read for key, (_, read) in put.items()}

    def put_names(self, kind: str, names: Mapping[str, str]) -> str:
        """Add an object that names others, which are digits and letters, as JSON."""
        pairs = [f'{_quoted(key)}: "{name}"' for key, name in names.items()]
        return self.put(kind, names.values(), f"{{{', '.join(pairs)}}}".encode())

    def put_record(self, record: Any) -> tuple[str, Any]:
        """Add a record: its name, and what reads it of the bytes that it has become."""
        kind = type(record)
        if kind is ConfigRecord or kind is MetricRecord:
            body = items_to_bytes(kind, contents(record))
            name = self.put(kind.__name__, (), body)
            return name, lambda: filled(kind(), items_from_bytes(kind, body))
        arrays = contents(record).items()
        put = {key: self.put_array(array) for key, array in arrays}
        names = {key: name for key, (name, *_) in put.items()}
        name = self.put_names("ArrayRecord", names)

        def read() -> ArrayRecord:
            made = {key: _read_array(body, of) for key, (_, body, of) in put.items()}
            return filled(ArrayRecord(), made)

        return name, read

    def put_array(self, array: Array) -> tuple[str, bytes, list[bytes]]:
        """Add an array: its name, its body, and its chunks."""
        data = array.data
        pieces = [data]
        if len(data) > CHUNK_SIZE:
            pieces = [data[i : i + CHUNK_SIZE] for i in range(0, len(data), CHUNK_SIZE)]
        chunks = [self.put("ArrayChunk", (), piece) for piece in pieces]
        places = {name: place for place, name in enumerate(dict.fromkeys(chunks))}
        order = tuple(places[name] for name in chunks)
        body = _array_json(array.dtype, tuple(array.shape), array.stype, order)
        name = self.put("Array", chunks, body)
        return name, body, list(dict.fromkeys(pieces)) if len(pieces) > 1 else pieces


class Counted(_Objects):
    """Objects under other names of that length, which cost no SHA-256."""

    def __init__(self) -> None:
        super().__init__()
        self._alike: dict[bytes, list[tuple[bytes, str]]] = {}

    def name(self, head: bytes, body: bytes) -> str:
        """One name for all that are equal."""
        alike = self._alike.setdefault(head, [])
        for other, name in alike:
            if other == body:
                return name
        name = f"{len(self.lengths):064d}"
        alike.append((body, name))
        return name


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return json.dumps(text)


@lru_cache(maxsize=1024)
def _array_json(
    dtype: str, shape: tuple[int, ...], stype: str, places: tuple[int, ...]
) -> bytes:
    body = {"dtype": dtype, "shape": shape, "stype": stype, "arraychunk_ids": places}
    return json.dumps(body).encode()


@lru_cache(maxsize=1024)
def _read_json(body: bytes) -> Any:
    """What is not to be changed."""
    return json.loads(body)


def _read_array(body: bytes, pieces: list[bytes]) -> Array:
    read = _read_json(body)
    order = read["arraychunk_ids"]
    array = Array.__new__(Array)
    array.__dict__.update(
        dtype=cast(str, read["dtype"]),
        shape=tuple(read["shape"]),
        stype=cast(str, read["stype"]),
        data=pieces[0] if len(order) == 1 else b"".join(pieces[i] for i in order),
    )
    return array


def _framed(children: int, body: int) -> int:
    """Length of a message's own object: "Message name length", a zero byte, a body."""
    return len("Message  ") + 64 * children + len(str(body)) + 1 + body


# -------------------------------------------------------------------------- messages


class Encoder:
    """Encodes messages and decodes them.

    Parameters
    ----------
    sharing : bool
        Whether messages that have their content in common may have its copy in common:
        it is then encoded and read once, while this object lives.
    """

    def __init__(self, sharing: bool = False) -> None:
        self._known: dict[int, tuple[RecordDict, int, RecordDict]] = {}
        self._sharing = sharing

    def __call__(self, message: Message) -> tuple[Message, int]:
        """The message read again, and how many bytes its objects took."""
        if not message.has_content():
            return encode_message(message)
        content = message.content
        known = self._known.get(id(content))
        if known is None:
            objects = _Objects()
            read = {key: of() for key, of in objects.put_content(content).items()}
            known = content, objects.size, filled(RecordDict(), read)
            if self._sharing:
                self._known[id(content)] = known
        _, size, decoded = known
        body = envelope_to_bytes(message)
        message_id = message.metadata.message_id
        made = envelope_from_bytes(body, decoded, message_id)
        return made, size + _framed(1, len(body))


def objects_of(content: RecordDict) -> dict[str, int]:
    """The names of a message's objects but its own, and how long each is."""
    objects = _Objects()
    objects.put_content(content)
    return objects.lengths


def content_bytes(content: RecordDict) -> int:
    """Bytes of a message's records, without its own object."""
    objects = Counted()
    objects.put_content(content)
    return objects.size


def message_bytes(message: Message) -> int:
    """Bytes of all the objects that a message with content, or an error, becomes."""
    envelope = envelope_bytes(message)
    if not message.has_content():
        return _framed(0, envelope)
    return _framed(1, envelope) + content_bytes(message.content)
