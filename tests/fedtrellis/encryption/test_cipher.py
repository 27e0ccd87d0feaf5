"""Every backend: exact sums, keys, and what cannot be encrypted or read."""

from __future__ import annotations

import hashlib
import hmac
import importlib
import logging
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher as Aes
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from fedtrellis.encryption import (
    FIELD_MODULUS,
    MAX_TERMS,
    EncryptionError,
    Label,
    RefusedError,
    add_vectors,
    backend_class,
    decrypt_vector,
    encode_label,
    encrypt_vector,
    load_evaluation,
    split_blob,
)
from fedtrellis.encryption.stream import StreamCipher

from .ciphers import (
    LABEL,
    adder_of,
    decrypted,
    encrypted,
    every,
    key_of,
    outcome,
)

_integers = st.lists(st.integers(-(2**46), 2**46), min_size=1, max_size=5)


# -- sums are exact -------------------------------------------------------------------


@every
def test_all_slots_come_back_to_the_integer(backend: str) -> None:
    key = key_of(backend)
    size = min(key.slots, 10_000)
    bound = key.fixed.bound(1)
    assert bound == (key.modulus - 1) // 2
    values = np.random.default_rng(0).integers(-bound, bound, size, endpoint=True)
    values[:4] = bound, -bound, 0, 1
    blob = key.encrypt_integers(values, LABEL, "a", 1)
    found = key.decrypt_integers(blob, LABEL, size, ["a"])
    np.testing.assert_array_equal(found, values)


@every
def test_real_numbers_are_rounded_once(backend: str) -> None:
    key = key_of(backend)
    values = np.random.default_rng(1).standard_normal(100)
    found = key.decrypt(key.encrypt(values, LABEL, "a", 10), LABEL, 100, ["a"])
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.rint(values * 2.0**40) * 2.0**-40)


@every
@settings(max_examples=20, deadline=None)
@given(rows=st.lists(_integers, min_size=1, max_size=6))
def test_sums_are_exact(backend: str, rows: list[list[int]]) -> None:
    key, server = key_of(backend), adder_of(backend)
    size = max(map(len, rows))
    padded = [row + [0] * (size - len(row)) for row in rows]
    blobs = [encrypted(key, row, f"client {i}") for i, row in enumerate(padded)]
    expected = [sum(column) for column in zip(*padded, strict=True)]
    senders = [f"client {i}" for i in range(len(rows))]
    total = server.add(blobs)
    assert decrypted(key, total, size, senders[::-1]) == expected
    # a sum of sums is the same sum, in whatever order
    halves = [server.add(part) for part in (blobs[1:], blobs[:1]) if part]
    assert decrypted(key, server.add(halves), size, senders) == expected


@every
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_as_close_to_the_wrap_as_it_gets(backend: str, sign: int) -> None:
    key, server = key_of(backend), adder_of(backend)
    bound = sign * key.fixed.bound(5)
    blobs = [encrypted(key, [bound, -bound], s, terms=5) for s in "abcde"]
    total = server.add(blobs)
    assert decrypted(key, total, 2, list("abcde")) == [5 * bound, -5 * bound]
    with pytest.raises(EncryptionError, match="sum of 6 shares would overflow"):
        server.add([total, encrypted(key, [0, 0], "f", terms=5)])
    for over in (bound + sign, -bound - sign):
        with pytest.raises(EncryptionError, match="beyond"):
            encrypted(key, [over], terms=5)


def _many(backend: str, count: int) -> None:
    """Add a great many shares; each step's sum is added to the next."""
    key, server = key_of(backend), adder_of(backend)
    rng = np.random.default_rng(2)
    bound = key.fixed.bound(count)
    expected, total = np.zeros(4, dtype=np.int64), None
    for start in range(0, count, 50):
        values = rng.integers(-bound, bound, (50, 4), endpoint=True)
        values[:, 0], values[:, 1] = bound, -bound
        expected += values.sum(axis=0)
        blobs = [
            key.encrypt_integers(row, LABEL, f"{start + i}", count)
            for i, row in enumerate(values)
        ]
        total = server.add(blobs if total is None else [total, *blobs])
    assert total is not None
    senders = [str(i) for i in range(count)]
    found = key.decrypt_integers(total, LABEL, 4, senders)
    np.testing.assert_array_equal(found, expected)


@every
def test_many_shares(backend: str) -> None:
    _many(backend, 200)


@pytest.mark.slow
@every
def test_very_many_shares(backend: str) -> None:
    _many(backend, 5000)


