"""TenSEAL's format around SEAL's, and files in memory for SEAL to write to.

TenSEAL's messages are protocol buffers. It trusts the lengths in them, up to reading
beyond its memory, so those of a ciphertext are written here and never taken from
others; and a context is searched for a secret key before TenSEAL reads it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from fedtrellis.encryption.fixed_point import EncryptionError

__all__ = ["refuse_secret", "scratch_file", "unwrap", "wrap"]

_CONTEXT_BYTES = 4096  # parameters alone have about 100; a secret key has 65 kB
_PRIVATE_FIELD = 3  # of TenSEALContextProto: the secret key


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Top-level fields of a message: their numbers, and bytes where they have any."""
    position = 0

    def varint() -> int:
        nonlocal position
        number = shift = 0
        while True:
            if position >= len(data) or shift > 63:
                raise EncryptionError("TenSEAL's format is malformed")
            byte = data[position]
            position += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while position < len(data):
        tag = varint()
        kind, size = tag & 7, 0
        if kind == 0:
            varint()
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        elif kind == 2:
            size = varint()
        else:
            raise EncryptionError("TenSEAL's format is malformed")
        if position + size > len(data):
            raise EncryptionError("TenSEAL's format is cut off")
        yield tag >> 3, data[position : position + size]
        position += size


def wrap(payload: bytes, size: int) -> bytes:
    """A BFVVectorProto of one ciphertext: sizes = [size], ciphertexts = [payload]."""
    sizes = _varint(size)
    return b"".join(
        (b"\x0a", _varint(len(sizes)), sizes, b"\x12", _varint(len(payload)), payload)
    )


def unwrap(message: bytes) -> bytes:
    """Return the first ciphertext of a BFVVectorProto that TenSEAL has written."""
    return next(content for number, content in _fields(message) if number == 2)


@contextmanager
def scratch_file() -> Iterator[tuple[int, str]]:
    """Yield a descriptor and a path of an empty file, in memory where possible."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("fedtrellis", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{handle}"
        if os.path.exists(path):
            try:
                yield handle, path
            finally:
                os.close(handle)
            return
        os.close(handle)
    handle, path = tempfile.mkstemp(prefix="fedtrellis-")
    try:
        yield handle, path
    finally:
        os.close(handle)
        os.unlink(path)


def refuse_secret(payload: bytes) -> None:
    """Raise unless a serialised context is without secrets; it is not read for that."""
    private = len(payload) > _CONTEXT_BYTES or any(
        number == _PRIVATE_FIELD for number, _ in _fields(payload)
    )
    if private:
        raise EncryptionError("this evaluation context contains a secret key")
