"""The backend ``stream``: a stream cipher that adds, and the default.

Of integers x and the rest of a share's keystream, r, a share carries

    c_j = x_j + r_j   (mod 2^64),

so that the sum of shares less the sum of their r is the sum of their x. This is the
scheme of Castelluccia, Mykletun and Tsudik (2005, "Efficient aggregation of encrypted
data in wireless sensor networks"), with AES-256 in counter mode under a key of its own
for every encryption. It takes 8 bytes a value, of a share and of a sum; it is exact,
has no noise that grows, and no parser that reads what a server sends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.encryption.checksum import CHECKS, MOST_VALUES
from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import (
    FIELD_MODULUS,
    EncryptionError,
    IntArray,
)
from fedtrellis.encryption.key_format import SECRET_BYTES, KeyFile
from fedtrellis.encryption.keystream import Keystream

__all__ = ["StreamCipher"]

Words = NDArray[np.uint64]

_CHUNK = 2**13
_CHECKS = struct.Struct(f"<{CHECKS}Q")


class StreamCipher(Cipher):
    """See the module and :class:`Cipher`.

    The payload is t_1 and t_2, then c; numbers of 64 bits, lowest byte first.
    """

    name: ClassVar[str] = "stream"
    parameters: ClassVar[str] = (
        "AES-256 in counter mode, sums modulo 2^64, two checksums modulo 2^61 - 1"
    )
    modulus: ClassVar[int] = FIELD_MODULUS
    slots: ClassVar[int] = MOST_VALUES

    def __init__(self, file: KeyFile) -> None:
        super().__init__(file)
        if file.payload:
            raise EncryptionError(f"backend {self.name!r} has no keys of its own")

    @classmethod
    def from_secret(cls, secret: bytes, bits: int = 40) -> Self:
        """Make the cipher of a secret that several clients have agreed on.

        Parameters
        ----------
        secret : bytes
            32 bytes, uniformly random to whoever does not know them.
        bits : int
            Fractional bits of the fixed point, 1 to 52.

        Raises
        ------
        EncryptionError
            The secret has another length.
        """
        if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
            raise EncryptionError(f"a secret has {SECRET_BYTES} bytes")
        return cls._of(secret, bits)

    @classmethod
    def _new_payload(cls) -> bytes:
        return b""

    def _evaluation_payload(self) -> bytes:
        return b""

    def _pads(self, stream: Keystream, count: int) -> Iterator[tuple[slice, Words]]:
        """Yield r in pieces that a core's cache has room for, and where they belong."""
        for start in range(0, count, _CHUNK):
            stop = min(count, start + _CHUNK)
            yield (
                slice(start, stop),
                np.frombuffer(stream.read(8 * (stop - start)), dtype="<u8"),
            )

    def _seal(
        self, integers: IntArray, checks: Sequence[int], stream: Keystream
    ) -> bytes:
        words = np.empty(CHECKS + integers.size, dtype="<u8")
        words[:CHECKS] = checks
        # c_j = x_j + r_j (mod 2^64)
        values, sealed = integers.view(np.uint64), words[CHECKS:]
        for piece, pad in self._pads(stream, values.size):
            np.add(values[piece], pad, out=sealed[piece])
        return words.tobytes()

    def _read(self, payload: bytes) -> tuple[tuple[int, ...], Words]:
        if len(payload) <= _CHECKS.size or len(payload) % 8:
            raise EncryptionError(f"ciphertext has {len(payload)} bytes; it is cut")
        checks = _CHECKS.unpack_from(payload)
        return checks, np.frombuffer(payload, dtype="<u8", offset=_CHECKS.size)

    def _unseal(self, payload: bytes, count: int) -> tuple[IntArray, list[int]]:
        checks, words = self._read(payload)
        if words.size != count:
            raise EncryptionError(f"ciphertext has {words.size} values")
        return words.astype(np.uint64).view(np.int64), list(checks)

    def _strip(self, integers: IntArray, stream: Keystream) -> None:
        # X_j ← X_j − r_j (mod 2^64), in [−2^63, 2^63)
        words = integers.view(np.uint64)
        for piece, pad in self._pads(stream, words.size):
            words[piece] -= pad

    def _add_payloads(self, payloads: Sequence[bytes]) -> bytes:
        parts = [self._read(payload) for payload in payloads]
        total = parts[0][1].astype(np.uint64)
        for _, words in parts[1:]:
            if words.size != total.size:
                raise EncryptionError("ciphertexts have different numbers of values")
            total += words
        columns = zip(*(checks for checks, _ in parts), strict=True)
        sums = [sum(column) % self.modulus for column in columns]
        return _CHECKS.pack(*sums) + total.astype("<u8", copy=False).tobytes()
