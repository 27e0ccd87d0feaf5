"""A node's own rules: what it reads in its node config, and what it refuses by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sim
from clients.hyfdca.run import NodeRules
from fedtrellis.settings import SettingsError, describe_fields, keys
from tests.harness import run_app

ROOT = Path(sim.__file__).parent


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("leest", "least"),
        ("noises", "noise"),
        ("expose", "exposed"),
    ],
)
def test_a_slip_in_a_rules_name_is_not_passed_over(key: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=f"{key} = 5 .* did you mean '{meant}'"):
        NodeRules.of({key: 5})


def test_other_keys_of_a_node_config_are_no_slips() -> None:
    others: dict[str, Any] = {
        "client-id": "node-1",
        "data": "/d.csv",
        "test-data": "/t.csv",
        "scores-file": "/s.csv",
        "key-file": "/k",
        "identity-file": "/i",
        "roster-file": "/r",
        "ledger": "/l",
        "factor-file": "/f",
        "outer-domain": "l2-ball",
        "partition-id": 0,
        "num-partitions": 4,
    }
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


@pytest.mark.parametrize("allowed", [{"hyfdca.least": 2}, {"hyfdca.exposed": "accept"}])
def test_what_that_line_names_helps(tmp_path: Path, allowed: dict[str, Any]) -> None:
    assert run_app(APP | allowed | {"rounds": 1}, 4, tmp_path).is_dir()


def test_the_task_leaves_out_what_nodes_would_refuse(tmp_path: Path) -> None:
    assert run_app(APP | {"rounds": 1}, 16, tmp_path / "a").is_dir()
    kept = {"rounds": 1, "hybrid-svm.least-entries": 2}
    with pytest.raises(SettingsError, match="is not zero in 2 of its samples only"):
        run_app(APP | kept, 16, tmp_path / "b")
