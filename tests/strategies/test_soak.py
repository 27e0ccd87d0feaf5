"""100 rounds of every method under losses, garbage, duplicates and restarts.

The long form, 2 000 rounds, is ``python -m tests.strategies.soak_runs``, with models of
float32 a slow test as well.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import sim
from tests.strategies.soak_cases import CASES, Case
from tests.strategies.soak_runs import cases_of_dtype, soak

# other steps, variants and messages of methods that are there every day as well
NOT_EVERY_DAY = {
    *("fedfw augmented float32", "fedfw stochastic", "hyfdca line-search"),
    *("hyfdca practical", "hyfdca theoretical", "zeroth-order-rfl dense"),
}


def test_every_method_of_the_app_is_soaked() -> None:
    assert set(CASES) > NOT_EVERY_DAY
    daily = [case for name, case in CASES.items() if name not in NOT_EVERY_DAY]
    assert {case.method for case in daily} == set(sim.app.registry.methods)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in NOT_EVERY_DAY))
        for name in CASES
    ],
)
def test_invariants_hold_and_nothing_is_kept(name: str, tmp_path: Path) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    report = soak(CASES[name], 100, tmp_path)
    assert (report.rounds, report.wipes) == (100, 2)
    for fault in ("request_loss", "reply_loss", "late_reply", "garbage", "duplicate"):
        assert report.faults[fault] > 5
    assert report.problems() == []


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_of_dtype("float32"), ids=lambda case: case.name)
def test_rounding_to_float32_does_not_add_up(case: Case, tmp_path: Path) -> None:
    """The same invariants to 1e-5, ``Case.tolerance``, for 2 000 rounds of faults."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    assert case.tolerance == 1e-5
    report = soak(case, 2000, tmp_path)
    assert report.rounds == 2000
    assert report.problems() == []
