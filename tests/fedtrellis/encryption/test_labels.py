"""Labels and derived keys: no two uses are alike."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrellis.encryption import EncryptionError, encode_label
from fedtrellis.encryption.symmetric import expand

_SECRET = bytes(range(32))
_labels = st.tuples(
    st.text(min_size=1, max_size=3),
    st.lists(st.text(max_size=3) | st.integers(), max_size=3).map(tuple),
).map(lambda parts: (parts[0], *parts[1]))


@given(_labels, _labels)
def test_two_labels_never_have_the_same_bytes(
    a: tuple[str | int, ...], b: tuple[str | int, ...]
) -> None:
    assert (encode_label(a) == encode_label(b)) == (a == b)


def test_items_are_told_apart_by_type_and_length() -> None:
    alike: list[tuple[str | int, ...]] = [
        ("a", "b"),
        ("ab",),
        ("a", "b", ""),
        ("a/b",),
        ("a", 1),
        ("a", "1"),
        ("a", 11),
        ("a", 1, 1),
        ("a", -1),
        ("s\x01\x00\x00\x00b",),
    ]
    assert len({encode_label(label) for label in alike}) == len(alike)
    number: Any = np.int64(3)  # what counts of arrays are
    assert encode_label(("a", number)) == encode_label(("a", 3))


@pytest.mark.parametrize(
    "label",
    ["x", (), ("",), (1, "x"), ("x", 1.0), ("x", True), ("x", b"y"), ["x"], None],
)
def test_what_is_no_label(label: tuple[str, ...]) -> None:
    with pytest.raises(EncryptionError, match="label"):
        encode_label(label)


def test_keys_are_derived_as_rfc_5869_has_it() -> None:
    info = b"".join(
        struct.pack("<cI", kind, len(data)) + data
        for kind, data in ((b"s", b"use"), (b"b", b"\0x"), (b"i", b"-7"))
    )
    first = hmac.digest(_SECRET, info + b"\x01", hashlib.sha256)
    second = hmac.digest(_SECRET, first + info + b"\x02", hashlib.sha256)
    assert expand(_SECRET, "use", b"\0x", -7) == first
    assert expand(_SECRET, "use", b"\0x", -7, size=64) == first + second
    keys = {
        expand(_SECRET, "a", "bc"),
        expand(_SECRET, "ab", "c"),
        expand(_SECRET, "abc"),
        expand(_SECRET, b"abc"),
        expand(_SECRET),
        expand(bytes(32), "abc"),
    }
    assert len(keys) == 6
