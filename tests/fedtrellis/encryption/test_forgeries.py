"""What a server that knows the format makes of shares: nothing of it is accepted.

Everything here is done to payloads and headers of shares that clients have made, as a
server could; the stream cipher's are words modulo 2^64 and residues modulo p, those of
BFV go through TenSEAL's own arithmetic.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.encryption import (
    FIELD_MODULUS,
    PLAIN_MODULUS,
    Cipher,
    EncryptionError,
    Header,
    Label,
    decrypt_vector,
    split_blob,
)
from fedtrellis.encryption.blob import Share
from fedtrellis.encryption.tenseal_format import plain_form, unwrap, wrap

from .ciphers import (
    LABEL,
    TERMS,
    adder_of,
    decrypted,
    encrypted,
    every,
    key_of,
    outcome,
)

_VALUES = {"a": [5, -7, 0], "b": [1, 2, 0], "c": [100, 0, 0], "d": [2, 2, 2]}
_CHECKS = -1, -2  # slots: the checksums instead of values


@cache
def _share(backend: str, sender: str, label: Label = LABEL, which: int = 0) -> bytes:
    """One of the shares that a server has got."""
    return encrypted(key_of(backend, which), _VALUES[sender], sender, label)


def _sum_of(values: Sequence[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*values, strict=True)]


# -- a server's arithmetic ------------------------------------------------------------


def _words(payload: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(payload) // 8}Q", payload))


def _packed(words: Sequence[int]) -> bytes:
    checks = [word % FIELD_MODULUS for word in words[:2]]
    values = [word % 2**64 for word in words[2:]]
    return struct.pack(f"<{len(words)}Q", *checks, *values)


def _vector(payload: bytes) -> Any:
    from fedtrellis.encryption import bfv

    cipher: Any = key_of("tenseal-bfv")
    plain = plain_form(payload, bfv._PARAMETERS_HASH, bfv.DEGREE)
    return cipher._cpp.BFVVector(cipher._context, wrap(plain, bfv.DEGREE))


def _combined(backend: str, parts: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the payload of Σ factor · blob."""
    payloads = [(factor, split_blob(blob)[1]) for factor, blob in parts]
    if backend != "tenseal-bfv":
        words = [[factor * w for w in _words(data)] for factor, data in payloads]
        return _packed([sum(column) for column in zip(*words, strict=True)])
    total: Any = None
    for factor, data in payloads:
        vector = _vector(data)
        if factor != 1:
            half = PLAIN_MODULUS // 2
            centred = (factor + half) % PLAIN_MODULUS - half
            if not centred:  # SEAL refuses to make transparent ciphertexts
                continue
            vector.mul_plain_([centred] * 4096)
        if total is None:
            total = vector
        else:
            total.add_(vector)
    return unwrap(total.serialize())


def _shifted(backend: str, payload: bytes, slot: int, amount: int) -> bytes:
    """Return a payload with something added to one of its numbers."""
    if backend != "tenseal-bfv":
        words = _words(payload)
        words[slot + 2] += amount  # −2 and −1 are the checksums, in front
        return _packed(words)
    vector = _vector(payload)
    half = PLAIN_MODULUS // 2
    numbers = [0] * 4096
    numbers[slot] = (amount + half) % PLAIN_MODULUS - half
    vector.add_plain_(numbers)
    return unwrap(vector.serialize())


def _header(backend: str, *shares: Share, terms: int = TERMS) -> Header:
    return Header(key_of(backend).fingerprint, terms, shares)


def _refused(
    backend: str,
    blob: bytes,
    senders: Sequence[str] | None,
    label: Label = LABEL,
    key: Cipher | None = None,
) -> None:
    key = key or key_of(backend)
    for asked in (senders, None):
        assert outcome(key, blob, 3, asked, label) is None
    with pytest.raises(EncryptionError, match="refused"):
        decrypt_vector(key, [blob], label, 3, senders)


