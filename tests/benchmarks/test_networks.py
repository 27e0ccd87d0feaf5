"""The tables of FedLMO's page are those of the runs that are kept."""

from pathlib import Path

import pytest

from benchmarks.networks.images import Runs

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
        row = Runs(problem, 0.0).row(contender)
        told = row["arrived"]
        if told == "3 of 3":
            megabytes = row["kB of a client"].median / 1000
            told = f"{row['rounds'].median:.0f}, {megabytes:.1f} MB"
        assert cell == told
