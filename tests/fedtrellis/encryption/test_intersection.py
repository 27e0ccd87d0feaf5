"""Oblivious pseudonyms against P-256 of another library."""

import hashlib
from contextlib import suppress

import pytest
from Crypto.PublicKey.ECC import EccPoint
from hypothesis import given, settings
from hypothesis import strategies as some

from fedtrellis.encryption import EncryptionError
from fedtrellis.encryption.intersection import (
    ByteArray,
    blind,
    evaluate,
    pseudonyms,
    scalar_from,
    unblind,
)
from fedtrellis.encryption.symmetric import encode_items

# FIPS 186-4, D.1.2.3
P = 2**256 - 2**224 + 2**192 + 2**96 - 1
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
N = 115792089210356248762697446949407573529996955224135760342422259061068512044369

Point = tuple[int, int]
A, R, S, T = (scalar_from(bytes([i]) * 32) for i in range(4))


def _root(x: int) -> int | None:
    """y with y² = x³ − 3x + b, or None: P = 3 mod 4."""
    square = (x**3 - 3 * x + B) % P
    y = pow(square, (P + 1) // 4, P)
    return y if y * y % P == square else None


def _times(scalar: int, point: Point) -> bytes:
    return int((EccPoint(*point, curve="p256") * scalar).x).to_bytes(32, "big")


def _hash_to_point(domain: str, name: str) -> Point:
    start = encode_items("point", domain, name)
    for counter in range(1000):
        digest = hashlib.sha256(start + encode_items(counter)).digest()
        x = int.from_bytes(digest, "big")
        y = _root(x) if x < P else None
        if y is not None:
            return x, y
    raise AssertionError


def _obliviously(ids: list[str], own: int, evaluators: tuple[int, ...]) -> ByteArray:
    sent = blind(ids, own, "samples")
    return pseudonyms(*(unblind(evaluate(sent, s), own) for s in evaluators))


@settings(max_examples=5, deadline=None)
@given(
    ids=some.lists(some.text(max_size=8), min_size=1, max_size=3, unique=True),
    scalars=some.tuples(*[some.integers(1, N - 1)] * 3),
)
def test_each_step_multiplies(ids: list[str], scalars: tuple[int, int, int]) -> None:
    own, one, two = scalars
    points = [_hash_to_point("d", name) for name in ids]
    sent = blind(ids, own, "d")
    assert [row.tobytes() for row in sent] == [_times(own, p) for p in points]
    # in turn the two give H(id)^{ab}, whatever the order
    for first, second in ((one, two), (two, one)):
        found = unblind(evaluate(evaluate(sent, first), second), own)
        expected = [_times(one * two % N, point) for point in points]
        assert [row.tobytes() for row in found] == expected
    # side by side they give H(id)^a and H(id)^b
    outputs = [unblind(evaluate(sent, s), own) for s in (one, two)]
    start = encode_items("pseudonym", 2)
    expected = [
        hashlib.sha256(start + _times(one, p) + _times(two, p)).digest()[:16]
        for p in points
    ]
    assert [row.tobytes() for row in pseudonyms(*outputs)] == expected


def test_one_evaluator_can_neither_alter_nor_exchange_nor_equate_ids() -> None:
    ids = ["a", "b"]
    expected = {row.tobytes() for row in _obliviously(ids, R, (S, T))}
    sent = blind(ids, A, "samples")
    honest = unblind(evaluate(sent, T), A)
    answer = evaluate(sent, S)

    def met(points: ByteArray) -> int:
        found = pseudonyms(unblind(points, A), honest)
        return len({row.tobytes() for row in found} & expected)

    assert [met(answer[order]) for order in ([0, 1], [1, 0], [0, 0])] == [2, 0, 1]
    for bit in range(0, 256, 5):
        altered = answer.copy()
        altered[0, bit // 8] ^= 1 << bit % 8
        with suppress(EncryptionError):  # half of them are no points
            assert met(altered) == 1
    with pytest.raises(EncryptionError, match="an id is there twice"):
        _obliviously(["a", "b", "a"], A, (S, T))
    with pytest.raises(EncryptionError, match="the same pseudonym"):
        pseudonyms(unblind(answer[[0, 0]], A), honest[[0, 0]])
