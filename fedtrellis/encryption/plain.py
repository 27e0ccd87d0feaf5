"""The backend ``none``: the same arithmetic without encryption, to find faults with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from logging import WARNING
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import (
    PLAIN_MODULUS,
    EncryptionError,
    IntArray,
)
from fedtrellis.encryption.key_format import KeyFile
from fedtrellis.wire.flower_internals import log

__all__ = ["PlainCipher"]


@cache
def _warn() -> None:
    log(
        WARNING,
        "NO ENCRYPTION: the encryption backend is 'none', everybody on the way reads "
        "every value; use it to find faults, never with data that matters",
    )


class PlainCipher(Cipher):
    """Integers modulo t in the clear, 8 bytes each.

    Fixed point, headroom, headers and the checksum are those of real encryption, so
    what works here works there. The checksum's secret is as secret as the key file; but
    linear equations that anybody can read give it away, so nothing is protected.
    """

    name: ClassVar[str] = "none"
    parameters: ClassVar[str] = f"NO ENCRYPTION, integers modulo {PLAIN_MODULUS}"

    def __init__(self, file: KeyFile) -> None:
        super().__init__(file)
        if file.payload:
            raise EncryptionError("backend 'none' has no keys of its own")
        _warn()

    @classmethod
    def _new_payload(cls) -> bytes:
        return b""

    def _evaluation_payload(self) -> bytes:
        return b""

    def _encrypt_slots(self, slots: IntArray) -> bytes:
        return np.mod(slots, PLAIN_MODULUS).astype("<i8").tobytes()

    def _read(self, payload: bytes) -> NDArray[np.int64]:
        if len(payload) != 8 * (self.slots + 1):
            raise EncryptionError(f"ciphertext has {len(payload)} bytes; it is cut")
        residues = np.frombuffer(payload, dtype="<i8").astype(np.int64)
        if residues.min() < 0 or residues.max() >= PLAIN_MODULUS:
            raise EncryptionError("ciphertext has numbers that are not residues")
        return residues

    def _decrypt_slots(self, payload: bytes) -> IntArray:
        residues = self._read(payload)
        centred = residues > PLAIN_MODULUS // 2
        return residues - PLAIN_MODULUS * centred.astype(np.int64)

    def _add_payloads(self, payloads: Sequence[bytes]) -> bytes:
        total = self._read(payloads[0])
        for payload in payloads[1:]:  # two numbers of 58 bits stay below 2^63
            total = (total + self._read(payload)) % PLAIN_MODULUS
        return total.astype("<i8").tobytes()

    def _multiply_payload(self, payload: bytes, factor: int) -> bytes:
        # Python's integers: the products have 82 bits
        product = self._read(payload).astype(object) * factor % PLAIN_MODULUS
        return product.astype("<i8").tobytes()
