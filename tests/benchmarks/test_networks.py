"""The tables of FedLMO's page are those of the runs that are kept."""

from pathlib import Path

import pytest

from benchmarks.networks.images import Runs, TimeUpError

PAGE = Path(__file__).parents[2] / "docs/fedlmo.md"


@pytest.mark.parametrize(
    ("contender", "method"),
    [
        ("FedAvg", "`local-sgd` (FedAvg)"),
        ("FedAdam, server step 0.03", "`fedopt`, Adam, server step 0.03"),
        ("error feedback, top 5 %", "`compressed-sgd`, top 5 %"),
        ("fedlmo, corrected", "`fedlmo`, corrected"),
        ("fedlmo, ef21, natural", "`fedlmo`, ef21, natural"),
        ("fedlmo, ef21, top 5 %", "`fedlmo`, ef21, top 5 %"),
    ],
)
def test_the_page_has_the_kept_runs(contender: str, method: str) -> None:
    row = Runs("mnist-labels", 0.0).row(contender)
    _, section = PAGE.read_text("utf-8").split("### MNIST by a CNN")
    [line] = [e for e in section.splitlines() if e.startswith(f"| {method} |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2] == row["arrived"]
    assert cells[3] == str(row.get("rounds", ""))
    moved = row.get("kB of a client")
    assert cells[5] == (f"{moved.median:,.0f}".replace(",", " ") if moved else "")


def test_what_is_not_there_is_not_made_up() -> None:
    with pytest.raises(TimeUpError):
        Runs("cifar10-iid", 0.0).row("FedAvg")
