"""The reproductions' own machinery, and a small run of every item."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reproduce.__main__ import PAPERS, folder_of, main
from reproduce.common import (
    Run,
    execute,
    load_results,
    mean_of,
    perform,
    read_config,
)
from reproduce.pages import as_csv, shown, update_page
from reproduce.provenance import KEYS, Ledger

ROOT = Path(__file__).resolve().parents[2]
V1 = read_config(ROOT / "reproduce" / "fedgia" / "v1.toml")


def test_a_run_counts_broadcasts_and_stops_by_the_gradient() -> None:
    config = V1 | {"seed": 1, "rounds": 60}
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


def test_a_diverging_run_is_a_result_and_not_an_error() -> None:
    config = V1 | {"method": "fedavg-gd", "local-step-size": 1e9, "rounds": 400}
    with np.errstate(all="ignore"):
        assert "too long" in perform(Run((), config, nodes=4))["failed"]


def test_execute_keeps_keys_and_order() -> None:
    runs = [
        Run(("a", seed), V1 | {"seed": seed, "rounds": 2}, nodes=4) for seed in (3, 1)
    ]
    results = execute(runs, jobs=2, say=lambda text: None)
    assert list(results) == [("a", 3), ("a", 1)]
    mean, deviation = mean_of(results, "loss", "a")
    losses = [value["loss"] for value in results.values()]
    assert mean == pytest.approx(np.mean(losses))
    assert deviation == pytest.approx(np.std(losses))
    assert np.isnan(mean_of(results, "loss", "b")[0])
    with pytest.raises(ValueError, match="two runs"):
        execute([runs[0], runs[0]], jobs=1)


def test_a_table_becomes_a_data_file() -> None:
    text = (
        "![p](p.png)\n\n| **a** | b, c |\n| --- | --- |\n| [x](y.md) | |\n\n"
        "Two seeds. Measured in 1.0 minutes on 2 cores, flwr 1.41.0."
    )
    short, files = shown("item", text)
    assert short == "![p](p.png)\n\n[Table](tables/item.csv)\n\nTwo seeds."
    assert files == {"item.csv": 'a,"b, c"\nx,\n'}
    assert as_csv("| a |\n| --- |\n| 3 \\| 4\\* |") == "a\n3 | 4*\n"


def test_pages_are_changed_between_their_marks_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- end a -->\nafter\n")
    update_page(page, "a", "new")
    assert page.read_text() == "before\n<!-- a -->\nnew\n<!-- end a -->\nafter\n"
    with pytest.raises(ValueError, match="<!-- b -->"):
        update_page(page, "b", "new")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedgia", "tabel-3"], "no item 'tabel-3'; allowed: table-3-v1"),
        (["fedgia", "--seeds", "0"], "--seeds 0 must be at least 1"),
    ],
)
def test_bad_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().out


def test_every_stored_result_says_where_it_comes_from() -> None:
    count = 0
    for name in PAPERS:
        for path in sorted((folder_of(name) / "results").glob("*.json")):
            results = load_results(path)
            assert tuple(results["provenance"]) == KEYS, path
            assert results["minutes"] >= 0.0
            assert all(results["provenance"].values()), path
            count += 1
    assert count > 50


def test_a_ledger_says_what_runs_shared_and_what_they_varied() -> None:
    ledger = Ledger()
    ledger.note(
        {"rounds": 9, "seed": seed, "penalty": penalty, "task.path": "/home/x"}
        for seed in (3, 1)
        for penalty in (0.1, 0.2)
    )
    found = ledger.describe("reproduce.somewhere")
    assert found["seeds"] == [1, 3]
    assert found["settings"] == {
        "shared": {"rounds": 9},
        "varied": {"penalty": [0.1, 0.2]},
        "runs": 4,
    }
    assert found["versions"]["numpy"] == np.__version__
    ledger.clear()
    assert ledger.describe("reproduce.somewhere")["seeds"].endswith("somewhere")
