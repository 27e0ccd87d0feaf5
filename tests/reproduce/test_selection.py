"""That no setting was chosen on test data, and that all methods had the same budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from reproduce.__main__ import folder_of
from reproduce.common import Options, Run, app_config, load_results
from reproduce.fedfw import accuracy, tables
from reproduce.fedfw.tuning import SEEDS, WIDER, Search, Space, search
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


def test_stored_tables_had_one_budget() -> None:
    counted = 0
    for name in tables.TABLES:
        path = folder_of("fedfw") / "results" / f"{name}.json"
        if not path.is_file():
            continue
        results = load_results(path)
        rows = [row for row in results["rows"] if "steps" in row]
        assert {row["steps"] for row in rows} <= {tables.TABLES[name].steps}
        for cell in {(row["partition"], row["ball"]) for row in rows}:
            mine = [row for row in rows if (row["partition"], row["ball"]) == cell]
            assert len(mine) == len(tables.TABLES[name].methods)
            assert len({row["tuning-gradients"] for row in mine}) == 1
            assert len({row["gradients"] for row in mine}) == 1
        for row in rows:
            best = max(one["score"] or -1.0 for one in row["tried"])
            # two settings may have one score, as it is stored
            assert {**row["chosen"], "score": best} in row["tried"]
            assert len(row["accuracy"]) == results["seeds"] >= 3
            counted += 1
    assert counted


def test_the_search_ends_inside_of_what_it_tried() -> None:
    space = Space(("a", "b"), (0.0, 0.0))

    def scores(asked: list[tuple[str, dict[str, float]]]) -> list[list[float]]:
        return [
            [-((np.log10(s["a"]) - 1.5) ** 2) - (np.log10(s["b"]) + 0.5) ** 2]
            for _, s in asked
        ]

    found = search({"x": space, "y": space}, 40, scores)
    for one in found.values():
        assert len(one.tried) <= 40
        assert one.inside
        assert one.best == pytest.approx((1.5, -0.5), abs=0.3)
    # a budget that ends on the way is said
    short = search({"x": space}, 2, scores)["x"]
    assert len(short.tried) == 2
    assert not short.inside
    assert not short.record()["inside"]
    # one more walk for it and for its rival, and none for those elsewhere
    spaces = {("here", k): space for k in "ab"} | {("there", "c"): space}
    far = {"here": 1.5, "there": 0.0}

    def away(asked: list[tuple[Any, dict[str, float]]]) -> list[list[float]]:
        return [
            [-((np.log10(s["a"]) - far[c[0]]) ** 2) - np.log10(s["b"]) ** 2]
            for c, s in asked
        ]

    walked = search(spaces, 5, away, 8, lambda case: case[0])
    tried = [len(one.tried) for one in walked.values()]
    assert tried == [9, 9, 5]
    assert all(one.inside for one in walked.values())
    # runs that failed are never chosen
    broken = Search(space)
    broken.tried = {(0.0, 0.0): -np.inf, (1.0, 0.0): 0.1}
    assert broken.best == (1.0, 0.0)
