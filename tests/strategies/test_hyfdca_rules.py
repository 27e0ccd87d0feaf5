"""A node's own rules: what it reads in its node config, and what it refuses by them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from clients.hyfdca.run import NodeRules
from fedtrellis.settings import SettingsError, describe_fields, keys
from tests.harness import run_app
from tests.strategies.hyfdca_runs import Run, Split, grid_parts, small

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


@pytest.mark.parametrize("allowed", [{"hyfdca.least": 2}, {"hyfdca.exposed": "accept"}])
def test_what_that_line_names_helps(tmp_path: Path, allowed: dict[str, Any]) -> None:
    assert run_app(APP | allowed | {"rounds": 1}, 4, tmp_path).is_dir()


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
