"""What tests of ciphers have in common."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from fedtrellis.encryption import Cipher, Label, RefusedError, backend_class

needs_tenseal = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tenseal", "zstandard")),
    reason="needs the extra encryption",
)
BACKENDS = ["stream", pytest.param("tenseal-bfv", marks=needs_tenseal), "none"]
every = pytest.mark.parametrize("backend", BACKENDS)

LABEL: Label = ("v", "session", 1, 0)
TERMS = 1000


@cache
def _key(backend: str, which: int) -> Cipher:
    return backend_class(backend).generate()


def key_of(backend: str, which: int = 0) -> Cipher:
    return _key(backend, which)


@cache
def adder_of(backend: str) -> Cipher:
    return backend_class(backend).adder()


def encrypted(
    cipher: Cipher,
    integers: Sequence[int],
    sender: str = "a",
    label: Label = LABEL,
    terms: int = TERMS,
) -> bytes:
    array = np.array(integers, dtype=np.int64)
    return cipher.encrypt_integers(array, label, sender, terms)


def decrypted(
    cipher: Cipher,
    blob: bytes,
    count: int,
    senders: Sequence[str] | None = None,
    label: Label = LABEL,
) -> list[int]:
    found: list[int] = cipher.decrypt_integers(blob, label, count, senders).tolist()
    return found


def outcome(
    cipher: Cipher,
    blob: bytes,
    count: int,
    senders: Sequence[str] | None = None,
    label: Label = LABEL,
) -> list[int] | None:
    """The numbers, or None where they were refused in the one way that there is."""
    try:
        return decrypted(cipher, blob, count, senders, label)
    except RefusedError as error:
        text, cause = str(error), error.__cause__
    assert (text, cause) == (str(RefusedError()), None)
    return None
