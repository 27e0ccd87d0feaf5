"""A model's dtype: what it is in memory, on the wire and in a client's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedtrellis.wire.arrays import DTYPES, Layout, record_arrays
from fedtrellis.wire.broadcast import ModelBroadcast, ReceivedModel, receive
from fedtrellis.wire.protocol import (
    CONFIG,
    MODEL,
    ClientMemory,
    pack_restore,
    read_request,
    unpack_restore,
)

NARROW = DTYPES[1:]
FLOATS = hnp.arrays(
    np.float32,
    st.integers(0, 40),
    elements=st.floats(-60_000.0, 60_000.0, width=32),
)


def request(server: ModelBroadcast, base: int | None = None, **more: Any) -> RecordDict:
    arrays, config = server.encode(base)
    entries = {"session": "s", "server-round": 1, **config, **more}
    return RecordDict({CONFIG: ConfigRecord(entries), MODEL: arrays})


def taken(content: RecordDict, stored: ReceivedModel | None) -> ReceivedModel:
    record = content.array_records[MODEL]
    return receive(record, read_request(content, 10**6), stored)


def values(dtype: str, size: int = 300) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal(size).astype(np.float32 if dtype != "float64" else "f8")


def test_arrays_settle_the_dtype_by_the_widest_of_them() -> None:
    def of(*names: str) -> str:
        return Layout.of([np.zeros(2, name) for name in names]).dtype

    assert of("f8") == of("f8", "f4") == "float64"
    assert of("f4") == of("f4", "f2") == "float32"
    assert of("f2") == "float16"
    # numbers that only a float64 can hold
    assert of("i8") == of("f4", "i8") == "float64"
    assert Layout(((2,),), "bfloat16").layers(np.zeros(2)).layout.dtype == "bfloat16"
    with pytest.raises(ValueError, match="'int8'; allowed: float64"):
        Layout(((2,),), "int8")


@settings(deadline=None)
@given(FLOATS)
@example(np.array([1.00390625, 1.01171875, -3.0517578e-05, 1e-40, 0.0], np.float32))
def test_bfloat16_is_rounded_as_pytorch_rounds_it(point: NDArray[Any]) -> None:
    torch = pytest.importorskip("torch")
    rounded = Layout((point.shape,), "bfloat16").rounded(point)
    expected = torch.tensor(point).to(torch.bfloat16).to(torch.float32).numpy()
    assert np.array_equal(rounded.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None)
@given(FLOATS)
def test_a_rounded_point_travels_bit_for_bit(dtype: str, point: NDArray[Any]) -> None:
    layout = Layout((point.shape,), dtype)
    rounded = layout.rounded(point)
    wire = layout.to_wire(rounded)
    assert wire.nbytes == point.size * {"float64": 8, "float32": 4}.get(dtype, 2)
    assert layout.from_wire(wire).tobytes() == rounded.tobytes()
    # rounding again changes nothing
    assert layout.rounded(rounded).tobytes() == rounded.tobytes()


def test_a_number_too_large_for_the_dtype_is_an_error_on_the_server() -> None:
    with pytest.raises(FloatingPointError, match="too large for float16"):
        Layout(((1,),), "float16").rounded(np.array([70_000.0]))
    with pytest.raises(FloatingPointError, match="too large for float32"):
        Layout(((1,),), "float32").rounded(np.array([1e39]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [1.0, 0.02])
def test_client_and_server_have_the_same_model(dtype: str, density: float) -> None:
    point = values(dtype)
    point[np.random.default_rng(1).random(point.size) > density] = 0.0
    server = ModelBroadcast(Layout((point.shape,), dtype), point)
    first = taken(request(server), None)
    assert first.point.dtype == server.layout.point_dtype
    assert first.point.tobytes() == server.model.tobytes()
    # over the client's memory, as it lies in context.state
    state = RecordDict()
    ClientMemory("s", first).save(state)
    stored = ClientMemory.load(state, "s").model
    assert stored is not None
    assert stored.layout == server.layout
    # a few entries change
    changed = server.model.copy()
    changed[[3, 7]] += 1.25
    server.revise(changed)
    content = request(server, base=0)
    assert content[CONFIG]["model-encoding"] == "entries"
    second = taken(content, stored)
    assert second.point.tobytes() == server.model.tobytes()


@pytest.mark.parametrize("dtype", NARROW)
def test_a_dense_model_has_as_many_bytes_as_its_dtype(dtype: str) -> None:
    point = values(dtype, 1000)
    (array,) = record_arrays(
        ModelBroadcast(Layout(((1000,),), dtype), point).encode(None)[0]
    )
    assert array.nbytes == (4000 if dtype == "float32" else 2000)


def test_the_dtype_goes_without_saying_where_it_is_float64() -> None:
    _, config = ModelBroadcast(Layout(((5,),)), np.ones(5)).encode(None)
    assert "model-dtype" not in config
    assert config["model-shapes"] == [1, 5]


@pytest.mark.parametrize("sent", DTYPES)
@pytest.mark.parametrize("said", DTYPES)
def test_a_model_of_another_dtype_than_it_says_is_refused(sent: str, said: str) -> None:
    arrays, _ = ModelBroadcast(Layout(((9,),), sent), np.ones(9)).encode(None)
    _, config = ModelBroadcast(Layout(((9,),), said), np.ones(9)).encode(None)
    if sent == said:
        assert receive(arrays, config, None).point.tolist() == [1.0] * 9
    else:
        with pytest.raises(ValueError, match=f"for a model of {said}"):
            receive(arrays, config, None)


def test_a_dtype_that_changes_within_a_session_is_refused() -> None:
    model = taken(request(ModelBroadcast(Layout(((9,),)), np.ones(9))), None)
    content = request(ModelBroadcast(Layout(((9,),), "float32"), np.ones(9), 1))
    with pytest.raises(ValueError, match="of float32; in this session it had"):
        taken(content, model)


@settings(deadline=None)
@given(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(DTYPES),
        st.integers(),
        st.booleans(),
        st.binary(max_size=4),
        st.lists(st.integers(), max_size=3),
    ),
    st.sampled_from(DTYPES),
)
def test_no_dtype_that_a_request_says_does_harm(said: Any, true: str) -> None:
    server = ModelBroadcast(Layout(((9,),), true), np.ones(9))
    content = request(server)
    content[CONFIG]["model-dtype"] = said
    try:
        model = taken(content, None)
    except (ValueError, TypeError):
        pass
    else:
        assert model.layout.dtype == said == true


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("state_dtype", ["f4", "f8"])
def test_a_restored_state_keeps_its_own_dtype(dtype: str, state_dtype: str) -> None:
    server = ModelBroadcast(Layout(((2000,),), dtype), np.ones(2000))
    sparse, dense = np.zeros(2000, state_dtype), np.arange(2000).astype(state_dtype)
    sparse[5] = 0.1
    state: dict[str, Any] = {"x": server.model, "sparse": sparse, "dense": dense}
    record, config = pack_restore(state, server.model)
    assert isinstance(record, ArrayRecord)
    model = receive(*server.encode(None), None)
    back = unpack_restore(record, config, model)
    for name, array in state.items():
        (arrived,) = record_arrays(ArrayRecord({name: back[name]}))
        assert arrived.dtype == array.dtype
        assert arrived.tobytes() == array.tobytes()
