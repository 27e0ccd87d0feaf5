"""Arrays on the wire: the bytes of numpy.save, nothing malformed let in; layouts."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedtrellis.wire.arrays import (
    DTYPES,
    Layout,
    array_record,
    decode,
    encode,
    join_arrays,
    record_arrays,
    split_arrays,
)
from fedtrellis.wire.broadcast import ModelBroadcast, ReceivedModel, receive
from fedtrellis.wire.protocol import (
    CONFIG,
    MODEL,
    ClientMemory,
    read_request,
)

ARRAYS = st.sampled_from(
    ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
).flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def wire(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array("float64", (3,), stype, data)


def header_and(text: str, body: bytes, version: bytes = b"\x01\x00") -> Array:
    header = text.encode()
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return wire(b"\x93NUMPY" + version + length + header + body)


@settings(deadline=None)
@given(ARRAYS)
def test_every_allowed_array_comes_back_and_is_what_flower_makes(
    array: NDArray[Any],
) -> None:
    made = encode(array)
    assert same_bits(decode(made), array)
    assert made == Array(array)  # its fields, the bytes among them
    assert made.data == npy(array)


@pytest.mark.parametrize(
    "array",
    [
        np.array(np.arange(24.0).reshape(2, 3, 4), order="F"),
        np.arange(24.0).reshape(4, 6)[::-1, ::2],
        np.arange(5, dtype=">f8"),
    ],
    ids=["columns first", "strides", "byte order"],
)
def test_any_memory_order_is_written_and_read(array: NDArray[Any]) -> None:
    for made in (encode(array), Array(array)):
        assert np.array_equal(decode(made), array)


def test_what_is_read_is_no_copy_and_what_is_written_is_one() -> None:
    array = np.arange(4.0)
    made = encode(array)
    array[:] = -1.0
    back = decode(made)
    assert back.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not back.flags.writeable
    assert np.shares_memory(back, np.frombuffer(made.data, dtype=np.uint8))


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}], dtype=object),
        np.array(["text"]),
        np.array([1j]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.zeros(2, dtype=[("a", "f8")]),
    ],
    ids=["object", "text", "complex", "date", "record"],
)
def test_other_dtypes_neither_leave_nor_enter(array: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="cannot travel"):
        encode(array)
    with pytest.raises(ValueError, match="dtype"):
        decode(wire(npy(array)))


GOOD, HEADER = npy(np.arange(3.0)), "{'descr': '<f8', 'fortran_order': False, 'shape':"


@pytest.mark.parametrize(
    "array",
    [
        wire(b""),
        wire(b"PK\x03\x04" + b"\x00" * 60),
        wire(GOOD.replace(b"NUMPY", b"NUMPX")),
        wire(GOOD, stype="torch"),
        wire(GOOD + b"\x00"),
        header_and(f"{HEADER} (3,)}}", b"\x00" * 24, version=b"\x03\x00"),
        header_and(f"{HEADER} (4,)}}", b"\x00" * 24),
        header_and(f"{HEADER} (-1, -3)}}", b"\x00" * 24),
        header_and(f"{HEADER} (0, -1)}}", b""),
        header_and(f"{HEADER} ({2**62},)}}", b"\x00" * 24),
        header_and(f"{HEADER} ({2**61}, 8)}}", b""),  # 8 · 2**64 is 0 mod 2**64
        header_and(f"{HEADER} 3}}", b"\x00" * 24),
        header_and(f"{HEADER} ('3',)}}", b"\x00" * 24),
        header_and(HEADER.replace("<f8", "|O") + " (3,)}", b"\x00" * 24),
        header_and(HEADER.replace("<f8", "nonsense") + " (3,)}", b"\x00" * 24),
        header_and(HEADER.replace("False", "2") + " (3,)}", b"\x00" * 24),
        header_and("{'descr': '<f8'}", b"\x00" * 24),
        header_and("__import__('os').getcwd()", b"\x00" * 24),
        header_and("{" * 3000, b"\x00" * 24),
        header_and(f"{HEADER} (3,)}}" + " " * 5000, b"\x00" * 24),
    ],
)
def test_malformed_arrays_are_refused_with_a_reason_of_one_line(array: Array) -> None:
    with pytest.raises(ValueError, match=r"^array .*$"):
        decode(array)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 127), st.integers(0, 255))
def test_bytes_that_were_cut_or_changed_are_refused(
    data: bytes, at: int, byte: int
) -> None:
    for refused in (data, GOOD[:at]):
        with pytest.raises(ValueError, match="array"):
            decode(wire(refused))
    changed = bytearray(GOOD)
    changed[at] = byte
    try:
        array = decode(wire(bytes(changed)))
    except ValueError:
        return
    assert array.nbytes == 24  # whatever it is read as


@settings(deadline=None)
@given(st.lists(ARRAYS, max_size=6))
def test_joined_arrays_come_back_bit_for_bit(arrays: list[NDArray[Any]]) -> None:
    for join in (False, True):
        record = array_record(arrays, join=join)
        one = join and len(arrays) > 1
        assert len(record) == (1 if one else len(arrays))
        assert all(map(same_bits, record_arrays(record), arrays))
        if not one:  # as Flower writes a list
            assert list(record) == [str(i) for i in range(len(arrays))]
            assert all(map(same_bits, record.to_numpy_ndarrays(), arrays))


def test_large_arrays_are_not_joined() -> None:
    assert set(array_record([np.zeros(9000)] * 2, join=True)) == {"0", "1"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: np.append(data, data[:1]),
        lambda data: data[:3],
        lambda data: data[:0],
        lambda data: data.astype(np.int64),
        lambda data: np.concatenate([data[:1], [np.uint8(99)], data[2:]]),
        lambda data: np.concatenate([data[:2], [np.uint8(255)], data[3:]]),
        lambda data: np.concatenate([[np.uint8(200)], data[1:]]),
    ],
)
def test_malformed_joined_arrays_are_refused(spoil: Any) -> None:
    good = join_arrays([np.arange(3.0), np.arange(4, dtype=np.uint8)])
    with pytest.raises(ValueError, match="joined"):
        split_arrays(spoil(good))


# ------------------------------------------------------------------------- layouts


def test_one_array_is_the_point_and_several_are_joined_to_one_vector() -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    layout = Layout.of([matrix])
    assert (layout.point_shape, layout.size) == ((2, 3), 6)
    assert layout.point([matrix]) is matrix  # nothing is copied
    assert layout.objective_point(matrix).shape == (2, 3)  # type: ignore[union-attr]
    arrays = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array(5.0), np.array([6.0])]
    layout = Layout.of(arrays)
    point = layout.point(arrays)
    assert point.tolist() == [1, 2, 3, 4, 5, 6]
    layers = layout.objective_point(point)
    assert [layer.tolist() for layer in layers] == [[[1, 2], [3, 4]], 5, [6]]
    assert all(np.shares_memory(layer, point) for layer in layers)
    for wrong in (arrays[:2], [*arrays[:2], np.zeros(2)], [np.zeros(4), *arrays[1:]]):
        with pytest.raises(ValueError, match="shapes"):
            layout.point(wrong)


@pytest.mark.parametrize("shape", [(3, 2), (1, 6), (6, 1), (2, 3, 1), ()])
def test_a_gradient_has_the_shape_of_the_model_or_none(shape: tuple[int, ...]) -> None:
    """A transposed matrix would be read row by row."""
    matrix = np.arange(6.0).reshape(2, 3)
    layout = Layout.of([matrix])
    for right in (matrix, matrix.ravel(), [matrix], matrix.astype(int)):
        assert np.array_equal(layout.objective_gradient(right), matrix)
    message = f"has shape {shape}, expected (2, 3) or (6,)"
    with pytest.raises(ValueError, match=f"^[^\n]*{re.escape(message)}$"):
        layout.objective_gradient(np.zeros(shape))
    layout = Layout(((2, 2), (1,)))
    joined = layout.objective_gradient([np.eye(2), np.array([7.0])])
    assert joined.tolist() == [1, 0, 0, 1, 7]
    assert layout.objective_gradient(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"has shape \(6,\), expected \(5,\)$"):
        layout.objective_gradient(np.zeros(6))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=5))
def test_layouts_survive_the_wire_and_layers_join_to_the_point(
    shapes: list[list[int]],
) -> None:
    layout = Layout(tuple(map(tuple, shapes)))
    assert Layout.from_list(layout.to_list()) == layout
    point = np.arange(float(layout.size)).reshape(layout.point_shape)
    assert same_bits(layout.point(layout.layers(point)), point)


@settings(deadline=None)
@given(st.lists(st.integers(-3, 5), max_size=8))
@example([])
@example([-5, 1, 1])
@example([1, -1])
@example([2, -1, -1])
@example([10**9, 1])
def test_any_list_of_integers_is_refused_or_written_again(numbers: list[int]) -> None:
    try:
        layout = Layout.from_list(numbers)
    except ValueError:
        return
    assert layout.to_list() == numbers
    assert min((side for shape in layout.shapes for side in shape), default=0) >= 0


# -------------------------------------------------------------------------- dtypes

FLOATS = hnp.arrays(
    np.float32,
    st.integers(0, 40),
    elements=st.floats(-60_000.0, 60_000.0, width=32),
)


def taken(
    server: ModelBroadcast, stored: ReceivedModel | None, base: Any = None, **more: Any
) -> ReceivedModel:
    """What a client makes of a request."""
    arrays, config = server.encode(base)
    entries = {"session": "s", "server-round": 1, **config, **more}
    content = RecordDict({CONFIG: ConfigRecord(entries), MODEL: arrays})
    return receive(arrays, read_request(content, 10**6), stored)


def test_arrays_settle_the_dtype_by_the_widest_of_them() -> None:
    for names, dtype in (
        (["f8", "f4"], "float64"),
        (["f4", "f2"], "float32"),
        (["f2"], "float16"),
        (["f4", "i8"], "float64"),  # numbers that only a float64 can hold
    ):
        assert Layout.of([np.zeros(2, name) for name in names]).dtype == dtype
    layers = Layout(((2,),), "bfloat16").layers(np.zeros(2))
    assert Layout.of(layers).dtype == "bfloat16"
    with pytest.raises(ValueError, match="'int8'; allowed: float64"):
        Layout(((2,),), "int8")


@settings(deadline=None)
@given(FLOATS)
@example(np.array([1.00390625, 1.01171875, -3.0517578e-05, 1e-40, 0.0], np.float32))
def test_bfloat16_is_rounded_as_pytorch_rounds_it(point: NDArray[Any]) -> None:
    torch = pytest.importorskip("torch")
    rounded = Layout((point.shape,), "bfloat16").rounded(point)
    expected = torch.tensor(point).to(torch.bfloat16).to(torch.float32).numpy()
    assert same_bits(rounded, expected)


def test_what_is_no_number_stays_none_in_bfloat16() -> None:
    layout = Layout(((2,),), "bfloat16")
    bits = np.array([0x7F800001, 0x7FFFFFFF], np.uint32)  # cut off: infinite, or −0.0
    assert np.isnan(layout.from_wire(layout.to_wire(bits.view(np.float32)))).all()


@settings(deadline=None)
@given(FLOATS)
def test_a_rounded_point_travels_bit_for_bit(point: NDArray[Any]) -> None:
    for dtype in DTYPES:
        layout = Layout((point.shape,), dtype)
        rounded = layout.rounded(point)
        wire = layout.to_wire(rounded)
        assert wire.nbytes == point.size * {"float64": 8, "float32": 4}.get(dtype, 2)
        assert same_bits(layout.from_wire(wire), rounded)
        assert same_bits(layout.rounded(rounded), rounded)  # nothing changes any more


def test_a_number_too_large_for_the_dtype_is_an_error_on_the_server() -> None:
    for dtype, number in (("float16", 70_000.0), ("float32", 1e39)):
        with pytest.raises(FloatingPointError, match=f"too large for {dtype}"):
            Layout(((1,),), dtype).rounded(np.array([number]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [1.0, 0.02])
def test_client_and_server_have_the_same_model(dtype: str, density: float) -> None:
    """Also over the client's memory, and where a few entries change."""
    rng = np.random.default_rng(1)
    point = rng.standard_normal(300)
    point[rng.random(300) > density] = 0.0
    server = ModelBroadcast(Layout((point.shape,), dtype), point)
    first = taken(server, None)
    assert same_bits(first.point, server.model)
    state = RecordDict()
    ClientMemory("s", first).save(state)
    stored = ClientMemory.load(state, "s").model
    assert stored is not None
    assert stored.layout == server.layout
    changed = server.model.copy()
    changed[[3, 7]] += 1.25
    server.revise(changed)
    assert server.encode(0)[1]["model-encoding"] == "entries"
    assert same_bits(taken(server, stored, 0).point, server.model)


def test_a_model_of_another_dtype_than_it_says_is_refused() -> None:
    """Nor does anything else that a request says of its dtype do harm."""
    spoken = ("", "int8", 7, True, b"float64", [1, 2])
    for sent in DTYPES:
        server = ModelBroadcast(Layout(((9,),), sent), np.ones(9))
        # it goes without saying where it is float64
        assert ("model-dtype" in server.encode(None)[1]) == (sent != "float64")
        assert taken(server, None).point.tolist() == [1.0] * 9
        for said in {*DTYPES} - {sent}:
            with pytest.raises(ValueError, match=f"for a model of {said}"):
                taken(server, None, **{"model-dtype": said})
        for other in spoken:
            with pytest.raises((ValueError, TypeError), match="dtype|unhashable"):
                taken(server, None, **{"model-dtype": other})
    wide = taken(ModelBroadcast(Layout(((9,),)), np.ones(9)), None)
    with pytest.raises(ValueError, match="of bfloat16; in this session it had"):
        taken(server, wide)
