"""What hides HyFDCA's numbers hides one number each, whatever goes wrong on the way."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.encryption import block_sum, symmetric
from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.cipher import Cipher
from tests.harness import calm
from tests.strategies.hyfdca_runs import Run, small
from tests.strategies.test_hyfdca_faults import FAULTS


@dataclass
class Noted:
    """What a run's secrets were used for."""

    # digests of what was encrypted under each key of a keystream
    sealed: dict[bytes, set[bytes]] = field(default_factory=dict)
    # which client hid what in which attempt, and what left
    hidden: dict[tuple[str, bytes], set[bytes]] = field(default_factory=dict)
    left: dict[tuple[str, bytes], set[bytes]] = field(default_factory=dict)
    # keys of keystreams that a pair's masks were read from, and who read them
    pairs: dict[bytes, set[tuple[str, bytes]]] = field(default_factory=dict)
    replays: int = 0


def _digest(array: NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted()
    last: list[bytes] = []

    class Noting(symmetric.Keystream):
        """Remembers its key, also for whoever made it last."""

        def __init__(self, key: bytes) -> None:
            super().__init__(key)
            self.key = key
            last[:] = [key]

    monkeypatch.setattr("fedtrellis.encryption.cipher.Keystream", Noting)
    monkeypatch.setattr(block_sum, "Keystream", Noting)

    seal = Cipher._seal

    def sealing(self: Any, integers: Any, use: Any, share: Any) -> bytes:
        sealed = seal(self, integers, use, share)
        found.sealed.setdefault(last[0], set()).add(_digest(integers))
        return sealed

    monkeypatch.setattr(Cipher, "_seal", sealing)

    term, mask = BlockMember.term, block_sum._mask
    asked: list[tuple[str, bytes]] = []

    def hiding(self: Any, attempt: bytes, words: Any, where: Any) -> Any:
        who = self._node.client, attempt
        found.hidden.setdefault(who, set()).add(_digest(words))
        asked.append(who)
        hidden = term(self, attempt, words, where)
        asked.pop()
        found.left.setdefault(who, set()).add(_digest(hidden))
        return hidden

    def masking(*given: Any, **options: Any) -> None:
        mask(*given, **options)
        found.pairs.setdefault(last[0], set()).add(asked[-1])

    monkeypatch.setattr(BlockMember, "term", hiding)
    monkeypatch.setattr(block_sum, "_mask", masking)
    answered = BlockMember.answered

    def replaying(self: Any, attempt: bytes) -> Any:
        answer = answered(self, attempt)
        found.replays += answer is not None
        return answer

    monkeypatch.setattr(BlockMember, "answered", replaying)
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
        faults=FAULTS,
        each=each,
        encryption="stream",
        backup_every=3,
        grid_seed=3,
    )
    run.check()
    assert run.strategy.history[-1].train["moved-groups"] > 0.0
    for use in ("sealed", "hidden", "left"):
        uses = getattr(noted, use)
        assert len(uses) > 50
        assert {len(values) for values in uses.values()} == {1}, use
    # a pair's stream is read by its two clients, by each for one term
    for readers in noted.pairs.values():
        assert len(readers) == len({own for own, _ in readers}) <= 2
    assert noted.replays > 5
    assert not set(noted.pairs) & set(noted.sealed)
