"""The benchmarks run, at sizes that mean nothing, and say what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import (
    __main__,
    bundle,
    fedavg,
    oracles,
    traffic,
)
from benchmarks.report import Aim, Comparison, Spread, ratios
from benchmarks.runs import least_squares, synthetic
from fedtrellis.domains import L2Ball


def test_the_spread_of_measurements() -> None:
    spread = Spread((3.0, 1.0, 2.0), "/s")
    assert spread.median == 2.0
    assert str(spread) == "2 (1 – 3)"
    assert ratios(spread, Spread((1.0, 1.0, 4.0), "/s")).values == (3.0, 1.0, 0.5)


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


def test_a_bundle_stays_within_its_limit() -> None:
    for row in bundle.compare(bundle.QUICK).rows:
        assert int(str(row["held, MiB"])) <= int(str(row["limit, MiB"]))


def test_fedavg_and_its_bytes() -> None:
    problem = least_squares(synthetic(2_000, 5, 3), radius=1.0)
    result = fedavg.compare([fedavg.Case("tiny", lambda: problem, 2, 4)])
    plain, encoded = result.rows
    assert "FedAvg bytes down, up" not in plain
    down, up = str(encoded["FedAvg bytes down, up"]).split(", ")
    assert int(down.replace(",", "")) > 2_000 * 8
    assert int(up.replace(",", "")) > 2_000 * 8
    # an atom is an index and a value
    assert int(str(encoded["FedFW bytes down, up"]).split(", ")[1].replace(",", "")) < (
        2_000
    )


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = least_squares(synthetic(40, 4, 3), radius=1.0)
    monkeypatch.setattr(fedavg, "QUICK", [fedavg.Case("tiny", lambda: problem, 2, 3)])
    out = tmp_path / "out.json"
    assert __main__.main(["--quick", "--only", "fedavg", "--out", str(out)]) == 0
    assert "tiny" in capsys.readouterr().out
    data = json.loads(out.read_text())
    assert data["quick"] is True
    assert data["machine"]["cores"] > 0
    (comparison,) = data["comparisons"]
    assert {row["problem"] for row in comparison["rows"]} == {"tiny"}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        __main__.main(["--out", str(tmp_path / "nowhere" / "out.json")])
    assert stopped.value.code == 2


def test_the_oracles_answer_as_they_did() -> None:
    sizes = oracles.Sizes((120, 110, 2000), range(3, 6), ((130, 64),), (500, 12_000), 2)
    result = oracles.compare(sizes)
    sets = [str(row["set"]) for row in result.rows]
    assert sets.count("nuclear norm, oracle") == 6
    assert sets.count("spectral norm, oracle") == 2
    assert sets.count("l1 ball, projection") == 6
    assert sets.count("group l1 ball, oracle") == 4
    assert not result.aims  # at sizes that mean nothing there are none
    case = oracles.Case(
        "l1",
        "2",
        "wrong",
        1,
        lambda: [1.0],
        lambda: [2.0],
        lambda a, b: b[0] - a[0],
        0.5,
    )
    with pytest.raises(AssertionError, match="differ by 1"):
        oracles._measure(case, 1)


def test_the_bytes_of_a_set_are_halved_in_float32() -> None:
    result = Comparison("traffic-sets", "", "")
    traffic._set_rows(result, [(L2Ball(1.0), (20_000,))])
    (row,) = result.rows
    assert row["method"] == "L2Ball(radius=1.0)"
    assert str(row["float64 up"]).startswith("16")
    assert str(row["float32 up"]).startswith("8")
