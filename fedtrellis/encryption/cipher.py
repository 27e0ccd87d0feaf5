"""Additively homomorphic encryption of vectors: a server adds what it cannot read.

Of numbers and a last one, which counts shares, as integers x, a share carries

    c_j = x_j + r_j   (mod 2^64),

r the keystream of a key that belongs to this share alone, so that the sum of shares
less the sum of their r is the sum of their x (Castelluccia, Mykletun, Tsudik,
"Efficient Aggregation of Encrypted Data in Wireless Sensor Networks", MobiQuitous
2005, with AES-256 in counter mode). It takes 8 bytes a number, of a share and of a sum.
"""

from __future__ import annotations

import importlib
import secrets
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from logging import getLogger
from pathlib import Path
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
)
from fedtrellis.encryption.node_file import KeyFile, create_file, load_file, read_file
from fedtrellis.encryption.symmetric import (
    KEY_BYTES,
    Item,
    Keystream,
    Label,
    encode_items,
    expand,
)

#: Where each backend is, by its name; imported when it is needed.
BACKENDS = {
    "stream": ("fedtrellis.encryption.cipher", "Cipher"),
    "tenseal-bfv": ("fedtrellis.encryption.bfv", "BfvCipher"),
    "none": ("fedtrellis.encryption.cipher", "PlainCipher"),
}

_NONCE_BYTES = 16
_MAGIC = b"FTC3"
# magic, fingerprint, terms, number of shares
_LAYOUT = struct.Struct("<4s8sII")


class Header(NamedTuple):
    """What a ciphertext says of itself: its key, and what was added.

    Its numbers left room for ``terms`` shares; of each there is sender and nonce.
    """

    fingerprint: str
    terms: int
    shares: tuple[tuple[str, bytes], ...]

    def pack(self, payload: bytes) -> bytes:
        """Return header and payload as one blob."""
        mark, count = bytes.fromhex(self.fingerprint), len(self.shares)
        parts = [_LAYOUT.pack(_MAGIC, mark, self.terms, count)]
        for sender, nonce in self.shares:
            name = sender.encode()
            parts += [bytes([len(name)]), name, nonce]
        return b"".join([*parts, payload])


