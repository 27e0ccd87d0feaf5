"""How many bytes a Message takes on the wire, without encoding it.

Flower splits a Message into objects (the message, its records, its arrays, their
chunks), names each by the SHA-256 of its bytes, and sends objects of one name once.
The lengths are known without any SHA-256: that is what makes counting the traffic of
every round affordable. The tests compare with real encodings.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, cast

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)

from fedtrellis.wire.arrays import Described, contents, one_array_of
from fedtrellis.wire.flower_internals import CHUNK_SIZE, envelope_bytes

__all__ = [
    "arrays_bytes",
    "content_bytes",
    "framed_bytes",
    "items_bytes",
    "message_bytes",
    "records_bytes",
]

_HASH = "0" * 64


def _framed(name: str, children: int, body: int) -> int:
    """Length of an object: "name child,... body-length", a zero byte, the body."""
    hashes = 65 * children - 1 if children else 0
    return len(name) + 1 + hashes + 1 + len(str(body)) + 1 + body


@lru_cache(maxsize=1024)
def _array_body(
    dtype: str, shape: tuple[int, ...], stype: str, order: tuple[int, ...]
) -> int:
    body = {"dtype": dtype, "shape": shape, "stype": stype, "arraychunk_ids": order}
    return len(json.dumps(body))


@lru_cache(maxsize=1024)
def _references(names: tuple[str, ...]) -> int:
    """Length of the JSON that maps names to the hashes of their objects."""
    return len(json.dumps(dict.fromkeys(names, _HASH)))


def _array_objects(array: Array) -> dict[Hashable, int]:
    """Lengths of an array and its chunks; objects with equal keys are one object."""
    size = CHUNK_SIZE
    if len(array.data) <= size:
        chunks, order = [array.data], [0]
    else:
        pieces = [array.data[i : i + size] for i in range(0, len(array.data), size)]
        chunks = list(dict.fromkeys(pieces))
        order = [chunks.index(piece) for piece in pieces]
    body = _array_body(array.dtype, tuple(array.shape), array.stype, tuple(order))
    objects: dict[Hashable, int] = {
        chunk: _framed("ArrayChunk", 0, len(chunk)) for chunk in chunks
    }
    key = (array.dtype, tuple(array.shape), array.stype, array.data)
    objects[key] = _framed("Array", len(chunks), body)
    return objects


def _varint(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)


def _field(length: int) -> int:
    """A length-delimited field with a one-byte tag."""
    return 1 + _varint(length) + length


def _value_bytes(value: Any, unsigned: bool = False) -> int:
    """A ConfigRecordValue or MetricRecordValue, without its own tag and length."""
    if isinstance(value, bool):
        return 2
    if isinstance(value, float):
        return 9
    if isinstance(value, int):  # sint64 (zigzag), above 2^63 − 1 uint64
        unsigned = unsigned or value >= 2**63
        return 1 + _varint(value if unsigned else (value << 1) ^ (value >> 63))
    if isinstance(value, str):
        return _field(len(value.encode()))
    assert isinstance(value, bytes)
    return _field(len(value))


_SCALARS, _INTEGERS = frozenset((float, int, bool)), {int}


@lru_cache(maxsize=8192, typed=True)
def _scalar_bytes(key: str, value: bool | int | float | str) -> int:
    """An item with a scalar: most of a round's messages share most of theirs."""
    name = _field(len(key.encode())) if key else 0  # proto3 leaves empty text out
    return _field(name + _field(_value_bytes(value)))


@lru_cache(maxsize=1024)
def _integers_bytes(key: str, values: tuple[int, ...]) -> int:
    """An item with a few integers, such as a model's shapes."""
    return _item_bytes(key, list(values))


def _item_bytes(key: str, value: Any) -> int:
    if isinstance(value, list):
        # a repeated scalar field (packed) or repeated text, inside a message
        if value and isinstance(value[0], str | bytes):
            inner = sum(_value_bytes(item) for item in value)
        else:
            # one integer above 2^63 − 1 makes the whole list one of uint64
            unsigned = any(type(item) is int and item >= 2**63 for item in value)
            packed = sum(_value_bytes(item, unsigned) - 1 for item in value)
            inner = _field(packed) if value else 0
        size = 2 + _varint(inner) + inner  # the lists' field numbers need two bytes
    else:
        size = _value_bytes(value)
    name = _field(len(key.encode())) if key else 0
    return _field(name + _field(size))


@lru_cache(maxsize=1024)
def _one_array(
    name: str, dtype: str, shape: tuple[int, ...], stype: str, size: int
) -> tuple[int, int]:
    """Bytes of a record of one array in one chunk: its own object, and all."""
    own = _framed("ArrayRecord", 1, _references((name,)))
    array = _framed("Array", 1, _array_body(dtype, shape, stype, (0,)))
    return own, own + array + _framed("ArrayChunk", 0, size)


class _RecordSize:
    """What a record adds to its message.

    Attributes
    ----------
    own : int
        Bytes of its own object.
    total : int
        With its arrays and their chunks.
    holds : bool
        Whether it has arrays.
    """

    __slots__ = ("_objects", "holds", "own", "record", "total")

    def __init__(self, record: object) -> None:
        self.record = record
        self._objects: dict[Hashable, int] | None = None
        self.holds = isinstance(record, ArrayRecord) and bool(contents(record))
        if isinstance(record, ConfigRecord | MetricRecord):
            body = items_bytes(contents(record))
            self.own = self.total = _framed(type(record).__name__, 0, body)
            return
        assert isinstance(record, ArrayRecord)
        arrays = sum(isinstance(key, tuple) for key in self.objects)
        self.own = _framed("ArrayRecord", arrays, _references(tuple(record)))
        self.total = self.own + sum(self.objects.values())

    @property
    def objects(self) -> dict[Hashable, int]:
        """Bytes of its arrays and their chunks."""
        if self._objects is None:
            self._objects = {}
            if isinstance(self.record, ArrayRecord):
                for array in self.record.values():
                    self._objects |= _array_objects(array)
        return self._objects


