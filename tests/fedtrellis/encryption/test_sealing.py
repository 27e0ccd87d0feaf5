"""Sealed messages: whatever was changed, they are refused in the same words."""

from __future__ import annotations

import secrets

import pytest

from fedtrellis.encryption import EncryptionError
from fedtrellis.encryption.identity import Identity
from fedtrellis.encryption.symmetric import SEALED_BYTES, open_sealed, seal

PURPOSE = ("group key", "run 1", "a", "b", 3)
REFUSED = "^sealed message was refused$"


def test_only_the_other_one_of_a_pair_can_open_it() -> None:
    a, b, c = (Identity.generate(name) for name in "abc")
    sealed = seal(a.pair_secret(b.public), b"hello", PURPOSE)
    assert len(sealed) == len(b"hello") + SEALED_BYTES
    assert b"hello" not in sealed
    assert open_sealed(b.pair_secret(a.public), sealed, PURPOSE) == b"hello"
    for other in (c.pair_secret(a.public), c.pair_secret(b.public), bytes(32)):
        with pytest.raises(EncryptionError, match=REFUSED):
            open_sealed(other, sealed, PURPOSE)


def test_every_altered_byte_is_refused() -> None:
    secret = secrets.token_bytes(32)
    for data in (b"", b"a key of thirty-two bytes, about"):
        sealed = seal(secret, data, PURPOSE)
        for position in range(len(sealed)):
            for bit in (1, 128):
                spoilt = bytearray(sealed)
                spoilt[position] ^= bit
                with pytest.raises(EncryptionError, match=REFUSED):
                    open_sealed(secret, bytes(spoilt), PURPOSE)
            with pytest.raises(EncryptionError, match=REFUSED):
                open_sealed(secret, sealed[:position], PURPOSE)
        with pytest.raises(EncryptionError, match=REFUSED):
            open_sealed(secret, sealed + b"\0", PURPOSE)


@pytest.mark.parametrize(
    "other",
    [
        ("group key", "run 1", "b", "a", 3),  # sent back to its sender
        ("group key", "run 2", "a", "b", 3),
        ("points", "run 1", "a", "b", 3),
        ("group key", "run 1", "a", "b", 4),
        ("group key", "run 1", "a", "b", "3"),
        ("group key", "run 1", "a", "b"),
        ("group key", "run 1", "ab", "", 3),
        ("group key", "run 1", b"a", "b", 3),
    ],
)
def test_a_message_fits_only_where_it_belongs(other: tuple[str | int, ...]) -> None:
    secret = secrets.token_bytes(32)
    with pytest.raises(EncryptionError, match=REFUSED):
        open_sealed(secret, seal(secret, b"hello", PURPOSE), other)


def test_the_same_message_looks_different_each_time() -> None:
    secret = secrets.token_bytes(32)
    assert len({seal(secret, b"hello", PURPOSE) for _ in range(100)}) == 100