@every
@pytest.mark.parametrize("size", [0, 1, 4094, 4095, 10_000])
def test_long_vectors(backend: str, size: int) -> None:
    key, server = key_of(backend), adder_of(backend)
    shares = np.random.default_rng(3).standard_normal((3, size))
    vectors = [
        encrypt_vector(key, share, LABEL, sender, 3)
        for share, sender in zip(shares, "abc", strict=True)
    ]
    assert len(vectors[0]) == -(-size // key.slots)
    total = add_vectors(server, vectors)
    for senders in (list("abc"), None):
        found = decrypt_vector(key, total, LABEL, size, senders)
        np.testing.assert_allclose(found, shares.sum(axis=0), rtol=0, atol=2.0**-39)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamCipher, "slots", 10)


def test_blocks_are_not_interchangeable(small_blocks: None) -> None:
    key = key_of("stream")
    vectors = {s: encrypt_vector(key, np.ones(25), LABEL, s, 2) for s in "ab"}
    first, second, third = vectors["a"]
    decrypt_vector(key, [first, second, third], LABEL, 25, None)
    other = vectors["b"][1]
    for blobs, count in (
        ([second, first, third], 25),
        ([first, first, third], 25),
        ([first, second], 25),
        ([first, second], 20),
        ([first, second, third, third], 25),
        ([first], 10),
        ([], 25),
        # the same senders in all blocks, whoever they are
        ([first, other, third], 25),
    ):
        for senders in (["a"], None):
            with pytest.raises(RefusedError) as caught:
                decrypt_vector(key, blobs, LABEL, count, senders)
            assert str(caught.value) == str(RefusedError())
    with pytest.raises(EncryptionError, match="blocks"):
        add_vectors(key, [[first], [first, second]])
    with pytest.raises(EncryptionError, match="blocks"):
        add_vectors(key, [])


def test_a_block_is_no_item_of_the_label() -> None:
    key = key_of("stream")
    blob = key.encrypt([1.0], ("v",), "a", 1, (1, 2))
    assert key.decrypt_integers(blob, ("v",), 1, None, (1, 2)) == 2**40
    for label in (("v", 1, 2), ("v",), ("v", 1)):
        with pytest.raises(EncryptionError, match="refused"):
            key.decrypt(blob, label, 1, None)


# -- the stream cipher, written once more ---------------------------------------------


def _items(*items: bytes | str | int) -> bytes:
    out = b""
    for item in items:
        kind = {bytes: b"b", str: b"s", int: b"i"}[type(item)]
        data = item if isinstance(item, bytes) else str(item).encode()
        out += kind + struct.pack("<I", len(data)) + data
    return out


def _hkdf(secret: bytes, size: int, *items: bytes | str | int) -> bytes:
    out = block = b""
    while len(out) < size:
        text = block + _items(*items) + bytes([len(out) // 32 + 1])
        block = hmac.digest(secret, text, hashlib.sha256)
        out += block
    return out[:size]


def _words(key: bytes, count: int) -> list[int]:
    counters = b"".join(i.to_bytes(16, "big") for i in range(count // 2 + 1))
    data = Aes(AES(key), ECB()).encryptor().update(counters)
    return list(struct.unpack(f"<{count}Q", data[: 8 * count]))


def _by_definition(secret: bytes, blob: bytes, label: Label, count: int) -> list[int]:
    """Decrypt a sum with Python's integers, and assert that its checksums are right."""
    terms, shares = struct.unpack_from("<II", blob, 12)
    position, names = 20, []
    for _ in range(shares):
        size = blob[position]
        end = position + 1 + size + 16
        names.append((blob[position + 1 : end - 16].decode(), blob[end - 16 : end]))
        position = end
    numbers = list(struct.unpack_from(f"<{count + 2}Q", blob, position))
    assert len(blob) == position + 8 * (count + 2)
    root = _hkdf(secret, 32, "cipher", "stream")
    keys = _hkdf(root, 64, "sum", encode_label(label), 0, 1, count, terms)
    coefficients = _words(keys[:32], 2 * count)
    values, masks = numbers[2:], [0, 0]
    for sender, nonce in names:
        words = _words(_hkdf(keys[32:], 32, sender, nonce), 4 + count)
        for a in range(2):
            masks[a] += words[2 * a] + (words[2 * a + 1] << 64)
        values = [v - w for v, w in zip(values, words[4:], strict=True)]
    signed = [(v + 2**63) % 2**64 - 2**63 for v in values]
    for a in range(2):
        products = map(int.__mul__, coefficients[a::2], signed)
        assert (sum(products) + masks[a]) % FIELD_MODULUS == numbers[a]
    return signed


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-(2**50), 2**50), min_size=3, max_size=3)),
    label=st.sampled_from([("v",), ("v", "s", 3), ("ünïcode", -1, "")]),
)
def test_the_stream_is_its_definition(rows: list[list[int]], label: Label) -> None:
    secret = bytes(range(32))
    key = StreamCipher.from_secret(secret)
    rows = [*rows, [1, -2, 3]]
    blobs = [encrypted(key, row, f"c{i}", label) for i, row in enumerate(rows)]
    expected = [sum(column) for column in zip(*rows, strict=True)]
    total = adder_of("stream").add(blobs)
    assert _by_definition(secret, total, label, 3) == expected
    assert decrypted(key, total, 3, None, label) == expected


