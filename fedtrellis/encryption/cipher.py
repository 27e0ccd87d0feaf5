"""Additively homomorphic encryption of vectors, as the methods see it: bytes."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.encryption.blob import Header, split_blob
from fedtrellis.encryption.checksum import Checksum
from fedtrellis.encryption.fixed_point import (
    PLAIN_MODULUS,
    EncryptionError,
    FixedPoint,
    IntArray,
    check_terms,
)
from fedtrellis.encryption.key_format import (
    SECRET_BYTES,
    KeyFile,
    derive,
    fingerprint_of,
    pack_key,
    unpack_key,
)
from fedtrellis.wire.arrays import FloatArray

__all__ = ["Cipher"]


class Cipher(ABC):
    """One key of the clients, or the evaluation context of a server.

    Clients of a run share one key and trust each other. A server has the context: it
    adds ciphertexts and multiplies them by integers, and can neither read nor make one.

    **What the checksum is for.** The last slot of each ciphertext holds a secret linear
    function of the others (:mod:`fedtrellis.encryption.checksum`), whose coefficients
    depend on the key, the label and the declared terms. So whatever a server hands
    back, :meth:`decrypt` returns numbers only if they are Σ k_i v_i modulo t, where the
    v_i were encrypted by clients under this very label and the integers k_i add up to
    the weight in the header; anything else is refused but with a probability below
    2^−57 for each attempt. It cannot put in values of its own, mix labels (rounds,
    clients, blocks), move or scale single entries, pass off zeros as a sum, or return
    what is cut, damaged or another key's. (This takes for granted that BFV is secure
    and that a server, which has no evaluation keys, can only add ciphertexts and
    multiply them by numbers that it knows, or by each other.)

    **What it is not for.** Within a label a server chooses the k_i: it can leave a
    client's share out, take one twice, or subtract one and add another. Asking for the
    weight that n shares have catches the first unless another share fills the gap.
    Labels must not be used again in a run, or old shares fit; and a client that
    colludes with the server has the key. A refusal tells the server one bit about
    the ciphertext it sent, and many chosen attempts could reveal the key: **end the run
    at the first** :class:`EncryptionError` **of a decryption**, and make a new key if
    it was not an accident. The labels, sizes, weights and who takes part are not
    hidden.

    Attributes
    ----------
    name : str
        The backend's.
    slots : int
        How many values one ciphertext holds: 4095.
    has_secret : bool
        Whether this is a key.
    fingerprint : str
        16 hexadecimal digits; the same for a key and its context.
    fixed : FixedPoint
        How real numbers become integers.
    """

    name: ClassVar[str]
    parameters: ClassVar[str]
    slots: ClassVar[int] = 4095

    def __init__(self, file: KeyFile) -> None:
        if file.backend != self.name:
            raise EncryptionError(
                f"this is of backend {file.backend!r}, not {self.name!r}"
            )
        self._file = file
        self.fixed = FixedPoint(file.bits, PLAIN_MODULUS)
        self.fingerprint = file.fingerprint
        self.has_secret = file.secret is not None
        if file.secret is not None:
            key = derive(file.secret, "checksum")
            self._checksum = Checksum(key, PLAIN_MODULUS, self.slots + 1)

    def __repr__(self) -> str:
        kind = "key" if self.has_secret else "evaluation context"
        return f"{type(self).__name__}({kind} {self.fingerprint})"

    def __reduce__(self) -> NoReturn:
        # a pickle would carry the key wherever it happens to be sent
        raise TypeError("a cipher cannot be pickled; use secret_bytes() with care")

    # -- keys ------------------------------------------------------------------------

    @classmethod
    def generate(cls, bits: int = 40) -> Self:
        """Make a new key.

        Parameters
        ----------
        bits : int
            Fractional bits of the fixed point, 1 to 52; part of the key.
        """
        FixedPoint(bits, PLAIN_MODULUS)  # checks the bits
        secret, payload = secrets.token_bytes(SECRET_BYTES), cls._new_payload()
        mark = fingerprint_of(secret, cls.name, bits, payload)
        return cls(KeyFile(cls.name, bits, mark, payload, secret))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a key or an evaluation context.

        Raises
        ------
        EncryptionError
            The bytes are neither, damaged, or of another backend; or they are a
            context that has a secret key in it.
        """
        return cls(unpack_key(data))

    def secret_bytes(self) -> bytes:
        """Return the key; whoever has it reads everything. Needs the secret."""
        self._secret()
        return pack_key(self._file)

    def evaluation_bytes(self) -> bytes:
        """Return what a server needs: nothing in it is secret."""
        payload = self._evaluation_payload()
        file = KeyFile(self.name, self._file.bits, self.fingerprint, payload)
        return pack_key(file)

    def mac(self, purpose: str, data: bytes) -> bytes:
        """Return an HMAC-SHA256 under the clients' shared key.

        Parameters
        ----------
        purpose : str
            What it is for; two purposes never have a MAC in common.
        data : bytes

        Returns
        -------
        bytes
            32 bytes; compare with :func:`hmac.compare_digest`.

        Raises
        ------
        EncryptionError
            This is an evaluation context.
        """
        return derive(derive(self._secret(), "mac"), purpose, data)

    # -- values ----------------------------------------------------------------------

    def blocks(self, size: int) -> int:
        """Return how many ciphertexts a vector of so many values takes."""
        return -(-size // self.slots)

    def encrypt(self, values: ArrayLike, label: str, terms: int) -> bytes:
        """Encrypt a vector of at most ``slots`` real numbers.

        Parameters
        ----------
        values : array_like of float64, shape (n,)
            Rounded to multiples of ``fixed.resolution``.
        label : str
            What this is a share of; only shares of one label can be added. It has
            everything in it that must not be confused: run, round, quantity.
        terms : int
            How many shares will be added, each counted with the magnitude of the
            integer it is multiplied by; values must be below ``fixed.limit(terms)``.

        Raises
        ------
        EncryptionError
            A value is not finite or too large, there are none or too many of them, or
            this is an evaluation context.
        """
        return self.encrypt_integers(self.fixed.quantize(values, terms), label, terms)

    def encrypt_integers(self, integers: IntArray, label: str, terms: int) -> bytes:
        """Like :meth:`encrypt`, of integers that are quantised already (int64)."""
        self._secret()
        integers = np.asarray(integers)
        if integers.ndim != 1 or not 1 <= integers.size <= self.slots:
            raise EncryptionError(
                f"values of shape {integers.shape} cannot be encrypted at once: "
                f"expected a vector of 1 to {self.slots}"
            )
        if integers.dtype != np.int64:
            raise EncryptionError(f"integers have dtype {integers.dtype}, not int64")
        bound = self.fixed.bound(terms)
        if integers.max() > bound or integers.min() < -bound:
            raise EncryptionError(f"an integer is beyond ±{bound}, with {terms} terms")
        slots = np.zeros(self.slots + 1, dtype=np.int64)
        slots[: integers.size] = integers
        check = self._checksum(slots[:-1], 1, label, terms)
        slots[-1] = check - PLAIN_MODULUS if check > PLAIN_MODULUS // 2 else check
        header = Header(self.fingerprint, check_terms(terms))
        return header.pack(self._encrypt_slots(slots))

    def add(self, blobs: Sequence[bytes]) -> bytes:
        """Add ciphertexts of one label; the secret is not needed.

        Raises
        ------
        EncryptionError
            There is none, one is malformed, of another key or for another number of
            terms, or there are more than they left room for.
        """
        if not blobs:
            raise EncryptionError("there are no ciphertexts to add")
        parts = [self._open(blob) for blob in blobs]
        headers = [header for header, _ in parts]
        if len({header.terms for header in headers}) > 1:
            counts = sorted({header.terms for header in headers})
            raise EncryptionError(f"ciphertexts were encrypted for {counts} terms")
        total = headers[0].combined(
            sum(header.weight for header in headers),
            sum(header.magnitude for header in headers),
        )
        return total.pack(self._add_payloads([payload for _, payload in parts]))

    def multiply(self, blob: bytes, factor: int) -> bytes:
        """Multiply a ciphertext by an integer; the secret is not needed.

        Parameters
        ----------
        blob : bytes
        factor : int
            Not zero. It counts as so many terms: values and noise both have room for
            the terms that the ciphertext was encrypted for, ``MAX_TERMS`` at most.

        Raises
        ------
        EncryptionError
            The ciphertext is malformed or of another key, or the factor too large.
        """
        if isinstance(factor, bool) or not isinstance(factor, int | np.integer):
            raise EncryptionError(f"factor = {factor!r} must be an integer")
        if factor == 0:
            raise EncryptionError("factor = 0 would make a ciphertext of nothing")
        header, payload = self._open(blob)
        factor = int(factor)
        product = header.combined(
            header.weight * factor, header.magnitude * abs(factor)
        )
        return product.pack(self._multiply_payload(payload, factor))

    def decrypt(
        self, blob: bytes, label: str, count: int, weight: int | None = None
    ) -> FloatArray:
        """Decrypt a ciphertext, and check what it is.

        Parameters
        ----------
        blob : bytes
        label : str
            That of all shares within.
        count : int
            How many values it holds.
        weight : int, optional
            Sum of the factors of the shares that it must consist of: n for a sum of n.
            Give it where it is known; without it any weight but 0 is taken.

        Returns
        -------
        ndarray of float64, shape (count,)

        Raises
        ------
        EncryptionError
            The ciphertext is not a combination of shares of this label under this key;
            see the class for what that means. No numbers are returned then.
        """
        return self.fixed.dequantize(self.decrypt_integers(blob, label, count, weight))

    def decrypt_integers(
        self, blob: bytes, label: str, count: int, weight: int | None = None
    ) -> IntArray:
        """Like :meth:`decrypt`, the exact integers (int64) in (−t/2, t/2)."""
        self._secret()
        if not 1 <= count <= self.slots:
            raise EncryptionError(f"count = {count} must be from 1 to {self.slots}")
        header, payload = self._open(blob)
        if weight is not None and header.weight != weight:
            raise EncryptionError(
                f"ciphertext is of {header.weight} shares, expected {weight}"
            )
        if not header.weight and weight is None:
            # anybody can make zeros, and they are a sum of no shares
            raise EncryptionError("ciphertext is of 0 shares: its factors cancel")
        slots = self._decrypt_slots(payload)
        check = self._checksum(slots[:-1], header.weight, label, header.terms)
        if (check - int(slots[-1])) % PLAIN_MODULUS:
            raise EncryptionError(
                f"ciphertext fails its checksum: it was altered, or is not a sum of "
                f"shares of {label!r}"
            )
        if slots[count:-1].any():
            raise EncryptionError(f"ciphertext has more than {count} values")
        return slots[:count].copy()

    # -- helpers ---------------------------------------------------------------------

    def _secret(self) -> bytes:
        if self._file.secret is None:
            raise EncryptionError(
                f"this needs the clients' key; {self.fingerprint} is its evaluation "
                "context, which can only add and multiply"
            )
        return self._file.secret

    def _open(self, blob: bytes) -> tuple[Header, bytes]:
        header, payload = split_blob(blob)
        if header.fingerprint != self.fingerprint:
            raise EncryptionError(
                f"ciphertext is of key {header.fingerprint}, not {self.fingerprint}"
            )
        return header, payload

    # -- what a backend does; each raises EncryptionError and nothing else -----------

    @classmethod
    @abstractmethod
    def _new_payload(cls) -> bytes:
        """Return what a new key keeps beside the shared secret."""

    @abstractmethod
    def _evaluation_payload(self) -> bytes:
        """Return what a context keeps; nothing secret."""

    @abstractmethod
    def _encrypt_slots(self, slots: IntArray) -> bytes:
        """Encrypt all 4096 slots, integers in (−t/2, t/2)."""

    @abstractmethod
    def _decrypt_slots(self, payload: bytes) -> IntArray:
        """Inverse of :meth:`_encrypt_slots`."""

    @abstractmethod
    def _add_payloads(self, payloads: Sequence[bytes]) -> bytes:
        """Add at least one."""

    @abstractmethod
    def _multiply_payload(self, payload: bytes, factor: int) -> bytes:
        """Multiply by an integer that is not zero, |factor| at most ``MAX_TERMS``."""
