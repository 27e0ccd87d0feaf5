"""The benchmarks run, at sizes that mean nothing, and say what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    __main__,
    bundle,
    fedavg,
    messages,
    oracles,
    overhead,
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


def test_messages_without_ray() -> None:
    result = messages.compare([messages.Case(3, 2, 5, ray_rounds=0)])
    plain, encoded = result.rows
    assert plain["grid"] == "LocalGrid"
    assert encoded["grid"] == "LocalGrid, encode=True"
    for row in result.rows:
        rate, trips = row["messages a second"], row["round trips a second"]
        assert isinstance(rate, Spread)
        assert isinstance(trips, Spread)
        assert len(rate.values) == 2
        assert rate.median == pytest.approx(2 * trips.median)
    assert len(result.aims) == 2


def test_the_bare_loop_is_fedfw() -> None:
    # compare() raises if the two models differ by more than 1e-9
    result = overhead.compare([overhead.Case(50, 8, 3, blocks=3, rounds=10)])
    (row,) = result.rows
    ratio = row["FedFW / NumPy"]
    assert isinstance(ratio, Spread)
    assert len(ratio.values) == 3
    assert ratio.median > 0.0


def test_the_bare_loop_minimises() -> None:
    matrices = synthetic(30, 10, 2)
    bare = overhead.BareLoop(matrices)
    bare.run(1000)
    assert np.abs(bare.x_bar).sum() <= 1.0 + 1e-9
    before = sum(float(b @ b) for _, b in matrices)
    after = sum(float(np.sum((A @ bare.x_bar - b) ** 2)) for A, b in matrices)
    assert after < 0.25 * before


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
