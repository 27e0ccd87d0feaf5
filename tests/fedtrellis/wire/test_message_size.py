"""Messages to bytes and back, and how many these are, against Flower's own objects."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis import LocalGrid
from fedtrellis.wire.arrays import array_record, encode
from fedtrellis.wire.client import client_app
from fedtrellis.wire.flower_internals import message_bytes, name_message, through_bytes
from fedtrellis.wire.protocol import NodeReply
from tests.harness import encode_message

# a grid gives this process the place in a run that messages need
LocalGrid(client_app(lambda context: None), 1)


def request(content: RecordDict | None = None, **options: Any) -> Message:
    content = RecordDict() if content is None else content
    return Message(content, 12345678901234567, "train", **options)


def assert_counted(message: Message) -> None:
    theirs, size = encode_message(message)
    assert message_bytes(message) == size
    for shared in (None, dict[int, Any]()):
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
INT64, UINT64 = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)
# in one list all are int64 or all are uint64
LISTS = [st.lists(kind, max_size=40) for kind in (INT64, UINT64, st.floats())]
NUMBERS = st.one_of(INT64, UINT64, st.floats(), *LISTS)
OTHERS = (st.booleans(), TEXT, st.binary(max_size=200))
OTHER_LISTS = [st.lists(kind, max_size=20) for kind in OTHERS]
VALUES = st.one_of(NUMBERS, *OTHERS, *OTHER_LISTS)
CONFIGS = st.dictionaries(TEXT, VALUES, max_size=6).map(lambda d: ConfigRecord(d))
METRICS = st.dictionaries(TEXT, NUMBERS, max_size=6).map(lambda d: MetricRecord(d))
# few different arrays, so that equal ones are common, within a record and between two
ARRAYS = st.builds(
    lambda dtype, shape, value: encode(np.full(shape, value, dtype=dtype)),
    st.sampled_from(["f8", "f4", "u1"]),
    st.sampled_from([(), (0,), (3,), (2, 2), (1000,)]),
    st.sampled_from([0, 1]),
)
ARRAY_RECORDS = st.dictionaries(
    st.one_of(TEXT, st.sampled_from(["0", "1", "2"])), ARRAYS, max_size=5
).map(lambda items: ArrayRecord(items))
RECORDS = st.dictionaries(TEXT, st.one_of(CONFIGS, METRICS, ARRAY_RECORDS), max_size=4)


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.text(max_size=5))
def test_any_content_is_counted_to_the_byte(records: Any, group: str) -> None:
    assert_counted(request(RecordDict(records), group_id=group))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300), st.integers(0, 300))
def test_replies_and_errors_are_counted(reason: str, code: int) -> None:
    ask, _ = encode_message(request())
    name_message(ask, "1-17")
    content = RecordDict({"m": MetricRecord({"a": 1})})
    for answer in (Error(code, reason), Error(code), content):
        reply = Message(answer, reply_to=ask)
        name_message(reply, "2-18")  # which is no part of it
        assert_counted(reply)


PAIRS = [(63, -64, True), (63, 64, False), (-1.5, 1e300, True), ([1, -9], [2, 3], True)]
PAIRS += [(["a"], ["bc"], False), (b"a", b"b", True), (b"a", b"", False)]


@pytest.mark.parametrize(("one", "other", "alike"), PAIRS)
def test_replies_of_one_structure(one: Any, other: Any, alike: bool) -> None:
    a, b = (NodeReply("7", {"value": value}) for value in (one, other))
    sizes = [message_bytes(request(reply.content)) for reply in (a, b)]
    assert (a.structure == b.structure) == (sizes[0] == sizes[1]) == alike


CHUNK = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE


def test_large_arrays_travel_in_chunks_and_equal_ones_once() -> None:
    for extra in (-128, -127, 1):
        array = np.random.default_rng(0).integers(0, 255, CHUNK + extra, dtype=np.uint8)
        assert_counted(request(RecordDict({"a": array_record([array])})))
    zeros = np.zeros(4 * CHUNK, dtype=np.uint8)
    content = RecordDict({"a": array_record([zeros, zeros[:-5]])})
    assert_counted(request(content))
    # the first chunk, which has the header, and the last one of each, and one of zeros
    assert message_bytes(request(content)) < 1.5 * zeros.nbytes
