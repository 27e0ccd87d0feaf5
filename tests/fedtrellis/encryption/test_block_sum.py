"""Sums over a block: what comes out, what is refused, and what the server can tell."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedtrellis.encryption import Cipher, EncryptionError
from fedtrellis.encryption.block_sum import (
    BlockMember,
    Introduction,
    LostKeyError,
    discrete_normal,
    total_of,
)
from fedtrellis.encryption.cipher import backend_class
from fedtrellis.encryption.fixed_point import Coding, Words
from fedtrellis.encryption.identity import Identity, Roster
from fedtrellis.encryption.node_secrets import NodeSecrets
from tests.harness import refused

NAMES = ("a", "b", "c", "d")
CODING = Coding()
KEY: Cipher = backend_class("stream").generate()
IDENTITIES = {name: Identity.generate(name) for name in NAMES}
ROSTER = Roster({name: one.public for name, one in IDENTITIES.items()})


def attempt(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Block:
    """Members that have agreed, each read from its files anew at every step."""

    def __init__(self, folder: Path, kind: str = "key") -> None:
        self.folder, self.kind, self.names = folder, kind, list(NAMES)
        self.begin(b"1")

    def member(self, name: str, run: str = "run", **config: Any) -> BlockMember:
        keys: Any = {"key": KEY}
        if self.kind == "roster":
            keys = {"identity": IDENTITIES[name], "roster": ROSTER}
        config = {"ledger": str(self.folder / name), **config}
        return BlockMember(NodeSecrets(name, config, **keys), run)

    def begin(self, beginning: bytes) -> None:
        self.members = [self.member(name).introduce(beginning) for name in self.names]
        for name in self.names:
            self.member(name).agree(self.members)

    def file(self, name: str) -> Path:
        (path,) = (self.folder / name).glob("*.block")
        return path

    def terms(self, number: int, values: Any, coding: Coding = CODING) -> list[Words]:
        count = len(self.names)
        return [
            self.member(name).term(attempt(number), coding.words(value, count))
            for name, value in zip(self.names, values, strict=True)
        ]


@pytest.mark.parametrize("kind", ["key", "roster"])
@pytest.mark.parametrize("word", [64, 32])
def test_a_sum_is_the_plain_one(tmp_path: Path, kind: str, word: int) -> None:
    block, rng = Block(tmp_path, kind), np.random.default_rng(0)
    coding = Coding.of_range(10.0, len(NAMES), word)
    for number in range(3):
        values = rng.uniform(-10.0, 10.0, (len(NAMES), 1000))
        terms = block.terms(number, values, coding)
        assert {term.dtype.itemsize for term in terms} == {word // 8}
        error = coding.values(total_of(terms)) - values.sum(axis=0)
        assert np.abs(error).max() < (1e-9 if word == 64 else 1e-5)


def test_a_repeat_gets_the_same_bytes_an_older_one_none(tmp_path: Path) -> None:
    block = Block(tmp_path)
    words = CODING.words(np.arange(3.0), 4)
    first = block.member("a").term(attempt(1), words)
    assert np.array_equal(block.member("a").term(attempt(1), words), first)
    with pytest.raises(EncryptionError, match="something else"):
        block.member("a").term(attempt(1), words + np.uint64(1))
    block.member("a").term(attempt(2), words)
    for used, why in ((attempt(1), "later attempt"), (attempt(2) + b"0", "16 bytes")):
        with pytest.raises(EncryptionError, match=why):
            block.member("a").term(used, words)
    # who is late completes the same sum
    late = [first, *(block.member(n).term(attempt(1), words) for n in "bcd")]
    assert CODING.values(total_of(late)).tolist() == [0.0, 4.0, 8.0]
    # and of two processes one answers
    one, other = block.member("b"), block.member("b")
    write, found = one._file.write, []

    def late_write(*parts: Any) -> None:  # both have read; now both write
        found.append(other.term(attempt(3), words))
        write(*parts)

    one._file.write = late_write  # type: ignore[assignment]
    with pytest.raises(EncryptionError, match="another process"):
        one.term(attempt(3), words + np.uint64(1))
    assert np.array_equal(block.member("b").term(attempt(3), words), found[0])


def test_a_lost_damaged_or_expired_file_loses_the_key_and_the_block_begins_anew(
    tmp_path: Path,
) -> None:
    block = Block(tmp_path)
    block.terms(1, np.eye(4))

    def flipped(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    losses: list[Any] = [Path.unlink, flipped, lambda path: os.utime(path, (0.0, 0.0))]
    for number, lose in enumerate(losses, 2):
        lose(block.file("b"))
        with pytest.raises(LostKeyError, match="keys of its block"):
            block.member("b").term(attempt(number), CODING.words(np.ones(4), 4))
        block.begin(b"%d" % number)
        # an introduction of before, delivered late, changes nothing
        refused("begun", lambda: block.member("a").introduce(b"1"), EncryptionError)
        assert block.member("a").introduce(b"%d" % number) == block.members[0]
        terms = block.terms(number, np.eye(4))
        assert CODING.values(total_of(terms)).tolist() == [1.0] * 4


REFUSED: list[tuple[Any, dict[str, int], str]] = [
    (lambda m: m[:2], {}, "too much of each"),
    (lambda m: [*m, m[1]], {}, "once, with its own key"),
    (lambda m: [m[0]._replace(fresh=bytes(range(32))), *m[1:]], {}, "own key"),
    (lambda m: [m[0], m[1]._replace(key="00" * 32), *m[2:]], {}, "key"),
    (lambda m: [m[0], m[1]._replace(fresh=bytes(32)), *m[2:]], {}, "X25519 key"),
    (list, {"least": 5}, "its node wants 5"),
    (list, {"colluders": 3}, "its node wants 5"),
]


@pytest.mark.parametrize(("change", "config", "error"), REFUSED)
@pytest.mark.parametrize("kind", ["key", "roster"])
def test_what_a_member_refuses_to_agree_to(
    tmp_path: Path, change: Any, config: dict[str, int], error: str, kind: str
) -> None:
    block = Block(tmp_path, kind)
    block.begin(b"2")
    fresh = block.member("a", "another run", **config)
    members = [fresh.introduce(b"1"), *block.members[1:]]
    refused(error, lambda: fresh.agree(change(members)))
    refused("least = -1", lambda: block.member("a", least=-1))
    block.names = ["a", "b", "c"]
    refused("other clients", lambda: block.begin(b"3"))


def test_an_introduction_is_a_key_s_name_and_a_fresh_key() -> None:
    made = Introduction("a", "ab" * 32, bytes(32))
    name, fresh = made.arrays()
    assert Introduction.of("a", [name, fresh]) == made
    refused("is not a key's name", lambda: Introduction.of("a", [name]), ValueError)
    for key, other in ((name, fresh[1:]), (name[:0], fresh), (name | 128, fresh)):
        wrong = partial(Introduction.of, "a", [key, other])
        refused("has another form", wrong, ValueError)


def test_whoever_is_sent_something_else_has_other_masks(tmp_path: Path) -> None:
    block = Block(tmp_path)
    block.members = [block.member(name).introduce(b"2") for name in NAMES]
    for name in NAMES:
        block.member(name).agree(block.members, b"x" if name == "a" else b"")
    refused("do not cancel", lambda: total_of(block.terms(1, np.eye(4))), ValueError)


def test_server_keys_open_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in the middle: it replaces the others' fresh keys by one of its own.

    It then knows DH(fresh_i, fresh_j), and still not what the identities share.
    """

    def attacked(folder: Path) -> float:
        block, own = Block(folder, "roster"), X25519PrivateKey.generate()
        forged = own.public_key().public_bytes_raw()
        victim = block.member("a")
        members = [
            victim.introduce(b"2"),
            *(Introduction(n, IDENTITIES[n].public.hex(), forged) for n in "bcd"),
        ]
        victim.agree(members)
        term = victim.term(attempt(1), CODING.words(np.array([7.0]), 4))

        class Server(NodeSecrets):
            def shared_with(self, *_: Any) -> bytes:
                return b""

        for name in "bcd":
            folder_of = folder / f"server-{name}"
            node = Server(name, {"ledger": str(folder_of)}, key=KEY)
            member = BlockMember(node, "run")
            member.introduce(b"2")
            content, _ = member._read()
            content["private"] = own.private_bytes_raw().hex()
            content["fresh"] = forged.hex()
            member._file.write(content)
            member.agree(members)
            term = term + member.term(attempt(1), CODING.words(np.zeros(1), 4))
        return float(CODING.values(term[:-1])[0])

    assert attacked(tmp_path / "1") != 7.0
    monkeypatch.setattr(NodeSecrets, "shared_with", lambda self, *_: b"")
    assert attacked(tmp_path / "2") == 7.0


@pytest.mark.parametrize("deviation", [1, 50])
def test_the_noise_is_the_discrete_gaussian(deviation: int) -> None:
    count, reach = 200_000, 12 * deviation
    drawn, values = discrete_normal(deviation, count), np.arange(-reach, reach + 1)
    mass = np.exp(-(values**2) / (2.0 * deviation**2))
    expected = count * mass / mass.sum()
    seen = np.bincount(drawn + reach, minlength=values.size)
    often = expected > 50.0
    # χ² with so many degrees of freedom: fails by chance once in 10^6
    excess = ((seen - expected)[often] ** 2 / expected[often]).sum() - often.sum()
    assert excess < 6.0 * np.sqrt(2.0 * often.sum()) + 20.0
    assert abs(drawn.mean()) < 6.0 * deviation / np.sqrt(count)
