"""TenSEAL's format around SEAL's, and files in memory for SEAL to write to.

TenSEAL's messages are protocol buffers. It trusts the lengths in them, up to reading
beyond its memory, so those of a ciphertext are written here and never taken from
others; and a context is searched for a secret key before TenSEAL reads it. SEAL
decompresses whatever it is given to the end, and ends the process if a part within
what it has decompressed is said to be compressed too, and longer than what is left: the
exception of the stream that ended (``std::__ios_failure``) finds no handler. So a
ciphertext is decompressed here, within bounds, and SEAL is given nothing but
coefficients and seeds of others.
"""

from __future__ import annotations

import importlib
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from fedtrellis.encryption.fixed_point import EncryptionError

__all__ = ["needed", "plain_form", "refuse_secret", "scratch_file", "unwrap", "wrap"]

# SEAL's header: magic and its own length, version, compression, reserved, size
_HEADER = struct.Struct("<3s2sBHQ")
_MAGIC = b"\x5e\xa1\x10"
_MAJOR = 4  # versions before have other members, which SEAL reads all the same
_PLAIN, _ZSTD = 0, 2
_WINDOW = 2**20
_ROOM = 200  # for all headers
_SEED_BYTES = 64
_BLAKE2 = b"\x01"  # what SEAL expands a seed with

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


def plain_form(payload: bytes, parameters: Sequence[int], degree: int) -> bytes:
    """Return SEAL's bytes of a ciphertext without compression, all headers checked.

    Parameters
    ----------
    payload : bytes
        As SEAL writes a ciphertext of two polynomials, compressed or not. In the place
        of the second polynomial there may be the seed that it follows from.
    parameters : sequence of int
        SEAL's hash of the parameters, of four words.
    degree : int
        Of the polynomials, each over two primes.

    Raises
    ------
    EncryptionError
        It is anything else.
    """
    if len(payload) < _HEADER.size:
        raise EncryptionError(f"ciphertext has {len(payload)} bytes; it is cut off")
    magic, version, mode, reserved, size = _HEADER.unpack_from(payload)
    if magic != _MAGIC or reserved or size != len(payload):
        raise EncryptionError("ciphertext is cut off or damaged")
    if version[0] != _MAJOR:
        raise EncryptionError(f"ciphertext is of SEAL {version[0]}.{version[1]}")

    data = _decompressed(mode, payload[_HEADER.size :], 32 * degree + _ROOM)

    def header(size: int) -> bytes:
        return _HEADER.pack(_MAGIC, version, _PLAIN, 0, size)

    # parameters, NTT form, polynomials, degree, primes, scale and correction factor
    members = struct.pack("<4QBQQQdQ", *parameters, 0, 2, degree, 2, 1.0, 1)
    for seed in (0, _SEED_BYTES):
        # a coefficient for each degree and prime of both polynomials, or of the first
        count = (2 if seed else 4) * degree
        start = members + header(_HEADER.size + 8 * (1 + count))
        start += count.to_bytes(8, "little")
        end = header(_HEADER.size + 1 + seed) + _BLAKE2 if seed else b""
        after = len(start) + 8 * count
        if (
            data.startswith(start)
            and data.startswith(end, after)
            and len(data) == after + len(end) + seed
        ):
            return header(_HEADER.size + len(data)) + data
    raise EncryptionError("ciphertext has a form that no client makes")


def _decompressed(mode: int, body: bytes, limit: int) -> bytes:
    """Return at most ``limit`` bytes: 140 kB can stand for gigabytes."""
    if mode == _PLAIN:
        return body
    if mode != _ZSTD:
        raise EncryptionError(f"ciphertext is compressed in a way unknown ({mode})")
    zstandard = needed("zstandard")
    # SEAL's frames say what they take, and need no window beside it
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(body)
    try:
        data = bytes(reader.read(limit + 1))
    except zstandard.ZstdError:
        raise EncryptionError("ciphertext is compressed wrongly") from None
    if len(data) > limit:
        raise EncryptionError(f"ciphertext would take more than {limit} bytes")
    return data


def wrap(payload: bytes, size: int) -> bytes:
    """A BFVVectorProto of one ciphertext: sizes = [size], ciphertexts = [payload]."""
    sizes = _varint(size)
    return b"".join(
        (b"\x0a", _varint(len(sizes)), sizes, b"\x12", _varint(len(payload)), payload)
    )


def unwrap(message: bytes) -> bytes:
    """Return the first ciphertext of a BFVVectorProto that TenSEAL has written."""
    return next(content for number, content in _fields(message) if number == 2)


@cache
def needed(library: str) -> Any:
    """Import a library of the extra "encryption" when it is first needed."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise EncryptionError(
            f"encryption backend 'tenseal-bfv' needs {library}: "
            'pip install "fedtrellis[encryption]"'
        ) from error


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
