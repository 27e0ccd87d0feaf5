"""What tests of ciphers have in common."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from fedtrellis.encryption import Cipher, Label, backend_class

needs_tenseal = pytest.mark.skipif(
    importlib.util.find_spec("tenseal") is None, reason="needs tenseal"
)
BACKENDS = ["stream", pytest.param("tenseal-bfv", marks=needs_tenseal), "none"]
every = pytest.mark.parametrize("backend", BACKENDS)

LABEL: Label = ("v", "session", 1, 0)
TERMS = 1000


@cache
def key_of(backend: str, which: int = 0) -> Cipher:
    return backend_class(backend).generate()


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
