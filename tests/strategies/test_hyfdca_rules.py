"""A node's own rules: what it reads in its node config, and what it refuses by them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from clients.hyfdca.run import NodeRules
from fedtrellis.encryption import node_secrets
from fedtrellis.encryption.block_sum import BlockMember, Introduction
from fedtrellis.encryption.cipher import write_key_pair
from fedtrellis.encryption.identity import (
    Identity,
    load_roster,
    write_identity,
    write_roster,
)
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.settings import describe_fields, keys
from tests.harness import Stop, refused, run_app
from tests.strategies.hyfdca_runs import Nodes, Run, Split, grid_parts, small

ROOT = Path(sim.__file__).parent


def test_a_slip_in_a_rules_name_is_not_passed_over() -> None:
    """And other keys of a node config are no slips."""
    refused("leest = 5 .* did you mean 'least'", lambda: NodeRules.of({"leest": 5}))
    names = "client-id data test-data scores-file key-file identity-file roster-file"
    others: dict[str, Any] = dict.fromkeys(f"{names} ledger partition-id".split(), "x")
    assert NodeRules.of({**others, "least": 4}) == NodeRules(least=4)


def test_the_page_on_deployments_lists_the_rules() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    for key, default, text in describe_fields(keys(NodeRules)):
        assert f"| `{key}` | {default} | {text} |" in page


def test_the_task_leaves_out_what_nodes_would_refuse(tmp_path: Path) -> None:
    app = {"method": "hyfdca", "task": "hybrid-svm", "hybrid-svm.train-limit": 100}
    assert run_app(app | {"rounds": 1}, 16, tmp_path / "a").is_dir()
    kept = app | {"rounds": 1, "hybrid-svm.least-entries": 2}
    why = "is not zero in 2 of its samples only.*hyfdca.exposed.*hyfdca.least"
    refused(why, lambda: run_app(kept, 16, tmp_path / "b"))


def _rare(entries: int = 2) -> Split:
    """One client has a feature in two of its samples only."""
    split = small(n=36)
    split.X[split.parts[2][0][entries:], 1] = 0.0
    return split


EXPOSED: list[tuple[Callable[[], Split], dict[str, Any], str]] = [
    (
        lambda: small(parts="vertical", n=24),
        {},
        "4 of its features .* than 3 holders, .*-0000' 1 ",
    ),
    (
        lambda: small(parts=grid_parts(24, 12, 2, 2), n=24),
        {},
        "6 of its features .* than 3 holders, .*-0000' 2 ",
    ),
    (lambda: small(parts=grid_parts(8, 12, 3, 2), n=8), {}, "holders of size 2(?! th)"),
    (_rare, {}, "client 2: .* 'feature-0001' is not zero in 2 of .*leave-out"),
    (small, {"secure_sum": False}, "secure-sum is off"),
    (small, {"least": 4}, "of its features .* than 4 holders, .*' 3 "),
]


@pytest.mark.parametrize(("make", "options", "reason"), EXPOSED)
def test_what_sums_would_give_away_is_refused(
    make: Callable[[], Split], options: dict[str, Any], reason: str
) -> None:
    refused(reason, lambda: Run(make(), 1, **{"exposed": "refuse", **options}))
    Run(make(), 1, **{**options, "exposed": "accept"})


def test_rare_entries_are_left_out_where_that_is_the_rule() -> None:
    """The run is that of data without them."""
    one, other = Run(_rare(), 8, exposed="leave-out"), Run(_rare(0), 8)
    assert np.abs(one.model - other.model).max() < 1e-9


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and ledgers of simulations in a folder of the test's."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def _ledger(run: Run) -> Path:
    session = run.strategy.conversation.session
    return BlockMember(NodeSecrets("1", {}), session)._file.path


def _key_gone(run: Run) -> None:
    node_secrets._run_keys.clear()
    node_secrets._run_key_path(run.strategy.conversation.session).unlink()


NO_KEYS = "has no keys of its block"


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (lambda run: _ledger(run).unlink(), NO_KEYS),
        (lambda run: _ledger(run).write_bytes(b"damage"), NO_KEYS),
        (lambda run: _ledger(run).parent.chmod(0o755), "nobody else can open"),
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

    options: dict[str, Any] = {"each": each, "encryption": "stream"}
    refused(f"^client .*{message}", lambda: Run(small(), 20, **options))


def _other_roster(nodes: Nodes) -> None:
    """On one node, with another public key of one client."""
    path = nodes.of("1", "roster")
    publics = {**load_roster(path).members, "4": Identity.generate("4").public}
    path.unlink()
    write_roster(path, publics)


def _other(nodes: Nodes, what: str) -> None:
    """Another file in its place."""
    path = nodes.key if what == "key" else nodes.of("1", what)
    path.unlink()
    if what == "key":
        write_key_pair(path, nodes.folder / "other-context")
    elif what == "identity":
        write_identity(path, "1")


@pytest.mark.parametrize(
    ("kind", "happens", "message"),
    [
        ("key", lambda nodes: shutil.rmtree(nodes.of("1", "ledgers")), NO_KEYS),
        ("key", lambda nodes: _other(nodes, "key"), "client's key has fingerprint"),
        ("roster", _other_roster, "client 4 has a public key that is not the roster's"),
        ("roster", lambda nodes: _other(nodes, "identity"), "and has the public key"),
        ("roster", lambda nodes: _other(nodes, "roster"), "roster.* cannot be read"),
    ],
)
def test_what_a_node_lost_is_said_when_the_run_goes_on(
    kind: str, happens: Callable[[Nodes], None], message: str, tmp_path: Path
) -> None:
    nodes = Nodes(tmp_path / "nodes", small(n=48), kind)
    path = tmp_path / "checkpoint"
    if kind == "key":
        why = "encryption = 'none' on the server, but the key is of backend 'stream'"
        refused(why, lambda: nodes.run(1))
    nodes.run(5, checkpoint=path, callbacks=[Stop(2)], encryption="stream")
    happens(nodes)
    why = rf"^client [0-5]\b.*{message}"
    refused(why, lambda: nodes.run(5, resume=path, encryption="stream"))


@pytest.mark.parametrize("kind", ["key", "roster"])
def test_runs_with_node_files_outlive_processes(kind: str, tmp_path: Path) -> None:
    """Nodes' states are gone, too; what is on the nodes' disks is enough."""
    nodes = Nodes(tmp_path / "nodes", small(), kind)
    path = tmp_path / "checkpoint"
    same: dict[str, Any] = {"encryption": "stream", "backup_every": 3}
    first = nodes.run(9, checkpoint=path, callbacks=[Stop(6)], **same)
    before = first.steps.bundle.dual_values().sum()
    rest = nodes.run(30, resume=path, **same)
    assert rest.strategy.history[7].train.get("dual-bound", before) > 0.5 * before
    rest.check()
    assert abs(rest.split.relative(rest.steps.w)) < 0.05


def test_an_answer_to_the_alignment_has_the_arrays_that_were_asked_for() -> None:
    strategy = Run(small(), 1, encryption="stream").strategy
    made = Introduction("a", "ab" * 32, bytes(32))
    arrays: list[Any] = [*made.arrays(), np.zeros(0, np.uint8)]
    strategy.check_rest(arrays)
    for wrong in (arrays[:2], [*arrays, arrays[2]], [*arrays[:2], np.zeros(0)]):
        check = partial(strategy.check_rest, wrong)
        refused("alignment is malformed", check, ValueError)
