"""Corrective FedFW is METHODS §5.1: round for round the plain loop beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.strategies.corrective_runs import (
    EVERYTHING,
    PROBLEMS,
    Run,
    check_nodes,
    differences,
    loop,
    problem,
    run,
)

# An exact step along v − u leaves both atoms alike, and rounding says which is the next
# to lose weight: pairwise steps on quadratics cannot be compared to the last digits.
UNEVEN = ("logistic, l1", "logistic, simplex", "quartic")
CASES = [
    *[(name, "projected") for name in PROBLEMS],
    *[(name, "pairwise") for name in UNEVEN],
]
ROUNDS, FAULTY = 6, 16
NEAR = 1e-9


def check_beside(name: str, correction: str, ran: Run, **options: Any) -> None:
    """x_i, y_i, z, x̄ and ρ are the loop's after every round."""
    options = {"pairwise": correction == "pairwise", **options}
    worst = differences(ran, loop(problem(name), **options))
    # ρ goes by differences of what is compared, a hundredth as large
    assert worst.pop("rho") < 100 * NEAR
    assert max(worst.values()) < NEAR, worst


@pytest.mark.parametrize(("name", "correction"), CASES)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_every_round_is_the_loops(
    name: str, correction: str, participation: float
) -> None:
    ran = run(problem(name), ROUNDS, correction=correction, participation=participation)
    everybody = len(problem(name).objectives)
    assert ({len(used) for used in ran.used} == {everybody}) == (participation == 1.0)
    balanced = ran.rounds[-1]["rho"] != ran.rounds[1]["rho"]
    assert balanced == (problem(name).penalty is None)
    check_beside(name, correction, ran)


@pytest.mark.parametrize(("name", "correction"), CASES)
def test_whatever_goes_wrong_it_is_the_loop_of_the_answers_used(
    name: str, correction: str
) -> None:
    """All eight faults at once; the nodes' states are the server's bit for bit."""
    ran = run(
        problem(name),
        FAULTY,
        EVERYTHING,
        correction=correction,
        participation=0.8,
        encode=True,
        last_fault=FAULTY - 1,
    )
    assert all(ran.grid.fault_counts.values())
    check_beside(name, correction, ran)
    check_nodes(ran)


def test_a_fixed_penalty_stays() -> None:
    name = "least squares, l1"
    ran = run(problem(name), ROUNDS, penalty=3.0, participation=0.6)
    assert {kept["rho"] for kept in ran.rounds} == {3.0}
    check_beside(name, "projected", ran, penalty=3.0)


def test_z_is_not_the_mean_of_the_iterates() -> None:
    """METHODS' pitfall (a): with z = mean x_i the loop stays at a wrong point.

    So a server that sends that would have shown above, and in the value.
    """
    made = problem("least squares, l1")
    right, wrong = loop(made, penalty=30.0), loop(made, penalty=30.0, mistake=True)
    for _ in range(60):
        right.round(range(right.n))
        wrong.round(range(wrong.n))

    def value(x: Any) -> float:
        return float(np.mean([loss.value(x) for loss in made.losses]))

    lowest = value(run(made, 60).model)
    assert abs(value(right.mean) / lowest - 1.0) < 1e-6
    assert value(wrong.mean) / lowest - 1.0 >= 0.1
