"""A client's memory: what the server used stays, everything else is dropped."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from numpy.typing import NDArray

from fedtrellis.wire.arrays import Layout, decode, encode
from fedtrellis.wire.broadcast import (
    ReceivedModel,
    RestoreNeededError,
)
from fedtrellis.wire.protocol import (
    NO_ROUND,
    RESTORE,
    ClientMemory,
    Kept,
    client_identity,
    identity_order,
    pack_restore,
    unpack_restore,
)

SIZE = 500
State = Mapping[str, NDArray[Any]]


def context(node_config: dict[str, Any], node_id: int = 5) -> Context:
    return Context(1, node_id, node_config, RecordDict(), {})


def request(
    used: int | None, restore: dict[str, NDArray[Any]] | None = None
) -> tuple[ReceivedModel, RecordDict, dict[str, Any]]:
    model = ReceivedModel(Layout(((SIZE,),)), np.ones(SIZE), 0)
    content = RecordDict()
    config = {} if used is None else {"used-round": used}
    if restore is not None:
        content[RESTORE], more = pack_restore(restore, model.point)
        config |= more
    return model, content, config


def memory_at(
    committed: int, provisional: int = NO_ROUND, **more: Array
) -> ClientMemory:
    """Of a client that has ``more`` in what is committed."""
    first, second = (
        {"x": encode(np.full(SIZE, float(number)))}
        for number in (committed, provisional)
    )
    in_doubt = Kept() if provisional == NO_ROUND else Kept(provisional, "", second)
    return ClientMemory("s", None, Kept(committed, "", first | more), in_doubt)


def value(memory: ClientMemory) -> float:
    return float(decode(memory.committed.arrays["x"])[0])


def test_a_round_number_that_stands_for_none_is_never_used() -> None:
    # the provisional state of a client that has none is not "used"
    memory = memory_at(3)
    with pytest.raises(RestoreNeededError):
        memory.take_request(*request(used=NO_ROUND))


def test_a_client_in_step_does_not_take_the_state_it_is_sent() -> None:
    # the server could not know that the client is where it should be
    memory = memory_at(3, provisional=5, own=encode(np.zeros(1)))
    memory = memory.take_request(*request(used=3, restore={"x": np.full(SIZE, -1.0)}))
    assert value(memory) == 3.0
    assert "own" in memory.committed.arrays


def test_what_only_the_client_knows_survives_being_restored() -> None:
    memory = memory_at(3, d=encode(np.full(2, 8.0)))
    memory = memory.take_request(*request(used=7, restore={"x": np.full(SIZE, 7.0)}))
    assert value(memory) == 7.0
    assert decode(memory.committed.arrays["d"]).tolist() == [8.0, 8.0]


def test_without_a_used_round_only_the_model_changes() -> None:
    memory = memory_at(3, provisional=5)
    memory = memory.take_request(*request(used=None))
    assert memory.model is not None
    assert (memory.committed.round, memory.provisional.round) == (3, 5)


def test_the_memory_survives_being_stored() -> None:
    memory = memory_at(3, provisional=5)
    memory = memory._replace(
        model=ReceivedModel(Layout(((20, 5), (400,))), np.arange(500.0), 11)
    )
    state = RecordDict()
    memory.save(state)
    again = ClientMemory.load(state, "s")
    assert again.session == "s"
    assert (again.committed.round, again.provisional.round) == (3, 5)
    assert value(again) == 3.0
    assert decode(again.provisional.arrays["x"])[0] == 5.0
    assert again.model is not None
    assert again.model.layout == Layout(((20, 5), (400,)))
    assert again.model.version == 11
    assert np.array_equal(again.model.point, np.arange(500.0))


def test_what_was_stored_before_is_replaced() -> None:
    state = RecordDict({"of-the-user": ConfigRecord({"a": 1})})
    memory_at(3, provisional=5).save(state)
    memory_at(6).save(state)
    again = ClientMemory.load(state, "s")
    assert (again.committed.round, again.provisional) == (6, Kept())
    assert "of-the-user" in state


# ------------------------------------------------------------------------ restoring


def roundtrip(
    state: State, model: NDArray[np.float64]
) -> tuple[dict[str, NDArray[Any]], ArrayRecord]:
    record, config = pack_restore(state, model)
    received = ReceivedModel(Layout((model.shape,)), model, 0)
    restored = unpack_restore(record, config, received)
    return {name: decode(array) for name, array in restored.items()}, record


def test_an_array_that_is_the_model_is_only_named() -> None:
    model = np.random.default_rng(0).standard_normal(SIZE)
    restored, record = roundtrip({"x": model, "y": np.arange(float(SIZE))}, model)
    assert list(record) == ["y"]
    assert np.array_equal(restored["x"], model)
    assert np.array_equal(restored["y"], np.arange(float(SIZE)))


def test_sparse_state_travels_as_its_non_zero_entries() -> None:
    x = np.zeros((20, 25))
    x[3, 4], x[19, 24] = 1.5, -0.0
    restored, record = roundtrip({"x": x}, np.ones((20, 25)))
    assert sum(len(array.data) for array in record.values()) < 400
    assert restored["x"].tobytes() == x.tobytes()
    assert restored["x"].shape == (20, 25)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((30, 40)),
        np.zeros(SIZE, dtype=np.float32),
        np.zeros(SIZE, dtype=np.int64),
        np.array(3.0),
        np.zeros(0),
        np.arange(7),
    ],
)
def test_state_of_another_shape_or_dtype_than_the_model_comes_back(
    array: NDArray[Any],
) -> None:
    restored, _ = roundtrip({"c": array}, np.ones(SIZE))
    assert restored["c"].dtype == array.dtype
    assert restored["c"].shape == array.shape
    assert np.array_equal(restored["c"], array)


# ------------------------------------------------------------------------ identities


def test_a_client_is_known_by_its_client_id_else_its_partition_else_its_node() -> None:
    both = context({"client-id": "clinic", "partition-id": 3})
    assert client_identity(both) == "clinic"
    assert client_identity(context({"partition-id": 0})) == "0"
    assert client_identity(context({}, node_id=77)) == "node-77"


def test_identities_are_in_the_order_of_people() -> None:
    names = ["10", "b", "9", "a10", "007", "a9", "-1"]
    ordered = sorted(names, key=identity_order)
    assert ordered == ["007", "9", "10", "-1", "a10", "a9", "b"]
    assert identity_order("7") != identity_order("007")


def test_the_names_in_a_clients_state_are_those_of_older_checkpoints() -> None:
    state = RecordDict()
    memory_at(3).save(state)
    assert set(state) == {"fedtrellis.meta", "fedtrellis.arrays"}
