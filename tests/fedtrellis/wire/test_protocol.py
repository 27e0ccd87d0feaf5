"""A client's memory: what the server used stays, everything else is dropped."""

from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedtrellis.wire.arrays import Layout, decode, encode
from fedtrellis.wire.broadcast import ReceivedModel, RestoreNeededError
from fedtrellis.wire.protocol import (
    NO_ROUND,
    RESTORE,
    ClientMemory,
    Kept,
    identity_order,
    pack_restore,
    unpack_restore,
)

SIZE = 500


def asked(
    memory: ClientMemory, used: int | None, restore: float | None = None, **more: Any
) -> tuple[int, int, float, float]:
    """Rounds of a memory after a request, and its numbers: restored, and its own.

    Its own is 0 where it is lost.
    """
    model = ReceivedModel(Layout(((SIZE,),)), np.ones(SIZE), 0)
    config = {} if used is None else {"used-round": used, **more}
    content = RecordDict()
    if restore is not None:
        content[RESTORE], also = pack_restore(
            {"x": np.full(SIZE, restore)}, model.point
        )
        config |= also
    memory = memory.take_request(model, content, config)
    assert memory.model is model
    state = memory.committed.decoded()
    x, own = (float(state.get(name, [0.0])[0]) for name in ("x", "own"))
    return memory.committed.round, memory.provisional.round, x, own


def memory_at(committed: int, provisional: int = NO_ROUND) -> ClientMemory:
    """Of a client whose arrays are as large as the number of their round."""
    kept = [
        Kept(number, {"x": encode(np.full(SIZE, number + 0.0)), "own": OWN})
        for number in (committed, provisional)
    ]
    return ClientMemory("s", None, kept[0], kept[1] if provisional >= 0 else Kept())


OWN = encode(np.full(2, 8.0))


@pytest.mark.parametrize(
    ("provisional", "request_", "after"),
    [
        # the server used the round that was in doubt, or the one before
        (5, {"used": 5}, (5, -1, 5.0, 8.0)),
        (5, {"used": 3}, (3, -1, 3.0, 8.0)),
        (5, {"used": 3, "restore": -1.0}, (3, -1, 3.0, 8.0)),
        # what only the client knew is of a round that does not count
        (5, {"used": 7, "restore": 7.0}, (7, -1, 7.0, 0.0)),
        (5, {"used": 3, "restore-over": True, "restore": 7.0}, (3, -1, 7.0, 0.0)),
        # without a used round only the model changes
        (5, {"used": None}, (3, 5, 3.0, 8.0)),
        (5, {"used": 4}, None),
        (5, {"used": 2}, None),
        # a provisional state that is none is not used
        (NO_ROUND, {"used": NO_ROUND}, None),
    ],
)
def test_a_client_stands_where_the_request_says_or_asks(
    provisional: int, request_: dict[str, Any], after: Any
) -> None:
    memory = memory_at(3, provisional)
    if after is not None:
        assert asked(memory, **request_) == after
    else:
        with pytest.raises(RestoreNeededError):
            asked(memory, **request_)


@pytest.mark.parametrize(
    ("array", "arrives_as"),
    [
        (np.ones((20, 25)), 1),  # another array that is equal to the model
        (np.where(np.arange(500.0) % 300 == 7, -0.0, 0.0).reshape(20, 25), 2),
        (np.where(np.arange(500.0) == 7, 0.1, 0.0).reshape(20, 25).astype("f4"), 2),
        (np.zeros(SIZE, dtype=np.float32), 1),
        (np.zeros(SIZE, dtype=np.int64), 1),
        (np.zeros(0), 1),
    ],
)
def test_state_is_restored_bit_for_bit(array: NDArray[Any], arrives_as: int) -> None:
    """The model is only named; what is sparse travels as its non-zero entries."""
    model = np.ones((20, 25))
    record, config = pack_restore({"x": model, "c": array}, model)
    assert len(record) == arrives_as
    received = ReceivedModel(Layout((model.shape,)), model, 0)
    restored = unpack_restore(record, config, received)
    for name, expected in (("x", model), ("c", array)):
        found = decode(restored[name])
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()


def test_identities_are_in_the_order_of_people() -> None:
    names = ["10", "b", "9", "a10", "007", "a9", "-1"]
    ordered = ["007", "9", "10", "-1", "a10", "a9", "b"]
    assert sorted(names, key=identity_order) == ordered
    assert identity_order("7") != identity_order("007")
