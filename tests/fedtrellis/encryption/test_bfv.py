"""What only the backend of TenSEAL has."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedtrellis.encryption import (
    MAX_TERMS,
    EncryptionError,
    load_evaluation,
    split_blob,
)
from fedtrellis.encryption.key_format import KeyFile, pack_key, unpack_key
from fedtrellis.encryption.tenseal_format import (
    plain_form,
    refuse_secret,
    scratch_file,
    unwrap,
    wrap,
)

from .ciphers import LABEL, outcome

ts: Any = pytest.importorskip("tenseal")
zstandard: Any = pytest.importorskip("zstandard")
from fedtrellis.encryption import bfv  # noqa: E402
from fedtrellis.encryption.bfv import DEGREE, BfvCipher  # noqa: E402


def test_the_context_has_no_secret_in_it() -> None:
    key = BfvCipher.generate()
    file = unpack_key(key.evaluation_bytes())
    assert file.secret is None
    context = ts.context_from(file.payload)
    assert not context.has_secret_key()
    assert not context.has_galois_keys()
    assert not context.has_relin_keys()
    with pytest.raises(ValueError, match="Secret key"):
        context.secret_key()
    # neither of the key's secrets is in any of the context's bytes
    whole = unpack_key(key.secret_bytes())
    assert whole.secret is not None
    assert whole.secret not in key.evaluation_bytes()
    assert whole.payload[-1000:-900] not in key.evaluation_bytes()


def test_a_context_with_a_secret_is_refused_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = unpack_key(BfvCipher.generate().secret_bytes())
    forged = KeyFile(key.backend, key.bits, key.fingerprint, key.payload)

    def never(library: str) -> Any:
        raise AssertionError("TenSEAL was asked to read a secret")

    monkeypatch.setattr(bfv, "needed", never)
    with pytest.raises(EncryptionError, match="contains a secret key"):
        load_evaluation(pack_key(forged))
    with pytest.raises(EncryptionError, match="contains the clients' secret key"):
        load_evaluation(pack_key(key))
    with pytest.raises(EncryptionError, match="neither a key nor a context"):
        load_evaluation(key.payload)
    # also a short one, by its fields: number 3 is TenSEAL's private part
    with pytest.raises(EncryptionError, match="contains a secret key"):
        refuse_secret(b"\x0a\x01a\x20\x01\x1a\x02kk")
    refuse_secret(b"\x0a\x01a\x20\x01")
    for malformed in (b"\x0a", b"\x0a\x05a", b"\x0b", b"\xff" * 12):
        with pytest.raises(EncryptionError, match="TenSEAL's format"):
            refuse_secret(malformed)


def test_a_key_without_its_secret_is_refused() -> None:
    cipher = BfvCipher.generate()
    key = unpack_key(cipher.secret_bytes())
    public = unpack_key(cipher.evaluation_bytes()).payload
    with pytest.raises(EncryptionError, match="no secret key"):
        BfvCipher.from_bytes(pack_key(replace(key, payload=public)))
    with pytest.raises(EncryptionError, match="cannot read"):
        BfvCipher.from_bytes(pack_key(replace(key, payload=b"junk")))


def test_other_parameters_are_refused() -> None:
    context = ts.context(
        ts.SCHEME_TYPE.BFV,
        poly_modulus_degree=4096,
        plain_modulus=1032193,
        coeff_mod_bit_sizes=[45, 45, 16],
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
        n_threads=1,
    )
    public = context.serialize(False, False, False, False)
    file = KeyFile("tenseal-bfv", 40, "00" * 8, public)
    with pytest.raises(EncryptionError, match="other parameters"):
        load_evaluation(pack_key(file))


def test_fresh_ciphertexts_have_half_the_size() -> None:
    key = BfvCipher.generate()
    values = np.random.default_rng(0).standard_normal(key.slots)
    one, two = (key.encrypt(values, LABEL, sender, 2) for sender in "ab")
    assert len(one) / key.slots < 14
    assert len(key.add([one, two])) / key.slots < 28


def test_without_seals_own_interface_it_works_all_the_same() -> None:
    key = BfvCipher.generate()
    key._encoder = None
    one, two = (key.encrypt([1.0, -2.5], LABEL, sender, 2) for sender in "ab")
    assert len(one) > 100_000
    assert key.decrypt(key.add([one, two]), LABEL, 2, None).tolist() == [2.0, -5.0]


def test_files_need_not_be_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with scratch_file() as (handle, path):
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.fstat(handle).st_size == 0
    assert not os.path.exists(path)
    key = BfvCipher.generate()
    blob = key.encrypt([3.0], LABEL, "a", 1)
    assert key.decrypt(blob, LABEL, 1, ["a"]).tolist() == [3.0]


def _read(key: BfvCipher, payload: bytes) -> Any:
    return ts._ts_cpp.BFVVector(key._context, wrap(payload, DEGREE))


def _noise_budget(key: BfvCipher, vector: Any) -> int:
    """SEAL's own measure, in bits; 0 is the end."""
    api = pytest.importorskip("tenseal.sealapi")
    context = key._context
    decryptor = api.Decryptor(context.seal_context(), context.secret_key())
    return int(decryptor.invariant_noise_budget(vector.ciphertext()[0]))


