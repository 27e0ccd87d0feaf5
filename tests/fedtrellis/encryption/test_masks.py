"""Zero-sum masks: what the sum keeps, what its terms do not show, and what T hashes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis.encryption.masks import (
    add_masks,
    as_words,
    from_words,
    mask_tag,
    pair_words,
    split_number,
    whole_number,
)

Words = NDArray[np.uint64]
TAG = bytes(32)


def _secret(first: int, second: int) -> bytes:
    return hashlib.sha256(bytes(sorted((first, second)))).digest()


@st.composite
def _holdings(draw: st.DrawFn) -> list[list[int]]:
    """For each client some of the features, in an order of its own."""
    p = draw(st.integers(1, 7))
    subset = st.lists(st.integers(0, p - 1), min_size=1, max_size=p, unique=True)
    return draw(st.lists(subset, min_size=1, max_size=6))


def _mask(holdings: list[list[int]], rows: int, ends: int, terms: list[Words]) -> None:
    """Put every client's masks on its words: its features row by row, the ends."""
    for own, features in enumerate(holdings):
        peers = []
        for other, theirs in enumerate(holdings):
            if other == own:
                continue
            both = sorted(set(features) & set(theirs))
            where = [
                row * len(features) + features.index(m)
                for row in range(rows)
                for m in both
            ]
            where += range(rows * len(features), rows * len(features) + ends)
            peers.append((other, _secret(own, other), np.array(where, dtype=np.int64)))
        add_masks(terms[own], own, peers, TAG)


@settings(max_examples=100, deadline=None)
@given(
    holdings=_holdings(),
    rows=st.integers(1, 2),
    ends=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_masks_cancel_exactly_in_the_sum_over_all_and_in_no_other(
    holdings: list[list[int]], rows: int, ends: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    plain = [
        rng.integers(0, 2**64, rows * len(held) + ends, dtype=np.uint64)
        for held in holdings
    ]
    hidden = [words.copy() for words in plain]
    _mask(holdings, rows, ends, hidden)

    def total(terms: list[Words], who: list[int]) -> dict[Any, int]:
        """Sums modulo 2^64, in Python's integers, by row and feature."""
        sums: dict[Any, int] = {}
        for k in who:
            held = holdings[k]
            places: list[Any] = [(row, m) for row in range(rows) for m in held]
            places += [("end", i) for i in range(ends)]
            for place, word in zip(places, terms[k].tolist(), strict=True):
                sums[place] = (sums.get(place, 0) + word) % 2**64
        return sums

    everybody = list(range(len(holdings)))
    assert total(hidden, everybody) == total(plain, everybody)
    # a place that somebody else has too is hidden in the sum without that one
    for away in everybody:
        rest = [k for k in everybody if k != away]
        seen, true = total(hidden, rest), total(plain, rest)
        for place in seen:
            row, m = place
            shared = row == "end" or m in holdings[away]
            assert (seen[place] == true[place]) is not shared


def test_a_mask_is_of_its_pair_and_its_tag() -> None:
    masks = {
        pair_words(secret, tag, 4).tobytes()
        for secret in (_secret(0, 1), _secret(0, 2))
        for tag in (TAG, b"\1" * 32)
    }
    assert len(masks) == 4
    assert np.array_equal(
        pair_words(_secret(0, 1), TAG, 9)[:4], pair_words(_secret(0, 1), TAG, 4)
    )


# ------------------------------------------------------------------------------ numbers


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=6),
    terms=st.integers(1, 50),
)
def test_numbers_come_back_to_their_resolution(values: list[float], terms: int) -> None:
    array = np.array(values)
    with np.errstate(over="ignore"):
        words = as_words(array, terms) * np.uint64(terms)
    assert np.abs(from_words(words) - terms * array).max() <= terms * 2.0**-40


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=8),
    own=st.floats(-1e12, 1e12),
)
def test_split_numbers_add_up_whatever_their_size(
    numbers: list[float], own: float
) -> None:
    """Exactly, but for 2^-51 a term: as large as they are, as small as their rests."""
    terms = [*numbers, own, -own]
    words = np.zeros(2, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for value in terms:
            words += split_number(np.array([value]), len(terms))
    (found,) = whole_number(words)
    exact = sum(int(np.rint(value)) for value in terms)
    rest = sum(value - np.rint(value) for value in terms)
    assert found == pytest.approx(exact + rest, rel=1e-15, abs=len(terms) * 2.0**-50)


@pytest.mark.parametrize("make", [as_words, split_number])
def test_numbers_that_a_sum_has_no_room_for_are_refused(make: Any) -> None:
    bits = 40 if make is as_words else 0
    limit = 2.0 ** (63 - bits) / 5
    assert len(make(np.array([0.99 * limit]), 5))
    for value in (limit, -limit, np.inf, np.nan):
        with pytest.raises(ValueError, match="cannot be hidden in a sum of 5"):
            make(np.array([value]), 5)


# ------------------------------------------------------------------------ T, and inputs


def test_a_tag_changes_with_every_input() -> None:
    nonces, inputs = [b"a" * 16, b"b" * 16], [b"c" * 32, b"d" * 32]
    tags = [
        mask_tag(b"run", "propose", nonces, inputs),
        mask_tag(b"other", "propose", nonces, inputs),
        mask_tag(b"run", "else", nonces, inputs),
        mask_tag(b"run", "propose", nonces[::-1], inputs),
        mask_tag(b"run", "propose", nonces, inputs[::-1]),
        mask_tag(b"run", "propose", nonces[:1], inputs),
        mask_tag(b"run", "propose", [*nonces, inputs[0]], inputs[1:]),
        mask_tag(b"run", "propose", [b"a" * 15, b"ab" + b"b" * 15], inputs),
    ]
    for k in range(2):
        fresh = [b"x" * 16 if i == k else one for i, one in enumerate(nonces)]
        tags.append(mask_tag(b"run", "propose", fresh, inputs))
        other = [b"x" * 32 if i == k else one for i, one in enumerate(inputs)]
        tags.append(mask_tag(b"run", "propose", nonces, other))
    assert len(set(tags)) == len(tags)
    assert {len(tag) for tag in tags} == {32}