def _content_of(record: object) -> Hashable:
    """What tells a record from others of its type."""
    if isinstance(record, ArrayRecord):
        return tuple(
            (key, array.dtype, tuple(array.shape), array.stype, array.data)
            for key, array in record.items()
        )
    assert isinstance(record, ConfigRecord | MetricRecord)
    return type(record).__name__, repr(dict(record))  # repr keeps 1, 1.0 and True apart


def message_bytes(message: Message, known: dict[Any, Any] | None = None) -> int:
    """Bytes of all the objects that ``message`` is split into.

    Parameters
    ----------
    message : Message
        With content or with an error.
    known : dict, optional
        Cache by ``id`` of records, for those shared between the messages of a round; it
        must not outlive them. Start with an empty one.
    """
    body = envelope_bytes(message)
    if not message.has_content():
        return _framed("Message", 0, body)
    records = contents(message.content)
    known = {} if known is None else known
    # records that are the same ones, under the same names, have the same size together
    key = (*records, *map(id, records.values()))
    size = known.get(key)
    if size is None:
        size = known[key] = _content_size(records, known)
    return _framed("Message", 1, body) + size


def content_bytes(content: RecordDict) -> int:
    """Bytes of a message's records, without its own object."""
    return _content_size(contents(content), {})


def items_bytes(items: Mapping[str, Any]) -> int:
    """Bytes of some items of a ``ConfigRecord`` or ``MetricRecord``, in its body."""
    size = 0
    for key, value in items.items():
        kind = type(value)
        if kind in _SCALARS or (kind is str and len(value) < 64):
            size += _scalar_bytes(key, value)
        elif kind is list and len(value) < 16 and set(map(type, value)) == _INTEGERS:
            size += _integers_bytes(key, tuple(value))
        else:
            size += _item_bytes(key, value)
    return size


def arrays_bytes(described: Described) -> int | None:
    """Bytes of what ``array_record(arrays, join=True)`` makes of arrays.

    None where that depends on what is in them: of equal arrays one is sent.
    """
    one = one_array_of(described)
    if one is None or one[3] > CHUNK_SIZE:
        return None
    key, dtype, shape, size = one
    return _one_array(key, dtype, shape, "numpy.ndarray", size)[1]


def framed_bytes(envelope: int) -> int:
    """Bytes of a message's own object, of the envelope that is in it."""
    return _framed("Message", 1, envelope)


def records_bytes(records: Mapping[str, tuple[type[Any], int]]) -> int:
    """Bytes of a message's records, no two of which are alike.

    Parameters
    ----------
    records : mapping
        By name, the type and the bytes of each: of an ``ArrayRecord`` all of them, else
        those of its items.
    """
    total = _framed("RecordDict", len(records), _references(tuple(records)))
    for kind, size in records.values():
        total += size if kind is ArrayRecord else _framed(kind.__name__, 0, size)
    return total


def _described(record: object) -> tuple[Any, ...] | None:
    """What the bytes of a record depend on; None where that takes a closer look."""
    if isinstance(record, ConfigRecord | MetricRecord):
        return type(record).__name__, items_bytes(contents(record))
    arrays = contents(cast(ArrayRecord, record))
    if len(arrays) != 1:
        return None
    ((name, array),) = arrays.items()
    if len(array.data) > CHUNK_SIZE:
        return None
    # one chunk: there is nothing that could be equal to something
    return name, array.dtype, tuple(array.shape), array.stype, len(array.data)


@lru_cache(maxsize=4096)
def _described_bytes(
    names: tuple[str, ...], described: tuple[tuple[Any, ...], ...]
) -> int | None:
    """Bytes of a message's records, if nothing of one can be equal to one's of another.

    Else None.
    """
    # records that are described alike may be equal, and arrays of two records
    holding = sum(len(each) > 2 for each in described)
    if holding > 1 or len(set(described)) < len(described):
        return None
    total = _framed("RecordDict", len(names), _references(names))
    for each in described:
        record = len(each) == 2
        total += _framed(each[0], 0, each[1]) if record else _one_array(*each)[1]
    return total


def _content_size(records: Mapping[str, Any], known: dict[Any, Any]) -> int:
    described = tuple(map(_described, records.values()))
    size = None if None in described else _described_bytes(tuple(records), described)
    return _looked_at(records, known) if size is None else size


def _looked_at(records: Mapping[str, Any], known: dict[Any, Any]) -> int:
    """Bytes of a message's records, of which some may be equal."""
    sizes: list[_RecordSize] = []
    for record in records.values():
        if id(record) not in known:
            known[id(record)] = _RecordSize(record)
        sizes.append(known[id(record)])
    if len({size.own for size in sizes}) < len(sizes):
        # records of one length may be equal, and then they are one object
        distinct = {
            _content_of(r): s for r, s in zip(records.values(), sizes, strict=True)
        }
        sizes = list(distinct.values())
    total = _framed("RecordDict", len(sizes), _references(tuple(records)))
    if sum(size.holds for size in sizes) < 2:
        return total + sum(size.total for size in sizes)
    objects: dict[Hashable, int] = {}
    for size in sizes:
        objects |= size.objects
    return total + sum(size.own for size in sizes) + sum(objects.values())
