"""Messages to bytes and back, and how many these are, against Flower's own objects."""

from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis import LocalGrid
from fedtrellis.wire.arrays import array_record, encode
from fedtrellis.wire.client import client_app
from fedtrellis.wire.flower_internals import (
    Encoded,
    items_from_bytes,
    items_to_bytes,
    message_bytes,
    name_message,
    through_bytes,
)
from tests.harness import encode_message

# a grid gives this process the place in a run that messages need
LocalGrid(client_app(lambda context: None), 1)


def request(content: RecordDict | None = None, **options: Any) -> Message:
    content = RecordDict() if content is None else content
    return Message(content, 12345678901234567, "train", **options)


def assert_counted(message: Message) -> None:
    theirs, size = encode_message(message)
    assert message_bytes(message) == size
    contents: tuple[Encoded | None, ...] = (None, {})
    for shared in contents:
        for _ in range(2):  # the second time of what they have in common
            made, counted = through_bytes(message, shared)
            assert counted == size
            assert vars(made.metadata) == vars(theirs.metadata)
            assert made.has_content() == theirs.has_content()
            if made.has_error():
                assert vars(made.error) == vars(theirs.error)
            else:
                assert_same(made.content, theirs.content)
                assert not {*map(id, made.content.values())} & {
                    *map(id, message.content.values())
                }


def assert_same(made: RecordDict, theirs: RecordDict) -> None:
    assert list(made) == list(theirs)
    for name, record in theirs.items():
        assert type(made[name]) is type(record)
        if isinstance(record, ArrayRecord):
            assert made[name] == record
        else:
            # not a number is not equal to itself, −0.0 is to 0.0, and True to 1
            assert repr(made[name]) == repr(record)


TEXT = st.text(max_size=20)
INTEGERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, 1, -1, 63, 64, -64, -65, 2**63 - 1, 2**63, -(2**63)]),
)
# in one list all are int64 or all are uint64
INTEGER_LISTS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40),
    st.lists(st.integers(0, 2**64 - 1), max_size=40),
)
NUMBERS = st.one_of(INTEGERS, st.floats())
NUMBER_LISTS = st.one_of(INTEGER_LISTS, st.lists(st.floats(), max_size=40))
CONFIG_VALUES = st.one_of(
    NUMBERS,
    NUMBER_LISTS,
    st.booleans(),
    TEXT,
    st.binary(max_size=200),
    st.lists(st.booleans(), max_size=200),
    st.lists(TEXT, max_size=10),
    st.lists(st.binary(max_size=20), max_size=10),
)
CONFIGS = st.dictionaries(TEXT, CONFIG_VALUES, max_size=6).map(ConfigRecord)
METRICS = st.dictionaries(TEXT, st.one_of(NUMBERS, NUMBER_LISTS), max_size=6).map(
    lambda values: MetricRecord(values)
)
# few different arrays, so that equal ones are common, within a record and between two
ARRAYS = st.builds(
    lambda dtype, shape, value: encode(np.full(shape, value, dtype=dtype)),
    st.sampled_from(["f8", "f4", "u1"]),
    st.sampled_from([(), (0,), (3,), (2, 2), (1000,)]),
    st.sampled_from([0, 1]),
)


def as_record(arrays: dict[str, Array]) -> ArrayRecord:
    return ArrayRecord(arrays)


ARRAY_RECORDS = st.dictionaries(
    st.one_of(TEXT, st.sampled_from(["0", "1", "2"])), ARRAYS, max_size=5
).map(as_record)
RECORDS = st.dictionaries(TEXT, st.one_of(CONFIGS, METRICS, ARRAY_RECORDS), max_size=4)


@settings(max_examples=300, deadline=None)
@given(RECORDS, st.text(max_size=5))
def test_any_content_is_counted_to_the_byte(records: Any, group: str) -> None:
    assert_counted(request(RecordDict(records), group_id=group))


