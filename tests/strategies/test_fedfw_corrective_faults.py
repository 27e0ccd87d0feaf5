"""Corrective FedFW's states: replayed, restored and resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.corrective.penalty import Balance
from strategies import FedFW
from tests.strategies.corrective_runs import (
    differences,
    loop,
    problem,
    run,
)

NAME = "least squares, l1"


def test_what_the_certificate_is_measured_by_is_kept() -> None:
    half: Any = run(problem(NAME), 3, certificate=True).strategy.half
    half._scale = 12345.0  # the losses were so large once
    state = half.state()
    half._scale = 0.0
    half.load_state(state)
    assert half._scale == 12345.0


def test_where_no_answer_was_used_before_the_checkpoint(tmp_path: Path) -> None:
    """Everything is lost up to the checkpoint, and the clients start after it."""
    path, lost = tmp_path / "checkpoint", {"request_loss": 1.0}
    with pytest.raises(RuntimeError, match="no usable answer"):
        run(problem(NAME), 3, lost, checkpoint=path)
    rest = run(problem(NAME), 6, resume=path)
    fresh = run(problem(NAME), 3)
    assert [kept["rho"] for kept in rest.rounds] == [k["rho"] for k in fresh.rounds]
    assert rest.model.tobytes() == fresh.model.tobytes()


@pytest.mark.parametrize(("before", "after"), [(None, 4.0), (4.0, None), (4.0, 9.0)])
def test_the_penalty_may_be_another_after_a_checkpoint(
    before: float | None, after: float | None, tmp_path: Path
) -> None:
    made, path, stop = problem(NAME), tmp_path / "checkpoint", 5
    first = run(made, stop, penalty=before, checkpoint=path)
    rest = run(made, 16, penalty=after, resume=path)
    assert rest.used[0] == first.used[-1]
    # what was replayed goes on; with no ρ of its own, from the one there was
    beside = loop(made, penalty=before)
    for used in first.used:
        beside.round(used)
    if after is None:
        assert rest.rounds[0]["metrics"]["penalty"] == before
        assert len({kept["rho"] for kept in rest.rounds}) > 2
        return
    beside.fixed = beside.rho = after
    assert {kept["rho"] for kept in rest.rounds} == {after}
    worst = differences(rest, beside)
    assert max(worst.values()) < 1e-8, worst


def test_a_balance_is_what_it_was_saved_as() -> None:
    """In every place of a window."""
    rng = np.random.default_rng(0)
    names = ("a", "b", "c")

    def duals() -> list[Any]:
        return list(rng.standard_normal((3, 4)))

    balance = Balance(None)
    for turn in range(12):
        y, z = duals(), rng.standard_normal(4)
        saved = Balance(None)
        saved.load_state(balance.state(names), names)
        if turn == 1:
            balance.begin([1.0, 3.0, 0.0], y, z)
            saved.begin([1.0, 3.0, 0.0], y, z)
            assert balance.penalty == 2.0
        else:
            balance.observe(2, y, z)
            saved.observe(2, y, z)
        assert saved.penalty == balance.penalty
        first, second = balance.state(names), saved.state(names)
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert np.array_equal(value, second[key], equal_nan=True)


def test_where_f_is_not_convex_the_penalty_only_rises_in_the_end() -> None:
    rng = np.random.default_rng(0)
    for convex in (True, False):
        balance = Balance(None, convex)
        balance.begin([1.0, 2.0], list(rng.standard_normal((2, 3))), np.ones(3))
        found = []
        for _ in range(40):
            balance.observe(4, list(rng.standard_normal((2, 3))), rng.normal(size=3))
            found.append(balance.penalty or 0.0)
        assert (np.diff(found[:10]) < 0.0).any()
        assert (np.diff(found[10:]) < 0.0).any() == convex
        assert found[-1] > found[10] or convex


def test_a_client_that_was_never_heard_is_at_the_start() -> None:
    made = problem(NAME)

    class Deaf:
        def gradient(self, x: Any) -> Any:
            raise RuntimeError("no gradient today")

    original = made.objectives[2]
    made.objectives[2] = Deaf()
    try:
        ran = run(made, 8)
    finally:
        made.objectives[2] = original
    assert all(used == [0, 1, 3, 4] for used in ran.used)
    assert np.array_equal(ran.strategy._client_iterate("2"), made.start)
    assert isinstance(ran.strategy, FedFW)
    worst = differences(ran, loop(made))
    assert max(worst["x"], worst["y"], worst["z"]) < 1e-9
