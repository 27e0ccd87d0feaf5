"""Runs of reproductions, what their settings were chosen by, and what they rest on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

import sim
from reproduce import __main__ as command
from reproduce import again, common
from reproduce.__main__ import PAPERS, folder_of
from reproduce.common import (
    Options,
    Run,
    app_config,
    load_results,
    perform,
    read_config,
)
from reproduce.fedfw import accuracy, tables
from reproduce.fedgia import figures
from reproduce.tuning import SEEDS, WIDER


def test_a_run_counts_broadcasts_and_stops_by_the_gradient() -> None:
    config = read_config(folder_of("fedgia") / "v1.toml") | {"seed": 1, "rounds": 60}
    result = perform(Run((), config, nodes=8, stop=1e-7, curve=True))
    norms = result["curve"]["squared-gradient-norm"]
    assert result["passed"]
    assert norms[-1] <= 1e-7 < min(norms[:-1])
    # x at the start, and after every round
    assert result["broadcasts"] == len(norms)
    assert result["loss"] == result["curve"]["loss"][-1]
    short = perform(Run((), config | {"rounds": 3}, nodes=8, stop=1e-7))
    assert not short["passed"]
    assert short["broadcasts"] == 3


def test_without_its_data_an_item_leaves_what_is_stored(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDTRELLIS_DATA", raising=False)
    monkeypatch.setattr(command, "folder_of", lambda paper: tmp_path)
    monkeypatch.setattr(command, "write_index", lambda: None)
    assert command.main(["fedgia", "table-3-qot"]) == 0
    assert not list(tmp_path.iterdir())
    assert "skipped: needs qsar_oral_toxicity" in capsys.readouterr().out


def test_fedgias_bound_is_the_theorems() -> None:
    # the paper: rho = 5 m sigma² / eta, that is 10 t³ r / (t² − 5t − 6)
    assert figures.factor(7.0) == pytest.approx(3430.0 / 8.0)
    config = read_config(folder_of("fedgia") / "v1.toml")
    (found,) = figures.bounds(config, 4, range(3, 4))
    task = sim.app.experiment(app_config(config | {"seed": 3}), 4).task
    losses = [task.client_objective(i) for i in range(4)]
    x = task.solution()
    curved = [np.linalg.eigvalsh(np.asarray(f.hessian_bound()))[-1] for f in losses]
    above = np.mean([f.value(np.zeros(len(x))) - f.value(x) for f in losses])
    assert found == pytest.approx(3430.0 / 8.0 * max(curved) * above)


def test_stored_repetitions_are_judged_right() -> None:
    """Verdicts by another formula, from the stored items and other seeds."""
    items = load_results(again.STORED)["items"]
    assert len(items) >= 2
    for one in items:
        path = folder_of(one["paper"]) / "results" / f"{one['item']}.json"
        (claim,) = (
            claim
            for paper in PAPERS[one["paper"]].claims.PAPERS
            for claim in paper.claims
            if claim.name == one["claim"]
        )
        assert min(one["provenance"]["seeds"]) >= 100
        effects = claim.effects({one["item"]: load_results(path)})
        for effect, row in zip(effects, one["rows"], strict=True):
            old, new = np.array(effect.values), np.array(row["again"])
            np.testing.assert_allclose(old, row["stored"], rtol=1e-6)
            # a two-sided test of one more mean, at 5 % shared by all cases
            spread = old.std(ddof=1) * np.sqrt(1 / len(old) + 1 / len(new))
            p = 2 * t.sf(abs(new.mean() - old.mean()) / spread, len(old) - 1)
            assert row["inside"] == (p >= 0.05 / len(effects))


@pytest.mark.parametrize(
    "name", ["table-1-synthetic", "table-2-synthetic", "table-3-synthetic"]
)
def test_what_chooses_is_given_validation_data_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Every run before the choice holds training examples out and sees no test data."""
    calls: list[list[Run]] = []

    def noted(runs: Sequence[Run], jobs: int) -> dict[Any, dict[str, Any]]:
        calls.append(list(runs))
        # the settings decide the score, so that the choice can be checked
        penalty = {run.key: float(run.config.get("penalty", 0.0)) for run in runs}
        return {key: {"accuracy": p, "loss": 1.0} for key, p in penalty.items()}

    monkeypatch.setattr(common, "execute", noted)
    table = tables.TABLES[name]
    results = accuracy.compute(Options(tmp_path, None, 2, 1, False), name)
    last = calls[-1]
    for run in (run for call in calls for run in call):
        fraction = run.config.get("classification.validation-fraction")
        assert (fraction == 0.2) == (run.config["seed"] in SEEDS) == (run not in last)
    # the same local steps, and the same gradients for all methods side by side; here
    # FedFW's best λ_0 is the largest, so that all of them get the wider search
    rows, rounds = results["rows"], results["rounds"]
    assert {row["method"] for row in rows} == set(table.methods)
    assert {row["gradients"] for row in rows} == {rounds * accuracy.STEPS}
    each = len(table.choosing) * rounds * accuracy.STEPS
    spent = (table.budget + WIDER) * each
    assert {row["tuning-gradients"] for row in rows} == {spent}
    for run in last:
        whole, method = app_config(run.config), run.config.get("method")
        assert whole[f"{method}.local-steps"] == run.config["local-steps"]