@every
def test_no_keystream_is_used_twice(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("fedtrellis.encryption.sum_keys")
    used: list[bytes] = []

    class Recorded(module.Keystream):  # type: ignore[name-defined,misc]
        def __init__(self, key: bytes) -> None:
            used.append(key)
            super().__init__(key)

    monkeypatch.setattr(module, "Keystream", Recorded)
    secret = key_of(backend).secret_bytes()
    for _ in range(20):
        # a client that has forgotten everything, and is asked for the same again
        key = type(key_of(backend)).from_bytes(secret)
        for bound in (key, key.bound("run"), key.bound("run", 1)):
            for label in (LABEL, LABEL, ("v",)):
                encrypted(bound, [0], "a", label)
    assert len(used) == len(set(used)) == 20 * 3 * 3


def test_ciphertexts_of_the_same_have_nothing_in_common() -> None:
    key = key_of("stream")
    zeros = [encrypted(key, [0] * 50) for _ in range(200)]
    words = np.concatenate(
        [np.frombuffer(split_blob(blob)[1], dtype="<u8") for blob in zeros]
    )
    assert np.unique(words).size == words.size == 200 * 52
    # half of all bits are set; six standard deviations
    bits = np.unpackbits(words.reshape(200, 52)[:, 2:].copy().view(np.uint8))
    assert abs(bits.mean() - 0.5) < 3 / np.sqrt(bits.size)


# -- what callers do wrong ------------------------------------------------------------


@every
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([np.nan], "not finite"),
        ([np.inf, 1.0], "1 of 2 values are not finite"),
        ([2.0**21], "too large"),
        ([1e308], "too large"),
        ([], "shape"),
        (np.zeros(2**20 + 1), "shape"),
        (np.zeros((2, 2)), "shape"),
    ],
)
def test_what_cannot_be_encrypted(backend: str, values: ArrayLike, reason: str) -> None:
    with pytest.raises(EncryptionError, match=reason):
        key_of(backend).encrypt(values, LABEL, "a", 1)


@every
def test_labels_senders_terms_and_integers_are_checked(backend: str) -> None:
    key = key_of(backend)
    for label in ("v", (), ("v", 1.5)):
        with pytest.raises(EncryptionError, match="label"):
            key.encrypt([1.0], label, "a", 1)  # type: ignore[arg-type]
        with pytest.raises(EncryptionError, match="label"):
            key.decrypt(b"", label, 1, None)  # type: ignore[arg-type]
    for sender in ("", "a" * 256, "\ud800", 3, b"a"):
        with pytest.raises(EncryptionError, match="sender"):
            key.encrypt([1.0], LABEL, sender, 1)  # type: ignore[arg-type]
    for terms in (0, MAX_TERMS + 1, True, 1.0):
        with pytest.raises(EncryptionError, match="terms"):
            key.encrypt([1.0], LABEL, "a", terms)  # type: ignore[arg-type]
    with pytest.raises(EncryptionError, match="beyond"):
        encrypted(key, [-(2**63)])
    with pytest.raises(EncryptionError, match="int64"):
        key.encrypt_integers(np.zeros(2), LABEL, "a", 1)  # type: ignore[arg-type]
    blob = encrypted(key, [1])
    for count in (0, key.slots + 1):
        with pytest.raises(EncryptionError, match="count"):
            decrypted(key, blob, count)
    with pytest.raises(EncryptionError, match="senders"):
        key.decrypt(blob, LABEL, 1, "a")


