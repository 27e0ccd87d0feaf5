"""Vectors longer than one ciphertext, as lists of blobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.wire.arrays import FloatArray

__all__ = ["add_vectors", "block_label", "decrypt_vector", "encrypt_vector"]


def block_label(label: str, index: int, blocks: int) -> str:
    """Return the label of one block of a vector, so that blocks cannot be swapped."""
    return f"{label}#{index}/{blocks}"


def encrypt_vector(
    cipher: Cipher, values: ArrayLike, label: str, terms: int
) -> list[bytes]:
    """Encrypt a vector of any length.

    Parameters
    ----------
    cipher : Cipher
        With the secret.
    values : array_like of float64, shape (n,)
    label, terms
        As in :meth:`Cipher.encrypt`; block i of m has the label ``"LABEL#i/m"``.

    Returns
    -------
    list of bytes
        ⌈n / slots⌉ ciphertexts.

    Raises
    ------
    EncryptionError
        As :meth:`Cipher.encrypt`.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise EncryptionError(f"values have shape {array.shape}, expected a vector")
    # all of it first, so that an error speaks of the whole vector
    integers = cipher.fixed.quantize(array, terms)
    starts = range(0, integers.size, cipher.slots)
    return [
        cipher.encrypt_integers(
            integers[start : start + cipher.slots],
            block_label(label, index, len(starts)),
            terms,
        )
        for index, start in enumerate(starts)
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
    label: str,
    count: int,
    weight: int | None = None,
) -> FloatArray:
    """Decrypt a vector, and check all of it.

    Parameters
    ----------
    cipher : Cipher
        With the secret.
    blobs : sequence of bytes
        As from :func:`encrypt_vector` or :func:`add_vectors`.
    label : str
    count : int
        Its length n.
    weight : int, optional
        As in :meth:`Cipher.decrypt`, for every block.

    Returns
    -------
    ndarray of float64, shape (count,)

    Raises
    ------
    EncryptionError
        There are too few or too many blocks, or as :meth:`Cipher.decrypt`.
    """
    blocks = cipher.blocks(count)
    if count < 0 or len(blobs) != blocks:
        raise EncryptionError(
            f"a vector of {count} values has {blocks} ciphertexts, not {len(blobs)}"
        )
    values = np.empty(count)
    for index, blob in enumerate(blobs):
        start = index * cipher.slots
        stop = min(count, start + cipher.slots)
        values[start:stop] = cipher.decrypt(
            blob, block_label(label, index, blocks), stop - start, weight
        )
    return values
