"""The backend ``tenseal-bfv``: BFV of Microsoft SEAL, through TenSEAL.

Degree 4096, coefficient modulus of 45 + 45 bits for data and 16 for SEAL's special
prime (106 in all; 109 is the limit for 128-bit security at this degree, and SEAL checks
it), plain modulus t of 58 bits, secret-key encryption by the clients. There are no
public, relinearisation or Galois keys: a server can add ciphertexts, and multiply them
by what it knows, which the checksums then refuse. Those are in the last two slots.

**Noise.** A fresh coefficient of the noise is at most 21, or 22 with the rounding of
q / t, and decryption is right as long as it is below q / 2t = 2^31. A sum of n has at
most n times that, so n ≤ 2^26.5 is always right, and ``MAX_TERMS`` = 2^24 has two bits
in hand. Measured: SEAL's noise budget is 27 bits when fresh and 3 after a
multiplication by 2^24; 2^26 still decrypts, 2^28 does not. What a server makes of the
noise beyond that decides whether a forged sum decrypts, so **each refusal tells it
something about the key**, and clients must end the run at the first; the stream cipher
has no such leak.

**Sizes.** Half of a fresh ciphertext is random and follows from a seed, which SEAL
writes in its place: 13.5 bytes a value, 26.8 after an addition. That goes through
SEAL's own interface in TenSEAL, which writes to files only, here to files in memory.

Blobs carry SEAL's ciphertext alone; the format that TenSEAL has around it is written
anew (:mod:`fedtrellis.encryption.tenseal_format`).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from fedtrellis.encryption.checksum import CHECKS
from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import (
    PLAIN_MODULUS,
    EncryptionError,
    IntArray,
)
from fedtrellis.encryption.key_format import KeyFile
from fedtrellis.encryption.keystream import Keystream
from fedtrellis.encryption.labels import Item
from fedtrellis.encryption.tenseal_format import (
    needed,
    plain_form,
    refuse_secret,
    scratch_file,
    unwrap,
    wrap,
)

__all__ = ["COEFFICIENT_BITS", "DEGREE", "BfvCipher"]

DEGREE = 4096
COEFFICIENT_BITS = (45, 45, 16)

# SEAL's hash of all parameters for data: degree, primes, plain modulus.
_PARAMETERS_HASH = [
    12818512699861165753,
    1168732863240237803,
    16503350843332633319,
    10228082550185529954,
]

T = TypeVar("T")


def _translate(what: str, action: Callable[[], T]) -> T:
    """Run something of TenSEAL; whatever it raises becomes one line of ours."""
    try:
        return action()
    except EncryptionError:
        raise
    except Exception as error:  # SEAL raises half a dozen types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EncryptionError(f"{what}: {reason}") from None


# -- processes that fork --------------------------------------------------------------

# A context owns a thread. A forked child has the context without the thread, and would
# wait for it for ever on destroying the context; so it never destroys those it got.
_LIVE: weakref.WeakSet[BfvCipher] = weakref.WeakSet()


def _keep_contexts() -> None:
    for cipher in list(_LIVE):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(cipher._context))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_contexts)


class BfvCipher(Cipher):
    """See the module and :class:`Cipher`."""

    name: ClassVar[str] = "tenseal-bfv"
    parameters: ClassVar[str] = (
        f"BFV, degree {DEGREE}, coefficient modulus of {sum(COEFFICIENT_BITS)} bits "
        f"{list(COEFFICIENT_BITS)}, plain modulus {PLAIN_MODULUS}, secret-key "
        "encryption, 128-bit security"
    )

    modulus: ClassVar[int] = PLAIN_MODULUS
    slots: ClassVar[int] = DEGREE - CHECKS
    wears_out: ClassVar[bool] = True

    def __init__(self, file: KeyFile) -> None:
        super().__init__(file)
        if file.secret is None:
            refuse_secret(file.payload)
        tenseal = needed("tenseal")
        self._cpp = tenseal._ts_cpp
        deserialize = self._cpp.TenSEALContext.deserialize
        # one thread: more would only be used by operations that we do without
        self._context = _translate(
            "TenSEAL cannot read this key", lambda: deserialize(file.payload, 1)
        )
        _LIVE.add(self)
        if self._context.has_secret_key() is not self.has_secret:
            raise EncryptionError(
                "this evaluation context contains a secret key"
                if self._context.has_secret_key()
                else "this key has no secret key"
            )
        seal = self._context.seal_context()
        if list(seal.first_parms_id()) != _PARAMETERS_HASH:
            raise EncryptionError("this key has other parameters than this version")
        self._encoder: Any = None
        if self.has_secret:
            # other versions of TenSEAL may not let their two interfaces meet
            with suppress(Exception):
                api = importlib.import_module("tenseal.sealapi")
                secret = self._context.secret_key()
                encryptor = api.Encryptor(seal, secret)
                self._plaintext = api.Plaintext
                self._encoder, self._encryptor = api.BatchEncoder(seal), encryptor

    def bound(self, *context: Item) -> Self:
        """See :meth:`Cipher.bound`."""
        other = super().bound(*context)
        _LIVE.add(other)  # it may outlive the cipher whose context it has
        return other

    @classmethod
    def _new_payload(cls) -> bytes:
        tenseal = needed("tenseal")
        context = tenseal.context(
            tenseal.SCHEME_TYPE.BFV,
            poly_modulus_degree=DEGREE,
            plain_modulus=PLAIN_MODULUS,
            coeff_mod_bit_sizes=list(COEFFICIENT_BITS),
            encryption_type=tenseal.ENCRYPTION_TYPE.SYMMETRIC,
            n_threads=1,
        )
        return bytes(context.data.serialize(False, True, False, False))

    def _evaluation_payload(self) -> bytes:
        # public, secret, Galois and relinearisation keys: none
        payload = bytes(self._context.serialize(False, False, False, False))
        refuse_secret(payload)
        return payload

    def _seal(
        self, integers: IntArray, checks: Sequence[int], stream: Keystream
    ) -> bytes:
        numbers = integers.tolist() + [0] * (self.slots - integers.size)
        # TenSEAL encodes integers in (−t/2, t/2)
        numbers += [c - self.modulus * (c > self.modulus // 2) for c in checks]
        return _translate("encryption failed", lambda: self._encoded(numbers))

    def _encoded(self, numbers: list[int]) -> bytes:
        if self._encoder is None:
            vector = self._cpp.BFVVector(self._context, numbers)
            return unwrap(vector.serialize())
        plaintext = self._plaintext()
        self._encoder.encode(numbers, plaintext)
        seeded = self._encryptor.encrypt_symmetric(plaintext)
        with scratch_file() as (handle, path):
            seeded.save(path)
            return os.pread(handle, os.fstat(handle).st_size, 0)

    def _load(self, payload: bytes) -> Any:
        """Read one ciphertext, and check that it is one that we could have made."""
        plain = plain_form(payload, _PARAMETERS_HASH, DEGREE)
        vector = _translate(
            "ciphertext cannot be read",
            lambda: self._cpp.BFVVector(self._context, wrap(plain, DEGREE)),
        )
        (ciphertext,) = vector.ciphertext()
        if (
            ciphertext.size() != 2
            or ciphertext.is_ntt_form()
            or ciphertext.is_transparent()
            or list(ciphertext.parms_id()) != _PARAMETERS_HASH
        ):
            raise EncryptionError("ciphertext has a form that no client makes")
        return vector

    def _unseal(self, payload: bytes, count: int) -> tuple[IntArray, list[int]]:
        vector = self._load(payload)
        numbers = _translate("decryption failed", vector.decrypt)
        slots = np.fromiter(numbers, dtype=np.int64, count=DEGREE)
        if slots[count : self.slots].any():
            raise EncryptionError(f"ciphertext has more than {count} values")
        checks = slots[self.slots :] % self.modulus
        return slots[:count].copy(), checks.tolist()

    def _strip(self, integers: IntArray, stream: Keystream) -> None:
        """Do nothing: the keystream is for the masks only."""

    def _add_payloads(self, payloads: Sequence[bytes]) -> bytes:
        total = self._load(payloads[0])
        for payload in payloads[1:]:
            # not a copy of TenSEAL's, which would ask for the secret key
            _translate("addition failed", partial(total.add_, self._load(payload)))
        return unwrap(_translate("addition failed", total.serialize))
