"""Attacks on HyFDCA: an honest server with a client's keys, several classes, one pad.

What the sums of several classes give away together that one's alone do not; what a
client that hands all it has to the server opens; and that what hides numbers hides one
number each, whatever goes wrong on the way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Context
from numpy.typing import NDArray

from clients.hyfdca import proposals
from clients.hyfdca.client import _measured
from clients.hyfdca.run import ClientRun, NodeRules
from fedtrellis.encryption import EncryptionError, block_sum, symmetric
from fedtrellis.encryption.block_sum import BlockMember, _mask
from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import Coding
from fedtrellis.encryption.identity import load_identity
from fedtrellis.objectives.losses import make_loss
from reproduce.hyfdca.attacks.differences import rows_in_differences
from strategies.hyfdca.mixtures import MixtureSteps
from tests.harness import refused
from tests.strategies.hyfdca_runs import (
    Array,
    Nodes,
    Part,
    Run,
    Split,
    Sums,
    grid_parts,
    small,
)
from tests.strategies.test_hyfdca_faults import FAULTS, calm_from

CLASSES, N, P = 4, 90, 12


def what_the_server_sees(
    monkeypatch: pytest.MonkeyPatch, rounds: int, **options: Any
) -> tuple[Array, Array, Array]:
    """X, of whose four classes two have one sample each; V and w, both (T, C, P)."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, P))
    y = (X[:, 0] > 0.0).astype(np.float64)
    y[[30, 60]] = 2.0, 3.0
    split = Split(X, y, grid_parts(N, P, 3, 3), "logistic", 1e-2)
    sums = Sums(monkeypatch)
    Run(split, rounds, encryption="stream", classes=CLASSES, **options)
    return split.X, np.stack(sums), np.stack(sums.weights)


def left_of_the_pairs(X: Array, sums: Array) -> float:
    """How far two classes' difference is from the rare classes' rows, at the least.

    The difference of the sums of classes 2 and 3, without its part in the span of the
    one row that each of them has, over its norm.
    """
    rows = X[[30, 60]]
    difference = sums[0, 2] - sums[0, 3]
    part = rows.T @ np.linalg.lstsq(rows.T, difference, rcond=None)[0]
    return float(np.linalg.norm(difference - part) / np.linalg.norm(difference))


def test_no_combination_of_classes_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    X, sums, weights = what_the_server_sees(monkeypatch, 30)
    assert sums.shape == (30, CLASSES, P)
    assert left_of_the_pairs(X, sums) > 0.3
    flat = sums.reshape(-1, P)
    pairs = [a - b for t in sums for a, b in combinations(t, 2)]
    steps = (sums - weights).reshape(-1, P)
    every = np.vstack([flat, np.array(pairs), weights.reshape(-1, P), steps])
    assert not len(rows_in_differences(every, X, 2, 1e-11))
    # all classes of an iteration together, and of two successive ones
    for t in (0, 1, 5, 28):
        some = np.vstack([sums[t], sums[t + 1], weights[t], weights[t + 1]])
        assert not len(rows_in_differences(some, X, 4, 1e-11))


def test_weighted_classes_give_no_row_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes of one sample each, balanced, on nodes that accept it.

    A node refuses that by itself: the first sums are nearly such a row, half of whose
    weight is that sample's. Exactly they are none.
    """
    options = {"class_weight": "balanced"}
    why = "class 2, which 1 of all samples have"
    refused(why, lambda: what_the_server_sees(monkeypatch, 1, **options))
    options["exposed"] = "accept"
    X, sums, weights = what_the_server_sees(monkeypatch, 30, **options)
    row = X[30]
    closeness = abs(row @ sums[0, 2]) / np.linalg.norm(row) / np.linalg.norm(sums[0, 2])
    assert closeness > 0.9  # as the page on security says
    steps = (sums - weights).reshape(-1, P)
    every = np.vstack([sums.reshape(-1, P), weights.reshape(-1, P), steps])
    assert not len(rows_in_differences(every, X, 2, 1e-9))


def test_one_mixing_for_all_classes_would_give_rare_classes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack above finds what it looks for where the clients' r are shared."""
    own = proposals._mixing

    def shared(*given: Any) -> Array:
        r = own(*given)
        return np.broadcast_to(r[:1], r.shape)

    monkeypatch.setattr(proposals, "_mixing", shared)
    X, sums, _ = what_the_server_sees(monkeypatch, 1)
    assert left_of_the_pairs(X, sums) < 1e-6


def shared_and_local() -> Split:
    """Six clients, three holders a feature; each has samples of its own beside others.

    Clients 2k and 2k + 1 hold the two halves of the features, and share 16 samples.
    """
    first, second = np.arange(6), np.arange(6, 12)
    parts: list[Part] = []
    for start in range(0, 144, 48):
        parts += [
            (np.arange(start, start + 32), first),
            (np.arange(start + 16, start + 48), second),
        ]
    whole = small(parts=parts, n=144)
    held = np.zeros_like(whole.X)
    for rows, columns in parts:
        held[np.ix_(rows, columns)] = whole.X[np.ix_(rows, columns)]
    return Split(held, whole.y, parts, regularization=whole.regularization)


