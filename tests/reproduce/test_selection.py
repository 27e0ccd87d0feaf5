"""That no setting was chosen on test data, and that all methods had the same budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from reproduce.common import Options, Run, app_config
from reproduce.fedfw import accuracy, tables
from reproduce.fedfw.tuning import SEEDS, WIDER
from tasks.data.task import data_of


@pytest.mark.parametrize(
    "name", ["table-1-synthetic", "table-2-synthetic-20", "table-3-synthetic"]
)
def test_what_chooses_is_given_validation_data_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Every run before the choice holds training examples out and sees no test data."""
    calls: list[list[Run]] = []

    def noted(runs: Sequence[Run], jobs: int) -> dict[Any, dict[str, Any]]:
        calls.append(list(runs))
        # the settings decide the score, so that the choice can be checked
        return {
            run.key: {"accuracy": float(run.config.get("penalty", 0.0)), "loss": 1.0}
            for run in runs
        }

    monkeypatch.setattr(accuracy, "execute", noted)
    options = Options(tmp_path, None, 2, 1, False)
    table = tables.TABLES[name]
    results = accuracy.compute(options, name)
    *choosing, last = calls
    for run in (run for call in choosing for run in call):
        assert run.config["classification.validation-fraction"] == 0.2
        assert run.config["seed"] in SEEDS
    for run in last:
        assert "classification.validation-fraction" not in run.config
        assert run.config["seed"] not in SEEDS
    # the same local steps, and the same gradients for all methods side by side; here
    # FedFW's best λ_0 is the largest, so that all of them get the wider search
    rows, rounds = results["rows"], results["rounds"]
    assert {row["method"] for row in rows} == set(table.methods)
    assert {row["gradients"] for row in rows} == {rounds * table.steps}
    each = len(table.choosing) * rounds * table.steps
    spent = (table.budget + WIDER) * each
    assert {row["tuning-gradients"] for row in rows} == {spent}
    for run in last:
        method = run.config.get("method")
        whole = app_config(run.config)
        steps = whole[f"{method}.local-steps"]
        assert steps == run.config["local-steps"]


def test_validation_examples_are_training_examples() -> None:
    config = {
        "method": "fedfw",
        "task": "classification",
        "classification.dataset": "synthetic",
        "classification.train-limit": 600,
        "seed": SEEDS[0],
    }
    whole, held = (
        sim.app.experiment(app_config(config | extra), 10).task
        for extra in ({}, {"classification.validation-fraction": 0.2})
    )

    def rows(features: Any) -> set[bytes]:
        return {np.asarray(row).tobytes() for row in features}

    before, after = (data_of(task) for task in (whole, held))
    training, test = rows(before.features), rows(before.test_features)
    validation = rows(after.test_features)
    assert validation
    assert validation <= training
    assert not validation & test
    assert not validation & rows(after.features)