def split_blob(blob: bytes) -> tuple[Header, bytes]:
    """Return a blob's header and its payload; EncryptionError if it is malformed."""
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
    other. An EncryptionError: a context is asked for what takes the secret.

    A ciphertext has ``slots`` numbers at most; a longer vector takes several.
    ``fingerprint`` is the same for a key, its context and all that is bound.
    """

    name: ClassVar[str] = "stream"
    parameters: ClassVar[str] = "AES-256 in counter mode, sums modulo 2^64"
    slots: ClassVar[int] = 2**31
    #: Integers of a sum stay within ±2^(word − 1).
    word: ClassVar[int] = 64

    def __init__(self, file: KeyFile) -> None:
        self._file = file
        self._root = file.secret and expand(file.secret, "cipher", self.name)
        self.coding = Coding(file.bits, self.word)
        self.fingerprint = file.fingerprint

    def __repr__(self) -> str:
        kind = "key" if self._root else "evaluation context"
        return f"{type(self).__name__}({kind} {self.fingerprint})"

    def __reduce__(self) -> NoReturn:
        # a pickle would carry the key wherever it happens to be sent
        raise TypeError("a cipher cannot be pickled; use secret_bytes() with care")

    @classmethod
    def generate(cls) -> Self:
        """Make a new key."""
        return cls.from_secret(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_secret(cls, secret: bytes) -> Self:
        """Make the cipher of a secret of 32 bytes that several clients have."""
        return cls(KeyFile(cls.name, Coding().bits, cls._new_payload(), secret))

    @staticmethod
    def from_bytes(data: bytes) -> Cipher:
        """Read a key or an evaluation context, of any backend; else EncryptionError."""
        file = KeyFile.from_bytes(data)
        return backend_class(file.backend)(file)

    def secret_bytes(self) -> bytes:
        """Return the key; whoever has it reads everything. Not of what is bound."""
        if self._file.secret is None:
            raise EncryptionError("this needs the clients' key, and not one bound")
        return self._file.to_bytes()

    def evaluation_bytes(self) -> bytes:
        """Return what a server needs: nothing in it is secret."""
        payload = self._evaluation_payload()
        return replace(self._file, payload=payload, secret=None).to_bytes()

    def derive(self, *context: Item) -> bytes:
        """Return a secret of 32 bytes for a use of its own; other uses, other ones."""
        return expand(self._secret(), "derive", *context)

    def bound(self, *context: Item) -> Self:
        """Return this key for one context only, such as a run or a group."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._file = replace(self._file, secret=None)
        other._root = expand(self._secret(), "bound", *context)
        return other

    def _secret(self) -> bytes:
        if self._root is None:
            raise EncryptionError("this needs the clients' key: a context can only add")
        return self._root

    def blocks(self, size: int) -> int:
        """Return how many ciphertexts a vector of so many numbers takes."""
        return -(-size // self.slots)

    def encrypt(
        self, values: ArrayLike, label: Label, sender: str, terms: int
    ) -> list[bytes]:
        """Encrypt a vector as a share of a sum, in ⌈n / slots⌉ ciphertexts.

        ``values``, a vector, are rounded to multiples of 2^−bits; ``label`` begins with
        their purpose and has everything that must not be confused, such as run, round
        and quantity. The server reads ``sender``, of 255 bytes at most. At most
        ``terms`` shares will be added, up to ``MAX_TERMS``. A RangeError: a value is
        not finite, or too large for so many.
        """
        self._secret()
        if len(sender.encode()) > 255:
            raise EncryptionError(f"client id {sender!r} has more than 255 bytes")
        array = np.asarray(values, np.float64)
        integers = self.coding.integers(array, terms)
        result = []
        for index in range(self.blocks(array.size)):
            part = integers[self._part(index, array.size)]
            # random, never counted: nothing to forget, and nothing a server chooses
            share = sender, secrets.token_bytes(_NONCE_BYTES)
            use = "share", encode_items(*label), index, part.size, terms
            payload = self._seal(np.append(part, 1), use, share)
            result.append(Header(self.fingerprint, terms, (share,)).pack(payload))
        return result

    def add(self, vectors: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Add encrypted vectors; the secret is not needed.

        An EncryptionError: one is malformed, or they are of several keys or lengths.
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
        """Decrypt a sum of shares, to float64 of shape (count,).

        ``label`` and ``count`` are those of all shares; ``senders`` who made them, one
        each (None takes any). A RefusedError: it is not such a sum.
        """
        self._secret()
        encoded = encode_items(*label)
        if len(blobs) != self.blocks(count):
            raise RefusedError
        values = np.empty(count)
        for index, blob in enumerate(blobs):
            part = self._part(index, count)
            size = part.stop - part.start
            try:
                header, payload = split_blob(blob)
                use = "share", encoded, index, size, header.terms
                integers = self._unseal(payload, use, header.shares)
            except EncryptionError:
                raise RefusedError from None
            names = [name for name, _ in header.shares]
            if (
                header.fingerprint != self.fingerprint
                or (senders is not None and sorted(names) != sorted(senders))
                or integers.size != size + 1
                or integers[-1] != len(names)
            ):
                raise RefusedError
            values[part] = np.ldexp(integers[:-1].astype(float), -self.coding.bits)
        return values

    def _part(self, index: int, count: int) -> slice:
        """The numbers, of so many, that are in a vector's ciphertext ``index``."""
        return slice(index * self.slots, min(count, (index + 1) * self.slots))

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
        "every value; use it to find faults, never with data that matters"
    )


def backend_class(name: str) -> type[Cipher]:
    """Return a backend by its name; EncryptionError if there is none."""
    if name not in BACKENDS:
        allowed = ", ".join(BACKENDS)
        raise EncryptionError(f"encryption = {name!r} is not known; allowed: {allowed}")
    module, attribute = BACKENDS[name]
    found: type[Cipher] = getattr(importlib.import_module(module), attribute)
    return found


def write_key_pair(
    key_path: str | Path, context_path: str | Path, backend: str = "stream"
) -> Cipher:
    """Make a new key, and write it and its evaluation context to new files.

    The key is for the clients (mode 0600): whoever has it reads everything. Nothing in
    the context is secret; it is for the server (mode 0644). Where a file exists or
    cannot be written, that is an EncryptionError and neither is left behind.
    """
    context = Path(context_path).expanduser()
    cipher = backend_class(backend).generate()
    create_file(context, cipher.evaluation_bytes(), 0o644)
    try:
        create_file(key_path, cipher.secret_bytes(), 0o600)
    except BaseException:
        context.unlink(missing_ok=True)
        raise
    return cipher


def load_key(path: str | Path) -> Cipher:
    """Read the clients' key; an EncryptionError if it is none, or open to others."""
    if KeyFile.from_bytes(read_file(path)[0]).secret is None:
        raise EncryptionError(f"{str(path)!r} is an evaluation context, for the server")
    return load_file(path, "key file", Cipher.from_bytes)


def load_evaluation(source: str | Path | bytes) -> Cipher:
    """Read the server's evaluation context, of a file or given as bytes.

    It must not have a secret key, which must never reach a server.
    """
    data = source if isinstance(source, bytes) else read_file(source)[0]
    if KeyFile.from_bytes(data).secret is not None:
        why = "the clients' secret key, which a server must not have"
        raise EncryptionError(f"this contains {why}; give it the context file")
    return Cipher.from_bytes(data)
