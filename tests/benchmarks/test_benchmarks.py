"""Benchmarks run in their quick form, and pages say what was stored."""

import csv
import json
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import held_out, traffic
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.engines import comparison
from benchmarks.engines.bare import numpy_loop
from benchmarks.matrix import measure, page
from benchmarks.matrix.entrants import plugin, steps_drawn
from benchmarks.matrix.methods import METHODS, methods_of
from benchmarks.matrix.problems import CERTIFIED, PROBLEMS
from benchmarks.matrix.runs import MORE, TUNING_SEED, VALUES
from benchmarks.matrix.tables import markdown
from benchmarks.networks.problems import PROBLEMS as NETWORKS
from benchmarks.networks.runs import Runs
from benchmarks.report import Row, Spread
from fedtrellis.domains import L1Ball
from fedtrellis.testing import CONTRACTS, _losses, _play
from reproduce.provenance import KEYS
from tests.harness import entrant


def test_engines_end_at_one_model() -> None:
    job = comparison.digits(comparison.Size(6, 3, 4, 1, 0))
    here = [e for e in comparison.ENGINES if not (e.environment or e.ray)]
    expected = numpy_loop(job)().model
    for engine in here:
        module, _, function = engine.function.partition(":")
        made = getattr(import_module(f"benchmarks.engines.{module}"), function)(job)()
        tolerance = 1e-9 if engine.bits == 64 else 1e-4
        np.testing.assert_allclose(made.model, expected, atol=tolerance, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "deals", "estimators"),
    [("heart", ("iid",), 1), ("statecrime", tuple(held_out.DEALS), 2)],
)
def test_a_held_out_table_ends_as_it_should(
    name: str, deals: tuple[str, ...], estimators: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_out, "DEALS", {one: held_out.DEALS[one] for one in deals})
    (result,) = held_out.compare({name: held_out.FULL[name]})
    found = result.rows
    assert len(found) == len(deals) * (8 + estimators)
    assert all(row["met"] for row in found)
    assert all(row["ended"] == "converged" for row in found if "from twin" in row)
    rest = [row for row in found if row["method"] not in held_out._TWINS]
    for row in rest:
        assert row["ended"] == "round limit"
        assert row["rounds"] == (250 if row["method"] in held_out.AIMS else 50)
    by_hand = [float(str(row["from raw"])) for row in found if "from raw" in row]
    assert len(by_hand) == 3 * len(deals)
    # another file was read: it rounds otherwise
    assert max(by_hand) > 0.0


@pytest.mark.parametrize(
    ("method", "ended", "left", "more", "met"),
    [
        ("fedgia", "converged", 1e-6, {}, True),
        ("fedgia", "converged", 2e-6, {}, False),
        ("fedfw", "round limit", 1e-2, {}, True),
        ("scaffold", "round limit", 2e-2, {}, False),
        ("fedopt", "round limit", 0.9, {}, True),
        ("fedopt", "round limit", 1.1, {}, False),
        ("fedopt", "converged", 1e-9, {}, False),
        ("fedgia", "converged", 0.0, {"from twin": "2e-4"}, False),
        ("hyfdca", "converged", 0.0, {"from raw": "2e-6"}, False),
    ],
)
def test_a_held_out_cell_is_judged(
    method: str, ended: str, left: float, more: dict[str, str], met: bool
) -> None:
    row: Row = {"method": method, "ended": ended, **more}
    assert held_out.judged(row, left)["met"] is met


def test_every_measured_table_names_the_command_that_makes_it() -> None:
    about, *tables = sorted(Path("docs/measured").glob("*.csv"))
    with about.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["table"] for row in found] == [path.name for path in tables]
    for row in found:
        words = row["command"].split()[2:]
        assert find_spec(words[0])
        assert words[0] != "benchmarks" or words[-1] in (*BENCHMARKS, "equal-bytes")


def test_the_page_has_the_stored_held_out_cells() -> None:
    with held_out.STORED.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert {row["table"] for row in found} == set(held_out.FULL)
    assert {row["met"] for row in found} == {"True"}
    stop = [row for row in found if row["method"] in held_out._TWINS]
    assert 10 * sum(row["ended"] != "converged" for row in stop) <= len(stop)
    table = markdown(held_out.by_method(found))
    text = held_out.PAGE.read_text("utf-8")
    assert f"<!-- held-out -->\n{table}\n<!-- end held-out -->" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_runs_in_its_quick_form(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["--quick", "--only", name, "--out", str(out)]) == 0
    assert all(c["rows"] for c in json.loads(out.read_text())["comparisons"])


@pytest.mark.slow
def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(traffic, "QUICK", [(L1Ball(1.0), (40,))])
    out = tmp_path / "out.json"
    given = ["--quick", "--only", "traffic", "--out", str(out), "--csv", str(tmp_path)]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert "Aim: FedDR: at most 1.02 times its bytes: 1.00: met" in printed
    dense, sets = json.loads(out.read_text())["comparisons"]
    assert dense["aims"][0]["met"] is True
    assert len(sets["rows"]) == 1
    table = (tmp_path / "traffic-sets.csv").read_text().splitlines()
    assert table[1].startswith("L1Ball(radius=1.0),40,")


