"""What is done with a secret: keys for one use each, keystreams, sealed messages.

Everything that must not be confused goes through one encoding, in which no two tuples
have the same bytes: each item has its type and its length in front.
"""

from __future__ import annotations

import os
import struct

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from fedtrellis.encryption.fixed_point import EncryptionError

Item = bytes | str | int
#: What a ciphertext is a share of: first its purpose, then whatever tells two apart.
Label = tuple[str | int, ...]

KEY_BYTES = 32
_NONCE_BYTES = 12
#: How many bytes a sealed message is longer than what is in it.
SEALED_BYTES = _NONCE_BYTES + 16

_SHA256 = SHA256()
_PREFIX = struct.Struct("<cI")
# a key makes one keystream only, so its counter begins at 0
_COUNTER = CTR(bytes(16))


def encode_items(*items: Item) -> bytes:
    """Return the bytes of some items; other items never have the same."""
    parts = []
    for item in items:
        if isinstance(item, str):
            kind, data = b"s", item.encode("utf-8", "surrogatepass")
        elif isinstance(item, bytes):
            kind, data = b"b", item
        # True is an int to Python, and a mistake here
        elif isinstance(item, int | np.integer) and not isinstance(item, bool):
            kind, data = b"i", b"%d" % item
        else:
            what = "a text, bytes or an integer"
            raise EncryptionError(f"{item!r} in a label or context must be {what}")
        parts += [_PREFIX.pack(kind, len(data)), data]
    return b"".join(parts)


def expand(secret: bytes, *context: Item, size: int = KEY_BYTES) -> bytes:
    """Return a key for one use of a secret: HKDF-Expand of RFC 5869, with SHA-256.

    ``secret`` are 32 bytes that are uniformly random to whoever does not know them, so
    that the extraction of HKDF has nothing to do; another ``context``, the use, gives
    an independent key. Keys of one use and several sizes (in bytes) begin alike.
    """
    return HKDFExpand(_SHA256, size, encode_items(*context)).derive(secret)


def derive_key(secret: bytes, *context: Item) -> bytes:
    """Return a key of 32 bytes for one use of a secret: HKDF of RFC 5869, SHA-256.

    For a secret that is no uniformly random string, such as what X25519 gives.
    """
    info = encode_items(*context)
    return HKDF(_SHA256, KEY_BYTES, salt=None, info=info).derive(secret)


class Keystream:
    """Bytes that follow from a key of 32, read one after the other: AES-256, CTR.

    The key must be used for nothing else.
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor = ciphers.Cipher(AES(key), _COUNTER).encryptor()

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        return self._encryptor.update(bytes(size))


def _box(pair_secret: bytes, associated: tuple[Item, ...]) -> ChaCha20Poly1305:
    # a key for each purpose and direction: no message fits where another is expected
    return ChaCha20Poly1305(derive_key(pair_secret, "fedtrellis seal", *associated))


def seal(pair_secret: bytes, data: bytes, associated: tuple[Item, ...]) -> bytes:
    """Encrypt and authenticate a message to another client: ChaCha20-Poly1305.

    Whoever opens it knows that one of the two that have ``pair_secret`` sealed it, and
    for what (RFC 8439). ``associated`` says what the message is and where it belongs:
    purpose, run, sender, recipient, and whatever else both must agree on. It is not
    sent. The result is ``SEALED_BYTES`` longer than ``data``, another one each time.
    """
    nonce = os.urandom(_NONCE_BYTES)
    box = _box(pair_secret, associated)
    return nonce + box.encrypt(nonce, data, encode_items(*associated))


def open_sealed(
    pair_secret: bytes, sealed: bytes, associated: tuple[Item, ...]
) -> bytes:
    """Return what a message says, given what it was sealed with.

    An EncryptionError, in the same words whatever the cause: it was altered, or sealed
    by somebody else or for something else.
    """
    nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        box = _box(pair_secret, associated)
        return box.decrypt(nonce, rest, encode_items(*associated))
    except (InvalidTag, ValueError):
        raise EncryptionError("sealed message was refused") from None
