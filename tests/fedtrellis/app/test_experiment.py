"""The experiment object runs what the command runs, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import sim
from fedtrellis.app.command_line import read_config
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays

CASES = {
    "domain": (
        'method="fedfw" task="lasso" rounds=7 seed=3 participation=0.6 '
        'fedfw.variant="augmented" lasso.rows=50 layers="whole"'
    ),
    "no domain": 'method="fedgia" task="linear-regression" rounds=5 seed=2',
    "manifold": (
        'method="first-order-rfl" task="kernel-pca" rounds=4 kernel-pca.dataset="iris"'
    ),
    "split": 'method="hyfem" task="hybrid-svm" rounds=3 hyfem.local-steps=4',
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_run_of_the_command(case: str, tmp_path: Path) -> None:
    words = ["--nodes", "4", "--out", str(tmp_path), "-c", CASES[case]]
    assert sim.app.command_line(words) == 0
    (record,) = tmp_path.iterdir()
    with np.load(record / "model.npz") as file:
        model = [file[name] for name in sorted(file.files, key=int)]
    lines = (record / "history.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]

    experiment = sim.app.experiment(read_config([CASES[case]]), 4)
    strategy = experiment.strategy()
    result = experiment.start(strategy, experiment.grid(batched=True))
    ours = record_arrays(result.arrays)
    for one, other in zip(ours, model, strict=True):
        np.testing.assert_array_equal(one, other)
    for made, line in zip(strategy.history, history, strict=True):
        assert made.evaluation == line["evaluation"]
        assert (made.bytes_up, made.bytes_down) == (
            line["bytes_up"],
            line["bytes_down"],
        )
    assert experiment.evaluate(result.arrays) == strategy.history[-1].evaluation
    assert experiment.evaluate(ours) == strategy.history[-1].evaluation
    # all by itself, clients one by one
    again = record_arrays(experiment.start().arrays)
    for one, other in zip(again, model, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-12)


def test_it_starts_where_it_is_told() -> None:
    experiment = sim.app.experiment({"task": "lasso", "rounds": 1}, 3)
    point = experiment.domain.project(np.full(400, 0.01))
    (first,) = record_arrays(experiment.initial_arrays(point))
    np.testing.assert_array_equal(first, point)
    (start,) = record_arrays(experiment.initial_arrays())
    np.testing.assert_array_equal(start, experiment.start_point())
    strategy = experiment.strategy()
    experiment.start(strategy, point=point)
    assert strategy.history[0].evaluation == experiment.evaluate([point])
    # with another measure
    strategy = experiment.strategy(evaluate_every=1)
    experiment.start(strategy, evaluate_fn=lambda *rest: None)
    assert not strategy.history[0].evaluation


def test_a_client_that_needs_what_the_task_does_not_have_says_what() -> None:
    experiment = sim.app.experiment({"task": "lasso"}, 3)
    context = Context(1, 1, {}, RecordDict(), {})
    parts = experiment.task.client_parts(0)
    made = experiment.client(context, parts, experiment.domain)
    assert type(made) is experiment.entry.client
    rest: dict[str, Any] = {n: part for n, part in parts.items() if n != "objective"}
    with pytest.raises(SettingsError) as caught:
        experiment.client(context, rest, experiment.domain)
    assert str(caught.value) == (
        "the client of method 'fedfw' needs objective, which task 'lasso' does not have"
    )
