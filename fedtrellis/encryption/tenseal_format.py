"""TenSEAL's format around SEAL's, and files in memory for SEAL to write to.

TenSEAL's messages are protocol buffers. It trusts the lengths in them, up to reading
beyond its memory, so those of a ciphertext are written here and never taken from
others; and a context is searched for a secret key before TenSEAL reads it. SEAL
decompresses whatever it is given to the end, so that is bounded here too.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from fedtrellis.encryption.fixed_point import EncryptionError

__all__ = ["check_expansion", "refuse_secret", "scratch_file", "unwrap", "wrap"]

_CONTEXT_BYTES = 4096  # parameters alone have about 100; a secret key has 65 kB
_ZSTD_BLOCK = 2**17
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


def check_expansion(mode: int, body: bytes, limit: int) -> None:
    """Raise unless what SEAL has compressed has at most ``limit`` bytes.

    140 kB can stand for gigabytes. It is not checked whether the data is right: what
    is malformed in any other way is left to SEAL to refuse.

    Parameters
    ----------
    mode : int
        SEAL's: 0 for none, 1 for zlib, 2 for zstd.
    body : bytes
        What comes after SEAL's header.
    limit : int

    Raises
    ------
    EncryptionError
        It has more, is none of the three, or is more than one stream.
    """
    if mode == 0:
        return
    if mode == 1:
        stream = zlib.decompressobj()
        try:
            size = len(stream.decompress(body, limit + 1))
        except zlib.error:
            raise EncryptionError("ciphertext is compressed wrongly") from None
        if not stream.eof or stream.unused_data:
            size = limit + 1
    elif mode == 2:
        size = _zstd_bound(body)
    else:
        raise EncryptionError(f"ciphertext is compressed in a way unknown ({mode})")
    if size > limit:
        raise EncryptionError(f"ciphertext would take more than {limit} bytes")


def _zstd_bound(body: bytes) -> int:
    """How many bytes a zstd frame has at most, from its blocks' headers (RFC 8878)."""
    malformed = EncryptionError("ciphertext is compressed wrongly")
    if len(body) < 6 or body[:4] != b"\x28\xb5\x2f\xfd":
        raise malformed
    descriptor = body[4]
    single, dictionary, content = descriptor >> 5 & 1, descriptor & 3, descriptor >> 6
    # window descriptor, dictionary id and content size, of which some may be missing
    position = 5 + (1 - single) + (0, 1, 2, 4)[dictionary]
    position += (single, 2, 4, 8)[content]
    total, last = 0, False
    while not last:
        header = int.from_bytes(body[position : position + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == 1 else size)
        # raw, one byte repeated, or compressed
        total += _ZSTD_BLOCK if kind == 2 else size
        if kind == 3 or position > len(body):
            raise malformed
    if position + 4 * (descriptor >> 2 & 1) != len(body):  # a checksum may follow
        raise malformed
    return total


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
