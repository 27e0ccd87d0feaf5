"""The reproductions' own machinery, and a small run of every item."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduce import fedgia
from reproduce.__main__ import PAPERS, folder_of, main
from reproduce.common import (
    Options,
    Run,
    SkippedError,
    app_config,
    execute,
    load_results,
    mean_of,
    perform,
    read_config,
    save_results,
)
from reproduce.pages import as_csv, page_with, pages_of, shown, update_page
from reproduce.provenance import KEYS, Ledger

ROOT = Path(__file__).resolve().parents[2]
V1 = read_config(ROOT / "reproduce" / "fedgia" / "v1.toml")


def test_local_steps_of_an_oracle_have_their_whole_name() -> None:
    shared = {"local-steps": 20, "local-batch-size": 8}
    found = app_config({"method": "fedfw", **shared})
    assert found["fedfw.local-steps"] == "auto"
    assert found["fedfw.batch-size"] == 64
    found = app_config({"method": "fedfw", **shared, "fedfw.local-steps": 3})
    assert found["fedfw.local-steps"] == 3
    assert app_config({"method": "feddr", **shared})["feddr.local-steps"] == 20


def test_a_quick_run_of_all_items(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDTRELLIS_DATA", raising=False)
    pages = pages_of(ROOT / "reproduce" / "fedgia")
    before = [page.read_bytes() for page in pages]
    assert len(pages) == 3
    arguments = ["fedgia", "--quick", "--seeds", "1"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    out, _ = capfd.readouterr()
    # what needs a file that is not there is skipped by name
    assert "skipped: needs qsar_oral_toxicity/qsar_oral_toxicity.zip" in out
    assert "skipped: needs santander/train.csv" in out
    found = load_results(tmp_path / "results" / "table-3-v1.json")
    assert found["provenance"]["seeds"] == [0]
    assert "fedgia" in found["provenance"]["settings"]["varied"]["method"]
    rows = found["rows"]
    assert {row["method"] for row in rows} == set(fedgia.tables.METHODS)
    for row in rows:
        (loss,), (count,) = row["loss"], row["broadcasts"]
        if row["method"].startswith("FedGiA"):
            assert row["passed"] == 1
            assert count < 40
            assert f"| {row['method']} | {row['k0']} | {loss:.4f} | {count:.1f}" in out
        else:
            assert row["passed"] == 0
    for number in (1, 2, 3, 4):
        picture = tmp_path / f"figure-{number}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 10_000
    # only a full run changes the page
    assert [page.read_bytes() for page in pages] == before
    # saved results are shown again without a run
    assert main(["fedgia", "table-3-v1", "--render", "--out", str(tmp_path)]) == 0


def test_saved_results_are_what_the_pages_show() -> None:
    """Every item has its place in the page; what is committed there is its results."""
    for name, paper in PAPERS.items():
        if name == "fedfw":  # whose pictures too are looked at in test_fedfw_items
            continue
        folder = folder_of(name)
        for item, definition in paper.ITEMS.items():
            page = page_with(folder, item).read_text(encoding="utf-8")
            pattern = f"<!-- {item} -->\n(.*?)<!-- end {item} -->"
            match = re.search(pattern, page, flags=re.DOTALL)
            assert match, item
            saved = folder / "results" / f"{item}.json"
            if saved.is_file() and "figure" not in item:
                text = definition.render(load_results(saved), folder)
                short, files = shown(item, text)
                assert match.group(1).strip() == short
                for name, content in files.items():
                    assert (folder / "tables" / name).read_text("utf-8") == content


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


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(KeyError, match="no-such"):
        perform(Run((), {"no-such": 1}))


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


def test_results_survive_the_file(tmp_path: Path) -> None:
    results: dict[str, Any] = {
        "rows": [{"a": [1.0, 2.5e-10, -3], "b": (1, 2)}, {"t": "x [1, 2]"}],
        "empty": [],
        "number": 0.1,
    }
    path = tmp_path / "folder" / "results.json"
    save_results(path, results)
    assert load_results(path) == json.loads(json.dumps(results))
    assert '"a": [1.0, 2.5e-10, -3]' in path.read_text()


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


def test_missing_data_is_named(tmp_path: Path) -> None:
    options = Options(tmp_path, None, 1, 1, True)
    with pytest.raises(SkippedError, match="needs x.csv; name its folder with --data"):
        options.file("x.csv")
    with pytest.raises(SkippedError, match="needs x.csv, which is not in"):
        Options(tmp_path, tmp_path, 1, 1, True).file("x.csv")


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


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    for paper in PAPERS.values():
        assert all(item in out for item in paper.ITEMS)


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
