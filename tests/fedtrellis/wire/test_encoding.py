"""Messages to bytes in one pass, against Flower's own objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedtrellis.wire.arrays import array_record
from fedtrellis.wire.encoding import Encoder, objects_of
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
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
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
        name: item.deflate() for name, item in get_all_nested_objects(message).items()
    }
    assert objects_of(message) == theirs


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
        assert made.content == theirs.content
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
