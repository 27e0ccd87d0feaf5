"""The header of one ciphertext, read and checked before any library sees the rest."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedtrellis.encryption.fixed_point import MAX_TERMS, EncryptionError

__all__ = ["FINGERPRINT_BYTES", "NONCE_BYTES", "Header", "Share", "split_blob"]

FINGERPRINT_BYTES = 8
NONCE_BYTES = 16

#: Who made a share, and the number that this encryption drew.
Share = tuple[str, bytes]

_MAGIC = b"FTC"
_VERSION = 2
# magic, version, fingerprint, terms, number of shares
_LAYOUT = struct.Struct(f"<3sB{FINGERPRINT_BYTES}sII")
_SENDER_BYTES = 255  # its length is one byte


def check_sender(sender: str) -> bytes:
    """Return a sender's bytes in a header.

    Raises
    ------
    EncryptionError
        It is not a text of 1 to 255 bytes.
    """
    try:
        data = sender.encode()
    except (AttributeError, UnicodeEncodeError):
        data = b""
    if not 1 <= len(data) <= _SENDER_BYTES:
        raise EncryptionError(
            f"sender = {sender!r} must be a text of 1 to {_SENDER_BYTES} bytes"
        )
    return data


@dataclass(frozen=True)
class Header:
    """What a ciphertext says of itself.

    Nobody signs it; what is false in it fails the checksums.

    Parameters
    ----------
    fingerprint : str
        Of the key, hexadecimal.
    terms : int
        How many shares the values left room for when they were encrypted.
    shares : tuple of (str, bytes)
        What was added: sender and nonce of each.
    """

    fingerprint: str
    terms: int
    shares: tuple[Share, ...]

    @classmethod
    def of_sum(cls, headers: Sequence[Header]) -> Header:
        """Return the header of a sum.

        Raises
        ------
        EncryptionError
            There is none; they are of several keys, or for several numbers of terms; or
            see :meth:`check`.
        """
        if not headers:
            raise EncryptionError("there are no ciphertexts to add")
        if len({header.fingerprint for header in headers}) > 1:
            marks = ", ".join(sorted({header.fingerprint for header in headers}))
            raise EncryptionError(f"ciphertexts are of several keys: {marks}")
        if len({header.terms for header in headers}) > 1:
            counts = sorted({header.terms for header in headers})
            raise EncryptionError(f"ciphertexts were encrypted for {counts} terms")
        shares = tuple(share for header in headers for share in header.shares)
        total = replace(headers[0], shares=shares)
        total.check()
        return total

    @property
    def senders(self) -> list[str]:
        """Who made the shares, in alphabetical order."""
        return sorted(sender for sender, _ in self.shares)

    def pack(self, payload: bytes) -> bytes:
        """Return header and payload as one blob."""
        mark = bytes.fromhex(self.fingerprint)
        parts = [_LAYOUT.pack(_MAGIC, _VERSION, mark, self.terms, len(self.shares))]
        for sender, nonce in self.shares:
            name = check_sender(sender)
            parts += [bytes([len(name)]), name, nonce]
        return b"".join([*parts, payload])

    def check(self) -> None:
        """Raise unless this can be the header of a sum of distinct shares.

        Raises
        ------
        EncryptionError
            It has no share, one twice, or more of them than the values left room for.
        """
        if not self.shares or not 1 <= self.terms <= MAX_TERMS:
            raise EncryptionError(
                f"ciphertext header is malformed: {len(self.shares)} shares, "
                f"encrypted for {self.terms} terms"
            )
        if len(self.shares) > self.terms:
            raise EncryptionError(
                f"a sum of {len(self.shares)} shares would overflow: its values were "
                f"encrypted for at most {self.terms}"
            )
        if len(set(self.shares)) < len(self.shares):
            raise EncryptionError("a share is in the sum twice")


def split_blob(blob: bytes) -> tuple[Header, bytes]:
    """Read a blob's header, and return it with the payload.

    Takes no more memory than the blob has, whatever it claims.

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
    magic, version, mark, terms, count = _LAYOUT.unpack_from(blob)
    if magic != _MAGIC:
        raise EncryptionError("these bytes are not a ciphertext of fedtrellis")
    if version != _VERSION:
        raise EncryptionError(f"ciphertext has version {version}, expected {_VERSION}")
    position = _LAYOUT.size
    shares = []
    for _ in range(count):  # until there are no more bytes, whatever is claimed
        middle = position + 1 + (blob[position] if position < len(blob) else 0)
        end = middle + NONCE_BYTES
        if middle == position + 1 or end > len(blob):
            raise EncryptionError("ciphertext header is malformed or cut off")
        try:
            sender = blob[position + 1 : middle].decode()
        except UnicodeDecodeError:
            raise EncryptionError("ciphertext header has a malformed sender") from None
        shares.append((sender, blob[middle:end]))
        position = end
    header = Header(mark.hex(), terms, tuple(shares))
    header.check()
    return header, blob[position:]
