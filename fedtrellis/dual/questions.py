"""Digests of what HyFDCA's clients are asked, which the masks of a sum depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtrellis.encryption.labels import encode_items
from fedtrellis.wire.arrays import FloatArray

__all__ = ["inputs_digest", "query_of", "weights_mark"]

# What a client's answer depends on, of what it is asked.
_INPUTS = (
    *("propose", "local", "rows", "versions", "report", "second-report", "groups"),
    *("steps", "alpha-ids", "mix-counts", "mix-ids", "mix-weights"),
    *("keep-counts", "keep-ids"),
)


def inputs_digest(entries: Mapping[str, Any], weights: FloatArray) -> bytes:
    """Return a digest of what one client is asked: entries, ciphertexts and weights.

    Parameters
    ----------
    entries : mapping
        Of the request's config; ciphertexts under ``scores/…``.
    weights : ndarray of float64, shape (r, p_k)
    """
    lists = json.dumps([[key, list(entries.get(key, []))] for key in _INPUTS])
    names = sorted(key for key in entries if key.startswith("scores/"))
    blobs = [blob for name in names for blob in (name.encode(), *entries[name])]
    shape = [int(n) for n in weights.shape]
    data = weights_mark(weights)
    return hashlib.sha256(
        encode_items(lists, len(blobs), *blobs, *shape, data)
    ).digest()


def weights_mark(w: FloatArray) -> bytes:
    """Return a digest of some weights; −0 is 0, as it may be after its way here."""
    return hashlib.sha256((np.ascontiguousarray(w, "<f8") + 0.0).tobytes()).digest()


def query_of(marks: Sequence[bytes]) -> str:
    """Return a digest of the weights that all members are asked at, one mark each.

    Shares of inner products have it in their labels. Each client checks its own mark,
    so that no share counts for other weights than those that it was made at.
    """
    return hashlib.sha256(encode_items(*marks)).hexdigest()
