"""Arrays on the wire: the bytes of numpy.save, nothing malformed let in; layouts."""

from __future__ import annotations

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
from tests.harness import refused

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
def test_every_allowed_array_comes_back_and_is_flower_s(array: NDArray[Any]) -> None:
    made = encode(array)
    assert same_bits(decode(made), array)
    assert made == Array(array)  # its fields, the bytes among them
    assert made.data == npy(array)


def test_any_memory_order_is_written_and_read_without_a_copy() -> None:
    columns = np.array(np.arange(24.0).reshape(2, 3, 4), order="F")
    strides = np.arange(24.0).reshape(4, 6)[::-1, ::2]
    for array in (columns, strides, np.arange(5, dtype=">f8")):
        for made in (encode(array), Array(array)):
            assert np.array_equal(decode(made), array)
    array = np.arange(4.0)
    made = encode(array)
    array[:] = -1.0
    back = decode(made)
    assert back.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not back.flags.writeable
    assert np.shares_memory(back, np.frombuffer(made.data, dtype=np.uint8))


def test_other_dtypes_neither_leave_nor_enter() -> None:
    for array in (np.array([{}], dtype=object), np.array(["text"]), np.array([1j])):
        with pytest.raises(ValueError, match="cannot travel"):
            encode(array)
        with pytest.raises(ValueError, match="dtype"):
            decode(wire(npy(array)))


GOOD, HEADER = npy(np.arange(3.0)), "{'descr': '<f8', 'fortran_order': False, 'shape':"


@pytest.mark.parametrize(
    "array",
    [
        wire(b""),
        wire(GOOD.replace(b"NUMPY", b"NUMPX")),
        wire(GOOD, stype="torch"),
        wire(GOOD + b"\x00"),
        header_and(f"{HEADER} (3,)}}", b"\x00" * 24, version=b"\x03\x00"),
        header_and(f"{HEADER} (4,)}}", b"\x00" * 24),
        header_and(f"{HEADER} (0, -1)}}", b""),
        header_and(f"{HEADER} ({2**62},)}}", b"\x00" * 24),
        header_and(f"{HEADER} ({2**61}, 8)}}", b""),  # 8 · 2**64 is 0 mod 2**64
        header_and(f"{HEADER} ('3',)}}", b"\x00" * 24),
        header_and(HEADER.replace("<f8", "|O") + " (3,)}", b"\x00" * 24),
        header_and(HEADER.replace("False", "2") + " (3,)}", b"\x00" * 24),
        header_and("{'descr': '<f8'}", b"\x00" * 24),
        header_and("__import__('os').getcwd()", b"\x00" * 24),
        header_and(f"{HEADER} (3,)}}" + " " * 5000, b"\x00" * 24),
    ],
)
def test_malformed_arrays_are_refused_with_a_reason_of_one_line(array: Array) -> None:
    refused(r"^array .*$", lambda: decode(array), ValueError)


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
    many = [np.arange(k % 3) for k in range(254 + 223 * len(arrays))]
    assert all(map(same_bits, split_arrays(join_arrays(many)), many))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: np.append(data, data[:1]),
        lambda data: data[:0],
        lambda data: data.astype(np.int64),
        lambda data: data.view(np.int8),  # whose bytes are the same
        lambda data: data[:, None],
        lambda data: np.concatenate([data[:1], [np.uint8(99)], data[2:]]),
        lambda data: np.concatenate([[np.uint8(200)], data[1:]]),
    ],
)
def test_malformed_joined_arrays_are_refused(spoil: Any) -> None:
    good = join_arrays([np.arange(3.0), np.arange(4, dtype=np.uint8)])
    refused("joined", lambda: split_arrays(spoil(good)), ValueError)


@pytest.mark.parametrize("shape", [(3, 2), (1, 6), ()])
def test_a_gradient_has_the_shape_of_the_model_or_none(shape: tuple[int, ...]) -> None:
    """A transposed matrix would be read row by row."""
    matrix = np.arange(6.0).reshape(2, 3)
    layout = Layout.of([matrix])
    for right in (matrix, matrix.ravel(), [matrix]):
        assert np.array_equal(layout.objective_gradient(right), matrix)
    message = f"has shape {shape}, expected (2, 3) or (6,)"
    with pytest.raises(ValueError, match=f"^[^\n]*{re.escape(message)}$"):
        layout.objective_gradient(np.zeros(shape))
    layout = Layout(((2, 2), (1,)))
    joined = layout.objective_gradient([np.eye(2), np.array([7.0])])
    assert joined.tolist() == [1, 0, 0, 1, 7]
    refused("shape", lambda: layout.objective_gradient(np.zeros(6)), ValueError)
    with pytest.raises(TypeError, match="gradient is a NoneType"):
        layout.objective_gradient(None)
    for wrong in ([np.zeros(4), np.zeros(1)], [np.zeros((2, 2))]):
        with pytest.raises(ValueError, match="shape"):
            layout.point(wrong)


def test_the_layout_has_the_widest_dtype_that_holds_its_numbers() -> None:
    for names, dtype in (
        (["f4", "f2"], "float32"),
        (["f4", "i8"], "float64"),
        (["f4", "f8"], "float64"),
    ):
        assert Layout.of([np.zeros(2, name) for name in names]).dtype == dtype
    with pytest.raises(FloatingPointError, match="too large for float32"):
        Layout(((1,),), "float32").rounded(np.array([1e39]))
    with pytest.raises(ValueError, match=r"float64 for a model of float32"):
        Layout(((1,),), "float32").from_wire(np.zeros(1))
    with pytest.raises(ValueError, match="dtype is 'float16'; allowed: float64"):
        Layout(((1,),), "float16")
