"""Messages between two clients that the server carries, and can neither read nor make.

ChaCha20-Poly1305 (RFC 8439) under a key for one purpose, derived from the secret that
sender and recipient share. Whoever opens a message knows that one of the two sealed it,
and for what: a server has no key to make one with, as it would have for an anonymous
box.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.labels import Item, derive_key, encode_items

__all__ = ["SEALED_BYTES", "open_sealed", "seal"]

_NONCE_BYTES = 12
#: How many bytes a sealed message is longer than what is in it.
SEALED_BYTES = _NONCE_BYTES + 16


def _box(pair_secret: bytes, associated: tuple[Item, ...]) -> ChaCha20Poly1305:
    # a key for each purpose and direction: no message fits where another is expected
    return ChaCha20Poly1305(derive_key(pair_secret, "fedtrellis seal", *associated))


def seal(pair_secret: bytes, data: bytes, associated: tuple[Item, ...]) -> bytes:
    """Encrypt and authenticate a message to one other client.

    Parameters
    ----------
    pair_secret : bytes
        What the two share (``Identity.pair_secret``).
    data : bytes
    associated : sequence of str, int and bytes
        What the message is and where it belongs: purpose, run, sender, recipient, and
        whatever else recipient and sender must agree on. It is not sent.

    Returns
    -------
    bytes
        ``SEALED_BYTES`` longer than ``data``; another one each time.
    """
    nonce = os.urandom(_NONCE_BYTES)
    box = _box(pair_secret, associated)
    return nonce + box.encrypt(nonce, data, encode_items(*associated))


def open_sealed(
    pair_secret: bytes, sealed: bytes, associated: tuple[Item, ...]
) -> bytes:
    """Return what a message says.

    Parameters
    ----------
    pair_secret, associated
        As they were when it was sealed, sender and recipient in the same order.

    Raises
    ------
    EncryptionError
        It was altered, or sealed by somebody else or for something else. The text is
        the same whatever the cause.
    """
    nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        box = _box(pair_secret, associated)
        return box.decrypt(nonce, rest, encode_items(*associated))
    except (InvalidTag, ValueError):
        raise EncryptionError("sealed message was refused") from None