def test_the_page_has_the_stored_ratios_of_late_answers() -> None:
    text = Path("docs/faults.md").read_text("utf-8")
    with Path("docs/measured/late.csv").open(encoding="utf-8", newline="") as file:
        ratios = [row["ratio"].split()[0] for row in csv.DictReader(file)]
    assert f"{min(ratios)} to {max(ratios)}" in text


RESULTS = measure.load_all(measure.RESULTS, list(PROBLEMS.values()))


def test_the_pages_are_made_of_the_stored_results() -> None:
    text = page.PAGE.read_text("utf-8")
    for name, part in page.parts(RESULTS).items():
        assert f"<!-- {name} -->\n{part}\n<!-- end {name} -->" in text
    files = page.files(RESULTS)
    assert len(files) == 2
    for path, content in files.items():
        assert path.read_text("utf-8") == content


@pytest.mark.parametrize("name", list(RESULTS))
def test_budgets_were_equal_and_optima_certified(name: str) -> None:
    stored = RESULTS[name]
    assert set(KEYS) <= set(stored["provenance"])
    seeds = stored["provenance"]["seeds"]
    assert seeds["tuning"] == TUNING_SEED
    assert TUNING_SEED not in seeds["measured"]
    assert len(seeds["measured"]) == 5
    budget = stored["provenance"]["settings"]["budget"]
    for best in stored["optimum"].values():
        assert 0.0 <= best["relative"] <= CERTIFIED
    for method, entry in stored["methods"].items():
        assert [run["seed"] for run in entry["runs"]] == seeds["measured"]
        for run in entry["runs"]:
            assert run["end"]["gradients"] <= max(budget, entry["gradients-a-round"])
            gap = run["gap"]
            assert ("0.0001" in run["hits"]) == (gap is not None and gap <= 1e-4)
            # no run is below what the certificate allows
            assert gap is None or gap >= -CERTIFIED
        if METHODS[method].tuned:
            tuned = entry["tuned"]
            assert tuned["seed"] == TUNING_SEED
            assert len(tuned["tried"]) in (VALUES, VALUES + MORE)
            values = [one["value"] for one in tuned["tried"]]
            edge = tuned["chosen"] in (values[0], values[-1])
            assert tuned["inside"] != edge
            # a best value at an end had the grid extended
            assert not edge or len(values) == VALUES + MORE


@pytest.mark.slow
def test_quick_runs_and_shows_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "--quick", "--only", "lasso-l1"]) == 0
    shown = capsys.readouterr().out
    for method in methods_of(PROBLEMS["lasso-l1"]):
        assert f"lasso-l1: {method.title}: " in shown


@pytest.mark.parametrize("pair", plugin.methods, ids=lambda pair: pair[0].name)
def test_an_entrant_is_its_formula_and_keeps_the_contracts(pair: Any) -> None:
    strategy, client = pair
    name, ball = strategy.name, L1Ball(1e9)
    if name == "feddualavg":
        ball = L1Ball(0.8)
        strategy, client = partial(strategy, ball), partial(client, domain=ball)
    _, watch = _play(strategy, client)
    T, usual = range(1, 13), 10 if name == "feddyn" else 5
    counts = [steps_drawn(3, 0.2, t) if name == "proxskip" else usual for t in T]
    gradients = [loss.gradient for loss in _losses()]
    expected = entrant(name, gradients, np.ones(3), counts, 0.1, 1.0, ball)
    np.testing.assert_allclose(watch.models[-1], expected, rtol=0, atol=1e-12)
    for contract in CONTRACTS:
        contract(strategy, client)


COLUMNS = ("mnist-labels", "mnist-iid", "cifar10-labels", "cifar10-iid")
SHOWN_AS = {
    "FedAvg": "`local-sgd` (FedAvg)",
    "FedAdam, server step 0.03": "`fedopt`, Adam",
    "error feedback, top 5 %": "`compressed-sgd`, top 5 %",
    "majority of signs": "`compressed-sgd`, majority of signs",
    "fedlmo, corrected": "`fedlmo`, corrected",
    "fedlmo, averaged": "`fedlmo`, averaged",
    "fedlmo, ef21, natural": "`fedlmo`, ef21, natural",
}
PAGE = Path(__file__).parents[2] / "docs/fedlmo.md"


@pytest.mark.parametrize("contender", list(SHOWN_AS))
def test_the_page_has_the_kept_runs(contender: str) -> None:
    table = PAGE.read_text("utf-8").split("<!-- goals -->")[1]
    start = f"| {SHOWN_AS[contender]} |"
    [line] = [e for e in table.splitlines() if e.startswith(start)]
    cells = [cell.strip() for cell in line.strip("|").split("|")][2:]
    for problem, cell in zip(COLUMNS, cells, strict=True):
        row = Runs(problem, NETWORKS[problem], 0.0).row(contender)
        told = row["arrived"]
        if told == "3 of 3":
            rounds, moved = row["rounds"], row["kB of a client"]
            assert isinstance(rounds, Spread)
            assert isinstance(moved, Spread)
            told = f"{rounds.median:.0f}, {moved.median / 1000:.1f} MB"
        assert cell == told
