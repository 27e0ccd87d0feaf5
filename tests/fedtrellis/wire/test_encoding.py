"""Messages to bytes in one pass, against Flower's own objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedtrellis.wire.arrays import array_record
from fedtrellis.wire.encoding import (
    Encoder,
    items_from_bytes,
    items_to_bytes,
    objects_of,
)
from fedtrellis.wire.flower_internals import (
    CHUNK_SIZE,
    encode_message,
    join_run,
    name_message,
    reply_to,
)

RNG = np.random.default_rng(0)
CONFIG = ConfigRecord(
    {
        "a": 1,
        "b": 2.5,
        "c": True,
        "d": "é",
        "e": b"\x00\x01",
        "f": [1, 2**40],
        "g": [0.5, -1.0],
        "h": ["x", ""],
        "i": [],
    }
)
# equal, or of one hash, and other bytes; each after the one that it could be taken for
ALIKE: list[Any] = [
    *(1, True, 1.0, 0, False, 0.0, -0.0, 2**63 - 1, 2**63, -1, -(2**63)),
    *(float("nan"), float("inf"), "", b"", "1", b"1", "é" * 60, "x" * 200, b"x" * 200),
    *([], [1], [True], [1.0], [0.0], [-0.0], ["a"], [b"a"], [2**63, 1], [1] * 400),
]
MEASURES: list[Any] = [1, 1.0, 0.0, -0.0, 2**63, [1], [1.0], [-0.0], [0.0]]
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one name": {str(i): ConfigRecord({"a": one}) for i, one in enumerate(ALIKE)},
    "many names": {"config": ConfigRecord({f"{i}": v for i, v in enumerate(ALIKE)})},
    "no name": {"config": ConfigRecord({"": 1}), "metrics": MetricRecord({"": 1})},
    "measures": {str(i): MetricRecord({"a": one}) for i, one in enumerate(MEASURES)},
    "numbers": {"config": CONFIG, "metrics": MetricRecord({"loss": 0.1, "n": [1, 2]})},
    "arrays": {"arrays": array_record([RNG.random((3, 4)), np.arange(5)])},
    "joined": {"arrays": array_record([RNG.random(3), np.arange(5)], join=True)},
    "empty arrays": {"arrays": array_record([np.empty((0, 3)), np.array(2.0)])},
    "no arrays": {"arrays": ArrayRecord()},
    "the same twice": {
        "a": array_record([np.ones(4), np.ones(4)]),
        "b": array_record([np.ones(4)]),
        "c": ConfigRecord({"x": 1}),
        "d": ConfigRecord({"x": 1}),
    },
    "chunks": {"arrays": array_record([np.zeros(2 * CHUNK_SIZE // 8 + 3)])},
}


def message_of(records: dict[str, Any]) -> Message:
    join_run(7)
    message = Message(
        RecordDict(records), dst_node_id=2**61, message_type="train.x", group_id="12"
    )
    name_message(message, "0" * 35 + "9")
    return message


@pytest.mark.parametrize("case", CASES)
def test_the_objects_are_flowers(case: str) -> None:
    message = message_of(CASES[case])
    theirs = {
        name: len(item.deflate())
        for name, item in get_all_nested_objects(message.content).items()
    }
    # a name is the SHA-256 of an object's bytes
    assert objects_of(message.content) == theirs


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_arrives_is_what_flower_makes_of_it(case: str, sharing: bool) -> None:
    encode, message = Encoder(sharing), message_of(CASES[case])
    for sent in (message, message, reply_to(message, message.content)):
        name_message(sent, message.metadata.message_id)
        made, size = encode(sent)
        theirs, their_size = encode_message(sent)
        assert size == their_size
        assert vars(made.metadata) == vars(theirs.metadata)
        # not a number is not equal to itself; −0.0 is to 0.0
        for name, record in theirs.content.items():
            if isinstance(record, ArrayRecord):
                assert made.content[name] == record
            else:
                assert repr(made.content[name]) == repr(record)
        kinds = [
            (key, type(value))
            for record in made.content.values()
            for key, value in record.items()
        ]
        assert kinds == [
            (key, type(value))
            for record in theirs.content.values()
            for key, value in record.items()
        ]
        for record in made.content.values():
            for original in message.content.values():
                assert record is not original


@pytest.mark.parametrize(
    "body", [b"\x12\x01a", b"\x0a", b"\x0a\x80", b"\x0a\x05abc", b"\x0a\xff\xff\x7f"]
)
def test_bytes_that_are_no_items_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="malformed"):
        items_from_bytes(ConfigRecord, body)


def test_a_list_that_was_read_is_nobody_elses() -> None:
    body = items_to_bytes(ConfigRecord, {"sizes": [1, 2]})
    items_from_bytes(ConfigRecord, body)["sizes"].append(3)
    assert items_from_bytes(ConfigRecord, body) == {"sizes": [1, 2]}
