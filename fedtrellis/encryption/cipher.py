"""Additively homomorphic encryption of vectors, as the methods see it: bytes."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NoReturn, Self

from numpy.typing import ArrayLike

from fedtrellis.encryption.blob import NONCE_BYTES, Header, check_sender, split_blob
from fedtrellis.encryption.checksum import CHECKS
from fedtrellis.encryption.fixed_point import (
    EncryptionError,
    FixedPoint,
    IntArray,
    RefusedError,
    check_terms,
)
from fedtrellis.encryption.key_format import (
    SECRET_BYTES,
    KeyFile,
    fingerprint_of,
    pack_key,
    unpack_key,
)
from fedtrellis.encryption.keystream import Keystream
from fedtrellis.encryption.labels import Item, Label, encode_label, expand
from fedtrellis.encryption.sum_keys import SumKeys
from fedtrellis.wire.arrays import FloatArray

__all__ = ["Cipher"]


class Cipher(ABC):
    """One key of the clients, or the evaluation context of a server.

    A client encrypts a vector as its *share* of a sum. A server has no secret: it adds
    shares, and can neither read nor make one.

    **What is accepted.** :meth:`decrypt` returns numbers only if they are the sum, each
    taken once, of shares that holders of the key encrypted under this very label, for
    as many terms and as many values: of one share of each of the ``senders`` where
    those are given, and else of those that the header lists, all different. Anything
    else is refused but with a probability below 2^−115 for each attempt: shares left
    out, taken twice, multiplied, subtracted, or of another label; values of a server's
    own, entries moved or changed, whatever is cut or damaged.

    **How.** Every encryption draws 16 bytes, its *nonce*. From key, label, sender and
    nonce follow two masks m_ka, and with the checksums of the share's integers x_k
    (:mod:`fedtrellis.encryption.checksum`) the share k carries, encrypted or not,

        t_ka = Σ_j c_aj x_kj + m_ka   (mod p),   a = 1, 2.

    The coefficients c depend on key, label, terms and the number of values. A sum is
    right if its t_a is Σ_j c_aj X_j + Σ m_ka over exactly the shares of its header, and
    no |X_j| is beyond what so many shares can make, which is below p / 2. A nonce that
    is drawn anew for each encryption needs no state that could be lost or set back.

    **What it is not for.** Holders of the key trust each other: each could read and
    forge every share. Sizes and who takes part are not hidden. Without ``senders`` a
    server chooses which shares it adds.

    Attributes
    ----------
    name : str
        The backend's.
    modulus, slots : int
        Sums of integers stay within ±(p − 1)/2; values of one ciphertext at most.
    has_secret : bool
        Whether this is a key.
    fingerprint : str
        16 hexadecimal digits; the same for a key, its context and all that is bound.
    fixed : FixedPoint
        How real numbers become integers.
    """

    name: ClassVar[str]
    parameters: ClassVar[str]
    modulus: ClassVar[int]
    slots: ClassVar[int]
    #: Whether refusals tell a server that makes ciphertexts up something of the key.
    wears_out: ClassVar[bool] = False

    def __init__(self, file: KeyFile) -> None:
        if file.backend != self.name:
            raise EncryptionError(
                f"this is of backend {file.backend!r}, not {self.name!r}"
            )
        self._file = file
        self._root = file.secret and expand(file.secret, "cipher", self.name)
        self.fixed = FixedPoint(file.bits, self.modulus)
        self.fingerprint = file.fingerprint
        self.has_secret = file.secret is not None

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
        return cls._of(secrets.token_bytes(SECRET_BYTES), bits)

    @classmethod
    def _of(cls, secret: bytes, bits: int) -> Self:
        FixedPoint(bits, cls.modulus)  # checks the bits
        payload = cls._new_payload()
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

    @classmethod
    def adder(cls) -> Self:
        """Make what adds the ciphertexts of any key: a context that is nobody's."""
        return cls.from_bytes(cls.generate().evaluation_bytes())

    def secret_bytes(self) -> bytes:
        """Return the key; whoever has it reads everything.

        Raises
        ------
        EncryptionError
            This is an evaluation context, or bound.
        """
        secret = self._file.secret
        if secret is None or self._secret() != expand(secret, "cipher", self.name):
            raise EncryptionError("this needs the clients' key, and not one bound")
        return pack_key(self._file)

    def evaluation_bytes(self) -> bytes:
        """Return what a server needs: nothing in it is secret."""
        payload = self._evaluation_payload()
        file = KeyFile(self.name, self._file.bits, self.fingerprint, payload)
        return pack_key(file)

    def derive(self, *context: Item) -> bytes:
        """Return a secret of 32 bytes for a use of its own: HKDF-SHA256.

        Parameters
        ----------
        *context : bytes, str or int
            The use; other items, or items cut in another way, give another secret.

        Raises
        ------
        EncryptionError
            This is an evaluation context.
        """
        return expand(self._secret(), "derive", *context)

    def bound(self, *context: Item) -> Self:
        """Return this key for one context only, such as a run or a group.

        Shares of one context are refused in any other, and what is derived differs.
        The keys of the backend are the same, and so is the fingerprint.

        Raises
        ------
        EncryptionError
            This is an evaluation context.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._root = expand(self._secret(), "bound", *context)
        return other

    # -- values ----------------------------------------------------------------------

    def blocks(self, size: int) -> int:
        """Return how many ciphertexts a vector of so many values takes."""
        return -(-size // self.slots)

    def encrypt(
        self,
        values: ArrayLike,
        label: Label,
        sender: str,
        terms: int,
        block: tuple[int, int] = (0, 1),
    ) -> bytes:
        """Encrypt a vector of at most ``slots`` real numbers as a share of a sum.

        Parameters
        ----------
        values : array_like of float64, shape (n,)
            Rounded to multiples of ``fixed.resolution``.
        label : tuple of str or int
            What this is a share of; only shares of one label can be added. First its
            purpose, then everything that must not be confused: run, round, quantity.
        sender : str
            Who encrypts, of 1 to 255 bytes; the server reads it.
        terms : int
            How many shares will be added at most; values must be below
            ``fixed.limit(terms)``.
        block : (int, int)
            Which part of a longer vector this is, and of how many.

        Raises
        ------
        EncryptionError
            A value is not finite or too large, there are none or too many of them, or
            this is an evaluation context.
        """
        integers = self.fixed.quantize(values, terms)
        return self._encrypt(integers, label, sender, terms, block)

    def encrypt_integers(
        self,
        integers: IntArray,
        label: Label,
        sender: str,
        terms: int,
        block: tuple[int, int] = (0, 1),
    ) -> bytes:
        """Like :meth:`encrypt`, of integers that are quantised already (int64)."""
        self.fixed.check(integers, terms)
        return self._encrypt(integers, label, sender, terms, block)

    def _encrypt(
        self,
        integers: IntArray,
        label: Label,
        sender: str,
        terms: int,
        block: tuple[int, int],
    ) -> bytes:
        if integers.ndim != 1 or not 1 <= integers.size <= self.slots:
            raise EncryptionError(
                f"values of shape {integers.shape} cannot be encrypted at once: "
                f"expected a vector of 1 to {self.slots}"
            )
        check_sender(sender)
        keys = self._keys(label, block, integers.size, check_terms(terms))
        # random, never counted: nothing to forget, and nothing that a server chooses
        nonce = secrets.token_bytes(NONCE_BYTES)
        stream, masks = keys.share(sender, nonce)
        checks = keys.checks(integers, masks)
        header = Header(self.fingerprint, int(terms), ((sender, nonce),))
        return header.pack(self._seal(integers, checks, stream))

    def add(self, blobs: Sequence[bytes]) -> bytes:
        """Add ciphertexts of one label; the secret is not needed.

        Raises
        ------
        EncryptionError
            There is none, one is malformed, or a share is there twice; they are of
            several keys or numbers of terms, or more than these left room for.
        """
        parts = [split_blob(blob) for blob in blobs]
        total = Header.of_sum([header for header, _ in parts])
        return total.pack(self._add_payloads([payload for _, payload in parts]))

    def decrypt(
        self, blob: bytes, label: Label, count: int, senders: Sequence[str] | None
    ) -> FloatArray:
        """Decrypt a ciphertext, and check what it is.

        Parameters
        ----------
        blob : bytes
        label : tuple of str or int
            That of all shares within.
        count : int
            How many values each share has.
        senders : sequence of str or None
            Who must have made the shares, one each; None takes any different shares.

        Returns
        -------
        ndarray of float64, shape (count,)

        Raises
        ------
        RefusedError
            The ciphertext is not such a sum; see the class for what that means. The
            text is always the same, and no numbers are returned then.
        EncryptionError
            The label, count or senders are malformed, or this is an evaluation context.
        """
        integers = self.decrypt_integers(blob, label, count, senders)
        return self.fixed.dequantize(integers)

    def decrypt_integers(
        self,
        blob: bytes,
        label: Label,
        count: int,
        senders: Sequence[str] | None,
        block: tuple[int, int] = (0, 1),
    ) -> IntArray:
        """Like :meth:`decrypt`, the exact integers (int64) within ±(p − 1)/2."""
        self._secret()
        if not 1 <= count <= self.slots:
            raise EncryptionError(f"count = {count} must be from 1 to {self.slots}")
        encode_label(label)
        if isinstance(senders, str):  # a sequence of letters
            raise EncryptionError(f"senders = {senders!r} must be a sequence of texts")
        try:
            return self._opened(blob, label, count, senders, block)
        except EncryptionError:
            raise RefusedError from None

    # -- helpers ---------------------------------------------------------------------

    def _secret(self) -> bytes:
        if self._root is None:
            raise EncryptionError(
                f"this needs the clients' key; {self.fingerprint} is its evaluation "
                "context, which can only add"
            )
        return self._root

    def _keys(
        self, label: Label, block: tuple[int, int], size: int, terms: int
    ) -> SumKeys:
        return SumKeys.of(self._secret(), self.modulus, label, block, size, terms)

    def _opened(
        self,
        blob: bytes,
        label: Label,
        count: int,
        senders: Sequence[str] | None,
        block: tuple[int, int],
    ) -> IntArray:
        header, payload = split_blob(blob)
        if header.fingerprint != self.fingerprint:
            raise EncryptionError("another key")
        if senders is not None and header.senders != sorted(senders):
            raise EncryptionError("other senders")
        keys = self._keys(label, block, count, header.terms)
        integers, checks = self._unseal(payload, count)
        masks = [0] * CHECKS
        for share in header.shares:  # one after the other: there may be many
            stream, own = keys.share(*share)
            masks = list(map(int.__add__, masks, own))
            self._strip(integers, stream)
        # two integers whose difference p divides have the same checksums
        bound = len(header.shares) * self.fixed.bound(header.terms)
        within = -bound <= integers.min() and integers.max() <= bound
        if keys.checks(integers, masks) != checks or not within:
            raise EncryptionError("other values")
        return integers

    # -- what a backend does; each raises EncryptionError and nothing else -----------

    @classmethod
    @abstractmethod
    def _new_payload(cls) -> bytes:
        """Return what a new key keeps beside the shared secret."""

    @abstractmethod
    def _evaluation_payload(self) -> bytes:
        """Return what a context keeps; nothing secret."""

    @abstractmethod
    def _seal(
        self, integers: IntArray, checks: Sequence[int], stream: Keystream
    ) -> bytes:
        """Encrypt integers within ±(p − 1)/2 and residues in [0, p)."""

    @abstractmethod
    def _unseal(self, payload: bytes, count: int) -> tuple[IntArray, list[int]]:
        """Return integers (int64), which may be changed, and the residues of a sum."""

    @abstractmethod
    def _strip(self, integers: IntArray, stream: Keystream) -> None:
        """Take what :meth:`_seal` took from a share's keystream off a sum, in place."""

    @abstractmethod
    def _add_payloads(self, payloads: Sequence[bytes]) -> bytes:
        """Add at least one."""
