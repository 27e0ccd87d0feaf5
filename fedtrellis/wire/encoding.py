"""Messages as the bytes that Flower sends, and back.

What Flower does object by object, each written twice and read with many a check, is
done here in one pass over a message that is in order; the bytes and the names of the
objects are the same (``tests/fedtrellis/wire/test_encoding.py`` compares them).
Anything else goes Flower's way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedtrellis.wire.arrays import contents, filled
from fedtrellis.wire.flower_internals import (
    CHUNK_SIZE,
    encode_message,
    envelope_from_bytes,
    envelope_to_bytes,
)
from fedtrellis.wire.item_bytes import items_from_bytes, items_to_bytes

__all__ = ["Encoder", "objects_of"]

Objects = dict[str, bytes]
# By the identity of an array's bytes: these, the names of its chunks, and the chunks.
_Chunks = dict[int, tuple[bytes, list[str], Objects]]


@dataclass
class _Encoded:
    """A record's objects by their names, its own name, and the record read again."""

    record: Any  # whose identity it is known by
    name: str
    objects: Objects
    decoded: Any


class Encoder:
    """Encodes messages and decodes them.

    Parameters
    ----------
    sharing : bool
        Whether messages that have a record in common may have its copy in common: it
        is then encoded once, while this object lives. Of bytes that several arrays have
        in common the name is found once in any case.
    """

    def __init__(self, sharing: bool = False) -> None:
        self._known: dict[int, _Encoded] | None = {} if sharing else None
        self._chunks: _Chunks = {}

    def __call__(self, message: Message) -> tuple[Message, int]:
        """The message read again, and how many bytes its objects took."""
        if not message.has_content():
            return encode_message(message)
        records = contents(message.content)
        encoded = {name: self._record(record) for name, record in records.items()}
        objects: Objects = {}
        for each in encoded.values():
            objects |= each.objects
        names = {name: each.name for name, each in encoded.items()}
        content = _put(objects, "RecordDict", names.values(), _names_json(names))
        body = envelope_to_bytes(message)
        _put(objects, "Message", [content], body)
        size = sum(map(len, objects.values()))
        decoded = {name: each.decoded for name, each in encoded.items()}
        again = filled(RecordDict(), decoded)
        return envelope_from_bytes(body, again, message.metadata.message_id), size

    def _record(self, record: Any) -> _Encoded:
        known = None if self._known is None else self._known.get(id(record))
        if known is not None:
            return known
        objects: Objects = {}
        name = _put_record(objects, record, self._chunks)
        encoded = _Encoded(record, name, objects, _read(name, objects))
        if self._known is not None:
            self._known[id(record)] = encoded
        return encoded


def objects_of(message: Message) -> Objects:
    """The objects of a message with content, by their names."""
    objects: Objects = {}
    records = contents(message.content).items()
    names = {name: _put_record(objects, record, {}) for name, record in records}
    content = _put(objects, "RecordDict", names.values(), _names_json(names))
    _put(objects, "Message", [content], envelope_to_bytes(message))
    return objects


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _names_json(names: Mapping[str, str]) -> bytes:
    """The names of objects, which are digits and letters, as JSON."""
    pairs = [f'{_quoted(key)}: "{name}"' for key, name in names.items()]
    return f"{{{', '.join(pairs)}}}".encode()


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


def _put(objects: Objects, kind: str, children: Any, body: bytes) -> str:
    """Add an object: its kind, its children's names, its length, and its body."""
    names = ",".join(dict.fromkeys(children))
    content = b"".join((f"{kind} {names} {len(body)}\0".encode(), body))
    name = sha256(content).hexdigest()
    objects[name] = content
    return name


def _put_record(objects: Objects, record: Any, known: _Chunks) -> str:
    kind = type(record)
    if kind is ConfigRecord or kind is MetricRecord:
        return _put(objects, kind.__name__, (), items_to_bytes(kind, contents(record)))
    arrays = contents(record).items()
    names = {key: _put_array(objects, array, known) for key, array in arrays}
    return _put(objects, "ArrayRecord", names.values(), _names_json(names))


def _put_array(objects: Objects, array: Array, known: _Chunks) -> str:
    data = array.data
    pieces: Sequence[bytes] = [data]
    if len(data) > CHUNK_SIZE:
        pieces = [data[i : i + CHUNK_SIZE] for i in range(0, len(data), CHUNK_SIZE)]
    found = known.get(id(data))
    if found is None:
        made: Objects = {}
        chunks = [_put(made, "ArrayChunk", (), piece) for piece in pieces]
        found = known[id(data)] = data, chunks, made
    _, chunks, made = found
    objects |= made
    places = {name: place for place, name in enumerate(dict.fromkeys(chunks))}
    order = tuple(places[name] for name in chunks)
    body = _array_json(array.dtype, tuple(array.shape), array.stype, order)
    return _put(objects, "Array", chunks, body)


def _split(content: bytes) -> tuple[str, list[str], bytes]:
    """Kind, children's names and body of an object."""
    end = content.index(0)
    kind, names, _ = content[:end].decode().split(" ")
    return kind, names.split(",") if names else [], content[end + 1 :]


def _read(name: str, objects: Mapping[str, bytes]) -> Any:
    """A record, made of its objects."""
    kind, _, body = _split(objects[name])
    if kind == "ConfigRecord":
        return filled(ConfigRecord(), items_from_bytes(ConfigRecord, body))
    if kind == "MetricRecord":
        return filled(MetricRecord(), items_from_bytes(MetricRecord, body))
    arrays = {
        key: _read_array(objects[of], objects) for key, of in json.loads(body).items()
    }
    return filled(ArrayRecord(), arrays)


def _read_array(content: bytes, objects: Mapping[str, bytes]) -> Array:
    _, names, body = _split(content)
    said = _read_json(body)
    pieces = [_split(objects[names[place]])[2] for place in said["arraychunk_ids"]]
    array = Array.__new__(Array)
    array.__dict__.update(
        dtype=cast(str, said["dtype"]),
        shape=tuple(said["shape"]),
        stype=cast(str, said["stype"]),
        data=pieces[0] if len(pieces) == 1 else b"".join(pieces),
    )
    return array
