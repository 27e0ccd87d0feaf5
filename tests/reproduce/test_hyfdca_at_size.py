"""Whole data sets, and each digit against the rest: what the stored results rest on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sim
from reproduce.__main__ import folder_of
from reproduce.common import Options, app_config, load_results
from reproduce.hyfdca import at_size, claims
from reproduce.hyfdca.figures import BUNDLE, PRACTICAL
from reproduce.hyfdca.problems import PROBLEMS, config_of

STORED = folder_of("hyfdca") / "results"


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    return load_results(STORED / "one-against-rest.json")


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return load_results(STORED / "full-data.json")


def test_settings_were_chosen_on_another_seed_from_grids_of_one_size(
    digits: dict[str, Any], whole: dict[str, Any]
) -> None:
    for row, case in ((digits, "digit"), *((r, r["problem"]) for r in whole["rows"])):
        for method, one in row["tuned"].items():
            assert one["inside"]
            assert len(one["tried"]) == len(at_size.grids(case)[method]) == 16
            best = min(one["tried"], key=lambda trial: trial["loss"] or np.inf)
            assert {**one["chosen"], "loss": best["loss"]} == best
        assert set(row["ends"]) == {BUNDLE, *row["tuned"]}
    assert digits["provenance"]["seeds"] == [*range(10), at_size.CHOICE]
    assert whole["provenance"]["seeds"] == [*range(5), at_size.CHOICE]


def test_all_samples_are_taken(digits: dict[str, Any], whole: dict[str, Any]) -> None:
    sizes = [(row["samples"], row["features"]) for row in whole["rows"]]
    assert sizes == [(60_000, 785), (569_391, 54)]
    assert (digits["samples"], digits["features"]) == (60_000, 785)
    # the same P* as table 5's, found there with one seed
    known = {
        row["problem"]: row["value"]
        for row in load_results(STORED / "table-5.json")["rows"]
        if row["all"]
    }
    for row in whole["rows"]:
        assert row["optima"][0] == pytest.approx(known[row["problem"]], rel=1e-8)
        assert len(row["optima"]) == at_size.SEEDS[row["problem"]]


def test_the_papers_minimum_is_that_of_a_digit_against_the_rest(
    digits: dict[str, Any],
) -> None:
    paper = PROBLEMS["mnist"].paper_optimum
    half = next(
        row["value"]
        for row in load_results(STORED / "table-5.json")["rows"]
        if row["problem"] == "mnist" and row["all"]
    )
    assert min(digits["optima"]) < paper < max(digits["optima"])
    assert abs(np.mean(digits["optima"]) - paper) < 0.1 * (half - paper)
    # nothing ends below P*
    for ends in digits["ends"].values():
        assert min(ends["loss"]) > 0.0


def test_every_digit_is_a_unit_of_its_own(tmp_path: Any) -> None:
    """Labels of the task by the classes of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    problem = at_size._whole("digits", Options(tmp_path, None, 1, 1, True), 3)
    config = config_of(problem, Options(tmp_path, None, 1, 1, False))
    task = sim.app.experiment(app_config(config), 4).task
    labels = np.asarray(task.objective().labels)
    count = int(np.sum(load_digits().target == 3))
    # a stratified part of them is test data
    assert np.sum(labels > 0) == pytest.approx(0.8 * count, abs=1)
    assert len(labels) == 1437


def test_claims_count_them(digits: dict[str, Any]) -> None:
    found = {
        name: load_results(STORED / f"{name}.json")
        for name in ("figure-3-seeds", "full-data", "one-against-rest")
    }
    effects = claims._iterations(found)
    # 9 + 2 settings and two steps on digits, two baselines, loss and accuracy
    assert len({effect.case for effect in effects}) == len(effects) == 4 * (9 + 2 + 2)
    ours = [effect for effect in effects if effect.unit == "digits"]
    assert len(ours) == 8
    ends = digits["ends"]
    last = ours[-1]
    assert "paper's step: accuracy, HyFEM" in last.case
    np.testing.assert_allclose(
        last.values,
        100 * np.subtract(ends[PRACTICAL]["accuracy"], ends["HyFEM"]["accuracy"]),
    )