# -- combinations ---------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "factors",
    [
        (2, 0),
        (3, -1),
        (1_000_001, -999_999),
        (-1, 1),
        (1, 2),
        (2, 2),
        # each half of p + 1: both together would be (a + b)/2, and twice that
        ((PLAIN_MODULUS + 1) // 2, (PLAIN_MODULUS + 1) // 2),
        ((FIELD_MODULUS + 1) // 2, (FIELD_MODULUS + 1) // 2),
        (PLAIN_MODULUS + 2, 1),
        (FIELD_MODULUS + 2, 1),
        (2**64 + 2, 1),
    ],
)
def test_combinations_that_are_no_sum(backend: str, factors: tuple[int, int]) -> None:
    blobs = [_share(backend, sender) for sender in "ab"]
    payload = _combined(backend, list(zip(factors, blobs, strict=True)))
    one, two = (split_blob(blob)[0].shares[0] for blob in blobs)
    other = split_blob(_share(backend, "c"))[0].shares[0]
    for shares in ((one,), (two,), (one, two), (two, one), (one, two, other)):
        senders = [sender for sender, _ in shares]
        _refused(backend, _header(backend, *shares).pack(payload), senders)


@every
def test_the_arithmetic_of_these_tests_makes_sums(backend: str) -> None:
    # or nothing here would be a forgery
    blobs = [_share(backend, sender) for sender in "ab"]
    shares = [split_blob(blob)[0].shares[0] for blob in blobs]
    payload = _combined(backend, [(1, blob) for blob in blobs])
    blob = _header(backend, *shares).pack(payload)
    expected = _sum_of([_VALUES["a"], _VALUES["b"]])
    assert decrypted(key_of(backend), blob, 3, ["a", "b"]) == expected
    unchanged = _header(backend, *shares).pack(_shifted(backend, payload, 0, 0))
    assert decrypted(key_of(backend), unchanged, 3, ["b", "a"]) == expected


@every
def test_a_share_counts_once(backend: str) -> None:
    blob = _share(backend, "a")
    doubled = _combined(backend, [(1, blob), (1, blob)])
    (mine,) = split_blob(blob)[0].shares
    again = split_blob(encrypted(key_of(backend), _VALUES["a"], "a"))[0].shares[0]
    for shares in ((mine,), (mine, mine), (mine, again), (mine, ("b", mine[1]))):
        forged = _header(backend, *shares).pack(doubled)
        _refused(backend, forged, [sender for sender, _ in shares])
        _refused(backend, forged, ["a", "b"])
    with pytest.raises(EncryptionError, match="twice"):
        adder_of(backend).add([blob, blob])


# -- which shares ---------------------------------------------------------------------


def _subsets(names: str) -> Iterator[tuple[str, ...]]:
    for size in range(1, len(names) + 1):
        yield from itertools.combinations(names, size)


@every
def test_the_pinned_senders_are_in_the_sum_and_nobody_else(backend: str) -> None:
    key, server = key_of(backend), adder_of(backend)
    for there in _subsets("abcd"):
        total = server.add([_share(backend, sender) for sender in there])
        expected = _sum_of([_VALUES[sender] for sender in there])
        assert outcome(key, total, 3, there) == expected
        for asked in _subsets("abcd"):
            if asked != there:
                assert outcome(key, total, 3, asked) is None
        assert outcome(key, total, 3, [*there, there[0]]) is None
        assert outcome(key, total, 3, []) is None
    # two of one sender, where one of each of two is asked for
    twice = server.add([_share(backend, "a"), encrypted(key, [1, 1, 1], "a")])
    assert outcome(key, twice, 3, ["a", "b"]) is None
    assert outcome(key, twice, 3, ["a"]) is None


@every
def test_a_header_cannot_lie(backend: str) -> None:
    key = key_of(backend)
    total = adder_of(backend).add([_share(backend, sender) for sender in "abc"])
    header, payload = split_blob(total)
    names = dict(header.shares)
    fresh = encrypted(key, [0, 0, 0], "d")
    lies: list[tuple[Share, ...]] = [
        # one left out, renamed, swapped, or with another nonce
        header.shares[:2],
        (("d", names["a"]), *header.shares[1:]),
        (("a", names["b"]), ("b", names["a"]), ("c", names["c"])),
        (("a", bytes(16)), *header.shares[1:]),
        (("a", names["a"][::-1]), *header.shares[1:]),
        (*header.shares, ("d", bytes(16))),
        (*header.shares, split_blob(fresh)[0].shares[0]),
        # sender and nonce, cut elsewhere
        (("a" + chr(names["a"][0] & 127), names["a"][1:] + b"\0"), *header.shares[1:]),
    ]
    for shares in lies:
        blob = replace(header, shares=shares).pack(payload)
        for senders in ([sender for sender, _ in shares], list("abc")):
            _refused(backend, blob, senders)
    for terms in (3, TERMS - 1, TERMS + 1, 2**24, 2**24 + 1, 2):
        _refused(backend, replace(header, terms=terms).pack(payload), list("abc"))
    mark = key_of(backend, 1).fingerprint
    _refused(backend, replace(header, fingerprint=mark).pack(payload), list("abc"))
    # in another order it is the same sum
    turned = replace(header, shares=header.shares[::-1]).pack(payload)
    assert outcome(key, turned, 3, list("abc")) == outcome(key, total, 3, None)


@every
def test_shares_of_other_purposes_runs_waves_groups_and_steps(backend: str) -> None:
    purpose, session, wave, group = LABEL
    others: list[Label] = [
        ("w", session, wave, group),
        (purpose, "session 2", wave, group),
        (purpose, session, 2, group),
        (purpose, session, wave, 1),
        (purpose, session, str(wave), group),
        (purpose, session, wave),
        (purpose, session, wave, group, 0),
    ]
    server = adder_of(backend)
    for label in others:
        old = _share(backend, "a", label)
        mixed = server.add([old, _share(backend, "b")])
        for asked in (LABEL, label):
            _refused(backend, mixed, ["a", "b"], asked)
        _refused(backend, old, ["a"])
    # another run under the same names has another context, and another key is another
    key = key_of(backend)
    run, old_run = key.bound("digest 1"), key.bound("digest 2")
    blobs = [encrypted(old_run, [1, 1, 1], "a"), encrypted(run, [1, 1, 1], "b")]
    for cipher in (run, old_run, key):
        _refused(backend, server.add(blobs), ["a", "b"], key=cipher)
        assert outcome(cipher, blobs[0], 3, ["a"]) == (
            [1, 1, 1] if cipher is old_run else None
        )
    stranger = _share(backend, "a", which=1)
    header, payload = split_blob(stranger)
    for forged in (stranger, _header(backend, *header.shares).pack(payload)):
        _refused(backend, forged, ["a"])


@every
def test_another_number_of_values_is_refused(backend: str) -> None:
    key = key_of(backend)
    blob = _share(backend, "a")
    for count in (1, 2, 4, 100):
        assert outcome(key, blob, count, ["a"]) is None
    header, payload = split_blob(encrypted(key, [5, 0, 0], "a"))
    if backend == "tenseal-bfv":
        # slots without a value are zero
        altered = _shifted(backend, payload, 3, 1)
        assert outcome(key, header.pack(altered), 3, ["a"]) is None
    else:
        # zeros at the end are values, too; and a server cannot make one
        assert outcome(key, header.pack(payload[:-8]), 2, ["a"]) is None
        for word in (bytes(8), payload[-8:]):
            assert outcome(key, header.pack(payload + word), 4, ["a"]) is None


# -- which values ---------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "amount",
    [
        1,
        -1,
        2**40,
        2**58,
        # 2^63 added to a slot passes two checksums modulo 2^64 one time in four
        2**63,
        2**62,
        2**61,
        # a multiple of p added to a slot changes no checksum at all
        FIELD_MODULUS,
        -FIELD_MODULUS,
        2 * FIELD_MODULUS,
        7 * FIELD_MODULUS,
        2**64 - FIELD_MODULUS,
    ],
)
def test_values_and_checksums_cannot_be_altered(backend: str, amount: int) -> None:
    total = adder_of(backend).add([_share(backend, sender) for sender in "ab"])
    header, payload = split_blob(total)
    for slot in (0, 2, *_CHECKS):
        altered = _shifted(backend, payload, slot, amount)
        changes = amount % (FIELD_MODULUS if slot < 0 else 2**64)
        if backend == "tenseal-bfv" or changes:
            _refused(backend, header.pack(altered), ["a", "b"])
    # and both checksums alike
    both = _shifted(backend, _shifted(backend, payload, -1, amount), -2, amount)
    if backend == "tenseal-bfv" or amount % FIELD_MODULUS:
        _refused(backend, header.pack(both), ["a", "b"])


