"""Attacks on HyFDCA: an honest server with a client's keys, several classes, a liar."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
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
from fedtrellis.encryption import EncryptionError, block_sum
from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.cipher import Cipher
from fedtrellis.encryption.fixed_point import Coding
from fedtrellis.objectives.losses import make_loss
from reproduce.hyfdca.attacks import rows_in_differences
from strategies.hyfdca.mixtures import MixtureSteps, WrongReportError
from tests.harness import refused
from tests.strategies.hyfdca_runs import (
    Array,
    Nodes,
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
    # 0.3 to 0.9, by secret coins; below 1e-6 without them
    assert left_of_the_pairs(X, sums) > 0.01
    pairs = np.array([a - b for t in sums for a, b in combinations(t, 2)])
    seen = pairs, sums, weights, sums - weights
    every = np.vstack([one.reshape(-1, P) for one in seen])
    assert not len(rows_in_differences(every, X, 2, 1e-11))
    # all classes of two successive iterations together
    for t in (0, 28):
        some = np.vstack([*sums[t : t + 2], *weights[t : t + 2]])
        assert not len(rows_in_differences(some, X, 4, 1e-11))


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


def test_server_and_a_client_open_nothing_of_other_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 2 hands its keys to the server, which opens what it holds, no more."""
    nodes, opened = Nodes(tmp_path / "nodes", small()), list[int]()
    nodes.rules = NodeRules()
    refused("its node's log says which", lambda: nodes.run(3))  # nothing is encrypted
    search = MixtureSteps._search

    def looking(steps: MixtureSteps) -> Any:
        if steps.version == 3:
            opened.append(_opened(steps, run := _of(nodes, steps, "2")))
            refused("sums are hidden", lambda: proposals.dual(run))
            refused("sums are hidden", lambda: proposals.primal(run))
            # nor by another agreement than the node's keys are made for
            told = {**run.agreement.settings, "secure-sum": False}
            other = replace(run.agreement, settings=told).to_bytes()
            run.state["agreement"] = np.frombuffer(other, np.uint8)
            del run.agreement
            refused("has agreed on something else", run.open)
        return search(steps)

    monkeypatch.setattr(MixtureSteps, "_search", looking)
    nodes.run(5, encryption="stream").check()
    assert set(opened) == {1}


def _of(nodes: Nodes, steps: MixtureSteps, name: str) -> ClientRun:
    """What a client has of the run, once it has been asked anything."""
    strategy: Any = steps.strategy
    entries = {"sealed": [b for (_, to), b in strategy._sealed.items() if to == name]}
    node: Any = {"partition-id": int(name)}
    client = nodes.client(Context(1, 1, node, cast(Any, {}), {}))
    client.state, _ = strategy.restore(name)
    run = ClientRun(client, {"session": strategy.conversation.session, **entries})
    run.open()
    return run


def _opened(steps: MixtureSteps, traitor: ClientRun) -> int:
    """How many groups' sums client 2 opens: of those that it holds, and no others."""
    (unit,), agreement, opened = steps.units, steps.strategy.agreement, 0
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
    # without its own masks, a term is still hidden by those with all other holders
    words: NDArray[np.uint64] = unit.words["0"].copy()
    key = bytes.fromhex(traitor.block._agreed()[0]["keys"]["0"])
    block_sum._mask(words, key, unit.attempt, None, add=True)
    assert np.median(np.abs(Coding().values(words))) > 1e5
    return opened


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
    alone: Any = _measured(run, four, np.ones(6))
    assert alone == (pytest.approx(both[0], rel=1e-12), *both[1:])
    few = np.array([[np.nan] * 4 + [1.0, 1.0]])
    assert _measured(run, few, np.ones(6)) == (0.0, 0, {})