def test_server_and_a_client_open_nothing_of_other_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 2 hands its keys to the server; groups 0 to 2 are of others."""
    nodes, checked = Nodes(tmp_path / "nodes", shared_and_local()), list[int]()
    search = MixtureSteps._search

    def looking(self: MixtureSteps) -> Any:
        if self.version == 3:
            traitor = _of(nodes, self, "2")
            checked.append(_opened(self, traitor))
            _check_masks(self, nodes, traitor)
        return search(self)

    monkeypatch.setattr(MixtureSteps, "_search", looking)
    nodes.run(5, encryption="stream").check()
    assert checked == [1]


def _of(nodes: Nodes, steps: MixtureSteps, name: str) -> ClientRun:
    """What a client has of the run, once it has been asked anything."""
    strategy: Any = steps.strategy
    state, _ = strategy.restore(name)
    entries = {"sealed": [b for (_, to), b in strategy._sealed.items() if to == name]}
    config = {"session": strategy.conversation.session, **entries}
    node: Any = {"partition-id": int(name)}
    client = nodes.client(Context(1, 1, node, cast(Any, {}), {}))
    client.state = state
    run = ClientRun(client, config)
    run.open()
    return run


def _opened(steps: MixtureSteps, traitor: ClientRun) -> int:
    """How many groups' sums it opens: of those that it holds, and no others."""
    (unit,), agreement = steps.units, steps.strategy.agreement
    opened = 0
    for g, blobs in unit.scores.items():
        holders, size = agreement.holders(g), agreement.groups[g][1]
        label = ("product", g, unit.version)
        if "2" in holders:
            assert traitor.decrypt(holders, blobs, label, size).shape == (size,)
            opened += 1
            continue
        for other in (holders, *agreement.holder_sets):
            if other == holders or "2" in other:
                with pytest.raises((EncryptionError, ValueError)):
                    traitor.cipher(other).decrypt(blobs, label, size, holders)
    return opened


def _check_masks(steps: MixtureSteps, nodes: Nodes, traitor: ClientRun) -> None:
    """Without its own masks, a term is still hidden by those with all other holders."""
    (unit,), agreement = steps.units, steps.strategy.agreement
    words: NDArray[np.uint64] = unit.words["0"].copy()
    key = bytes.fromhex(traitor.block._agreed()[0]["keys"]["0"])
    _mask(words, key, unit.attempt, None, add=True)
    assert np.median(np.abs(Coding().values(words))) > 1e5
    # and it has no pair's secret but its own
    for other in ("3", "4"):
        public = load_identity(nodes.of(other, "identity")).public
        theirs = load_identity(nodes.of("0", "identity")).pair_secret(public)
        assert traitor.pair(other) != theirs != traitor.pair("0")
    assert agreement.holdings.sum(axis=0).min() == 3


def test_masks_hide_every_single_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are what they hide plus numbers that look uniform, in every place."""
    sums = Sums(monkeypatch)
    Run(shared_and_local(), 4, encryption="stream")
    high = np.concatenate(sums.words) >> np.uint64(44)  # v_k is below 2^44 in size
    assert 0.3 < np.mean(high >= 2**19) < 0.7
    assert len(np.unique(high)) > 0.95 * len(high)


def test_a_roster_run_without_encryption_needs_the_nodes_word(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "nodes", shared_and_local())
    refused("its node's log says which", lambda: nodes.run(3))


def test_scores_of_small_groups_are_not_measured() -> None:
    """Else the means with and without one give a single sample's loss away."""
    run: Any = SimpleNamespace(
        rules=NodeRules(),
        loss=make_loss("hinge"),
        new_rows={0: np.arange(4), 1: np.arange(4, 6)},
    )
    both = _measured(run, np.linspace(-1, 1, 6)[None], np.ones(6))
    assert both[1] == 4
    four = np.array([[*np.linspace(-1, 0.2, 4), np.nan, np.nan]])
    alone = _measured(run, four, np.ones(6))
    assert alone[1:] == both[1:]
    assert alone[0] == pytest.approx(both[0], rel=1e-12)
    few = np.full((1, 6), np.nan)
    few[:, 4:] = 1.0
    assert _measured(run, few, np.ones(6)) == (0.0, 0, {})


@dataclass
class Noted:
    """What a run's secrets were used for."""

    # digests of what was encrypted under each key of a keystream
    sealed: dict[bytes, set[bytes]] = field(default_factory=dict)
    # what left which client in which attempt
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

    run = Run(
        small(parts=kind),
        40,
        faults=FAULTS | {"seed": 3},
        each=calm_from(31),
        encryption="stream",
        backup_every=3,
    )
    run.check()
    assert run.strategy.history[-1].train["moved-groups"] > 0.0
    for use in ("sealed", "left"):
        uses = getattr(noted, use)
        assert len(uses) > 50
        assert {len(values) for values in uses.values()} == {1}, use
    # a pair's stream is read by its two clients, by each for one term
    for readers in noted.pairs.values():
        assert len(readers) == len({own for own, _ in readers}) <= 2
    assert noted.replays > 5
    assert not set(noted.pairs) & set(noted.sealed)