@settings(deadline=None)
@given(st.text(max_size=300), st.integers(0, 300))
def test_errors_are_counted(reason: str, code: int) -> None:
    ask = request()
    assert_counted(Message(Error(code, reason), reply_to=ask))
    assert_counted(Message(Error(code), reply_to=ask))


def test_replies_are_counted() -> None:
    ask, _ = encode_message(request())
    name_message(ask, "1-17")
    assert_counted(Message(RecordDict({"m": MetricRecord({"a": 1})}), reply_to=ask))


@pytest.mark.parametrize(
    "values",
    [
        [2**63, 1, 2],  # one above the int64 range makes all of them uint64
        [2**63 - 1, 1, 2],
        [-1, -64, -65],
        [],
        [True, False],
        [0.0] * 300,
    ],
)
def test_lists_are_counted(values: list[Any]) -> None:
    assert_counted(request(RecordDict({"c": ConfigRecord({"list": values})})))


def test_equal_arrays_travel_once() -> None:
    array = encode(np.arange(1000.0))
    copy = encode(np.arange(1000.0))
    other = encode(np.arange(1000.0) + 1.0)
    once = request(RecordDict({"a": ArrayRecord({"0": array})}))
    for content in (
        {"a": ArrayRecord({"0": array, "1": copy})},
        {"a": ArrayRecord({"0": array}), "b": ArrayRecord({"x": copy})},
        {"a": ArrayRecord({"0": array}), "b": ArrayRecord({"0": copy})},
        {"a": ArrayRecord({"0": array}), "b": ArrayRecord({"0": other})},
    ):
        assert_counted(request(RecordDict(dict(content))))
    twice = request(RecordDict({"a": ArrayRecord({"0": array, "1": copy})}))
    assert message_bytes(twice) - message_bytes(once) < 200


def test_equal_records_travel_once() -> None:
    def metrics() -> MetricRecord:
        return MetricRecord({"a": 1.0, "b": 2})

    assert_counted(request(RecordDict({"x": metrics(), "y": metrics()})))
    assert_counted(request(RecordDict({"x": ArrayRecord(), "y": ArrayRecord()})))
    # of one length, but not equal
    left, right = ConfigRecord({"a": True}), ConfigRecord({"a": False})
    assert_counted(request(RecordDict({"x": left, "y": right})))
    assert_counted(
        request(RecordDict({"x": MetricRecord({"a": 1}), "y": ConfigRecord({"a": 1})}))
    )


@pytest.mark.parametrize("extra", [-128, -127, 0, 1])
def test_arrays_above_one_chunk_are_counted(extra: int) -> None:
    size = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + extra
    array = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    assert_counted(request(RecordDict({"a": array_record([array])})))


def test_equal_chunks_travel_once() -> None:
    zeros = np.zeros(4 * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, dtype=np.uint8)
    content = RecordDict({"a": array_record([zeros, zeros[:-5]])})
    assert_counted(request(content))
    # the first chunk, which has the header, and the last one of each, and one of zeros
    assert message_bytes(request(content)) < 1.5 * zeros.nbytes


def test_a_list_that_was_read_is_nobody_elses() -> None:
    body = items_to_bytes(ConfigRecord, {"sizes": [1, 2]})
    items_from_bytes(ConfigRecord, body)["sizes"].append(3)
    assert items_from_bytes(ConfigRecord, body) == {"sizes": [1, 2]}


def test_what_a_record_may_not_hold_is_refused_as_flower_does() -> None:
    for value in (np.float64(1.0), [1, "a"], {"a": 1}, 2**65):
        record = ConfigRecord()
        try:
            record["a"] = value  # type: ignore[assignment]
            theirs = record.deflate()
        except Exception as error:
            with pytest.raises(type(error)):
                items_to_bytes(ConfigRecord, {"a": value})
        else:
            assert theirs.endswith(items_to_bytes(ConfigRecord, {"a": value}))
