"""Benchmarks of scale: deployed rounds, round trips, nodes and parameters."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import sim
from benchmarks import cohorts, deployed, round_trips, scale
from benchmarks.report import Spread
from fedtrellis.objectives import LeastSquares
from fedtrellis.wire.local_grid import LocalGrid


def lines(*seconds: float) -> list[str]:
    """Log lines of rounds that end at these seconds of a minute."""
    return [
        json.dumps(
            {
                "event": "round",
                "time": f"2026-01-01T00:00:{end:06.3f}+00:00",
                "round": number,
                "rejected": [],
            }
        )
        for number, end in enumerate(seconds)
    ]


def test_rounds_are_timed_by_the_log() -> None:
    output = ["Starting ...", *lines(1.0, 9.0, 15.5, 21.0), 'INFO: {"event": "end"}']
    assert deployed.round_seconds("\n".join(output), 3) == [6.5, 5.5]


def test_a_run_that_failed_or_lost_answers_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="a run of 3 rounds failed"):
        deployed.round_seconds("\n".join(lines(1.0, 2.0)), 3)
    lost = lines(1.0, 2.0)
    lost[1] = lost[1].replace("[]", '[{"client": "1", "reason": "late"}]')
    with pytest.raises(RuntimeError, match="lost"):
        deployed.round_seconds("\n".join(lost), 1)


def test_the_app_of_fedavg_learns_from_the_tasks_own_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = sim.app.experiment(sim.app.default_config() | {"task": "lasso"}, 4)
    objectives = [setup.task.client_objective(index) for index in range(4)]
    rows = [item for item in objectives if isinstance(item, LeastSquares)]
    data = deployed.write_fedavg(tmp_path / "fedavg", rows)
    app = runpy.run_path(str(tmp_path / "fedavg" / "fedavg_app.py"))
    step = 1.0 / max(objective.lipschitz() for objective in rows)
    config: dict[str, Any] = {"rounds": 3, "nodes": 4, "data": str(data), "step": step}
    grid = LocalGrid(app["client"], 4, run_config=config)
    app["server"](grid, Context(0, 0, {}, RecordDict(), config))
    printed = [
        json.loads(line)
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("{")
    ]
    losses = [line["metrics"]["loss"] for line in printed]
    assert losses[0] == pytest.approx(setup.task.value(np.zeros(400)))
    # the mean of one gradient step of each node's f_i is a step on F
    x = -step * setup.task.gradient(np.zeros(400))
    assert losses[1] == pytest.approx(setup.task.value(x))
    assert losses == sorted(losses, reverse=True)


def test_round_trips_are_those_of_the_history() -> None:
    wanted = {"fedfw", "hyfdca"}
    cases = [case for case in round_trips.CASES if case.method in wanted]
    assert {case.method for case in round_trips.CASES} == set(sim.app.registry.methods)
    rows = round_trips.compare(cases[:2], 3).rows
    assert [row["method"] for row in rows] == ["fedfw", "hyfdca"]
    assert rows[0]["round trips a round"] == 1
    assert rows[1]["round trips a round"] == 2
    assert rows[1]["rounds"] == 3


def test_a_round_of_few_nodes() -> None:
    result = scale.compare((scale.Case(3, 50, 2),))
    (row,) = result.rows
    whole, share = row["a round"], row["a node"]
    assert isinstance(whole, Spread)
    assert isinstance(share, Spread)
    assert whole.median == pytest.approx(3 * share.median)
    assert whole.median > 0.0
    # x_i, x̄ and what the round may still undo
    assert int(str(row["state of a node, bytes"]).replace(",", "")) > 2 * 50 * 8


def test_cohorts_and_workers_are_measured() -> None:
    sizes = cohorts.Sizes((scale.Case(4, 20, 1),), 1, before=False, heavy=2)
    light, heavy = cohorts.compare(sizes)
    assert light.rows[0]["nodes"] == 4
    assert {"one by one", "together"} <= light.rows[0].keys()
    assert isinstance(heavy.rows[0]["workers=2"], Spread)
