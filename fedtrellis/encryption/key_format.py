"""The bytes of a key and of an evaluation context.

A magic, the backend's name, the fractional bits; then the clients' secret of 32 bytes
(a key) or the fingerprint of 8 (a context); then what the backend keeps; then a SHA-256
of all that, which finds damage and protects against nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.labels import KEY_BYTES
from fedtrellis.encryption.node_file import MOST_BYTES

__all__ = ["KeyFile", "fingerprint_of", "is_key", "pack_key", "unpack_key"]

_KEY_MAGIC = b"FTL-KEY1"
_CONTEXT_MAGIC = b"FTL-CTX1"
_DIGEST_BYTES = 32
_FINGERPRINT_BYTES = 8
_FIXED = struct.Struct("<BBI")  # length of the name, fractional bits, length of payload


def fingerprint_of(secret: bytes, backend: str, bits: int, payload: bytes) -> str:
    """Return the fingerprint of a key: 16 hexadecimal digits."""
    text = f"fingerprint {backend} {bits}".encode()
    message = struct.pack("<I", len(text)) + text + hashlib.sha256(payload).digest()
    return hmac.digest(secret, message, "sha256")[:_FINGERPRINT_BYTES].hex()


@dataclass(frozen=True)
class KeyFile:
    """A key or an evaluation context, parsed; no library has seen its payload yet.

    Parameters
    ----------
    backend : str
        Name of the cipher.
    bits : int
        Fractional bits of its fixed point.
    fingerprint : str
    payload : bytes
        The backend's own.
    secret : bytes or None
        The clients' shared secret; None in an evaluation context.
    """

    backend: str
    bits: int
    fingerprint: str
    payload: bytes
    secret: bytes | None = None

    def __repr__(self) -> str:
        kind = "context" if self.secret is None else "key"
        return f"KeyFile({kind}, {self.backend}, {self.fingerprint})"


def pack_key(file: KeyFile) -> bytes:
    """Return the bytes of a key, or of a context where there is no secret."""
    name = file.backend.encode()
    fixed = _FIXED.pack(len(name), file.bits, len(file.payload))
    if file.secret is None:
        parts = (_CONTEXT_MAGIC, fixed, name, bytes.fromhex(file.fingerprint))
    else:
        parts = (_KEY_MAGIC, fixed, name, file.secret)
    body = b"".join((*parts, file.payload))
    return body + hashlib.sha256(body).digest()


def is_key(data: bytes) -> bool:
    """Whether bytes are those of a key, which has a secret."""
    return data[: len(_KEY_MAGIC)] == _KEY_MAGIC


def unpack_key(data: bytes) -> KeyFile:
    """Inverse of :func:`pack_key`.

    Raises
    ------
    EncryptionError
        The bytes are neither a key nor a context, or are damaged.
    """
    secret = is_key(data)
    if not secret and data[: len(_CONTEXT_MAGIC)] != _CONTEXT_MAGIC:
        raise EncryptionError("this is neither a key nor a context of fedtrellis")
    start = len(_KEY_MAGIC) + _FIXED.size
    if not start + _DIGEST_BYTES <= len(data) <= MOST_BYTES:
        raise EncryptionError("key or context is cut off or too long")
    length, bits, size = _FIXED.unpack_from(data, len(_KEY_MAGIC))
    middle = start + length
    inner = middle + (KEY_BYTES if secret else _FINGERPRINT_BYTES)
    end = inner + size
    digest = hashlib.sha256(data[:end]).digest()
    if end + _DIGEST_BYTES != len(data) or digest != data[end:]:
        raise EncryptionError("key or context is damaged: its own checksum is wrong")
    try:
        name = data[start:middle].decode()
    except UnicodeDecodeError:
        raise EncryptionError("key or context has a malformed name") from None
    payload, identity = data[inner:end], data[middle:inner]
    if not secret:
        return KeyFile(name, bits, identity.hex(), payload)
    mark = fingerprint_of(identity, name, bits, payload)
    return KeyFile(name, bits, mark, payload, identity)
