"""Arrays on the wire: the bytes of numpy.save, nothing malformed let in; layouts."""

import io
import re
from typing import Any

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedtrellis.wire.arrays import (
    Layout,
    array_record,
    decode,
    encode,
    join_arrays,
    record_arrays,
    split_arrays,
)

DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")


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
@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(
            dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
        )
    )
)
def test_every_allowed_array_comes_back_bit_for_bit(array: NDArray[Any]) -> None:
    made = encode(array)
    assert same_bits(decode(made), array)
    assert same_bits(made.numpy(), array)  # Flower's own reading
    assert same_bits(np.load(io.BytesIO(made.data)), array)
    assert (made.dtype, made.shape) == (str(array.dtype), array.shape)
    assert made.stype == "numpy.ndarray"


@settings(deadline=None)
@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(
            dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
        )
    )
)
def test_what_flower_encodes_is_read(array: NDArray[Any]) -> None:
    assert same_bits(decode(Array(array)), array)


def test_bytes_are_those_of_numpy_save_for_arrays_in_c_order() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert encode(array).data == npy(array)
    assert encode(array).data == Array(array).data


@pytest.mark.parametrize("order", ["F", "C"])
def test_either_memory_order_is_written_and_read(order: Any) -> None:
    array = np.array(np.arange(24.0).reshape(2, 3, 4), order=order)
    for made in (encode(array), Array(array)):
        assert np.array_equal(decode(made), array)
    flipped = array[::-1, ::2]  # neither order
    assert np.array_equal(decode(encode(flipped)), flipped)


def test_the_other_byte_order_is_written_and_read() -> None:
    array = np.arange(5, dtype=">f8")
    for made in (encode(array), Array(array)):
        assert np.array_equal(decode(made), np.arange(5.0))


def test_what_is_read_is_read_only_and_not_a_copy() -> None:
    made = encode(np.arange(4.0))
    array = decode(made)
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(made.data, dtype=np.uint8))


def test_encoding_does_not_keep_hold_of_the_array() -> None:
    array = np.arange(4.0)
    made = encode(array)
    array[:] = -1.0
    assert np.array_equal(decode(made), np.arange(4.0))


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


def test_every_cut_of_an_array_is_refused() -> None:
    data = npy(np.arange(3.0))
    for length in range(len(data)):
        with pytest.raises(ValueError, match="array"):
            decode(wire(data[:length]))
    with pytest.raises(ValueError, match="bytes"):
        decode(wire(data + b"\x00"))


GOOD = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"


@pytest.mark.parametrize(
    "array",
    [
        wire(b""),
        wire(b"PK\x03\x04" + b"\x00" * 60),
        wire(npy(np.arange(3.0)).replace(b"NUMPY", b"NUMPX")),
        wire(npy(np.arange(3.0)), stype="torch"),
        header_and(GOOD, b"\x00" * 24, version=b"\x03\x00"),
        header_and(GOOD, b"\x00" * 24, version=b"\x09\x00"),
        header_and(GOOD.replace("(3,)", "(4,)"), b"\x00" * 24),
        header_and(GOOD.replace("(3,)", "(-3,)"), b"\x00" * 24),
        header_and(GOOD.replace("(3,)", "(-1, -3)"), b"\x00" * 24),
        header_and(GOOD.replace("(3,)", "(0, -1)"), b""),
        header_and(GOOD.replace("(3,)", f"({2**62},)"), b"\x00" * 24),
        header_and(
            GOOD.replace("(3,)", f"({2**61}, 8)"), b""
        ),  # 2**64·8 is 0 mod 2**64
        header_and(GOOD.replace("(3,)", "3"), b"\x00" * 24),
        header_and(GOOD.replace("(3,)", "('3',)"), b"\x00" * 24),
        header_and(GOOD.replace("<f8", "|O"), b"\x00" * 24),
        header_and(GOOD.replace("<f8", "nonsense"), b"\x00" * 24),
        header_and(GOOD.replace("'<f8'", "[('a', '<f8')]"), b"\x00" * 24),
        header_and(GOOD.replace("False", "2"), b"\x00" * 24),
        header_and("{'descr': '<f8'}", b"\x00" * 24),
        header_and("__import__('os').getcwd()", b"\x00" * 24),
        header_and("{" * 3000, b"\x00" * 24),
        header_and(GOOD + " " * 5000, b"\x00" * 24),
    ],
)
def test_malformed_arrays_are_refused_with_a_reason_of_one_line(array: Array) -> None:
    with pytest.raises(ValueError, match=r"^array ") as caught:
        decode(array)
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(ValueError, match="array"):
        decode(wire(data))


@settings(deadline=None)
@given(st.integers(0, 127), st.integers(0, 255))
def test_a_header_with_one_byte_changed_is_read_or_refused(at: int, byte: int) -> None:
    data = bytearray(npy(np.arange(3.0)))
    data[at] = byte
    try:
        array = decode(wire(bytes(data)))
    except ValueError:
        return
    assert array.nbytes == 24


def test_records_have_the_keys_that_flower_gives_a_list() -> None:
    arrays = [np.arange(3.0), np.zeros((2, 2), dtype=np.float32)]
    record = array_record(arrays)
    assert list(record) == ["0", "1"]
    for back, flower, array in zip(
        record_arrays(record), record.to_numpy_ndarrays(), arrays, strict=True
    ):
        assert same_bits(back, array)
        assert same_bits(flower, array)


# ------------------------------------------------------------------------- layouts


