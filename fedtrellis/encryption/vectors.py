"""Vectors longer than one ciphertext, as lists of blobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.encryption.blob import split_blob
from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import EncryptionError, RefusedError
from fedtrellis.encryption.labels import Label
from fedtrellis.wire.arrays import FloatArray

__all__ = ["add_vectors", "decrypt_vector", "encrypt_vector"]


def encrypt_vector(
    cipher: Cipher, values: ArrayLike, label: Label, sender: str, terms: int
) -> list[bytes]:
    """Encrypt a vector of any length as a share of a sum.

    Parameters
    ----------
    cipher : Cipher
        With the secret.
    values : array_like of float64, shape (n,)
    label, sender, terms
        As in :meth:`Cipher.encrypt`.

    Returns
    -------
    list of bytes
        ⌈n / slots⌉ ciphertexts, each of which is accepted in its place only.

    Raises
    ------
    EncryptionError
        As :meth:`Cipher.encrypt`.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise EncryptionError(f"values have shape {array.shape}, expected a vector")
    blocks = cipher.blocks(array.size)
    return [
        cipher.encrypt(
            array[index * cipher.slots : (index + 1) * cipher.slots],
            label,
            sender,
            terms,
            (index, blocks),
        )
        for index in range(blocks)
    ]


def add_vectors(cipher: Cipher, vectors: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Add encrypted vectors block by block; the secret is not needed.

    Raises
    ------
    EncryptionError
        There is none, they have different lengths, or as :meth:`Cipher.add`.
    """
    lengths = {len(vector) for vector in vectors}
    if len(lengths) != 1:
        raise EncryptionError(f"vectors have {sorted(lengths)} blocks; expected one")
    return [cipher.add(blocks) for blocks in zip(*vectors, strict=True)]


def decrypt_vector(
    cipher: Cipher,
    blobs: Sequence[bytes],
    label: Label,
    count: int,
    senders: Sequence[str] | None,
) -> FloatArray:
    """Decrypt a vector, and check all of it.

    Parameters
    ----------
    cipher : Cipher
        With the secret.
    blobs : sequence of bytes
        As from :func:`encrypt_vector` or :func:`add_vectors`.
    label : tuple of str or int
    count : int
        Its length n.
    senders : sequence of str or None
        As in :meth:`Cipher.decrypt`; every block has shares of the same senders.

    Returns
    -------
    ndarray of float64, shape (count,)

    Raises
    ------
    RefusedError, EncryptionError
        There are too few or too many blocks, or as :meth:`Cipher.decrypt`.
    """
    if count < 0:
        raise EncryptionError(f"count = {count} must not be negative")
    blocks = cipher.blocks(count)
    if len(blobs) != blocks:
        raise RefusedError
    values = np.empty(count)
    for index, blob in enumerate(blobs):
        start = index * cipher.slots
        stop = min(count, start + cipher.slots)
        integers = cipher.decrypt_integers(
            blob, label, stop - start, senders, (index, blocks)
        )
        if senders is None:
            # whose shares they are is open, but not from block to block
            senders = split_blob(blob)[0].senders
        values[start:stop] = cipher.fixed.dequantize(integers)
    return values
