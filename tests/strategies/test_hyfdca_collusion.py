"""An honest server and a client that hands it all it has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Context
from numpy.typing import NDArray

from clients import HyFDCAClient
from clients.hyfdca.client import _measured
from clients.hyfdca.run import ClientRun, NodeRules
from fedtrellis import LocalGrid, client_app
from fedtrellis.encryption import EncryptionError
from fedtrellis.encryption.block_sum import _mask
from fedtrellis.encryption.fixed_point import Coding
from fedtrellis.encryption.identity import Identity, Roster
from fedtrellis.objectives.losses import make_loss
from fedtrellis.settings import SettingsError
from strategies.hyfdca.mixtures import MixtureSteps
from tests.strategies.hyfdca_runs import Part, Run, Split, small


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


class Nodes:
    """Identities of all clients, and a roster of them."""

    def __init__(self, split: Split, folder: Path) -> None:
        self.split, self.folder = split, folder
        names = [str(k) for k in range(split.num_clients)]
        self.identities = {name: Identity.generate(name) for name in names}
        self.roster = Roster({n: i.public for n, i in self.identities.items()})

    def client(self, context: Context) -> HyFDCAClient:
        name = str(context.node_config["partition-id"])
        return self.split.client(
            context,
            identity=self.identities[name],
            roster=self.roster,
            ledger=self.folder / name,
        )

    def run(self, rounds: int, **options: Any) -> Run:
        grid = LocalGrid(client_app(self.client), self.split.num_clients)
        return Run(self.split, rounds, grid=grid, **options)


def test_server_and_a_client_open_nothing_of_other_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 2 hands its keys to the server; groups 0 to 2 are of others."""
    nodes, checked = Nodes(shared_and_local(), tmp_path), list[int]()
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
        theirs = nodes.identities["0"].pair_secret(nodes.roster.members[other])
        assert traitor.pair(other) != theirs != traitor.pair("0")
    assert agreement.holdings.sum(axis=0).min() == 3


def test_masks_hide_every_single_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are what they hide plus numbers that look uniform, in every place."""
    answers: list[NDArray[np.uint64]] = []
    honest = MixtureSteps._complete_sum

    def noted(self: MixtureSteps, words: dict[str, NDArray[np.uint64]]) -> Any:
        answers.extend(words.values())
        return honest(self, words)

    monkeypatch.setattr(MixtureSteps, "_complete_sum", noted)
    Run(shared_and_local(), 4, encryption="stream")
    high = np.concatenate(answers) >> np.uint64(44)  # v_k is below 2^44 in size
    assert 0.3 < np.mean(high >= 2**19) < 0.7
    assert len(np.unique(high)) > 0.95 * len(high)


def test_a_roster_run_without_encryption_needs_the_nodes_word(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="its node's log says which"):
        Nodes(small(n=48), tmp_path).run(3, encryption="none")


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
