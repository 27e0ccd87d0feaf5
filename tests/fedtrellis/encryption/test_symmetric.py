"""Uses of a secret: no two are alike, and no message fits where another belongs."""

import hashlib
import hmac
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrellis.encryption import EncryptionError
from fedtrellis.encryption.symmetric import (
    SEALED_BYTES,
    encode_items,
    expand,
    open_sealed,
    seal,
)

_items = st.lists(st.text(max_size=3) | st.integers() | st.binary(max_size=3))
SECRET = bytes(range(32))
PURPOSE = ("group key", "run 1", "a", "b", 3)


@given(_items, _items)
def test_two_labels_never_have_the_same_bytes(a: list[Any], b: list[Any]) -> None:
    assert (encode_items(*a) == encode_items(*b)) == (a == b)


def test_keys_are_derived_as_rfc_5869_has_it() -> None:
    info = b"".join(
        struct.pack("<cI", kind, len(data)) + data
        for kind, data in ((b"s", b"use"), (b"b", b"\0x"), (b"i", b"-7"))
    )
    first = hmac.digest(SECRET, info + b"\x01", hashlib.sha256)
    second = hmac.digest(SECRET, first + info + b"\x02", hashlib.sha256)
    assert expand(SECRET, "use", b"\0x", -7) == first
    assert expand(SECRET, "use", b"\0x", -7, size=64) == first + second


def test_every_altered_byte_of_a_sealed_message_is_refused() -> None:
    for data in (b"", b"a key of thirty-two bytes, about"):
        sealed = seal(SECRET, data, PURPOSE)
        assert len(sealed) == len(data) + SEALED_BYTES
        assert open_sealed(SECRET, sealed, PURPOSE) == data
        wrong = [sealed[:position] for position in range(len(sealed))]
        wrong.append(sealed + b"\0")
        for position in range(len(sealed)):
            spoilt = bytearray(sealed)
            spoilt[position] ^= 1
            wrong.append(bytes(spoilt))
        for other in wrong:
            with pytest.raises(EncryptionError, match="^sealed message was refused$"):
                open_sealed(SECRET, other, PURPOSE)


@pytest.mark.parametrize(
    "other",
    [
        ("group key", "run 1", "b", "a", 3),  # sent back to its sender
        ("group key", "run 2", "a", "b", 3),
        ("points", "run 1", "a", "b", 3),
        ("group key", "run 1", "a", "b", "3"),
        ("group key", "run 1", "a", "b"),
        ("group key", "run 1", "ab", "", 3),
        ("group key", "run 1", b"a", "b", 3),
    ],
)
def test_a_message_fits_only_where_it_belongs(other: tuple[str | int, ...]) -> None:
    with pytest.raises(EncryptionError, match="^sealed message was refused$"):
        open_sealed(SECRET, seal(SECRET, b"hello", PURPOSE), other)
    with pytest.raises(EncryptionError, match="^sealed message was refused$"):
        open_sealed(bytes(32), seal(SECRET, b"hello", PURPOSE), PURPOSE)