@every
def test_what_a_server_cannot_add(backend: str) -> None:
    key, server = key_of(backend), adder_of(backend)
    one, two = encrypted(key, [1, 2]), encrypted(key, [1, 2], "b")
    for blobs, reason in (
        ([], "no ciphertexts"),
        ([one, one], "twice"),
        ([one, server.add([two, one])], "twice"),
        ([one, encrypted(key, [1, 2], "b", terms=6)], r"\[6, 1000\] terms"),
        ([one, encrypted(key_of(backend, 1), [1, 2], "b")], "of several keys"),
    ):
        with pytest.raises(EncryptionError, match=reason):
            server.add(blobs)
    # two shares of one sender are two shares
    both = server.add([one, encrypted(key, [1, 2])])
    assert decrypted(key, both, 2) == [2, 4]
    with pytest.raises(EncryptionError, match="bytes, not str"):
        server.add(["text"])  # type: ignore[list-item]


def test_shares_of_several_lengths_cannot_be_added() -> None:
    key = key_of("stream")
    with pytest.raises(EncryptionError, match="different numbers of values"):
        key.add([encrypted(key, [1, 2]), encrypted(key, [1], "b")])


# -- headers that lie about sizes, and damage of every kind ---------------------------


def test_a_header_takes_no_more_memory_than_it_has() -> None:
    key = key_of("stream")
    mark = bytes.fromhex(key.fingerprint)
    rest = (b"\x01a" + bytes(16)) * 50
    tracemalloc.start()
    try:
        for terms in (1, MAX_TERMS, 2**32 - 1):
            for count in (0, 51, 10**6, 2**32 - 1):
                head = struct.pack("<3sB8sII", b"FTC", 2, mark, terms, count)
                for action in (split_blob, lambda blob: decrypted(key, blob, 3)):
                    with pytest.raises(EncryptionError):
                        action(head + rest)
        with pytest.raises(EncryptionError, match="refused"):
            decrypted(key, encrypted(key, [1]), key.slots)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def _mutations(blob: bytes, count: int, seed: int) -> list[bytes]:
    """Bits flipped, pieces cut out, doubled, moved and overwritten."""
    rng = np.random.default_rng(seed)
    found = [blob[:length] for length in range(0, min(len(blob), 120))]
    while len(found) < count:
        data, kind = bytearray(blob), rng.integers(5)
        # half of the damage is in the headers
        reach = min(len(data), 120) if rng.integers(2) else len(data)
        i, j = sorted(rng.integers(0, reach, 2).tolist())
        if kind == 0:
            data[i] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del data[i : j + 1]
        elif kind == 2:
            data[i:i] = data[i:j] or b"\0"
        elif kind == 3:
            data[i : j + 1] = rng.bytes(j + 1 - i)
        else:
            data += rng.bytes(int(rng.integers(1, 40)))
        found.append(bytes(data))
    return found


@every
def test_damaged_blobs_never_give_wrong_numbers(backend: str) -> None:
    key, server = key_of(backend), adder_of(backend)
    first = encrypted(key, [1, 2, 3])
    summed = server.add([first, encrypted(key, [4, 5, 6], "b")])
    number = 400 if backend == "tenseal-bfv" else 4000
    for blob, values, senders in (
        (first, [1, 2, 3], ["a"]),
        (summed, [5, 7, 9], ["a", "b"]),
    ):
        refused = 0
        for damaged in _mutations(blob, number, 5):
            for asked in (senders, None):
                found = outcome(key, damaged, 3, asked)
                assert found in (values, None)
                refused += found is None
            # a server adds it to others, or says in one line why not
            try:
                later = server.add([damaged, encrypted(key, [0, 0, 0], "c")])
            except EncryptionError as error:
                reason = str(error)
            else:
                reason = ""
                assert outcome(key, later, 3, [*senders, "c"]) in (values, None)
            assert "\n" not in reason
        assert refused > 1.8 * number


@every
def test_random_bytes_are_refused(backend: str) -> None:
    key = key_of(backend)
    rng = np.random.default_rng(6)
    header, payload = split_blob(encrypted(key, [1]))
    for size in (0, 1, 23, 24, 25, 1000, len(payload), 130_000):
        noise = rng.bytes(size)
        seal = payload[:8] + size.to_bytes(8, "little") + noise[16:]
        for blob in (noise, header.pack(noise), header.pack(seal)):
            with pytest.raises(EncryptionError, match="refused"):
                decrypted(key, blob, 1)
            with pytest.raises(EncryptionError):
                key.add([encrypted(key, [1]), encrypted(key, [1]), blob, blob])


# -- keys -----------------------------------------------------------------------------


