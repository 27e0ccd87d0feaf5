"""Three functions and what they are made of: sums, and uses of a secret."""

import hashlib
import hmac
import importlib.util
import os
import pickle
import signal
import struct
import tracemalloc
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from fedtrellis.encryption import (
    Cipher,
    EncryptionError,
    backend_class,
    load_evaluation,
)
from fedtrellis.encryption.cipher import split_blob
from fedtrellis.encryption.fixed_point import MAX_TERMS, RangeError, RefusedError
from fedtrellis.encryption.symmetric import (
    Label,
    encode_items,
    expand,
    open_sealed,
    seal,
)

needs_tenseal = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tenseal", "zstandard")),
    reason="needs the extra encryption",
)
every = pytest.mark.parametrize(
    "backend", ["stream", pytest.param("tenseal-bfv", marks=needs_tenseal), "none"]
)
LABEL: Label = ("v", "session", 1, 0)


@cache
def key_of(backend: str, which: int = 0) -> Cipher:
    return backend_class(backend).generate()


@every
@pytest.mark.parametrize("size", [0, 9000])
def test_a_sum_is_that_of_the_rounded_numbers(backend: str, size: int) -> None:
    key = key_of(backend)
    server = load_evaluation(key.evaluation_bytes())
    values = np.random.default_rng(size).standard_normal((3, size))
    shares = [key.encrypt(v, LABEL, s, 3) for s, v in zip("abc", values, strict=True)]
    # added in two steps, in another order
    total = server.add([server.add([shares[2], shares[0]]), shares[1]])
    expected = np.rint(values * 2.0**40).sum(axis=0) * 2.0**-40
    for senders in (["c", "a", "b"], None):
        found = key.decrypt(total, LABEL, size, senders)
        assert np.array_equal(found, expected)


@every
def test_room_for_so_many_terms_and_no_more(backend: str) -> None:
    key = key_of(backend)
    largest = 2.0 ** (key.word - 1 - 40) / 2 * (1.0 - 2.0**-8)
    shares = [key.encrypt([largest, -largest], LABEL, s, 2) for s in "ab"]
    found = key.decrypt(key.add(shares), LABEL, 2, ["a", "b"])
    assert found.tolist() == [2.0 * largest, -2.0 * largest]
    for value in (2.0 * largest, np.nan, np.inf):
        with pytest.raises(RangeError):
            key.encrypt([value], LABEL, "a", 2)
    with pytest.raises(EncryptionError, match="more than 255 bytes"):
        key.encrypt([1.0], LABEL, "x" * 256, 1)
    # the same again looks different
    assert shares[0] != key.encrypt([largest, -largest], LABEL, "a", 2)


@every
def test_what_is_not_the_sum_that_was_asked_for(backend: str) -> None:
    key = key_of(backend)
    share = {s: key.encrypt([1.0, 2.0], LABEL, s, 3) for s in "ab"}
    total = key.add(list(share.values()))
    asked: list[tuple[Any, ...]] = [
        (share["a"], LABEL, 2, ["a", "b"]),
        (total, LABEL, 2, ["a", "c"]),
        ([total[0][:-8]], LABEL, 2, None),
        ([], LABEL, 2, None),
        ([b"no ciphertext"], LABEL, 2, None),
        (key_of(backend, 1).encrypt([1.0, 2.0], LABEL, "a", 3), LABEL, 2, None),
    ]
    if backend == "stream":  # whose keystreams are another label's or length's
        asked += [(total, ("v", "session", 2, 0), 2, None), (total, LABEL, 1, None)]
        asked += [(key.bound("a run").encrypt([1.0], LABEL, "a", 1), LABEL, 1, None)]
    for blobs, label, count, senders in asked:
        with pytest.raises(RefusedError, match="not the sum that was asked for"):
            key.decrypt(blobs, label, count, senders)


@every
def test_what_a_server_cannot_add_nor_do_besides(backend: str) -> None:
    key, other = key_of(backend), key_of(backend, 1)
    share = key.encrypt([1.0], LABEL, "a", 2)
    server = backend_class(backend).from_bytes(key.evaluation_bytes())
    assert server.fingerprint == key.fingerprint
    wrong: list[Any] = [
        [],
        [share, []],
        [share, share],
        [share, other.encrypt([1.0], LABEL, "b", 2)],
        [share, key.encrypt([1.0], LABEL, "b", 3)],
        [key.encrypt([1.0], LABEL, s, 2) for s in "abc"],
        [share, [b"\0" * 100]],
        [share, [share[0][:40]]],
    ]
    actions: list[Any] = [
        *(partial(server.add, vectors) for vectors in wrong),
        lambda: server.encrypt([1.0], LABEL, "a", 1),
        lambda: server.decrypt(share, LABEL, 1, None),
        lambda: server.derive("use"),
        server.secret_bytes,
        key.bound("run").secret_bytes,
    ]
    for action in actions:
        with pytest.raises(EncryptionError):
            action()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


