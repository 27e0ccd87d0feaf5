"""Rows where the spans of two windows of uploads meet in one direction.

A window in which fewer samples move than it has uploads shows their span, whatever
their coefficients are. If the samples of two windows have one in common, their spans
meet in its row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .truth import Array

__all__ = ["rows_in_spans"]


def rows_in_spans(
    steps: Array, windows: Sequence[tuple[int, int]], noise: float = 1e-8
) -> Array:
    """Claim the directions in which the spans of two windows meet.

    Parameters
    ----------
    steps : ndarray of shape (T, p)
        V_t without what is known to be in it: V_t − w_t is what the samples that move
        add, since w_t is the sum of where they are.
    windows : sequence of (int, int)
        First and last + 1.
    noise : float
        Singular values below this share of the largest are rounding.

    Returns
    -------
    ndarray of shape (k, p)
        Spans of dimension one, and meets of dimension one.
    """
    spans: list[Array] = []
    p = steps.shape[1]
    for start, stop in windows:
        _, values, right = np.linalg.svd(steps[start:stop], full_matrices=False)
        rank = int((values > noise * values[0]).sum()) if values[0] > 0.0 else 0
        if 0 < rank < min(stop - start, p):
            spans.append(right[:rank])
    claims = [span for span in spans if len(span) == 1]
    for one, other in itertools.combinations(spans, 2):
        if len(one) + len(other) > p:
            continue  # any two of them meet
        left, cosines, _ = np.linalg.svd(one @ other.T)
        if (cosines > 1.0 - noise).sum() == 1:
            claims.append(left[:, :1].T @ one)
    return np.vstack([np.zeros((0, p)), *claims])