def test_checksums_are_residues_and_in_order() -> None:
    header, payload = split_blob(_share("stream", "a"))
    one, two, *values = _words(payload)
    assert outcome(key_of("stream"), header.pack(payload), 3) == _VALUES["a"]
    for checks in (
        (two, one),
        (one, one),
        (0, 0),
        (one + FIELD_MODULUS, two),
        (one, two + FIELD_MODULUS),
        (one, 2**64 - 1),
    ):
        forged = struct.pack("<5Q", *checks, *values)
        _refused("stream", header.pack(forged), ["a"])


@settings(max_examples=300, deadline=None)
@given(
    shifts=st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5),
    values=st.lists(st.integers(-(2**50), 2**50), min_size=3, max_size=3),
)
def test_a_refusal_tells_a_server_what_it_knew(
    shifts: list[int], values: list[int]
) -> None:
    """Whether a change is accepted depends on the change alone, never on the values."""
    key = key_of("stream")
    header, payload = split_blob(encrypted(key, values))
    words = [w + d for w, d in zip(_words(payload), shifts, strict=True)]
    found = outcome(key, header.pack(_packed(words)), 3, ["a"])
    nothing = not any(shifts[2:]) and not any(d % FIELD_MODULUS for d in shifts[:2])
    assert found == (values if nothing else None)


