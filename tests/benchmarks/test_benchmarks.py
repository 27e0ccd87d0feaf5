"""The benchmarks run, at sizes that mean nothing, and say what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import (
    __main__,
    fedgia_step,
    overhead,
)
from benchmarks.report import Aim, Comparison, Spread


def test_a_table_as_a_page_has_it() -> None:
    result = Comparison("a", "A", "about")
    result.rows = [
        {"n": 1, "CPU": Spread((1.0, 2.0, 3.0), "/s")},
        {"n": 2, "more": "x"},
    ]
    table = (
        "| n | CPU | more |\n| --- | --- | --- |\n| 1 | 2 (1 – 3) |  |\n| 2 |  | x |"
    )
    assert result.markdown() == table
    result.aims = [Aim("at most 1", "2", False)]
    aims = "| aim | measured |  |\n| --- | --- | --- |\n| at most 1 | 2 | missed |"
    assert result.markdown() == f"{table}\n\n{aims}"


def test_bare_loops_are_the_methods() -> None:
    # compare() raises if the models, or the z_i, differ by more than 1e-9
    (row,) = overhead.compare([overhead.Case(50, 8, 3, blocks=3, rounds=10)]).rows
    assert isinstance(row["FedFW / NumPy"], Spread)
    cases = [fedgia_step.Case(*shape, blocks=2, calls=3) for shape in ((6, 9), (9, 6))]
    for row in fedgia_step.compare(cases).rows:
        assert isinstance(row["FedGiA / NumPy"], Spread)


@pytest.mark.slow
@pytest.mark.parametrize("name", __main__.COMPARISONS)
def test_each_runs_in_its_quick_form(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert __main__.main(["--quick", "--only", name, "--out", str(out)]) == 0
    assert all(c["rows"] for c in json.loads(out.read_text())["comparisons"])


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overhead, "QUICK", [overhead.Case(40, 4, 2, 2, 3)])
    out = tmp_path / "out.json"
    assert __main__.main(["--quick", "--only", "overhead", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "FedFW / NumPy" in printed
    assert "Aim: p = 40, 4 rows: within 1.3 times" in printed
    data = json.loads(out.read_text())
    assert data["quick"] is True
    assert data["machine"]["cores"] > 0
    (comparison,) = data["comparisons"]
    (row,) = comparison["rows"]
    assert len(row["FedFW"]["values"]) == 2
    assert comparison["aims"][0]["met"] in (True, False)
