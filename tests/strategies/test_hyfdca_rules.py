"""A node's own rules: what it reads in its node config, and what it refuses by them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

import sim
from clients.hyfdca.run import NodeRules
from fedtrellis import client_app
from fedtrellis.encryption import node_secrets
from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.cipher import write_key_pair
from fedtrellis.encryption.identity import (
    Identity,
    load_roster,
    write_identity,
    write_roster,
)
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.settings import SettingsError, describe_fields, keys
from tests.harness import Stop, run_app
from tests.strategies.hyfdca_runs import Run, Split, grid_parts, small
from tests.strategies.test_hyfdca_faults import Forgets

ROOT = Path(sim.__file__).parent


def test_a_slip_in_a_rules_name_is_not_passed_over() -> None:
    for key, meant in (("leest", "least"), ("noises", "noise"), ("expose", "exposed")):
        with pytest.raises(SettingsError, match=f"{key} = 5 .* did you mean '{meant}'"):
            NodeRules.of({key: 5})


def test_other_keys_of_a_node_config_are_no_slips() -> None:
    names = (
        "client-id data test-data scores-file key-file identity-file roster-file "
        "ledger factor-file outer-domain"
    )
    others: dict[str, Any] = {**dict.fromkeys(names.split(), "/x"), "partition-id": 0}
    assert NodeRules.of({**others, "least": 4, "noise": 0.5}) == NodeRules(
        least=4, noise=0.5
    )


def test_the_page_on_deployments_lists_the_rules() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    rows = [
        f"| `{key}` | {default} | {text} |"
        for key, default, text in describe_fields(keys(NodeRules))
    ]
    assert "\n".join(rows) in page, "the table of rules should be:\n" + "\n".join(rows)


def test_a_listing_has_them_beside_the_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sim.app.command_line(["--list", "hyfdca"]) == 0
    _, rules = capsys.readouterr().out.split("A node's own rules, of hyfdca")
    assert all(key in rules for key, _, _ in describe_fields(keys(NodeRules)))


def test_two_holders_are_too_few_for_the_app(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--nodes", "4", "--out", str(tmp_path)]
    config = 'method="hyfdca" task="hybrid-svm" rounds=1'
    assert sim.app.command_line([*arguments, "-c", config]) == 1
    (line,) = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("sim.py: error")
    ]
    assert "sums would give single numbers of client 0 away (least = 3)" in line
    assert "feature 'pixel-0-1' has 2 holders" in line
    assert "hyfdca.exposed" in line
    assert "hyfdca.least" in line


APP = {"method": "hyfdca", "task": "hybrid-svm", "hybrid-svm.train-limit": 100}


def test_the_task_leaves_out_what_nodes_would_refuse(tmp_path: Path) -> None:
    assert run_app(APP | {"rounds": 1}, 16, tmp_path / "a").is_dir()
    kept = {"rounds": 1, "hybrid-svm.least-entries": 2}
    with pytest.raises(SettingsError, match="is not zero in 2 of its samples only"):
        run_app(APP | kept, 16, tmp_path / "b")


# --------------------------------------------------- before a label leaves the client


def _rare() -> Split:
    """One client has a feature in two of its samples only."""
    split = small(n=36)
    split.X[split.parts[2][0][2:], 1] = 0.0
    return Split(split.X, split.y, split.parts, "hinge", 1e-2, least=1)


EXPOSED: dict[str, tuple[Callable[[], Split], dict[str, Any], str]] = {
    "features of one holder": (
        lambda: small(parts="vertical", n=24),
        {},
        "feature 'feature-0000' has 1 holder; .*'feature-0003' has 1 holder",
    ),
    "features of two holders": (
        lambda: small(parts=grid_parts(24, 12, 2, 2), n=24),
        {},
        "feature 'feature-0000' has 2 holders",
    ),
    "a group of two": (
        lambda: small(parts=grid_parts(8, 12, 3, 2), n=8),
        {},
        "1 group of samples with the same holders of size 2",
    ),
    "rare entries": (
        _rare,
        {},
        "client 2: .* 'feature-0001' is not zero in 2 of its samples only.*leave-out",
    ),
    "own sums in the clear": (small, {"secure_sum": False}, "secure-sum is off"),
    "three holders where four are wanted": (small, {"least": 4}, "has 3 holders"),
}


@pytest.mark.parametrize("name", EXPOSED)
def test_what_sums_would_give_away_is_refused(name: str) -> None:
    make, options, reason = EXPOSED[name]
    with pytest.raises(SettingsError, match=reason) as error:
        Run(make(), 1, **{"exposed": "refuse", **options})
    text = str(error.value)
    assert "\n" not in text
    assert "exposed = 'accept'" in text
    Run(make(), 1, **{**options, "exposed": "accept"})


def test_rare_entries_are_left_out_where_that_is_the_rule() -> None:
    """The run is that of data without them; the split's own P* has them left out."""
    whole = _rare()
    without = Split(whole.X, whole.y, whole.parts, "hinge", 1e-2)
    assert (whole.X != without.X).sum() == 2
    one = Run(whole, 8, exposed="leave-out")
    other = Run(without, 8)
    assert np.abs(one.model - other.model).max() < 1e-9
    other.check()


# ------------------------------------------------------------ what a node must not lose


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and ledgers of simulations in a folder of the test's."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def change(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _ledger(run: Run) -> Path:
    session = run.strategy.conversation.session
    return BlockMember(NodeSecrets("1", {}), session)._file.path


