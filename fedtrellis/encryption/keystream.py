"""The keystream of one key: AES-256 in counter mode, of ``cryptography``."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

__all__ = ["Keystream"]

# a key makes one keystream only, so its counter begins at 0
_COUNTER = CTR(bytes(16))


class Keystream:
    """Random bytes that follow from a key, read one after the other.

    Parameters
    ----------
    key : bytes
        32 bytes, used for nothing else.
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(AES(key), _COUNTER).encryptor()

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        return self._encryptor.update(bytes(size))
