"""A run that ends badly ends in order: what its record says, and how it goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import sim
from fedtrellis import Callback, EarlyStop, LocalGrid, RoundStrategy

ROOT = Path(__file__).resolve().parents[1]


def run(parent: Path, **settings: Any) -> Path:
    """Run a small Lasso with some answers lost, and return its record."""
    config = {"task": "lasso", "lasso.rows": 40, "rounds": 3, "stop-metric": "loss"}
    config |= settings
    config = sim.default_config() | config | {"results-dir": str(parent)}
    grid = LocalGrid(sim.client_app, 4, run_config=config, reply_loss=0.2)
    return sim.run(grid, config)


def history(record: Path) -> list[dict[str, Any]]:
    path = record / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_summary(record: Path, status: str) -> None:
    """Its summary tells of the rounds that its history has, and of no others."""
    summary = json.loads((record / "summary.json").read_text())
    lines = history(record) if (record / "history.jsonl").exists() else []
    assert summary["status"] == status
    assert summary["rounds"] == (lines[-1]["round"] if lines else 0)
    reasons = Counter(why for line in lines for _, why in line["rejected"])
    assert summary["rejected_by_reason"] == dict(reasons)
    for name in ("sampled", "used", "bytes_up", "bytes_down"):
        assert summary[name] == sum(line[name] for line in lines)


@pytest.mark.parametrize("moment", ["on_start", "on_round", "on_end"])
@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt()])
def test_a_summary_is_of_the_history_however_a_run_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    error: BaseException,
) -> None:
    first = run(tmp_path / "first", rounds=1)

    def fail(self: Callback, strategy: RoundStrategy, *rest: Any) -> None:
        if moment != "on_round" or rest[0].round == 2:
            raise error

    monkeypatch.setattr(EarlyStop, moment, fail)
    for number, resume in enumerate(("", str(first))):
        with pytest.raises(type(error)):
            run(tmp_path / str(number), resume=resume)
        (record,) = (tmp_path / str(number)).iterdir()
        status = "failed" if isinstance(error, ValueError) else "interrupted"
        check_summary(record, "completed" if moment == "on_end" else status)
        assert len(history(record)) == {"on_start": 2 * number, "on_round": 3}.get(
            moment, 4
        )


@pytest.mark.parametrize("setting", [{"min-nodes": 4}, {"resume": "first"}])
def test_a_run_that_is_refused_before_round_1_says_so(
    tmp_path: Path, setting: dict[str, Any]
) -> None:
    """By a callback, which comes before the record has any history."""
    if "resume" in setting:
        setting = {"resume": str(run(tmp_path / "first", rounds=1))}
    config = sim.default_config() | {"task": "lasso", "results-dir": str(tmp_path)}
    nodes = [{"num-partitions": 3}, {}, {}, {}]
    grid = LocalGrid(sim.client_app, 4, run_config=config, node_configs=nodes)
    with pytest.raises(ValueError, match="num-partitions must be 4"):
        sim.run(grid, config | {"lasso.rows": 40, "stop-metric": "loss"} | setting)
    (record,) = [path for path in tmp_path.iterdir() if path.name != "first"]
    check_summary(record, "failed")
