"""Messages with something wrong in them, as a broken or malicious sender makes them.

What Flower's own encoding could not carry (integers of more than 64 bits, lists of
mixed types) does not occur.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtrellis.wire.arrays import encode

Rng = np.random.Generator
Items = dict[str, Any]

#: Keys that say what a message is; changed more often than others.
ENVELOPE = (
    "session",
    "server-round",
    "used-round",
    "model-version",
    "model-base",
    "model-shapes",
    "model-encoding",
    "client-id",
    "in-sync",
    "numbers",
    "restore",
    "restore-as-model",
    "keep-model",
)
_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e-320, -1.0, 0.0)
_INTS = (-1, 0, 1, 2, 10**6, 2**31, 10**12, 2**63 - 1, -(2**63), 2**64 - 1)
_TEXTS = ("", "\x00", "ä" * 40, "0", "-1", "nan", "train", "{}", "x" * 10_000)
_SHAPES: tuple[tuple[int, ...], ...] = (
    (10**12,),
    (2**40, 2**40),
    (0, 10**12),
    (10**9,),
    (),
    (1,),
    (3, 3),
    (1,) * 30,
)
_DTYPES = ("<f4", "<f2", ">f8", "<i8", "|u1", "|b1", "<u8", "<c16", "<M8[s]", "|S8")


def choose(rng: Rng, items: Sequence[Any]) -> Any:
    """One of them."""
    return items[int(rng.integers(len(items)))]


def _count(rng: Rng) -> int:
    return int(rng.integers(1, 4))


# ------------------------------------------------------------------------------- bytes


def mutate_bytes(rng: Rng, data: bytes) -> bytes:
    """Bits flipped, cut, lengthened, overwritten, or something else altogether."""
    kind = int(rng.integers(6))
    if not data or kind == 0:
        return bytes(rng.integers(0, 256, size=int(rng.integers(0, 64)), dtype="u1"))
    changed = bytearray(data)
    if kind <= 2:
        # half of them in the first bytes, where headers are
        end = min(len(changed), 80) if rng.random() < 0.5 else len(changed)
        for _ in range(_count(rng)):
            changed[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
    elif kind == 3:
        del changed[int(rng.integers(len(changed))) :]
    elif kind == 4:
        changed += bytes(rng.integers(0, 256, size=_count(rng) * 8, dtype="u1"))
    else:
        at = int(rng.integers(len(changed)))
        changed[at : at + 8] = b"\xff" * len(changed[at : at + 8])
    return bytes(changed)


# ------------------------------------------------------------------------------ arrays


def _header(dtype: str, shape: tuple[int, ...], fortran: bool = False) -> bytes:
    text = repr({"descr": dtype, "fortran_order": fortran, "shape": shape})
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _values(rng: Rng, array: Array) -> Array:
    """Other values in an array that stays well-formed."""
    try:
        values = array.numpy().copy()
    except Exception:
        return array
    if values.dtype.kind not in "fiub":
        return array  # it was changed before
    if not values.size:
        return encode(np.zeros(int(rng.integers(1, 5))))
    flat = values.reshape(-1)
    where = rng.integers(flat.size, size=_count(rng))
    if values.dtype.kind == "f":
        flat[where] = choose(rng, _FLOATS)
    elif values.dtype.kind in "iu":
        info = np.iinfo(values.dtype)
        flat[where] = choose(rng, (info.max, info.min, 0, 1, info.max // 2))
    return encode(values)


def mutate_array(rng: Rng, array: Array) -> Array:
    """Wrong bytes, dtype, shape, serialisation or values."""
    kind = int(rng.integers(7))
    if kind == 0:
        return Array(array.dtype, array.shape, "no.such.type", array.data)
    if kind == 1:
        return _values(rng, array)
    if kind == 2:
        # a header that says what is not there
        body = array.data[128:] if rng.random() < 0.5 else b""
        data = _header(choose(rng, ("<f8", *_DTYPES)), choose(rng, _SHAPES)) + body
        return Array(array.dtype, array.shape, array.stype, data)
    if kind == 3:
        # a well-formed array of another dtype or shape
        try:
            values = array.numpy()
        except Exception:
            return array
        if values.dtype.kind not in "fiub":
            return array
        with np.errstate(all="ignore"):
            other = [
                lambda: values.reshape(-1),
                lambda: values.reshape(*values.shape, 1),
                lambda: np.asfortranarray(values),
                lambda: np.concatenate([values.reshape(-1)] * 2),
                lambda: values.reshape(-1)[:-1],
                lambda: values.astype(choose(rng, ("<f4", "<i8", ">f8", "?", "u1"))),
                lambda: np.zeros((0, *values.shape)),
            ]
            return encode(choose(rng, other)())
    return Array(array.dtype, array.shape, array.stype, mutate_bytes(rng, array.data))


# ------------------------------------------------------------------------------ values


def mutate_value(rng: Rng, value: Any) -> Any:
    """Another value, often of another type."""
    if rng.random() < 0.25:
        # of another type
        kinds = (choose(rng, _FLOATS), choose(rng, _INTS), choose(rng, _TEXTS))
        return choose(rng, (*kinds, True, b"\x00\x01", [1, 2, 3], [], ["a"], [0.5]))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = value + int(rng.integers(-2, 3))
        return choose(rng, (*_INTS, near, float(near)))
    if isinstance(value, float):
        whole = int(min(abs(value), 2.0**62)) if value == value else 0
        return choose(rng, (*_FLOATS, value * 2.0, whole))
    if isinstance(value, bytes):
        return mutate_bytes(rng, value)
    if isinstance(value, str):
        return choose(rng, (*_TEXTS, value + "0", value[:-1]))
    assert isinstance(value, list)
    return _mutate_list(rng, value)


def _mutate_list(rng: Rng, value: list[Any]) -> list[Any]:
    changed = list(value)
    kind = int(rng.integers(4))
    if not changed or kind == 0:
        return [choose(rng, _INTS) for _ in range(_count(rng))]
    if kind == 1:
        del changed[int(rng.integers(len(changed)))]
    elif kind == 2:
        changed += [choose(rng, changed)] * int(rng.integers(1, 200))
    else:
        at = int(rng.integers(len(changed)))
        same = type(changed[at])
        new = mutate_value(rng, changed[at])
        changed[at] = new if type(new) is same else changed[at]
    return changed


# ------------------------------------------------------------------------------ records


def _change_keys(rng: Rng, items: Items, extra: Callable[[], Any]) -> Items:
    """Without a key, with another name for one, or with one more."""
    keys, kind = list(items), int(rng.integers(4))
    if not keys or kind == 0:
        items[choose(rng, ("extra", "0", "", "joined", "x.values", "x.indices"))] = (
            extra()
        )
        return items
    key = choose(rng, keys)
    if kind == 1:
        del items[key]
    elif kind == 2:
        items[key + "x"] = items.pop(key)
    else:
        shuffled = [keys[i] for i in rng.permutation(len(keys))]
        items = {name: items[name] for name in shuffled}
    return items


def _mutate_arrays(rng: Rng, record: ArrayRecord) -> ArrayRecord:
    items: Items = dict(record)
    if items and rng.random() < 0.75:
        key = choose(rng, list(items))
        items[key] = mutate_array(rng, items[key])
    else:
        items = _change_keys(rng, items, lambda: encode(rng.standard_normal(3)))
    return ArrayRecord(items)


def _mutate_numbers(rng: Rng, record: Any) -> Any:
    items: Items = dict(record)
    if items and rng.random() < 0.8:
        known = [key for key in items if key in ENVELOPE]
        usual = not known or rng.random() < 0.6
        key = choose(rng, list(items) if usual else known)
        items[key] = mutate_value(rng, items[key])
    else:
        items = _change_keys(rng, items, lambda: choose(rng, _INTS))
    if isinstance(record, MetricRecord):
        numbers = (int, float)
        items = {k: v for k, v in items.items() if type(v) in numbers}
        return MetricRecord(items)
    return ConfigRecord(items)


def _of_another_type(rng: Rng, record: Any) -> Any:
    if isinstance(record, ArrayRecord):
        return choose(rng, (ConfigRecord({"0": b"\x00"}), MetricRecord({"0": 1.0})))
    return choose(rng, (ArrayRecord(), ArrayRecord([np.zeros(2)]), MetricRecord()))


def mutate_content(
    rng: Rng, content: RecordDict, others: Sequence[RecordDict] = ()
) -> RecordDict:
    """A message's content with one to three things wrong.

    Parameters
    ----------
    rng : numpy.random.Generator
    content : RecordDict
        Not changed.
    others : sequence of RecordDict
        Contents of other messages, to take records from.
    """
    records: Items = dict(content)
    for _ in range(choose(rng, (1, 1, 1, 2, 3))):
        names, kind = list(records), int(rng.integers(12))
        if kind == 0 and names:
            del records[choose(rng, names)]
        elif kind == 1 and names:
            name = choose(rng, names)
            records[name] = _of_another_type(rng, records[name])
        elif kind == 2:
            records = _change_keys(rng, records, ArrayRecord)
        elif kind == 3 and others:
            # all of it, or a record, of another message
            other: RecordDict = choose(rng, others)
            taken = dict(other)
            if rng.random() < 0.5 and taken:
                name = choose(rng, list(taken))
                records[name] = taken[name]
            else:
                records = taken
        elif names:
            name = choose(rng, names)
            record = records[name]
            if isinstance(record, ArrayRecord):
                records[name] = _mutate_arrays(rng, record)
            else:
                records[name] = _mutate_numbers(rng, record)
    return RecordDict(records)
