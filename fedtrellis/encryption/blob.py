"""The header of one ciphertext, read and checked before any library sees the rest."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from fedtrellis.encryption.fixed_point import MAX_TERMS, EncryptionError

__all__ = ["FINGERPRINT_BYTES", "Header", "split_blob"]

FINGERPRINT_BYTES = 8

_MAGIC = b"FTC"
_VERSION = 1
# magic, version, fingerprint, weight, magnitude, terms
_LAYOUT = struct.Struct(f"<3sB{FINGERPRINT_BYTES}siII")


@dataclass(frozen=True)
class Header:
    """What a ciphertext says of itself.

    Nobody signs it. A false ``weight`` or ``terms`` fails the checksum; ``magnitude``
    is bookkeeping that keeps honest servers from overflowing.

    Parameters
    ----------
    fingerprint : str
        Of the key, hexadecimal.
    terms : int
        How many terms the values left room for when they were encrypted.
    weight : int
        Sum of the factors of the shares within: n after the addition of n.
    magnitude : int
        Sum of the factors' absolute values; at most ``terms``.
    """

    fingerprint: str
    terms: int
    weight: int = 1
    magnitude: int = 1

    def pack(self, payload: bytes) -> bytes:
        """Return header and payload as one blob."""
        head = _LAYOUT.pack(
            _MAGIC,
            _VERSION,
            bytes.fromhex(self.fingerprint),
            self.weight,
            self.magnitude,
            self.terms,
        )
        return head + payload

    def combined(self, weight: int, magnitude: int) -> Header:
        """Return the header of a combination.

        Raises
        ------
        EncryptionError
            It has more terms than the values left room for.
        """
        if magnitude > self.terms:
            raise EncryptionError(
                f"a sum of {magnitude} terms would overflow: its values were "
                f"encrypted for at most {self.terms}"
            )
        return replace(self, weight=weight, magnitude=magnitude)


def split_blob(blob: bytes) -> tuple[Header, bytes]:
    """Read a blob's header, and return it with the payload.

    Raises
    ------
    EncryptionError
        It is not a blob of this version, or its numbers contradict each other.
    """
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise EncryptionError(f"a ciphertext is bytes, not {type(blob).__name__}")
    blob = bytes(blob)
    if len(blob) < _LAYOUT.size:
        raise EncryptionError(f"a ciphertext of {len(blob)} bytes is cut off")
    magic, version, mark, weight, magnitude, terms = _LAYOUT.unpack_from(blob)
    if magic != _MAGIC:
        raise EncryptionError("these bytes are not a ciphertext of fedtrellis")
    if version != _VERSION:
        raise EncryptionError(f"ciphertext has version {version}, expected {_VERSION}")
    if not (1 <= magnitude <= terms <= MAX_TERMS and abs(weight) <= magnitude):
        raise EncryptionError(
            f"ciphertext header is malformed: weight {weight}, magnitude {magnitude}, "
            f"terms {terms}"
        )
    return Header(mark.hex(), terms, weight, magnitude), blob[_LAYOUT.size :]
