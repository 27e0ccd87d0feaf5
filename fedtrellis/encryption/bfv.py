"""The backend ``tenseal-bfv``: BFV of Microsoft SEAL, through TenSEAL.

Degree 4096, coefficient modulus of 45 + 45 bits for data and 16 for SEAL's special
prime (106 in all; 109 is the limit for 128-bit security at this degree, and SEAL checks
it), plain modulus t of 58 bits, secret-key encryption by the clients. A server can add.

**Noise.** A fresh coefficient of the noise is at most 22 with the rounding of q / t,
and decryption is right below q / 2t = 2^31: a sum of n ≤ 2^26.5 is always right, and
``MAX_TERMS`` = 2^24 has two bits in hand.

Half of a fresh ciphertext is random and follows from a seed, which SEAL writes in its
place: 13.5 bytes a value, 26.8 after an addition. TenSEAL trusts the lengths in its
messages, and SEAL ends the process over some forms of compression. A client may lie, so
SEAL is given nothing but what is put together here.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
import tempfile
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import EncryptionError, IntArray, RangeError
from fedtrellis.encryption.node_file import KeyFile
from fedtrellis.encryption.symmetric import Item

DEGREE = 4096
#: t, the largest prime of 58 bits with t ≡ 1 (mod 8192): a slot for each coefficient.
PLAIN_MODULUS = 288_230_376_151_130_113
_COEFFICIENT_BITS = (45, 45, 16)
# SEAL's hash of all parameters for data: degree, primes, plain modulus.
_PARAMETERS_HASH = (
    *(12818512699861165753, 1168732863240237803),
    *(16503350843332633319, 10228082550185529954),
)
# SEAL's header: magic and its own length, version, compression, reserved, size
_HEADER = struct.Struct("<3s2sBHQ")
_SEAL, _MAJOR, _PLAIN, _ZSTD = b"\x5e\xa1\x10", 4, 0, 2
_SEED_BYTES, _BLAKE2 = 64, b"\x01"  # what SEAL expands a seed with
_MOST_BYTES = 32 * DEGREE + 200

T = TypeVar("T")
Share = tuple[str, bytes]


def _needed(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise EncryptionError(
            f"'tenseal-bfv' needs {library}: pip install \"fedtrellis[encryption]\""
        ) from error


def _translate(what: str, action: Callable[..., T], *arguments: Any) -> T:
    """Run something of TenSEAL; whatever it raises becomes one line of ours."""
    try:
        return action(*arguments)
    except Exception as error:  # SEAL raises half a dozen types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EncryptionError(f"{what}: {reason}") from None


# A context owns a thread. A forked child has the context without the thread, and would
# wait for it for ever on destroying the context; so it never destroys those it got.
_LIVE: weakref.WeakSet[BfvCipher] = weakref.WeakSet()


def _keep_contexts() -> None:
    for cipher in list(_LIVE):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(cipher._context))


os.register_at_fork(after_in_child=_keep_contexts)


class BfvCipher(Cipher):
    """See the module and :class:`~fedtrellis.encryption.cipher.Cipher`."""

    name = "tenseal-bfv"
    parameters = (
        f"BFV, degree {DEGREE}, coefficient modulus of {sum(_COEFFICIENT_BITS)} bits, "
        f"plain modulus {PLAIN_MODULUS}, secret-key encryption, 128-bit security"
    )
    slots = DEGREE - 1  # and one that counts shares
    word = 58

    def __init__(self, file: KeyFile) -> None:
        super().__init__(file)
        self._cpp = _needed("tenseal")._ts_cpp
        read = self._cpp.TenSEALContext.deserialize, file.payload, 1
        self._context = _translate("TenSEAL cannot read this key", *read)
        _LIVE.add(self)
        parameters = tuple(self._context.seal_context().first_parms_id())
        fits = self._context.has_secret_key() is (file.secret is not None)
        if parameters != _PARAMETERS_HASH or not fits:
            raise EncryptionError("this key has other parameters than this version")

    def bound(self, *context: Item) -> BfvCipher:
        """As :meth:`Cipher.bound`."""
        other = super().bound(*context)
        _LIVE.add(other)  # it may outlive the cipher whose context it has
        return other

    @classmethod
    def _new_payload(cls) -> bytes:
        tenseal = _needed("tenseal")
        context = tenseal.context(
            tenseal.SCHEME_TYPE.BFV,
            poly_modulus_degree=DEGREE,
            plain_modulus=PLAIN_MODULUS,
            coeff_mod_bit_sizes=list(_COEFFICIENT_BITS),
            encryption_type=tenseal.ENCRYPTION_TYPE.SYMMETRIC,
            n_threads=1,
        )
        return bytes(context.data.serialize(False, True, False, False))

    def _evaluation_payload(self) -> bytes:
        # public, secret, Galois and relinearisation keys: none
        return bytes(self._context.serialize(False, False, False, False))

    def _seal(self, integers: IntArray, use: tuple[Item, ...], share: Share) -> bytes:
        if int(np.abs(integers).max()) * int(use[-1]) > PLAIN_MODULUS // 2:
            raise RangeError
        api = _needed("tenseal.sealapi")
        seal, secret = self._context.seal_context(), self._context.secret_key()
        plaintext = api.Plaintext()
        api.BatchEncoder(seal).encode(integers.tolist(), plaintext)
        seeded = api.Encryptor(seal, secret).encrypt_symmetric(plaintext)
        with tempfile.NamedTemporaryFile(prefix="fedtrellis-") as file:
            seeded.save(file.name)  # its interface writes to files only
            return file.read()

    def _unseal(
        self, payload: bytes, use: tuple[Item, ...], shares: Sequence[Share]
    ) -> IntArray:
        vector, size = self._load(payload), use[-2]
        slots = _translate("decryption failed", vector.decrypt)
        return np.array(slots[: int(size) + 1], np.int64)

    def _add_payloads(self, payloads: Sequence[bytes]) -> bytes:
        total = self._load(payloads[0])
        for other in map(self._load, payloads[1:]):
            total.add_(other)  # a copy would take the secret key
        # a BFVVectorProto of one ciphertext: sizes, and its bytes
        message = bytes(total.serialize())
        return message[message.index(_SEAL) :]

    def _load(self, payload: bytes) -> Any:
        plain = _plain_form(payload)
        message = b"\x0a\x02%b\x12%b%b" % (_varint(DEGREE), _varint(len(plain)), plain)
        made = self._cpp.BFVVector, self._context, message
        return _translate("ciphertext cannot be read", *made)


def _varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _plain_form(payload: bytes) -> bytes:
    """Return SEAL's bytes of a ciphertext without compression, all headers checked."""
    if len(payload) < _HEADER.size:
        raise EncryptionError("ciphertext is cut off")
    magic, version, mode, reserved, size = _HEADER.unpack_from(payload)
    data = payload[_HEADER.size :]
    if magic != _SEAL or version[0] != _MAJOR or reserved or size != len(payload):
        raise EncryptionError("ciphertext is cut off, damaged or of another SEAL")
    if mode == _ZSTD:
        library = _needed("zstandard")
        decompressor = library.ZstdDecompressor(max_window_size=2**20)
        reader = decompressor.stream_reader(data)
        # 140 kB can stand for gigabytes
        data = bytes(_translate("ciphertext is bad", reader.read, _MOST_BYTES + 1))

    def header(size: int) -> bytes:
        return _HEADER.pack(_SEAL, version, _PLAIN, 0, size)

    # parameters, NTT form, polynomials, degree, primes, scale and correction factor
    members = struct.pack("<4QBQQQdQ", *_PARAMETERS_HASH, 0, 2, DEGREE, 2, 1.0, 1)
    for seed in (0, _SEED_BYTES):
        # a coefficient for each degree and prime of both polynomials, or of the first
        count = (2 if seed else 4) * DEGREE
        start = members + header(_HEADER.size + 8 * (1 + count))
        start += count.to_bytes(8, "little")
        end = header(_HEADER.size + 1 + seed) + _BLAKE2 if seed else b""
        after = len(start) + 8 * count
        if len(data) != after + len(end) + seed:
            continue
        if data.startswith(start) and data.startswith(end, after):
            return header(_HEADER.size + len(data)) + data
    raise EncryptionError("ciphertext has a form that no client makes")
