"""The checksum, against its definition in Python's integers."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.encryption import PLAIN_MODULUS
from fedtrellis.encryption.checksum import Checksum
from fedtrellis.encryption.fixed_point import IntArray

_KEY = bytes(range(32))
_HALF = PLAIN_MODULUS // 2
_vectors = st.lists(st.integers(-_HALF, _HALF), min_size=7, max_size=7)


def _by_definition(values: list[int], weight: int, label: str, terms: int) -> int:
    text = _KEY + terms.to_bytes(8, "little") + label.encode()
    stream = hashlib.shake_256(text).digest(8 * (len(values) + 1))
    words = [
        int.from_bytes(stream[8 * i : 8 * i + 8], "little")
        for i in range(len(values) + 1)
    ]
    extended = [*values, weight]
    return sum(c * v for c, v in zip(words, extended, strict=True)) % PLAIN_MODULUS


def _array(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


@given(_vectors, st.integers(-(2**24), 2**24), st.text(max_size=5), st.integers(1, 99))
def test_it_is_its_definition(
    values: list[int], weight: int, label: str, terms: int
) -> None:
    checksum = Checksum(_KEY, PLAIN_MODULUS, 8)
    found = checksum(_array(values), weight, label, terms)
    assert found == _by_definition(values, weight, label, terms)


def test_it_is_exact_where_the_products_are_largest() -> None:
    checksum = Checksum(_KEY, PLAIN_MODULUS, 4096)
    for value in (-1, 1, _HALF, -_HALF, 2**40 - 1):
        values = [value] * 4095
        found = checksum(_array(values), 1, "x", 1)
        assert found == _by_definition(values, 1, "x", 1)


@settings(max_examples=50)
@given(_vectors, _vectors, st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_it_is_linear(a: list[int], b: list[int], k: int, m: int) -> None:
    checksum = Checksum(_KEY, PLAIN_MODULUS, 8)
    mixed = [(k * x + m * y) % PLAIN_MODULUS for x, y in zip(a, b, strict=True)]
    parts = k * checksum(_array(a), 1, "l", 9) + m * checksum(_array(b), 1, "l", 9)
    assert checksum(_array(mixed), k + m, "l", 9) == parts % PLAIN_MODULUS


def test_label_terms_key_and_weight_all_matter() -> None:
    checksum, other = (
        Checksum(key, PLAIN_MODULUS, 8) for key in (_KEY, bytes(reversed(_KEY)))
    )
    zeros = np.zeros(7, dtype=np.int64)
    sums = [
        checksum(zeros, 1, "a", 1),
        checksum(zeros, 2, "a", 1),
        checksum(zeros, 1, "b", 1),
        checksum(zeros, 1, "a", 2),
        other(zeros, 1, "a", 1),
    ]
    assert len(set(sums)) == 5
    assert 0 not in sums
    assert checksum(zeros, 0, "a", 1) == 0