@pytest.mark.parametrize("sign", [1, -1])
def test_values_at_the_edge_cannot_be_moved_by_the_modulus(sign: int) -> None:
    """What p is added to is out of range, or was before; never another number."""
    key = key_of("stream")
    for terms in (1, 3, TERMS):
        bound = sign * key.fixed.bound(terms)
        header, payload = split_blob(encrypted(key, [bound, 0, 1], terms=terms))
        for slot, multiple in itertools.product(range(3), range(-8, 9)):
            altered = _shifted("stream", payload, slot, multiple * FIELD_MODULUS)
            found = outcome(key, header.pack(altered), 3, ["a"])
            assert found == ([bound, 0, 1] if not multiple else None)


def test_zeros_and_a_servers_own_numbers_are_not_accepted() -> None:
    # in the clear, where a server can write whatever it likes
    rng = np.random.default_rng(4)
    for backend in ("none", "stream"):
        (share,) = split_blob(_share(backend, "a"))[0].shares
        own = rng.integers(0, FIELD_MODULUS, 5).tolist()
        for words in ([0] * 5, own, [*own[:2], 0, 0, 0], [0, 0, *own[2:]]):
            for shares in ((share,), (("a", bytes(16)),)):
                blob = _header(backend, *shares).pack(_packed(words))
                _refused(backend, blob, ["a"])


def test_another_backends_payloads_are_refused() -> None:
    pytest.importorskip("tenseal")
    for backend, other in itertools.permutations(("stream", "tenseal-bfv", "none"), 2):
        header, payload = split_blob(_share(other, "a"))
        forged = _header(backend, *header.shares).pack(payload)
        _refused(backend, forged, ["a"])
        with pytest.raises(EncryptionError, match="is of backend"):
            type(key_of(backend)).from_bytes(key_of(other).secret_bytes())
