"""Messages as the bytes that Flower sends, and back.

What Flower does object by object, each written twice and read with many a check, is
done here in one pass over a message that is in order; the bytes and the names of the
objects are the same (``tests/fedtrellis/wire/test_encoding.py`` compares them).
Anything else goes Flower's way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, cast

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


class _Encoded(NamedTuple):
    """A record, or all of a message's: its objects, and itself read again."""

    item: Any  # whose identity it is known by
    name: str
    objects: Objects
    size: int
    decoded: Any


class Encoder:
    """Encodes messages and decodes them.

    Parameters
    ----------
    sharing : bool
        Whether messages that have a record, or all of their content, in common may have
        its copy in common: it is then encoded and read once, while this object lives.
        Of bytes that several arrays have in common the name is found once in any case.
    """

    def __init__(self, sharing: bool = False) -> None:
        self._known: dict[int, _Encoded] | None = {} if sharing else None
        self._chunks: _Chunks = {}

    def __call__(self, message: Message) -> tuple[Message, int]:
        """The message read again, and how many bytes its objects took."""
        if not message.has_content():
            return encode_message(message)
        content = self._shared(message.content, self._content)
        body = envelope_to_bytes(message)
        own: Objects = {}
        _put(own, "Message", [content.name], body)
        size = content.size + sum(map(len, own.values()))
        message_id = message.metadata.message_id
        return envelope_from_bytes(body, content.decoded, message_id), size

    def _shared(self, item: Any, encode: Callable[[Any], _Encoded]) -> _Encoded:
        """A record, or all of them, encoded; once, where that may be."""
        if self._known is None:
            return encode(item)
        if id(item) not in self._known:
            self._known[id(item)] = encode(item)
        return self._known[id(item)]

    def _content(self, content: RecordDict) -> _Encoded:
        objects: Objects = {}
        names: dict[str, str] = {}
        decoded: dict[str, Any] = {}
        for key, record in contents(content).items():
            encoded = self._shared(record, self._record)
            objects |= encoded.objects
            names[key], decoded[key] = encoded.name, encoded.decoded
        name = _put(objects, "RecordDict", names.values(), _names_json(names))
        size = sum(map(len, objects.values()))
        return _Encoded(content, name, objects, size, filled(RecordDict(), decoded))

    def _record(self, record: Any) -> _Encoded:
        objects: Objects = {}
        name = _put_record(objects, record, self._chunks)
        size = sum(map(len, objects.values()))
        return _Encoded(record, name, objects, size, _read(name, objects))


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


def _names_of(body: bytes) -> dict[str, str]:
    """Inverse of :func:`_names_json`."""
    if b"\\" in body:
        return cast(dict[str, str], json.loads(body))
    # nothing is escaped: every second piece is text, keys and names in turns
    texts = body.decode().split('"')[1::2]
    return dict(zip(texts[::2], texts[1::2], strict=True))


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
    names = ",".join(dict.fromkeys(children)) if children else ""
    content = f"{kind} {names} {len(body)}\0".encode() + body
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
        key: _read_array(objects[of], objects) for key, of in _names_of(body).items()
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