def test_the_stream_is_its_definition() -> None:
    """c = x + r modulo 2^64 with AES-256 in counter mode, from cryptography itself."""
    key = key_of("stream")
    (blob,) = key.encrypt([1.5, -2.0], LABEL, "a", 7)
    header, payload = split_blob(blob)
    ((sender, nonce),) = header.shares
    use = ("share", encode_items(*LABEL), 0, 2, 7, sender, nonce)
    aes = ciphers.Cipher(AES(expand(key._secret(), *use)), CTR(bytes(16))).encryptor()
    pad = np.frombuffer(aes.update(bytes(24)), "<u8")
    words = np.frombuffer(payload, "<u8") - pad
    assert words.view(np.int64).tolist() == [3 * 2**39, -(2**41), 1]
    assert len(payload) == 8 * 3


@needs_tenseal
def test_the_noise_has_room_for_the_largest_sum() -> None:
    api = pytest.importorskip("tenseal.sealapi")
    key: Any = key_of("tenseal-bfv")
    payload = split_blob(key.encrypt([0.0], LABEL, "a", MAX_TERMS)[0])[1]
    context = key._context
    measure = api.Decryptor(context.seal_context(), context.secret_key())
    # the worst case of a sum is that no noise cancels, as if it were one share's
    for factor in (MAX_TERMS, -MAX_TERMS):
        vector = key._load(payload)
        vector.mul_plain_(factor)
        assert measure.invariant_noise_budget(vector.ciphertext()[0]) >= 2


@needs_tenseal
def test_a_forked_process_ends() -> None:
    """A context owns a thread, which a child would wait for."""
    key = backend_class("tenseal-bfv").generate()
    child = os.fork()
    if not child:
        signal.alarm(60)
        del key
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def _sealed(body: bytes, mode: int) -> bytes:
    size = 16 + len(body)
    return b"\x5e\xa1\x10\x04\x03" + struct.pack("<BHQ", mode, 0, size) + body


@needs_tenseal
def test_a_lying_client_s_bytes_never_reach_seal_s_own_reader() -> None:
    """SEAL ends the process at some of these; all headers are checked before."""
    import zstandard

    from fedtrellis.encryption.bfv import _plain_form

    key = key_of("tenseal-bfv")
    blobs = [key.encrypt([2.0], LABEL, sender, 9) for sender in "ab"]
    for (blob,) in (blobs[0], key.add(blobs)):
        payload = split_blob(blob)[1]
        plain = _plain_form(payload)
        assert _plain_form(plain) == plain
        body = bytearray(plain[16:])
        # all headers before the coefficients, and the one of the seed after them
        places = [*range(97)]
        if len(body) < 100_000:
            places += range(len(body) - 81, len(body) - 64)
        for place in places:
            body[place] ^= 1
            data = bytes(body)
            for mode, inside in ((0, data), (2, zstandard.compress(data))):
                with pytest.raises(EncryptionError, match="a form that no client"):
                    _plain_form(_sealed(inside, mode))
            body[place] ^= 1
    gigabytes = zstandard.compress(bytes(10**8))
    for mode, inside in ((2, gigabytes), (2, b"no zstd"), (1, b"zlib"), (0, b"")):
        tracemalloc.start()
        with pytest.raises(EncryptionError):
            _plain_form(_sealed(inside, mode))
        assert tracemalloc.get_traced_memory()[1] < 4 * 10**6
        tracemalloc.stop()
    for cut in (payload[:-1], payload[:15], b"X" + payload[1:]):
        with pytest.raises(EncryptionError, match="cut off"):
            _plain_form(cut)


SECRET = bytes(range(32))
PURPOSE = ("group key", "run 1", "a", "b", 3)


def test_keys_are_derived_as_rfc_5869_has_it() -> None:
    info = b"".join(
        struct.pack("<cI", kind, len(data)) + data
        for kind, data in ((b"s", b"use"), (b"b", b"\0x"), (b"i", b"-7"))
    )
    first = hmac.digest(SECRET, info + b"\x01", hashlib.sha256)
    second = hmac.digest(SECRET, first + info + b"\x02", hashlib.sha256)
    assert expand(SECRET, "use", b"\0x", -7) == first
    assert expand(SECRET, "use", b"\0x", -7, size=64) == first + second


def test_a_sealed_message_is_opened_whole_and_where_it_belongs() -> None:
    data = b"a key of thirty-two bytes, about"
    sealed = seal(SECRET, data, PURPOSE)
    assert open_sealed(SECRET, sealed, PURPOSE) == data
    wrong: list[tuple[bytes, bytes, Any]] = [(bytes(32), sealed, PURPOSE)]
    for position in range(len(sealed)):
        spoilt = bytearray(sealed)
        spoilt[position] ^= 1
        wrong.append((SECRET, bytes(spoilt), PURPOSE))
        wrong.append((SECRET, sealed[:position], PURPOSE))
    others: list[Any] = [
        ("group key", "run 1", "b", "a", 3),  # sent back to its sender
        ("group key", "run 2", "a", "b", 3),
        ("group key", "run 1", "ab", "", 3),
    ]
    wrong += [(SECRET, sealed, other) for other in others]
    for secret, message, purpose in [*wrong, (SECRET, sealed + b"\0", PURPOSE)]:
        with pytest.raises(EncryptionError, match="^sealed message was refused$"):
            open_sealed(secret, message, purpose)