def test_the_noise_has_room_for_the_largest_sum() -> None:
    key = BfvCipher.generate()
    payload = split_blob(key.encrypt(np.zeros(key.slots), LABEL, "a", MAX_TERMS))[1]
    assert _noise_budget(key, _read(key, payload)) >= 26
    # the worst case of a sum is that no noise cancels, as if it were one share's
    for factor in (MAX_TERMS, -MAX_TERMS):
        vector = _read(key, payload)
        vector.mul_plain_(factor)
        assert _noise_budget(key, vector) >= 2
    assert int(vector.decrypt()[0]) == 0


def test_what_a_server_can_compute_otherwise_is_refused() -> None:
    key = BfvCipher.generate()
    header, payload = split_blob(key.encrypt([2.0], LABEL, "a", 9))
    by_slots, shifted = _read(key, payload), _read(key, payload)
    by_slots.mul_plain_([1, 2] * 2048)
    shifted.add_plain_([1] + [0] * 4095)
    for vector in (by_slots, shifted):
        with pytest.raises(EncryptionError, match="refused"):
            key.decrypt(header.pack(unwrap(vector.serialize())), LABEL, 1, ["a"])


# -- SEAL's bytes ---------------------------------------------------------------------


def test_ciphertexts_of_other_forms_are_refused() -> None:
    api = pytest.importorskip("tenseal.sealapi")
    key = BfvCipher.generate()
    header, payload = split_blob(key.encrypt([2.0], LABEL, "a", 9))
    context = key._context.seal_context()
    evaluator = api.Evaluator(context)
    fresh, square, ntt = (api.Ciphertext(context) for _ in range(3))
    with scratch_file() as (handle, path):
        os.pwrite(handle, payload, 0)
        fresh.load(context, path)
    evaluator.square(fresh, square)  # three polynomials
    evaluator.transform_to_ntt(fresh, ntt)
    for form in (square, ntt):
        with scratch_file() as (handle, path):
            form.save(path)
            data = os.pread(handle, 1 << 20, 0)
        with pytest.raises(EncryptionError, match=r"more than|a form that no client"):
            key.add([header.pack(data)])
        with pytest.raises(EncryptionError, match="refused"):
            key.decrypt(header.pack(data), LABEL, 1, ["a"])


def _seal(payload: bytes, body: bytes, mode: int) -> bytes:
    """SEAL's header around something."""
    return payload[:5] + struct.pack("<BHQ", mode, 0, 16 + len(body)) + body


