"""Which methods' sums say something of a single member of a block, and which do not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedtrellis.encryption import block_sum
from tests.strategies.block_members import (
    CASES,
    MEMBERS,
    UNKNOWN,
    Server,
    derivative,
    determined,
    secret,
    solver_error,
)

MEASURED = Path(__file__).parents[2] / "docs" / "measured" / "block-members.csv"
# answers that are affine in H_i and c_i: all that is known are Σ H_i and Σ c_i
AFFINE = {
    *("FedAvgGD one step", "FedAvgGD constant steps", "FedOpt", "Scaffold one step"),
    *("ProjectedFedAvg", "FedGiA fixed σ", "FedLMO server", "ZerothOrderSGD"),
}


@pytest.mark.parametrize("case", CASES)
def test_sums_of_affine_answers_determine_no_member(case: str) -> None:
    """And whether others do, as the page's table says."""
    whole, alone = determined(derivative(Server(case, 15).sums, secret()))
    with MEASURED.open(encoding="utf-8") as file:
        stated = {row["case"]: row for row in csv.DictReader(file)}[case]
    assert int(stated["unknowns"]) == MEMBERS * UNKNOWN
    if case in AFFINE:
        assert (whole, alone) == (UNKNOWN, 0)
        assert int(stated["rank"]) == UNKNOWN
    assert (alone > 0) == (int(stated["determined of one member"]) > 0)
    assert whole <= int(stated["rank"])


def test_a_solver_finds_members_where_the_rank_says_so_and_nowhere_else() -> None:
    assert solver_error(Server("FedDR", 15)) < 1e-6
    assert solver_error(Server("FedAvgGD one step", 5)) > 0.01


def test_terms_without_masks_determine_every_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_sum, "_mask", lambda *_, **more: None)
    server = Server("FedAvgGD one step", 15, apart=True)
    matrix = derivative(server.sums, secret())
    assert determined(matrix) == (MEMBERS * UNKNOWN, UNKNOWN)