def _key_gone(run: Run) -> None:
    node_secrets._run_keys.clear()
    node_secrets._run_key_path(run.strategy.conversation.session).unlink()


NO_KEYS = "client 1 has no keys of its block"


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (lambda run: _ledger(run).unlink(), NO_KEYS),
        (lambda run: change(_ledger(run), lambda data: data[::-1]), NO_KEYS),
        (lambda run: change(_ledger(run), lambda data: data[:-1]), NO_KEYS),
        (
            lambda run: _ledger(run).parent.chmod(0o755),
            "nobody else can open .*chmod 700 it",
        ),
        (_key_gone, "the key that this run's clients made is gone"),
    ],
)
def test_what_is_lost_in_a_simulation_ends_the_run_with_one_line(
    happens: Callable[[Run], None], message: str
) -> None:
    """At once, not after rounds that cannot succeed."""

    def each(run: Run, t: int) -> None:
        assert t <= 5
        if t == 5:
            happens(run)

    with pytest.raises(SettingsError, match=message) as caught:
        Run(small(), 20, each=each, encryption="stream")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("client ")


# ---------------------------------------------------------------------- with node files


class Files:
    """Node files of a run: one key for all, or an identity each and a roster each."""

    def __init__(self, folder: Path, split: Split, kind: str) -> None:
        self.split, self.kind, self.folder = split, kind, folder
        folder.mkdir()
        self.key, self.names = folder / "key", [str(k) for k in range(len(split.parts))]
        write_key_pair(self.key, folder / "context")
        publics = {
            name: write_identity(self.of(name, "identity"), name).public
            for name in self.names
        }
        for name in self.names:  # each node pins it by itself
            write_roster(self.of(name, "roster"), publics)

    def of(self, name: str, what: str) -> Path:
        return self.folder / f"{name}.{what}"

    def options(self, name: str) -> dict[str, Any]:
        own: dict[str, Any] = {"ledger": self.of(name, "ledgers")}
        if self.kind == "key":
            return {**own, "key": self.key}
        names = ("identity", "roster")
        return {**own, **{what: self.of(name, what) for what in names}}

    def run(self, rounds: int, cipher: str = "stream", **options: Any) -> Run:
        node_secrets._cached.cache_clear()

        def client_fn(context: Context) -> Any:
            name = str(context.node_config["partition-id"])
            own = self.options(name)
            return self.split.client(context, rules=NodeRules(exposed="accept"), **own)

        grid = Forgets(client_app(client_fn), len(self.names))
        return Run(self.split, rounds, grid=grid, encryption=cipher, **options)


def _other_key(files: Files) -> None:
    files.key.unlink()
    write_key_pair(files.key, files.folder / "other-context")


def _other_roster(files: Files, other: bool) -> None:
    """On one node, with another public key of one client, or without it."""
    path = files.of("1", "roster")
    publics = dict(load_roster(path).members)
    publics.pop("4")
    if other:
        publics["4"] = Identity.generate("4").public
    path.unlink()
    write_roster(path, publics)


def _other_identity(files: Files) -> None:
    files.of("1", "identity").unlink()
    write_identity(files.of("1", "identity"), "1")


NOT_THE_ROSTERS = "client 4 has a public key that is not the roster's"


@pytest.mark.parametrize(
    ("kind", "happens", "message"),
    [
        ("key", lambda files: shutil.rmtree(files.of("1", "ledgers")), NO_KEYS),
        ("roster", lambda files: shutil.rmtree(files.of("1", "ledgers")), NO_KEYS),
        ("key", _other_key, "this client's key has fingerprint"),
        ("key", lambda files: files.key.unlink(), "key.* cannot be read"),
        ("roster", lambda files: _other_roster(files, True), NOT_THE_ROSTERS),
        ("roster", lambda files: _other_roster(files, False), NOT_THE_ROSTERS),
        ("roster", _other_identity, "client 1: .*and has the public key"),
        (
            "roster",
            lambda files: files.of("1", "identity").unlink(),
            "identity .* is not there",
        ),
    ],
)
def test_what_a_node_lost_is_said_when_the_run_goes_on(
    kind: str, happens: Callable[[Files], None], message: str, tmp_path: Path
) -> None:
    files = Files(tmp_path / "nodes", small(n=48), kind)
    path = tmp_path / "checkpoint"
    files.run(5, checkpoint=path, callbacks=[Stop(2)])
    happens(files)
    with pytest.raises(SettingsError, match=message) as caught:
        files.run(5, resume=path)
    assert "\n" not in str(caught.value)
    assert re.match(r"client [0-5]\b", str(caught.value))


def test_a_run_has_the_cipher_of_its_clients_key(tmp_path: Path) -> None:
    files = Files(tmp_path / "nodes", small(n=48), "key")
    why = "encryption = 'none' on the server, but the key is of backend 'stream'"
    with pytest.raises(SettingsError, match=why):
        files.run(1, cipher="none")


@pytest.mark.parametrize("kind", ["key", "roster"])
def test_a_run_with_node_files_goes_on_after_all_processes_ended(
    kind: str, tmp_path: Path
) -> None:
    """Nodes' states are gone, too; what is on the nodes' disks is enough."""
    files = Files(tmp_path / "nodes", small(), kind)
    path = tmp_path / "checkpoint"
    files.run(40, checkpoint=path, checkpoint_every=1, callbacks=[Stop(6)])
    rest = files.run(40, resume=path, backup_every=3)
    rest.check()
    assert abs(rest.split.relative(rest.steps.w)) < 1e-2
