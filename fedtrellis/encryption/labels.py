"""What a key, a mask or a sealed message is for, as bytes that mean one thing only."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

__all__ = ["Label", "derive_key", "encode_label"]

#: A purpose first, then whatever keeps one use of it from another.
Label = Sequence[str | int | bytes]


def encode_label(label: Label) -> bytes:
    """Return a label's bytes; two labels that differ have different ones.

    Parameters
    ----------
    label : sequence of str, int and bytes
        Each item is written with its type and its length, so that neither
        ``("ab", "c")`` and ``("a", "bc")`` nor ``(1,)`` and ``("1",)`` meet.
    """
    parts = []
    for item in label:
        if isinstance(item, bytes):
            kind, data = b"b", item
        elif isinstance(item, str):
            kind, data = b"s", item.encode()
        else:
            kind, data = b"i", str(int(item)).encode()
        parts += [kind, len(data).to_bytes(8, "big"), data]
    return b"".join(parts)


def derive_key(secret: bytes, label: Label, length: int = 32) -> bytes:
    """Return HKDF-SHA256 (RFC 5869) of a secret, without salt, the label as its info.

    Parameters
    ----------
    secret : bytes
        With at least 32 bytes of entropy.
    label : sequence of str, int and bytes
    length : int
        Bytes to return.
    """
    return HKDF(SHA256(), length, salt=None, info=encode_label(label)).derive(secret)
