"""What hides HyFDCA's numbers hides one number each, whatever goes wrong on the way."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clients.hyfdca import run as client_run
from fedtrellis.encryption import keystream, masks
from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.ledger import Ledger
from tests.harness import calm
from tests.strategies.hyfdca_runs import Run, small
from tests.strategies.test_hyfdca_faults import EVERYTHING


@dataclass
class Noted:
    """What a run's secrets were used for."""

    # digests of what was encrypted under each key of a keystream
    sealed: dict[bytes, set[bytes]] = field(default_factory=dict)
    # which client hid what under which T, and what left
    hidden: dict[tuple[int, bytes], set[bytes]] = field(default_factory=dict)
    left: dict[tuple[int, bytes], set[bytes]] = field(default_factory=dict)
    # keys of keystreams that a pair's masks were read from, and who read them
    pairs: dict[bytes, set[tuple[int, bytes]]] = field(default_factory=dict)
    # attempts that were answered under each nonce
    nonces: dict[bytes, set[bytes]] = field(default_factory=dict)
    replays: int = 0


def _digest(array: NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted()
    last: list[bytes] = []

    class Noting(keystream.Keystream):
        """Remembers its key, also for whoever made it last."""

        def __init__(self, key: bytes) -> None:
            super().__init__(key)
            self.key = key
            last[:] = [key]

    monkeypatch.setattr("fedtrellis.encryption.cipher.Keystream", Noting)
    monkeypatch.setattr(masks, "Keystream", Noting)

    seal = Cipher._seal

    def sealing(self: Any, integers: Any, use: Any, share: Any) -> bytes:
        sealed = seal(self, integers, use, share)
        found.sealed.setdefault(last[0], set()).add(_digest(integers))
        return sealed

    monkeypatch.setattr(Cipher, "_seal", sealing)

    add, words_of = masks.add_masks, masks.pair_words

    def hiding(words: Any, own: int, peers: Any, tag: bytes) -> None:
        plain = _digest(words)
        found.hidden.setdefault((own, tag), set()).add(plain)
        asked.append((own, plain))
        add(words, own, peers, tag)
        asked.pop()
        found.left.setdefault((own, tag), set()).add(_digest(words))

    asked: list[tuple[int, bytes]] = []

    def pairing(secret: bytes, tag: bytes, count: int) -> Any:
        words = words_of(secret, tag, count)
        found.pairs.setdefault(last[0], set()).add(asked[-1])
        return words

    monkeypatch.setattr(client_run, "add_masks", hiding)
    monkeypatch.setattr(masks, "pair_words", pairing)

    record, replay = Ledger.record, Ledger.replay

    def recording(self: Ledger, question: bytes, answer: bytes) -> None:
        found.nonces.setdefault(self.nonce, set()).add(question)
        record(self, question, answer)

    def replaying(self: Ledger, question: bytes) -> bytes | None:
        answer = replay(self, question)
        if answer is not None and len(question) == 16:
            found.replays += 1
        return answer

    monkeypatch.setattr(Ledger, "record", recording)
    monkeypatch.setattr(Ledger, "replay", replaying)
    return found


@pytest.mark.parametrize("kind", ["hybrid", "horizontal"])
def test_nothing_that_hides_is_used_for_two_numbers(kind: Any, noted: Noted) -> None:
    """Each key of a keystream hides one plaintext; each pair's masks one term each."""

    def each(run: Run, t: int) -> None:
        if t == 30:
            calm(run.grid)

    run = Run(
        small(parts=kind),
        40,
        faults=EVERYTHING,
        each=each,
        encryption="stream",
        backup_every=3,
        grid_seed=3,
    )
    run.check()
    assert run.strategy.history[-1].train["moved-groups"] > 0.0
    for use in ("sealed", "hidden", "left", "nonces"):
        uses = getattr(noted, use)
        assert len(uses) > 50
        assert {len(values) for values in uses.values()} == {1}, use
    # a pair's stream is read by its two clients, by each for one term
    for readers in noted.pairs.values():
        assert len(readers) == len({own for own, _ in readers}) <= 2
    assert noted.replays > 5
    assert not set(noted.pairs) & set(noted.sealed)
