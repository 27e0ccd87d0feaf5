"""Checksums and keystreams, against their definitions in Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given
from hypothesis import strategies as st

from fedtrellis.encryption import FIELD_MODULUS, PLAIN_MODULUS
from fedtrellis.encryption.checksum import MOST_VALUES, checksums
from fedtrellis.encryption.fixed_point import IntArray
from fedtrellis.encryption.keystream import Keystream

_KEY = bytes(range(32))
_MODULI = (FIELD_MODULUS, PLAIN_MODULUS)
_vectors = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9)


def _blocks(key: bytes, size: int) -> bytes:
    """The encrypted counters 0, 1, 2, ..."""
    counters = b"".join(i.to_bytes(16, "big") for i in range(-(-size // 16)))
    return Cipher(AES(key), ECB()).encryptor().update(counters)[:size]


def _by_definition(values: list[int], modulus: int) -> list[int]:
    stream = _blocks(_KEY, 16 * len(values))
    words = [
        int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8)
    ]
    pairs = (words[0::2], words[1::2])
    return [sum(map(int.__mul__, c, values)) % modulus for c in pairs]


def _array(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def test_a_keystream_is_the_encrypted_counters_however_it_is_read() -> None:
    sizes = (1, 15, 16, 40, 2**16 + 5)
    stream = Keystream(_KEY)
    read = b"".join(stream.read(size) for size in sizes)
    assert read == _blocks(_KEY, sum(sizes))
    found = Keystream(_KEY).residues(2, 1_000_003)
    first = int.from_bytes(read[:16], "little") % 1_000_003
    assert found == [first, int.from_bytes(read[16:32], "little") % 1_000_003]


@pytest.mark.parametrize("modulus", _MODULI)
@given(values=_vectors)
def test_they_are_their_definition(modulus: int, values: list[int]) -> None:
    assert checksums(_array(values), _KEY, modulus) == _by_definition(values, modulus)


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, -1, FIELD_MODULUS // 2])
def test_they_are_exact_over_many_chunks(value: int) -> None:
    values = [value] * 20_000
    found = checksums(_array(values), _KEY, FIELD_MODULUS)
    assert found == _by_definition(values, FIELD_MODULUS)


def test_they_are_exact_where_the_sums_of_limbs_are_largest() -> None:
    # all limbs but the highest are 2^16 − 1; with the coefficients' sum, in integers
    value = 2**63 - 1
    words = np.frombuffer(Keystream(_KEY).read(16 * MOST_VALUES), dtype="<u8")
    found = checksums(np.full(MOST_VALUES, value), _KEY, FIELD_MODULUS)
    for a in range(2):
        low, high = words[a::2] & np.uint64(2**32 - 1), words[a::2] >> np.uint64(32)
        total = int(low.sum()) + (int(high.sum()) << 32)
        assert found[a] == total * value % FIELD_MODULUS
    with pytest.raises(ValueError, match="not be exact"):
        checksums(np.zeros(MOST_VALUES + 1, dtype=np.int64), _KEY, FIELD_MODULUS)


@pytest.mark.parametrize("modulus", _MODULI)
@given(a=_vectors, b=_vectors, k=st.integers(-(2**40), 2**40))
def test_they_are_linear(modulus: int, a: list[int], b: list[int], k: int) -> None:
    size = min(len(a), len(b))
    mixed = [(x + k * y) % modulus - modulus // 2 for x, y in zip(a, b, strict=False)]
    offset = checksums(_array([modulus // 2] * size), _KEY, modulus)
    sums = [checksums(_array(part[:size]), _KEY, modulus) for part in (mixed, a, b)]
    for m, x, y, o in zip(*sums, offset, strict=True):
        assert (m + o - x - k * y) % modulus == 0


def test_the_modulus_of_the_field_is_prime() -> None:
    # Lucas and Lehmer: 2^q − 1 is prime if and only if it divides s_{q−2}
    s = 4
    for _ in range(61 - 2):
        s = (s * s - 2) % FIELD_MODULUS
    assert s == 0
    assert FIELD_MODULUS == 2**61 - 1


def test_views_of_other_strides_are_right() -> None:
    wide = np.arange(40, dtype=np.int64) - 7
    for view in (wide[::2], wide[::-1], np.asarray(wide, dtype=">i8")):
        found = checksums(view, _KEY, FIELD_MODULUS)
        assert found == _by_definition(view.tolist(), FIELD_MODULUS)
