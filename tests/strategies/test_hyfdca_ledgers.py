"""What a node of HyFDCA must not lose: its block's keys, its key, and its roster."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context

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
from fedtrellis.settings import SettingsError
from tests.harness import Stop
from tests.strategies.hyfdca_runs import Run, Split, small
from tests.strategies.test_hyfdca_faults import Forgets


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and ledgers of simulations in a folder of the test's."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))


# ------------------------------------------------------------------------ in simulation


def _ledger(run: Run) -> Path:
    session = run.strategy.conversation.session
    return BlockMember(NodeSecrets("1", {}), session)._file.path


def _lost(run: Run) -> None:
    _ledger(run).unlink()


def _damaged(run: Run) -> None:
    data = bytearray(_ledger(run).read_bytes())
    data[len(data) // 2] ^= 1
    _ledger(run).write_bytes(data)


def _cut(run: Run) -> None:
    _ledger(run).write_bytes(_ledger(run).read_bytes()[:-1])


def _open_to_others(run: Run) -> None:
    _ledger(run).parent.chmod(0o755)


def _key_gone(run: Run) -> None:
    node_secrets._run_keys.clear()
    node_secrets._run_key_path(run.strategy.conversation.session).unlink()


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (_lost, "client 1 has no keys of its block"),
        (_damaged, "client 1 has no keys of its block"),
        (_cut, "client 1 has no keys of its block"),
        (_open_to_others, "nobody else can open .*chmod 700 it"),
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

    def run(self, rounds: int, **options: Any) -> Run:
        """As by processes that have just been started."""
        node_secrets._cached.cache_clear()

        def client_fn(context: Context) -> Any:
            name = str(context.node_config["partition-id"])
            own = self.options(name)
            return self.split.client(context, rules=NodeRules(exposed="accept"), **own)

        grid = Forgets(client_app(client_fn), len(self.names))
        return Run(self.split, rounds, grid=grid, encryption="stream", **options)


def _no_ledgers(files: Files) -> None:
    shutil.rmtree(files.of("1", "ledgers"))


def _damaged_ledger(files: Files) -> None:
    (path,) = files.of("1", "ledgers").glob("*.block")
    path.write_bytes(path.read_bytes()[::-1])


def _other_key(files: Files) -> None:
    files.key.unlink()
    write_key_pair(files.key, files.folder / "other-context")


def _no_key(files: Files) -> None:
    files.key.unlink()


def _other_roster(files: Files) -> None:
    """Another public key of one client, on one node."""
    path = files.of("1", "roster")
    publics = {**load_roster(path).members, "4": Identity.generate("4").public}
    path.unlink()
    write_roster(path, publics)


def _smaller_roster(files: Files) -> None:
    path = files.of("1", "roster")
    publics = dict(load_roster(path).members)
    del publics["4"]
    path.unlink()
    write_roster(path, publics)


def _other_identity(files: Files) -> None:
    files.of("1", "identity").unlink()
    write_identity(files.of("1", "identity"), "1")


def _no_identity(files: Files) -> None:
    files.of("1", "identity").unlink()


@pytest.mark.parametrize(
    ("kind", "happens", "message"),
    [
        ("key", _no_ledgers, "client 1 has no keys of its block"),
        ("roster", _no_ledgers, "client 1 has no keys of its block"),
        ("roster", _damaged_ledger, "client 1 has no keys of its block"),
        ("key", _other_key, "this client's key has fingerprint"),
        ("key", _no_key, "key.* cannot be read"),
        ("roster", _other_roster, "client 4 has a public key that is not the roster's"),
        ("roster", _smaller_roster, "client 4 has a public key that is not the ro"),
        ("roster", _other_identity, "client 1: .*and has the public key"),
        ("roster", _no_identity, "identity .* is not there"),
    ],
)
def test_what_a_node_lost_is_said_when_the_run_goes_on(
    kind: str, happens: Callable[[Files], None], message: str, tmp_path: Path
) -> None:
    files = Files(tmp_path / "nodes", small(), kind)
    path = tmp_path / "checkpoint"
    files.run(9, checkpoint=path, callbacks=[Stop(4)])
    happens(files)
    with pytest.raises(SettingsError, match=message) as caught:
        files.run(9, resume=path)
    assert "\n" not in str(caught.value)
    assert re.match(r"client [0-5]\b", str(caught.value))


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
