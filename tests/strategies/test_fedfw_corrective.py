"""Corrective FedFW is METHODS §5.1: round for round the plain loop beside it.

And its states and ρ go on over checkpoints, and a client's lie is its silence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clients import FedFWClient
from fedtrellis.corrective.penalty import Balance
from tests.strategies.corrective_runs import (
    PROBLEMS,
    Run,
    check_nodes,
    differences,
    loop,
    problem,
    run,
)
from tests.strategies.methods import EVERYTHING

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


# ------------------------------------------------------------------------- checkpoints

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
    class Deaf(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            if self.client_id == "2":
                raise RuntimeError("nothing today")
            return super().fit(parameters, config)

    made = problem(NAME)
    ran = run(made, 8, client=Deaf)
    assert all(used == [0, 1, 3, 4] for used in ran.used)
    assert np.array_equal(ran.strategy._client_iterate("2"), made.start)
    check_beside(NAME, "projected", ran)


# -------------------------------------------------------------------------------- lies

LIAR, HONEST, LONG = "1", 2, 7
Arrays = list[NDArray[Any]]


def _at(
    place: int, change: Callable[[NDArray[Any]], Any]
) -> Callable[[Arrays], Arrays]:
    """One of the arrays is another."""
    return lambda arrays: [
        np.asarray(change(array)) if k == place else array
        for k, array in enumerate(arrays)
    ]


#: One of each form that a change travels in; ``test_iterates`` has many more.
LIES: list[tuple[str, str, Callable[[Arrays], Arrays]]] = [
    ("logistic, l1", "projected", _at(2, lambda a: a * 1e6)),
    ("logistic, l1", "projected", _at(0, lambda a: np.arange(len(a)) - 10**6)),
    ("logistic, l1", "projected", lambda arrays: []),
    ("logistic, l1", "pairwise", _at(1, lambda a: a * 1.001)),
    ("logistic, l1", "pairwise", _at(0, lambda a: a.astype(np.uint16) + 999)),
    ("completion", "projected", _at(0, lambda a: a * 1e6)),
    ("completion", "projected", _at(1, lambda a: a[:, :-1])),
]


def lying(name: str, correction: str, change: Callable[[Any, Any], Any]) -> Run:
    """A run whose client 1 changes itself and its answers from its third round on."""
    made = problem(name)

    class Client(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            arrays, *rest = super().fit(parameters, config)
            if self.client_id == LIAR and config["server-round"] > HONEST:
                arrays = change(self, arrays)
            return arrays, *rest

    return run(made, LONG, client=Client, correction=correction)


def silent(client: Any, arrays: Arrays) -> Arrays:
    raise RuntimeError("not today")


def check_ignored(lied: Run, without: Run) -> None:
    """The others' run is the same, bit for bit."""
    others = len(lied.strategy.clients) - 1
    assert [len(used) for used in lied.used[HONEST:]] == [others] * (LONG - HONEST)
    for mine, theirs in zip(lied.rounds, without.rounds, strict=True):
        for key in ("x", "y", "z", "model"):
            assert np.array(mine[key]).tobytes() == np.array(theirs[key]).tobytes()
    for record in lied.strategy.history[HONEST:]:
        ((who, why),) = record.rejected
        assert who == LIAR
        assert len(why) > 15


@pytest.mark.parametrize(("name", "correction", "lie"), LIES)
def test_a_lie_is_an_answer_that_never_came(
    name: str, correction: str, lie: Any
) -> None:
    lied = lying(name, correction, lambda client, arrays: lie(arrays))
    check_ignored(lied, lying(name, correction, silent))


def test_scalars_that_nobody_asked_for() -> None:
    def told(client: Any, arrays: Arrays) -> Arrays:
        client.numbers = np.array([1.0])
        return arrays

    lied = lying("logistic, l1", "projected", told)
    check_ignored(lied, lying("logistic, l1", "projected", silent))
    assert "scalars instead of 0" in lied.strategy.history[-1].rejected[0][1]


@pytest.mark.parametrize("curvature", [1e140, 0.0])
def test_one_curvature_does_not_choose_where_the_penalty_starts(
    curvature: float,
) -> None:
    class Client(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            result = super().fit(parameters, config)
            if self.client_id == LIAR:
                self.numbers = np.array([curvature])
            return result

    made = problem("logistic, l1")
    honest, lied = run(made, 1), run(made, 1, client=Client)
    assert 0.2 < lied.rounds[0]["rho"] / honest.rounds[0]["rho"] < 5.0