@every
def test_the_context_adds_and_does_nothing_else(backend: str) -> None:
    key = key_of(backend)
    server = load_evaluation(key.evaluation_bytes())
    assert (key.has_secret, server.has_secret) == (True, False)
    assert key.fingerprint == server.fingerprint != key_of(backend, 1).fingerprint
    blobs = [encrypted(key, [4], sender) for sender in "ab"]
    assert decrypted(key, server.add(blobs), 1, ["a", "b"]) == [8]
    actions: list[Callable[[], object]] = [
        lambda: server.encrypt([1.0], LABEL, "a", 1),
        lambda: server.decrypt(blobs[0], LABEL, 1, None),
        lambda: server.derive("p"),
        lambda: server.bound("p"),
        server.secret_bytes,
    ]
    for action in actions:
        with pytest.raises(EncryptionError, match="needs the clients' key"):
            action()
    assert server.evaluation_bytes() == key.evaluation_bytes()
    assert len(key.evaluation_bytes()) < 400


@every
def test_keys_are_read_back(backend: str) -> None:
    key = backend_class(backend).generate(bits=30)
    again = type(key).from_bytes(key.secret_bytes())
    assert again.fingerprint == key.fingerprint
    assert again.fixed == key.fixed
    assert again.fixed.bits == 30
    assert again.derive("p", b"data") == key.derive("p", b"data")
    one = key.bound("run").encrypt([1.5], LABEL, "a", 2)
    two = again.bound("run").encrypt([2], LABEL, "b", 2)
    total = again.add([one, two])
    assert key.bound("run").decrypt(total, LABEL, 1, ["a", "b"]) == [3.5]


@every
def test_damaged_keys_are_refused(backend: str) -> None:
    key = key_of(backend)
    for data in (key.secret_bytes(), key.evaluation_bytes()):
        positions = [*range(min(len(data), 80)), len(data) // 2, len(data) - 1]
        for position in positions:
            damaged = bytearray(data)
            damaged[position] ^= 4
            with pytest.raises(EncryptionError):
                type(key).from_bytes(bytes(damaged))
            with pytest.raises(EncryptionError):
                type(key).from_bytes(data[:position])


@every
def test_contexts_separate_all_that_is_secret(backend: str) -> None:
    key = key_of(backend)
    contexts: list[tuple[bytes | str | int, ...]] = [
        ("run", "a"),
        ("run", b"a"),
        ("runa",),
        ("run", "a", 1),
        (),
    ]
    bound = [key, key_of(backend, 1), *(key.bound(*c) for c in contexts)]
    bound.append(key.bound("run").bound("a"))
    assert len({cipher.derive("p") for cipher in bound}) == len(bound)
    assert key.bound("run", "a").derive("p") == key.bound("run", "a").derive("p")
    for i, cipher in enumerate(bound):
        blob = encrypted(cipher, [7])
        for j, other in enumerate(bound):
            if i == j:
                assert decrypted(other, blob, 1) == [7]
                continue
            with pytest.raises(EncryptionError, match="refused"):
                decrypted(other, blob, 1)
    with pytest.raises(EncryptionError, match="not one bound"):
        bound[-1].secret_bytes()
    assert bound[-1].fingerprint == key.fingerprint
    assert bound[-1].evaluation_bytes() == key.evaluation_bytes()


def test_derived_secrets_are_separated() -> None:
    key = key_of("stream")
    found = {
        key.derive("a", "bc"),
        key.derive("ab", "c"),
        key.derive("abc"),
        key.derive(b"abc"),
        key.derive("abc", 0),
        key.derive(),
    }
    assert len(found) == 6
    assert {len(secret) for secret in found} == {32}


def test_ciphers_of_an_agreed_secret() -> None:
    one, two = (StreamCipher.from_secret(bytes(range(32))) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    assert decrypted(two, encrypted(one, [3]), 1) == [3]
    other = StreamCipher.from_secret(bytes(32))
    assert other.fingerprint != one.fingerprint
    # backends do not share keystreams, even of one secret
    none = backend_class("none")
    assert isinstance(none, type)
    assert issubclass(none, StreamCipher)
    assert none.from_secret(bytes(32)).derive("p") != other.derive("p")
    for secret in (bytes(31), "x" * 32, None):
        with pytest.raises(EncryptionError, match="32 bytes"):
            StreamCipher.from_secret(secret)  # type: ignore[arg-type]


@every
def test_a_cipher_shows_and_pickles_no_secret(backend: str) -> None:
    key = key_of(backend)
    for cipher in (key, key.bound("run")):
        assert repr(cipher) == f"{type(key).__name__}(key {key.fingerprint})"
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(cipher)


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
encryption.backend_class("none").generate()
key = encryption.backend_class("stream").generate()
assert key.decrypt(key.encrypt([1.0], ("v",), "a", 1), ("v",), 1, ["a"]) == [1.0]
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
