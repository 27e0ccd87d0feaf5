"""Additively homomorphic encryption of vectors: a server adds what it cannot read.

Of numbers and a last one, which counts shares, as integers x, a share carries

    c_j = x_j + r_j   (mod 2^64),

r the keystream of a key that belongs to this share alone, so that the sum of shares
less the sum of their r is the sum of their x (Castelluccia, Mykletun, Tsudik,
"Efficient Aggregation of Encrypted Data in Wireless Sensor Networks", MobiQuitous
2005, with AES-256 in counter mode). It takes 8 bytes a number, of a share and of a sum.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from functools import cache
from logging import getLogger
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.encryption.fixed_point import (
    MAX_TERMS,
    Coding,
    EncryptionError,
    FloatArray,
    IntArray,
    RefusedError,
    Words,
    check_terms,
)
from fedtrellis.encryption.key_format import (
    KeyFile,
    fingerprint_of,
    pack_key,
    unpack_key,
)
from fedtrellis.encryption.keystream import Keystream
from fedtrellis.encryption.labels import KEY_BYTES, Item, Label, encode_label, expand

__all__ = [
    "Cipher",
    "Header",
    "PlainCipher",
    "add_vectors",
    "decrypt_vector",
    "encrypt_vector",
    "split_blob",
]

_NONCE_BYTES = 16
_MAGIC = b"FTC3"
# magic, fingerprint, terms, number of shares
_LAYOUT = struct.Struct("<4s8sII")


class Header(NamedTuple):
    """What a ciphertext says of itself.

    Attributes
    ----------
    fingerprint : str
        Of the key, hexadecimal.
    terms : int
        How many shares its numbers left room for.
    shares : tuple of (str, bytes)
        What was added: sender and nonce of each.
    """

    fingerprint: str
    terms: int
    shares: tuple[tuple[str, bytes], ...]

    @property
    def senders(self) -> list[str]:
        """Who made the shares, in alphabetical order."""
        return sorted(sender for sender, _ in self.shares)

    def pack(self, payload: bytes) -> bytes:
        """Return header and payload as one blob."""
        mark, count = bytes.fromhex(self.fingerprint), len(self.shares)
        parts = [_LAYOUT.pack(_MAGIC, mark, self.terms, count)]
        for sender, nonce in self.shares:
            name = sender.encode()
            parts += [bytes([len(name)]), name, nonce]
        return b"".join([*parts, payload])


def split_blob(blob: bytes) -> tuple[Header, bytes]:
    """Read a blob's header, and return it with the payload.

    Raises
    ------
    EncryptionError
        It is malformed.
    """
    try:
        magic, mark, terms, count = _LAYOUT.unpack_from(blob)
        position, shares = _LAYOUT.size, []
        for _ in range(count):  # until there are no more bytes, whatever is claimed
            middle = position + 1 + blob[position]
            sender = blob[position + 1 : middle].decode()
            position = middle + _NONCE_BYTES
            shares.append((sender, blob[middle:position]))
    except (struct.error, IndexError, UnicodeDecodeError):
        magic = b""
    if (
        magic != _MAGIC
        or not 1 <= len(shares) <= terms <= MAX_TERMS
        or position > len(blob)
    ):
        raise EncryptionError("these bytes are not a ciphertext of fedtrellis")
    return Header(mark.hex(), terms, tuple(shares)), blob[position:]


class Cipher:
    """One key of the clients, or the evaluation context of a server; ``"stream"``.

    Three functions: a client encrypts a vector as its *share* of a sum, a server, which
    has no secret, adds shares, and a client decrypts the sum. It is checked that the
    sum has as many shares, of this key, label and length, as its header lists, and the
    ``senders`` that are expected: that finds mistakes. Holders of a key trust each
    other, and the server to add what it was asked to.

    Attributes
    ----------
    name : str
        The backend's.
    coding : Coding
        How real numbers become integers.
    slots : int
        Numbers of one ciphertext at most; a longer vector takes several.
    has_secret : bool
        Whether this is a key.
    fingerprint : str
        16 hexadecimal digits; the same for a key, its context and all that is bound.
    """

    name: ClassVar[str] = "stream"
    parameters: ClassVar[str] = "AES-256 in counter mode, sums modulo 2^64"
    slots: ClassVar[int] = 2**31
    #: Integers of a sum stay within ±2^(word − 1).
    word: ClassVar[int] = 64

    def __init__(self, file: KeyFile) -> None:
        if file.backend != self.name:
            raise EncryptionError(
                f"this is of backend {file.backend!r}, not {self.name!r}"
            )
        self._file = file
        self._root = file.secret and expand(file.secret, "cipher", self.name)
        self.coding = Coding(file.bits, self.word)
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
        """Make a new key; ``bits``, 1 to 52, are the fixed point's."""
        return cls.from_secret(secrets.token_bytes(KEY_BYTES), bits)

    @classmethod
    def from_secret(cls, secret: bytes, bits: int = 40) -> Self:
        """Make the cipher of a secret of 32 bytes that several clients have."""
        if len(secret) != KEY_BYTES or not 1 <= bits <= 52:
            raise EncryptionError(
                f"a secret has {KEY_BYTES} bytes, and bits = {bits} must be 1 to 52"
            )
        payload = cls._new_payload()
        mark = fingerprint_of(secret, cls.name, bits, payload)
        return cls(KeyFile(cls.name, bits, mark, payload, secret))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a key or an evaluation context; EncryptionError if it is neither."""
        return cls(unpack_key(data))

    @classmethod
    def adder(cls) -> Self:
        """Make what adds the ciphertexts of any key: a context that is nobody's."""
        return cls.from_bytes(cls.generate().evaluation_bytes())

    def secret_bytes(self) -> bytes:
        """Return the key; whoever has it reads everything. Not of what is bound."""
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
        """Return a secret of 32 bytes for a use of its own; other uses, other ones."""
        return expand(self._secret(), "derive", *context)

    def bound(self, *context: Item) -> Self:
        """Return this key for one context only, such as a run or a group."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._root = expand(self._secret(), "bound", *context)
        return other

    def _secret(self) -> bytes:
        if self._root is None:
            raise EncryptionError(
                f"this needs the clients' key; {self.fingerprint} is its evaluation "
                "context, which can only add"
            )
        return self._root

    # -- values ----------------------------------------------------------------------

    def blocks(self, size: int) -> int:
        """Return how many ciphertexts a vector of so many numbers takes."""
        return -(-size // self.slots)

    def encrypt(
        self, values: ArrayLike, label: Label, sender: str, terms: int
    ) -> list[bytes]:
        """Encrypt a vector as a share of a sum.

        Parameters
        ----------
        values : array_like of float64, shape (n,)
            Rounded to multiples of 2^−bits.
        label : tuple of str or int
            What this is a share of: first its purpose, then everything that must not be
            confused, such as run, round and quantity.
        sender : str
            Who encrypts, of 1 to 255 bytes; the server reads it.
        terms : int
            How many shares will be added at most.

        Returns
        -------
        list of bytes
            ⌈n / slots⌉ ciphertexts.

        Raises
        ------
        RangeError
            A value is not finite, or too large for so many terms.
        EncryptionError
            An argument is malformed, or this is an evaluation context.
        """
        self._secret()
        array = np.asarray(values, np.float64)
        if array.ndim != 1 or not 1 <= len(sender.encode()) <= 255:
            raise EncryptionError(
                f"values of shape {array.shape} by sender {sender!r}: expected a "
                "vector, and a text of 1 to 255 bytes"
            )
        integers = self.coding.integers(array, check_terms(terms))
        result = []
        for index in range(self.blocks(array.size)):
            part = integers[index * self.slots : (index + 1) * self.slots]
            # random, never counted: nothing to forget, and nothing a server chooses
            share = sender, secrets.token_bytes(_NONCE_BYTES)
            use = self._use(label, index, part.size, terms)
            payload = self._seal(np.append(part, 1), use, share)
            result.append(Header(self.fingerprint, terms, (share,)).pack(payload))
        return result

    def add(self, vectors: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Add encrypted vectors; the secret is not needed.

        Raises
        ------
        EncryptionError
            There is none, one is malformed, or they are of several keys or lengths.
        """
        if len({len(vector) for vector in vectors}) != 1:
            raise EncryptionError("encrypted vectors have different lengths")
        result = []
        for blobs in zip(*vectors, strict=True):
            headers, payloads = zip(*map(split_blob, blobs), strict=True)
            if len({(one.fingerprint, one.terms) for one in headers}) > 1:
                raise EncryptionError("ciphertexts are of several keys or sums")
            shares = tuple(share for one in headers for share in one.shares)
            if len(shares) > headers[0].terms or len(set(shares)) < len(shares):
                raise EncryptionError("a share is there twice, or there are too many")
            header = headers[0]._replace(shares=shares)
            result.append(header.pack(self._add_payloads(payloads)))
        return result

    def decrypt(
        self,
        blobs: Sequence[bytes],
        label: Label,
        count: int,
        senders: Sequence[str] | None,
    ) -> FloatArray:
        """Decrypt a sum of shares.

        Parameters
        ----------
        blobs : sequence of bytes
            As from :meth:`encrypt` or :meth:`add`.
        label : tuple of str or int
            That of all shares within.
        count : int
            How many numbers each share has.
        senders : sequence of str or None
            Who made the shares, one each; None takes any.

        Returns
        -------
        ndarray of float64, shape (count,)

        Raises
        ------
        RefusedError
            It is not such a sum.
        EncryptionError
            An argument is malformed, or this is an evaluation context.
        """
        self._secret()
        encode_label(label)
        if len(blobs) != self.blocks(count):
            raise RefusedError
        values = np.empty(count)
        for index, blob in enumerate(blobs):
            start = index * self.slots
            part = slice(start, min(count, start + self.slots))
            try:
                header, payload = split_blob(blob)
                use = self._use(label, index, part.stop - start, header.terms)
                integers = self._unseal(payload, use, header.shares)
            except EncryptionError:
                raise RefusedError from None
            if (
                header.fingerprint != self.fingerprint
                or (senders is not None and header.senders != sorted(senders))
                or integers.size != part.stop - start + 1
                or integers[-1] != len(header.shares)
            ):
                raise RefusedError
            values[part] = np.ldexp(integers[:-1].astype(float), -self.coding.bits)
        return values

    def _use(self, label: Label, index: int, size: int, terms: int) -> tuple[Item, ...]:
        return "share", encode_label(label), index, size, terms

    # -- what another backend does otherwise -----------------------------------------

    @classmethod
    def _new_payload(cls) -> bytes:
        """What a new key keeps beside the shared secret."""
        return b""

    def _evaluation_payload(self) -> bytes:
        """What a context keeps; nothing secret."""
        return b""

    def _pad(self, use: tuple[Item, ...], share: tuple[str, bytes], count: int) -> Any:
        stream = Keystream(expand(self._secret(), *use, *share))
        return np.frombuffer(stream.read(8 * count), "<u8")

    def _seal(
        self, integers: IntArray, use: tuple[Item, ...], share: tuple[str, bytes]
    ) -> bytes:
        """Encrypt integers, the last of which counts the share."""
        # c_j = x_j + r_j (mod 2^64)
        words: Words = integers.view(np.uint64) + self._pad(use, share, integers.size)
        return words.astype("<u8", copy=False).tobytes()

    def _unseal(
        self, payload: bytes, use: tuple[Item, ...], shares: Sequence[tuple[str, bytes]]
    ) -> IntArray:
        """Inverse of :meth:`_seal`, of a sum of shares."""
        words = self._words(payload).copy()
        for share in shares:  # one after the other: there may be many
            words -= self._pad(use, share, words.size)
        return words.view(np.int64)

    def _add_payloads(self, payloads: Sequence[bytes]) -> bytes:
        total = self._words(payloads[0]).copy()
        for payload in payloads[1:]:
            if len(payload) != len(payloads[0]):
                raise EncryptionError("ciphertexts have different numbers of values")
            total += self._words(payload)
        return total.astype("<u8", copy=False).tobytes()

    @staticmethod
    def _words(payload: bytes) -> Words:
        if not payload or len(payload) % 8:
            raise EncryptionError(f"ciphertext has {len(payload)} bytes; it is cut")
        return np.frombuffer(payload, "<u8").astype(np.uint64, copy=False)


class PlainCipher(Cipher):
    """The cipher with r = 0: integers in the clear, to find faults with."""

    name = "none"
    parameters = "NO ENCRYPTION"

    def __init__(self, file: KeyFile) -> None:
        super().__init__(file)
        _warn()

    def _pad(self, use: tuple[Item, ...], share: tuple[str, bytes], count: int) -> Any:
        return np.zeros(count, np.uint64)


@cache
def _warn() -> None:
    getLogger("flwr").warning(
        "NO ENCRYPTION: the encryption backend is 'none', everybody on the way reads "
        "every value; use it to find faults, never with data that matters",
    )


#: The three functions, of any backend's cipher.
encrypt_vector = Cipher.encrypt
add_vectors = Cipher.add
decrypt_vector = Cipher.decrypt