def test_inner_headers_are_never_seals_to_read() -> None:
    """SEAL ends the process at some of these; none of them gets that far."""
    key = BfvCipher.generate()
    blobs = [key.encrypt([2.0], LABEL, sender, 9) for sender in "ab"]
    for blob in (blobs[0], key.add(blobs)):
        header, payload = split_blob(blob)
        plain = plain_form(payload, bfv._PARAMETERS_HASH, DEGREE)
        assert plain_form(plain, bfv._PARAMETERS_HASH, DEGREE) == plain
        assert outcome(key, header.pack(plain), 1) == [2 * 2**40 * len(header.shares)]
        body = bytearray(plain[16:])
        seeded = len(body) < 100_000
        # all headers before the coefficients, and the one of the seed after them
        positions = [*range(97)]
        if seeded:
            positions += range(len(body) - 81, len(body) - 64)
        for position in positions:
            body[position] ^= 1
            for mode, data in ((0, bytes(body)), (2, zstandard.compress(bytes(body)))):
                with pytest.raises(EncryptionError, match="a form that no client"):
                    plain_form(_seal(payload, data, mode), bfv._PARAMETERS_HASH, DEGREE)
            body[position] ^= 1


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("size", [17, 100, 2**31, 2**63])
def test_no_compressed_part_within_a_compressed_ciphertext(
    mode: int, size: int
) -> None:
    """At these SEAL ends the process, with an exception that nothing there catches.

    A part says that it is compressed too, and longer than what is left.
    """
    key = BfvCipher.generate()
    blobs = [key.encrypt([2.0], LABEL, sender, 9) for sender in "ab"]
    for blob in (blobs[0], key.add(blobs)):
        header, payload = split_blob(blob)
        body = plain_form(payload, bfv._PARAMETERS_HASH, DEGREE)[16:]
        # coefficients and, where there is one, the seed
        places = [73, len(body) - 81] if len(body) < 100_000 else [73]
        for place in places:
            part = struct.pack("<BHQ", mode, 0, size)
            inside = body[: place + 5] + part
            bad = header.pack(_seal(payload, zstandard.compress(inside), 2))
            with pytest.raises(EncryptionError, match="a form that no client makes"):
                key.add([blobs[1], bad] if blob is blobs[0] else [bad])
            with pytest.raises(EncryptionError, match="ciphertext was refused"):
                key.decrypt(bad, LABEL, 1, None)


@pytest.mark.parametrize("version", [(3, 4), (3, 5), (3, 7), (0, 0), (255, 1)])
def test_ciphertexts_of_other_versions_are_refused(version: tuple[int, int]) -> None:
    key = BfvCipher.generate()
    header, payload = split_blob(key.encrypt([2.0], LABEL, "a", 9))
    data = payload[:3] + bytes(version) + payload[5:]
    with pytest.raises(
        EncryptionError, match=r"ciphertext is of SEAL {}\.{}".format(*version)
    ):
        key.add([header.pack(data)])


@pytest.mark.parametrize(
    ("mode", "body", "reason"),
    [
        (2, zstandard.compress(bytes(5 * 10**5)), "more than"),
        (2, zstandard.compress(bytes(10**8)), "wrongly"),
        (0, bytes(10**6), "a form that no client"),
        (2, zstandard.compress(bytes(10**5))[:-5], "form|wrongly"),
        # a frame that says it needs a window of 2 GiB
        (2, b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00", "wrongly"),
        (2, b"", "a form that no client"),
        (2, b"no zstd at all", "wrongly"),
        (1, b"zlib", "in a way unknown"),
        (3, b"", "in a way unknown"),
    ],
)
def test_compressed_ciphertexts_cannot_stand_for_gigabytes(
    mode: int, body: bytes, reason: str
) -> None:
    payload = _seal(b"\x5e\xa1\x10\x04\x03", body, mode)
    tracemalloc.start()
    try:
        with pytest.raises(EncryptionError, match=reason):
            plain_form(payload, bfv._PARAMETERS_HASH, DEGREE)
        assert tracemalloc.get_traced_memory()[1] < 4 * 10**6
    finally:
        tracemalloc.stop()
    for cut in (payload[:-1], payload + b"\0", payload[:15], b"X" + payload[1:]):
        with pytest.raises(EncryptionError, match="cut off"):
            plain_form(cut, bfv._PARAMETERS_HASH, DEGREE)


_FORK = """
import os, sys
from fedtrellis.encryption.bfv import BfvCipher
key = BfvCipher.generate().bound("run")
reader, writer = os.pipe()
children = []
for _ in range(2):
    child = os.fork()
    if not child:
        blob = key.encrypt([1.0], ("v",), "a", 3)
        assert key.decrypt(blob, ("v",), 1, ["a"]) == [1.0]
        os.write(writer, blob[200:232])
        del key
        sys.exit(0)  # not os._exit: everything is destroyed
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
assert os.read(reader, 32) != os.read(reader, 32)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_end_and_draw_different_noise() -> None:
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=60)
