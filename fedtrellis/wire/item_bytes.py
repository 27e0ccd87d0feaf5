"""Items of a ``ConfigRecord`` or ``MetricRecord`` as the bytes that Flower sends.

A record's body is the bytes of its items one after the other, and most of a message's
items are those of the one before. What Flower makes of an item, and an item of its
bytes, is found out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flwr.app import ConfigRecord, MetricRecord

from fedtrellis.wire.arrays import contents

__all__ = ["items_from_bytes", "items_to_bytes"]

Record = ConfigRecord | MetricRecord
Kind = type[ConfigRecord] | type[MetricRecord]

# Longer items, most of which never come again, are not remembered.
_LONGEST = 96
_SCALARS = frozenset((bool, int, str, bytes))


def _body(content: bytes) -> bytes:
    return content[content.index(0) + 1 :]


def _item(kind: Kind, key: str, value: Any) -> bytes:
    made: Record = kind()
    made[key] = value
    return _body(made.deflate())


@lru_cache(maxsize=8192, typed=True)
def _known_item(kind: Kind, key: str, value: Any) -> bytes:
    return _item(kind, key, value)


@lru_cache(maxsize=1024)
def _known_integers(kind: Kind, key: str, values: tuple[int, ...]) -> bytes:
    return _item(kind, key, list(values))


def items_to_bytes(kind: Kind, items: Mapping[str, Any]) -> bytes:
    """The body of a record with these items, as its ``deflate`` makes it.

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