def test_one_array_keeps_its_shape() -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    layout = Layout.of([matrix])
    assert layout.point_shape == (2, 3)
    assert layout.size == 6
    assert layout.point([matrix]) is matrix  # nothing is copied
    (layer,) = layout.layers(matrix)
    assert np.array_equal(layer, matrix)
    assert np.array_equal(np.asarray(layout.objective_point(matrix)), matrix)


def test_several_layers_become_one_vector_in_order() -> None:
    layers = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array(5.0), np.array([6.0])]
    layout = Layout.of(layers)
    point = layout.point(layers)
    assert layout.point_shape == (6,)
    assert point.tolist() == [1, 2, 3, 4, 5, 6]
    views = layout.layers(point)
    assert [v.tolist() for v in views] == [[[1, 2], [3, 4]], 5, [6]]
    assert all(np.shares_memory(v, point) for v in views)
    assert isinstance(layout.objective_point(point), list)


def test_a_gradient_of_layers_or_of_one_array_becomes_a_point() -> None:
    layout = Layout(((2, 2), (1,)))
    joined = layout.objective_gradient([np.eye(2), np.array([7.0])])
    assert joined.tolist() == [1, 0, 0, 1, 7]
    assert layout.objective_gradient(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert Layout(((2, 2),)).objective_gradient(np.arange(4)).shape == (2, 2)


def test_arrays_of_other_shapes_are_refused() -> None:
    layout = Layout(((2, 2), (1,)))
    for arrays in ([np.eye(2)], [np.eye(2), np.zeros(2)], [np.zeros(4), np.zeros(1)]):
        with pytest.raises(ValueError, match="shapes"):
            layout.point(arrays)
    refused = r"gradient has shape \(6,\), expected \(5,\)$"
    with pytest.raises(ValueError, match=refused):
        layout.objective_gradient(np.zeros(6))


@pytest.mark.parametrize("shape", [(3, 2), (1, 6), (6, 1), (2, 3, 1), ()])
def test_a_gradient_with_the_right_entries_in_another_shape_is_refused(
    shape: tuple[int, ...],
) -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    layout = Layout.of([matrix])
    for right in (matrix, matrix.ravel(), [matrix]):
        assert np.array_equal(layout.objective_gradient(right), matrix)
    message = f"has shape {shape}, expected (2, 3) or (6,)"
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        layout.objective_gradient(np.zeros(shape))
    assert "\n" not in str(refused.value)
    # the transposed matrix, which a reshape would have read row by row
    with pytest.raises(ValueError, match=re.escape("(3, 2), expected (2, 3)")):
        layout.objective_gradient(matrix.T)


SHAPES = st.lists(
    st.lists(st.integers(0, 6), max_size=4).map(tuple), min_size=1, max_size=5
).map(tuple)


@settings(deadline=None)
@given(SHAPES)
def test_layouts_survive_the_wire(shapes: tuple[tuple[int, ...], ...]) -> None:
    layout = Layout(shapes)
    assert Layout.from_list(layout.to_list()) == layout


@settings(deadline=None)
@given(SHAPES)
def test_layers_of_a_point_join_to_the_point(
    shapes: tuple[tuple[int, ...], ...],
) -> None:
    layout = Layout(shapes)
    point = np.arange(float(layout.size)).reshape(layout.point_shape)
    assert same_bits(layout.point(layout.layers(point)), point)


@pytest.mark.parametrize(
    "numbers",
    [[], [1], [2, 3], [-1], [-5, 1, 1], [1, -1], [2, -1, -1], [1, 3, 1], [10**9, 1]],
)
def test_what_is_no_list_of_shapes_is_refused(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="shapes|at least one array"):
        Layout.from_list(numbers)


@settings(deadline=None)
@given(st.lists(st.integers(-3, 5), max_size=8))
def test_any_list_of_integers_is_refused_or_written_again(numbers: list[int]) -> None:
    try:
        layout = Layout.from_list(numbers)
    except ValueError:
        return
    assert layout.to_list() == numbers


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["?", "u1", "i1", "<u2", "<i8", "<u8", "<f2", "<f4", "<f8"])
        .map(np.dtype)
        .flatmap(
            lambda dtype: hnp.arrays(
                dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
            )
        ),
        max_size=6,
    )
)
def test_joined_arrays_come_back_bit_for_bit(arrays: list[NDArray[Any]]) -> None:
    record = array_record(arrays, join=True)
    assert len(record) == (1 if len(arrays) > 1 else len(arrays))
    back = record_arrays(record)
    assert len(back) == len(arrays)
    for before, after in zip(arrays, back, strict=True):
        assert before.dtype == after.dtype
        assert before.shape == after.shape
        assert before.tobytes() == after.tobytes()


def test_large_arrays_and_lone_ones_are_not_joined() -> None:
    assert set(array_record([np.zeros(9000)] * 2, join=True)) == {"0", "1"}
    assert set(array_record([np.zeros(2)], join=True)) == {"0"}
    assert set(array_record([np.zeros(2)] * 2)) == {"0", "1"}


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
        lambda data: np.concatenate([data[:6], [np.uint8(255)], data[7:]]),
        lambda data: np.concatenate([[np.uint8(200)], data[1:]]),
    ],
)
def test_malformed_joined_arrays_are_refused(spoil: Any) -> None:
    good = join_arrays([np.arange(3.0), np.arange(4, dtype=np.uint8)])
    with pytest.raises(ValueError, match="joined"):
        split_arrays(spoil(good))
