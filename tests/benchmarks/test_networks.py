"""The tables of FedLMO's page are those of the runs that are kept."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.networks.comparison import (
    BATCH,
    CONTENDERS,
    DIGITS,
    Contender,
    Curve,
    Size,
    run,
    tuned,
)
from benchmarks.networks.images import Runs, TimeUpError
from benchmarks.networks.picture import SHOWN, draw, padded

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
RUNS = Path(__file__).parents[2] / "benchmarks/networks/runs"
PAGE = Path(__file__).parents[2] / "docs/fedlmo.md"


@pytest.mark.parametrize("contender", list(SHOWN_AS))
def test_the_page_has_the_kept_runs(contender: str) -> None:
    table = PAGE.read_text("utf-8").split("<!-- goals -->")[1]
    start = f"| {SHOWN_AS[contender]} |"
    [line] = [e for e in table.splitlines() if e.startswith(start)]
    cells = [cell.strip() for cell in line.strip("|").split("|")][2:]
    for problem, cell in zip(COLUMNS, cells, strict=True):
        row = Runs(problem, 0.0).row(contender)
        told = row["arrived"]
        if told == "3 of 3":
            megabytes = row["kB of a client"].median / 1000
            told = f"{row['rounds'].median:.0f}, {megabytes:.1f} MB"
        assert cell == told


def test_what_is_not_there_is_not_made_up() -> None:
    with pytest.raises(TimeUpError):
        Runs("cifar10-iid", 0.0).row("FedProx, μ = 0.01")


def test_a_row_says_what_a_client_sends() -> None:
    config = CONTENDERS["FedAvg"].config(0.1, "constant", 2, BATCH)
    curve = run({**DIGITS, **config}, loss=False)
    assert curve is not None
    # 17 610 numbers of four bytes, and at most 2 kB of a message besides
    assert 4 * 17_610 < curve.bytes_up < 4 * 17_610 + 2_000
    # the loss on the training examples was not asked for
    assert all(math.isnan(loss) for _, loss, _ in curve.rounds)


def test_the_grid_goes_on_past_its_end_and_shortens_what_is_slower() -> None:
    # a method that needs |log2 step − 5| + 3 rounds: 2⁵ is the best, the grid ends at 4
    asked: list[tuple[float, int]] = []

    def once(step: float, schedule: str, limit: int) -> Curve:
        asked.append((step, limit))
        needed = int(abs(np.log2(step) - 5.0)) + 3
        told = [(float(t >= needed), 0.0, t) for t in range(1, min(limit, needed) + 1)]
        return Curve(told, 0.5)

    size = Size(20, 1, 3, 1, ())
    contender = Contender("local-sgd", 1.0, ("constant", "linear"))
    assert tuned(contender, size, 0.5, once) == (32.0, "constant")
    # the middle comes first, and needs 7
    assert asked[0] == (2.0, 20)
    assert max(limit for _, limit in asked[1:]) == 7
    assert sorted(step for step, _ in asked) == [2.0**k for k in range(7)]


def test_a_run_at_the_goal_stays_there_in_the_picture() -> None:
    slow = Curve([(0.5, 0.0, 10_000), (0.7, 0.0, 20_000), (0.9, 0.0, 30_000)], 0.9)
    soon = Curve([(0.9, 0.0, 40_000), (0.2, 0.0, 80_000)], 0.9)
    accuracy, moved = padded([slow, soon], 0.9)
    np.testing.assert_allclose(accuracy, [[50, 70, 90], [90, 90, 90]])
    np.testing.assert_allclose(moved, [[1, 2, 3], [4, 8, 12]])


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw(["mnist-labels"], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    # more lines cannot be followed
    assert len(SHOWN) <= 6


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.jsonl")), ids=lambda p: p.stem)
def test_kept_runs_are_told_apart_by_their_config(path: Path) -> None:
    entries = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    configs = [json.dumps(entry["config"], sort_keys=True) for entry in entries]
    assert len(set(configs)) == len(configs)
    for entry in entries:
        moved = [total for _, total in entry["rounds"] or []]
        assert moved == sorted(moved)
