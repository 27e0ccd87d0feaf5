"""What a secret is used for: labels, and the keys that are derived for them.

Everything that must not be confused goes through one encoding, in which no two tuples
have the same bytes: each item has its type and its length in front.
"""

from __future__ import annotations

import struct

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from fedtrellis.encryption.fixed_point import EncryptionError

__all__ = [
    "KEY_BYTES",
    "Item",
    "Label",
    "derive_key",
    "encode_items",
    "encode_label",
    "expand",
]

Item = bytes | str | int
#: What a ciphertext is a share of: first its purpose, then whatever tells two apart.
Label = tuple[str | int, ...]

KEY_BYTES = 32

_SHA256 = SHA256()
_PREFIX = struct.Struct("<cI")


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
            raise EncryptionError(
                f"{item!r} in a label or context must be a text, bytes or an integer"
            )
        parts += [_PREFIX.pack(kind, len(data)), data]
    return b"".join(parts)


def encode_label(label: Label) -> bytes:
    """Return the bytes of a label; two labels never have the same.

    Parameters
    ----------
    label : tuple of str or int
        First its purpose, a text that is not empty. Everything that must not be
        confused comes after it: run, round, group, quantity.

    Raises
    ------
    EncryptionError
        It is not such a tuple. A text instead of a tuple is a mistake, too.
    """
    if not isinstance(label, tuple) or not label or not isinstance(label[0], str):
        raise EncryptionError(f"label = {label!r} must be a tuple that begins with str")
    if not label[0] or any(isinstance(item, bytes) for item in label):
        raise EncryptionError(f"label = {label!r} must have texts and integers")
    return encode_items(*label)


def expand(secret: bytes, *context: Item, size: int = KEY_BYTES) -> bytes:
    """Return a key for one use of a secret: HKDF-Expand of RFC 5869, with SHA-256.

    Parameters
    ----------
    secret : bytes
        32 bytes that are uniformly random to whoever does not know them, so that the
        extraction of HKDF has nothing to do.
    *context : bytes, str or int
        The use; another tuple gives an independent key.
    size : int
        In bytes. Keys of one use and several sizes begin alike.
    """
    return HKDFExpand(_SHA256, size, encode_items(*context)).derive(secret)


def derive_key(secret: bytes, *context: Item) -> bytes:
    """Return a key of 32 bytes for one use of a secret: HKDF of RFC 5869, SHA-256.

    For a secret that is no uniformly random string, such as what X25519 gives: its
    extraction makes one of it first.
    """
    info = encode_items(*context)
    return HKDF(_SHA256, KEY_BYTES, salt=None, info=info).derive(secret)
