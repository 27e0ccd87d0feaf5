"""Both backends: exact sums, and nothing but sums of honest shares is accepted."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from fedtrellis.encryption import (
    MAX_TERMS,
    PLAIN_MODULUS,
    Cipher,
    EncryptionError,
    Header,
    add_vectors,
    backend_class,
    decrypt_vector,
    encrypt_vector,
    load_evaluation,
    split_blob,
)

BACKENDS = [
    pytest.param(
        "tenseal-bfv",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("tenseal") is None, reason="needs tenseal"
        ),
    ),
    "none",
]
both = pytest.mark.parametrize("backend", BACKENDS)
_integers = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=5)


@cache
def _key(backend: str, which: int = 0) -> Cipher:
    return backend_class(backend).generate()


@cache
def _server(backend: str) -> Cipher:
    return load_evaluation(_key(backend).evaluation_bytes())


def _encrypt(
    cipher: Cipher, integers: Sequence[int], label: str = "x", terms: int = 1000
) -> bytes:
    array = np.array(integers, dtype=np.int64)
    return cipher.encrypt_integers(array, label, terms)


def _decrypt(
    cipher: Cipher, blob: bytes, count: int, label: str = "x", weight: int | None = None
) -> list[int]:
    found: list[int] = cipher.decrypt_integers(blob, label, count, weight).tolist()
    return found


@both
def test_all_slots_come_back_to_the_integer(backend: str) -> None:
    key = _key(backend)
    bound = key.fixed.bound(1)
    values = np.random.default_rng(0).integers(-bound, bound, key.slots, endpoint=True)
    values[:4] = bound, -bound, 0, 1
    blob = key.encrypt_integers(values, "x", 1)
    np.testing.assert_array_equal(key.decrypt_integers(blob, "x", key.slots), values)


@both
def test_real_numbers_are_rounded_once(backend: str) -> None:
    key = _key(backend)
    values = np.random.default_rng(1).standard_normal(100)
    found = key.decrypt(key.encrypt(values, "x", 10), "x", 100)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.rint(values * 2.0**40) * 2.0**-40)


@both
@settings(max_examples=20, deadline=None)
@given(st.lists(_integers, min_size=1, max_size=6), st.integers(-9, 9))
def test_sums_and_integer_multiples(
    backend: str, rows: list[list[int]], factor: int
) -> None:
    key, server = _key(backend), _server(backend)
    size = max(map(len, rows))
    padded = [row + [0] * (size - len(row)) for row in rows]
    total = server.add([_encrypt(key, row) for row in rows])
    expected = [sum(column) for column in zip(*padded, strict=True)]
    assert _decrypt(key, total, size, weight=len(rows)) == expected
    if factor:
        multiple = server.multiply(total, factor)
        found = _decrypt(key, multiple, size, weight=factor * len(rows))
        assert found == [factor * value for value in expected]


def _hundred_thousand(backend: str, levels: Sequence[int]) -> None:
    """Add 100 shares; then sums of them, as often as each level says."""
    key, server = _key(backend), _server(backend)
    assert 100 * np.prod(levels) == 100_000
    rng = np.random.default_rng(2)
    bound = key.fixed.bound(100_000)
    values = rng.integers(-bound, bound, (100, key.slots), endpoint=True)
    values[:, 0] = bound  # as close to the wrap as it gets
    values[:, 1] = -bound
    blobs = [key.encrypt_integers(row, "x", 100_000) for row in values]
    total = server.add(blobs * levels[0])
    for times in levels[1:]:
        total = server.add([total] * times)
    found = key.decrypt_integers(total, "x", key.slots, 100_000)
    np.testing.assert_array_equal(found, 1000 * values.sum(axis=0))
    with pytest.raises(EncryptionError, match="100001 terms would overflow"):
        server.add([total, blobs[0]])


@both
def test_a_sum_of_a_hundred_thousand_in_steps(backend: str) -> None:
    _hundred_thousand(backend, (1, 10, 10, 10))


@pytest.mark.slow
def test_additions_one_by_one() -> None:
    _hundred_thousand("none", (1000,))
    pytest.importorskip("tenseal")
    # the same share again is the worst case: its noise does not cancel
    _hundred_thousand("tenseal-bfv", (100, 10))


@both
def test_the_largest_multiple_is_right(backend: str) -> None:
    key, server = _key(backend), _server(backend)
    bound = key.fixed.bound(MAX_TERMS)
    row = [bound, -bound, 1]
    blob = _encrypt(key, row, terms=MAX_TERMS)
    for factor in (MAX_TERMS, -MAX_TERMS):
        multiple = server.multiply(blob, factor)
        assert _decrypt(key, multiple, 3) == [factor * value for value in row]
        with pytest.raises(EncryptionError, match="would overflow"):
            server.multiply(multiple, 2)
    # and of what was added before: the noise has grown
    total = server.add([blob] * 64)
    multiple = server.multiply(total, MAX_TERMS // 64)
    assert _decrypt(key, multiple, 3) == [MAX_TERMS * value for value in row]
    with pytest.raises(EncryptionError, match="would overflow"):
        server.multiply(total, MAX_TERMS // 64 + 1)


@both
@pytest.mark.parametrize("factor", [0, 1.0, True, "2"])
def test_factors_are_integers(backend: str, factor: int) -> None:
    with pytest.raises(EncryptionError, match="factor"):
        _server(backend).multiply(_encrypt(_key(backend), [1]), factor)


@both
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([np.nan], "not finite"),
        ([1e9], "too large"),
        ([], "shape"),
        (np.zeros(4096), "shape"),
        (np.zeros((2, 2)), "shape"),
    ],
)
def test_what_cannot_be_encrypted(backend: str, values: ArrayLike, reason: str) -> None:
    with pytest.raises(EncryptionError, match=reason):
        _key(backend).encrypt(values, "x", 1)


@both
def test_integers_are_checked_too(backend: str) -> None:
    key = _key(backend)
    with pytest.raises(EncryptionError, match="beyond"):
        _encrypt(key, [key.fixed.bound(7) + 1], terms=7)
    with pytest.raises(EncryptionError, match="beyond"):
        _encrypt(key, [-(2**63)], terms=7)
    with pytest.raises(EncryptionError, match="int64"):
        key.encrypt_integers(np.zeros(2), "x", 1)  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 10_000])
def test_long_vectors(backend: str, size: int) -> None:
    key, server = _key(backend), _server(backend)
    shares = np.random.default_rng(3).standard_normal((3, size))
    vectors = [encrypt_vector(key, share, "x", 3) for share in shares]
    assert len(vectors[0]) == -(-size // 4095)
    total = add_vectors(server, vectors)
    found = decrypt_vector(key, total, "x", size, weight=3)
    np.testing.assert_allclose(found, shares.sum(axis=0), rtol=0, atol=2.0**-39)


@both
def test_blocks_are_not_interchangeable(backend: str) -> None:
    key = _key(backend)
    first, second = encrypt_vector(key, np.ones(4095 + 5), "x", 1)
    with pytest.raises(EncryptionError, match="checksum"):
        decrypt_vector(key, [second, first], "x", 4100)
    for blobs in ([first], [first, second, second]):
        with pytest.raises(EncryptionError, match="has 2 ciphertexts"):
            decrypt_vector(key, blobs, "x", 4100)
    with pytest.raises(EncryptionError, match="checksum"):
        decrypt_vector(key, [first], "x", 4095)
    with pytest.raises(EncryptionError, match="blocks"):
        add_vectors(key, [[first], [first, second]])
    with pytest.raises(EncryptionError, match="blocks"):
        add_vectors(key, [])


# -- what a server might try ----------------------------------------------------------


@both
def test_another_label_count_or_weight_is_refused(backend: str) -> None:
    key, server = _key(backend), _server(backend)
    blob = _encrypt(key, [1, 2, 3])
    for label in ("y", "", "x "):
        with pytest.raises(EncryptionError, match="checksum"):
            _decrypt(key, blob, 3, label)
    with pytest.raises(EncryptionError, match="more than 2 values"):
        _decrypt(key, blob, 2)
    assert _decrypt(key, blob, 5) == [1, 2, 3, 0, 0]
    with pytest.raises(EncryptionError, match="2 shares, expected 3"):
        _decrypt(key, server.add([blob, blob]), 3, weight=3)
    for count in (0, 4096):
        with pytest.raises(EncryptionError, match="count"):
            _decrypt(key, blob, count)


@both
def test_labels_and_terms_do_not_mix(backend: str) -> None:
    key, server = _key(backend), _server(backend)
    mixed = server.add([_encrypt(key, [1], "x"), _encrypt(key, [1], "y")])
    for label in ("x", "y"):
        with pytest.raises(EncryptionError, match="checksum"):
            _decrypt(key, mixed, 1, label)
    with pytest.raises(EncryptionError, match=r"\[5, 6\] terms"):
        server.add([_encrypt(key, [1], terms=5), _encrypt(key, [1], terms=6)])
    with pytest.raises(EncryptionError, match="no ciphertexts"):
        server.add([])


@both
def test_a_false_header_fails_the_checksum(backend: str) -> None:
    key = _key(backend)
    _, payload = split_blob(_encrypt(key, [0, 0]))
    for header in (
        Header(key.fingerprint, 1000, 2, 2),
        Header(key.fingerprint, 1000, -1, 1),
        Header(key.fingerprint, 999, 1, 1),
    ):
        with pytest.raises(EncryptionError, match="checksum"):
            _decrypt(key, header.pack(payload), 2)
    for header in (
        Header(key.fingerprint, 1000, 2, 1),
        Header(key.fingerprint, 1000, 1, 1001),
        Header(key.fingerprint, MAX_TERMS + 1, 1, 1),
        Header(key.fingerprint, 1000, 0, 0),
    ):
        with pytest.raises(EncryptionError, match="malformed"):
            _decrypt(key, header.pack(payload), 2)


@both
def test_factors_that_cancel_are_no_sum(backend: str) -> None:
    key, server = _key(backend), _server(backend)
    one, two = _encrypt(key, [5]), _encrypt(key, [3])
    difference = server.add([one, server.multiply(two, -1)])
    with pytest.raises(EncryptionError, match="factors cancel"):
        _decrypt(key, difference, 1)
    assert _decrypt(key, difference, 1, weight=0) == [2]


def test_zeros_and_a_servers_own_numbers_are_not_accepted() -> None:
    # in the clear, where a server can write whatever it likes
    key = _key("none")
    rng = np.random.default_rng(4)
    for slots in (np.zeros(4096, dtype="<i8"), rng.integers(0, PLAIN_MODULUS, 4096)):
        forged = Header(key.fingerprint, 1000).pack(slots.astype("<i8").tobytes())
        with pytest.raises(EncryptionError, match="checksum"):
            _decrypt(key, forged, 4095)
    header, payload = split_blob(_encrypt(key, [1, 2, 3]))
    for position in (0, 2, 3, 4094, 4095):
        slots = np.frombuffer(payload, dtype="<i8").copy()
        slots[position] += 1
        with pytest.raises(EncryptionError, match="checksum"):
            _decrypt(key, header.pack(slots.tobytes()), 3)


@both
def test_another_key_is_refused(backend: str) -> None:
    key, other = _key(backend), _key(backend, 1)
    blob = _encrypt(key, [1, 2])
    for action in (
        lambda: _decrypt(other, blob, 2),
        lambda: other.add([blob]),
        lambda: other.multiply(blob, 2),
    ):
        with pytest.raises(EncryptionError, match="is of key"):
            action()
    _, payload = split_blob(blob)
    with pytest.raises(EncryptionError, match="checksum"):
        _decrypt(other, Header(other.fingerprint, 1000).pack(payload), 2)


def test_another_backends_blobs_are_refused() -> None:
    pytest.importorskip("tenseal")
    bfv, none = _key("tenseal-bfv"), _key("none")
    for key, source in ((bfv, none), (none, bfv)):
        _, payload = split_blob(_encrypt(source, [1]))
        forged = Header(key.fingerprint, 1000).pack(payload)
        for action in (key.add, lambda blobs, key=key: _decrypt(key, blobs[0], 1)):
            with pytest.raises(EncryptionError):
                action([forged])
        with pytest.raises(EncryptionError, match="is of backend"):
            type(key).from_bytes(source.secret_bytes())


def _outcome(key: Cipher, blob: bytes, count: int) -> list[int] | str:
    """The numbers, or the reason why there are none."""
    try:
        return _decrypt(key, blob, count)
    except EncryptionError as error:
        return str(error)


def _never_wrong(key: Cipher, blob: bytes, expected: list[int]) -> bool:
    """Whether a damaged blob is refused; the right numbers are all else it may give."""
    server, count = _server(key.name), len(expected)
    outcome = _outcome(key, blob, count)
    assert outcome == expected or (isinstance(outcome, str) and "\n" not in outcome)
    # and so for what a server makes of it
    doubled = [2 * value for value in expected]
    for number in range(2):
        try:
            changed = server.multiply(blob, 2) if number else server.add([blob, blob])
        except EncryptionError:
            continue
        later = _outcome(key, changed, count)
        assert isinstance(later, str) or later == doubled
    return isinstance(outcome, str)


@both
def test_cut_or_lengthened_blobs_are_refused(backend: str) -> None:
    key = _key(backend)
    fresh = _encrypt(key, [1, 2, 3])
    for blob in (fresh, key.add([fresh, fresh])):
        cuts = [*range(60), *range(60, len(blob), len(blob) // 50), len(blob) - 1]
        for length in cuts:
            with pytest.raises(EncryptionError):
                _decrypt(key, blob[:length], 3)
        for extra in (b"\0", bytes(200_000)):
            with pytest.raises(EncryptionError):
                _decrypt(key, blob + extra, 3)


@both
@pytest.mark.parametrize("summed", [False, True])
def test_flipped_bits_never_give_wrong_numbers(backend: str, summed: bool) -> None:
    key = _key(backend)
    values, blob = [1, 2, 3], _encrypt(key, [1, 2, 3])
    if summed:
        blob, values = key.add([blob, blob]), [2, 4, 6]
    rng = np.random.default_rng(5)
    # every bit of the headers (ours, SEAL's, the compressor's), and some of the rest
    positions = [*range(8 * 100), *rng.integers(800, 8 * len(blob), 400).tolist()]
    refused = 0
    for position in positions:
        damaged = bytearray(blob)
        damaged[position // 8] ^= 1 << position % 8
        refused += _never_wrong(key, bytes(damaged), values)
    assert refused > 0.9 * len(positions)


@both
def test_random_bytes_are_refused(backend: str) -> None:
    key = _key(backend)
    rng = np.random.default_rng(6)
    header, payload = split_blob(_encrypt(key, [1]))
    for size in (0, 1, 23, 24, 25, 1000, len(payload), 130_000):
        noise = rng.bytes(size)
        seal = payload[:8] + size.to_bytes(8, "little") + noise[16:]
        for blob in (noise, header.pack(noise), header.pack(seal)):
            with pytest.raises(EncryptionError):
                _decrypt(key, blob, 1)
            with pytest.raises(EncryptionError):
                key.add([_encrypt(key, [1]), blob, blob])
    with pytest.raises(EncryptionError, match="bytes, not str"):
        key.add(["text"])  # type: ignore[list-item]


# -- keys -----------------------------------------------------------------------------


@both
def test_the_context_adds_and_does_nothing_else(backend: str) -> None:
    key, server = _key(backend), _server(backend)
    assert (key.has_secret, server.has_secret) == (True, False)
    assert key.fingerprint == server.fingerprint != _key(backend, 1).fingerprint
    blob = _encrypt(key, [4])
    assert _decrypt(key, server.add([blob, blob]), 1) == [8]
    for action in (
        lambda: server.encrypt([1.0], "x", 1),
        lambda: server.decrypt(blob, "x", 1),
        lambda: server.mac("p", b""),
        server.secret_bytes,
    ):
        with pytest.raises(EncryptionError, match="needs the clients' key"):
            action()
    assert server.evaluation_bytes() == key.evaluation_bytes()
    assert len(key.evaluation_bytes()) < 400


@both
def test_keys_are_read_back(backend: str) -> None:
    key = backend_class(backend).generate(bits=30)
    again = type(key).from_bytes(key.secret_bytes())
    assert again.fingerprint == key.fingerprint
    assert again.fixed == key.fixed
    assert again.fixed.bits == 30
    assert again.mac("p", b"data") == key.mac("p", b"data")
    blob = key.encrypt([1.5], "x", 2)
    assert again.decrypt(again.add([blob, again.encrypt([2], "x", 2)]), "x", 1) == [3.5]


@both
def test_damaged_keys_are_refused(backend: str) -> None:
    key = _key(backend)
    for data in (key.secret_bytes(), key.evaluation_bytes()):
        positions = [*range(min(len(data), 80)), len(data) // 2, len(data) - 1]
        for position in positions:
            damaged = bytearray(data)
            damaged[position] ^= 4
            with pytest.raises(EncryptionError):
                type(key).from_bytes(bytes(damaged))
            with pytest.raises(EncryptionError):
                type(key).from_bytes(data[:position])


def test_macs_are_separated_by_purpose() -> None:
    key = _key("none")
    macs = {
        key.mac("a", b"bc"),
        key.mac("ab", b"c"),
        key.mac("", b"abc"),
        _key("none", 1).mac("a", b"bc"),
    }
    assert len(macs) == 4
    assert {len(mac) for mac in macs} == {32}


@both
def test_a_cipher_shows_and_pickles_no_secret(backend: str) -> None:
    key = _key(backend)
    assert repr(key) == f"{type(key).__name__}(key {key.fingerprint})"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


def test_no_encryption_is_loud_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = importlib.import_module("fedtrellis.encryption.plain")
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(plain, "log", lambda *line: lines.append(line))
    plain._warn.cache_clear()
    for _ in range(3):
        plain.PlainCipher.generate()
    ((level, text),) = lines
    assert level == logging.WARNING
    assert text.startswith("NO ENCRYPTION")


_WITHOUT_TENSEAL = """
import sys
import fedtrellis.encryption as encryption
assert "tenseal" not in sys.modules
encryption.backend_class("none").generate()
cls = encryption.backend_class("tenseal-bfv")
assert "tenseal" not in sys.modules
sys.modules["tenseal"] = None
try:
    cls.generate()
except encryption.EncryptionError as error:
    assert 'pip install "fedtrellis[encryption]"' in str(error), error
else:
    raise SystemExit("not refused")
"""


def test_tenseal_is_imported_when_it_is_needed() -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT_TENSEAL], check=True, cwd=os.curdir)