@pytest.mark.parametrize("kind", ["hybrid", "horizontal"])
def test_what_hides_is_used_once(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key of a keystream hides one plaintext; each pair's masks one term each."""
    sealed, left = defaultdict[Any, set[bytes]](set), defaultdict[Any, set[bytes]](set)
    pairs, replays, seal, mask = Counter[Any](), [0], Cipher._seal, block_sum._mask
    term, answered = BlockMember.term, BlockMember.answered

    def sealing(self: Any, integers: Any, *use: Any) -> bytes:
        sealed[self._secret(), *use].add(integers.tobytes())
        return seal(self, integers, *use)

    def hiding(self: Any, attempt: bytes, *given: Any) -> Any:
        hidden = term(self, attempt, *given)
        left[self._node.client, attempt].add(hidden.tobytes())
        return hidden

    def replaying(self: Any, attempt: bytes) -> Any:
        if (found := answered(self, attempt)) is not None:
            left[self._node.client, attempt].add(found.tobytes())
            replays[0] += 1
        return found

    def masking(hidden: Any, key: bytes, attempt: bytes, *rest: Any, add: bool) -> None:
        pairs[key, attempt, add] += 1
        mask(hidden, key, attempt, *rest, add=add)

    monkeypatch.setattr(Cipher, "_seal", sealing)
    monkeypatch.setattr(BlockMember, "term", hiding)
    monkeypatch.setattr(BlockMember, "answered", replaying)
    monkeypatch.setattr(block_sum, "_mask", masking)
    options: Any = {"encryption": "stream", "backup_every": 3, "each": calm_from(31)}
    run = Run(small(parts=kind), 40, faults=FAULTS | {"seed": 3}, **options)
    run.check()
    assert run.strategy.history[-1].train["moved-groups"] > 0.0
    for uses in (sealed, left):
        assert len(uses) > 50
        assert {len(values) for values in uses.values()} == {1}
    # a pair's stream is read once by each of its two clients, with either sign
    assert set(pairs.values()) == {1}
    assert replays[0] > 5


Words = NDArray[np.uint64]
TOLERANCE = 0.03


def lie(words: Words, rng: np.random.Generator, v: int) -> Words:
    """Some of v's words or of the sums' changed, by a number of any size.

    ``v`` is how many of them are v's.
    """
    told = words.copy()
    first, last = (0, v) if rng.random() < 0.5 else (v, len(words))
    if rng.random() < 0.2:
        first, last = 0, len(words)
    count = int(rng.integers(1, last - first + 1)) if rng.random() < 0.5 else 1
    where = first + rng.choice(last - first, size=count, replace=False)
    size = 2.0 ** rng.uniform(0.0, 63.0, size=count if rng.random() < 0.5 else 1)
    change = np.broadcast_to(rng.choice([-1.0, 1.0], size=count) * size, count)
    with np.errstate(over="ignore"):
        told[where] += change.astype(np.int64).view(np.uint64)
    return told


def ends(seed: int, split: Split, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a run with a client that lies once; or what it certifies is true.

    Also if what it said is only used in later rounds.
    """
    rng, honest, lies = np.random.default_rng(seed), proposals._hidden, list[Words]()
    liar, at = map(int, rng.integers([0, 1], [split.num_clients, 9]))

    def hidden(run: ClientRun, *given: Any) -> Words:
        words: Words = honest(run, *given)
        lying = run.part.client_id == str(liar) and run.config["server-round"] >= at
        if lying and not lies:
            lies.append(lie(words, rng, len(run.part.feature_names)))
            return lies[0]
        return words

    with monkeypatch.context() as told:
        told.setattr(proposals, "_hidden", hidden)
        try:
            strategy = Run(split, 40, tolerance=TOLERANCE).strategy
        except WrongReportError as error:
            return str(error)
    assert lies
    if strategy.converged():
        assert strategy._certified is not None
        w = strategy._certified[0]
        assert strategy._primals[0] == pytest.approx(split.problem.value(w))
        assert strategy._duals[0] <= split.optimum + 1e-6
        assert split.relative(w) <= 1.1 * TOLERANCE
    return ""


def test_a_run_with_a_liar_ends_with_an_error_or_a_true_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = small(n=48, p=6)
    caught = [why for seed in range(8) if (why := ends(seed, split, monkeypatch))]
    assert len(caught) > 4
    for why in ("of two sets of holders differ", "contradict their inner products"):
        assert any(why in one for one in caught)
