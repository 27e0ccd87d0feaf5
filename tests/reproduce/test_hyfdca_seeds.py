"""Figure 3 with several seeds: what the stored comparisons rest on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduce.__main__ import folder_of
from reproduce.common import Options, Run, load_results, save_results
from reproduce.hyfdca import claims, seeds
from reproduce.hyfdca.latency import METHODS

STORED = folder_of("hyfdca") / "results"


def test_the_first_seed_is_figure_3s() -> None:
    figure = load_results(STORED / "figure-3.json")
    rows = load_results(STORED / "figure-3-seeds.json")["rows"]
    panels = [p for p in figure["panels"] if p["problem"] != "digits"]
    assert len(rows) == len(panels) == 9
    for row, panel in zip(rows, panels, strict=True):
        assert row["split"] == panel["split"]
        best = figure["optima"][panel["problem"]]["value"]
        for method in METHODS:
            curve, ends = panel["curves"][method], row["ends"][method]
            # the last evaluations, none chosen by its accuracy
            loss = np.mean(curve["loss"][-5:]) / best - 1.0
            assert ends["loss"][0] == pytest.approx(loss)
            assert ends["accuracy"][0] == pytest.approx(np.mean(curve["accuracy"][-5:]))
            assert len(ends["loss"]) in seeds.SEEDS.values()


def test_every_comparison_of_the_paper_is_a_case() -> None:
    found = {"figure-3-seeds": load_results(STORED / "figure-3-seeds.json")}
    for what in ("ends", "timed"):
        effects = claims._comparisons(what)(found)
        assert len({effect.case for effect in effects}) == len(effects) == 36
        tested = [effect for effect in effects if effect.holds() is not None]
        # two of nine settings have one seed
        assert len(tested) == 28


def test_further_seeds_have_data_and_an_optimum_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With digits, as a quick run has nothing else; runs and optima are made up."""
    figure = load_results(STORED / "figure-3.json")
    figure["panels"] = [p for p in figure["panels"] if p["problem"] == "digits"][:2]
    save_results(tmp_path / "results" / "figure-3.json", figure)
    shutil.copy(STORED / "tables-6-8.json", tmp_path / "results")
    asked: list[Run] = []

    def execute(runs: list[Run], jobs: int, **how: Any) -> dict[Any, Any]:
        asked.extend(runs)
        curve = {"round": [0, 1], "loss": [1.0, 0.6], "accuracy": [0.5, 0.9]}
        curve |= {"trips": [0, 1], "seconds": [0.0, 1.0], "failed": ""}
        return {run.key: curve for run in runs}

    monkeypatch.setattr(seeds, "execute", execute)
    monkeypatch.setattr(
        seeds, "optimum_of", lambda config, nodes: {"value": 0.1 * config["seed"]}
    )
    results = seeds.compute_seeds(Options(tmp_path, None, 2, 1, True))
    assert len(results["rows"]) == results["seeds"] == 2
    assert len(asked) == 2 * len(METHODS)
    assert {run.config["seed"] for run in asked} == {1}
    for row in results["rows"]:
        for method in METHODS:
            assert row["ends"][method]["loss"][1] == pytest.approx(0.8 / 0.1 - 1.0)
            assert row["ends"][method]["accuracy"][1] == pytest.approx(0.7)
    # the baselines run with what figure 3 chose
    chosen = figure["tuned"]["digits"][METHODS[1]]["settings"]
    run = next(run for run in asked if run.key[2] == METHODS[1])
    assert chosen.items() <= run.config.items()
