"""A client of corrective FedFW that lies is a client that never answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clients import FedFWClient
from fedtrellis.domains.atoms import SparseAtom, pack_atoms
from strategies import FedFW
from tests.harness import Played, grid_of, play
from tests.strategies.corrective_runs import problem

LIAR, ROUNDS, HONEST = "1", 7, 2
Arrays = list[NDArray[Any]]
Lie = Callable[[Arrays], Arrays]


def at(place: int, change: Callable[[NDArray[Any]], Any]) -> Lie:
    """One of the arrays is another."""

    def lie(arrays: Arrays) -> Arrays:
        changed = [array.copy() for array in arrays]
        changed[place] = np.asarray(change(changed[place]))
        return changed

    return lie


def spoilt(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The first entry is another."""

    def change(array: NDArray[Any]) -> NDArray[Any]:
        array.flat[0] = value
        return array

    return change


def new_atom(arrays: Arrays) -> Arrays:
    """All weight on an atom far outside."""
    atom = SparseAtom(np.array([0]), np.array([2e6]), (15,))
    return [np.empty(0, np.uint8), np.ones(1), *pack_atoms([atom])]


def one_more(arrays: Arrays) -> Arrays:
    return [*arrays, np.zeros(1)]


def nothing(arrays: Arrays) -> Arrays:
    return []


ENTRIES: dict[str, Lie] = {
    "a million times": at(2, lambda a: a * 1e6),
    "NaN": at(2, spoilt(np.nan)),
    "negative": at(2, lambda a: -a),
    "float32": at(2, lambda a: a.astype(np.float32)),
    "shares above 1": at(1, spoilt(1.5)),
    "shares that are infinite": at(1, spoilt(np.inf)),
    "too few shares": at(1, lambda a: a[:-1]),
    "the same place twice": at(0, lambda a: np.zeros_like(a.astype(np.uint8))),
    "places behind the end": at(0, lambda a: np.arange(len(a), dtype="u8") + 10**12),
    "places before the beginning": at(0, lambda a: np.arange(len(a)) - 10**6),
    "one array more": one_more,
    "no arrays": nothing,
}
ATOMS: dict[str, Lie] = {
    "weights a million times": at(1, lambda a: a * 1e6),
    "weights of 1.001": at(1, lambda a: a * 1.001),
    "a negative weight": at(1, spoilt(-0.1)),
    "NaN": at(1, spoilt(np.nan)),
    "too few weights": at(1, lambda a: a[:-1]),
    "an atom of another set": new_atom,
    "places of no atoms": at(0, lambda a: a.astype(np.uint16) + 999),
    "no arrays": nothing,
}
FACTORS: dict[str, Lie] = {
    "a million times": at(0, lambda a: a * 1e6),
    "NaN": at(0, spoilt(np.nan)),
    "another shape": at(1, lambda a: a[:-1]),
    "another rank": at(1, lambda a: a[:, :-1]),
    "float32": at(1, lambda a: a.astype(np.float32)),
    "one array more": one_more,
    "no arrays": nothing,
}
CASES = [
    *(("logistic, l1", "projected", name) for name in ENTRIES),
    *(("logistic, l1", "pairwise", name) for name in ATOMS),
    *(("completion", "projected", name) for name in FACTORS),
]


def lie_of(problem_name: str, correction: str, name: str) -> Lie:
    if correction == "pairwise":
        return ATOMS[name]
    return (ENTRIES if problem_name == "logistic, l1" else FACTORS)[name]


def played(
    name: str, correction: Any, lie: Lie | None, numbers: Any = None
) -> Played[FedFW]:
    """A run whose client 1 is silent, or lies, from its third round on."""
    made = problem(name)

    class Client(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            arrays, examples, metrics = super().fit(parameters, config)
            if self.client_id == LIAR and config["server-round"] > HONEST:
                if lie is None and numbers is None:
                    raise RuntimeError("not today")
                if lie is not None:
                    arrays = lie(arrays)
                if numbers is not None:
                    self.numbers = np.array(numbers)
            return arrays, examples, metrics

    grid = grid_of(Client, made.objectives, made.domain)
    strategy = FedFW(made.domain, correction=correction, local_steps=made.steps, seed=0)
    return play(strategy, grid, made.start, ROUNDS)


@cache
def silent_run(name: str, correction: str) -> Played[FedFW]:
    """What a run is where client 1 says nothing after round 2."""
    return played(name, correction, None)


def check_ignored(lied: Played[FedFW], silent: Played[FedFW]) -> None:
    assert lied.used == silent.used
    assert [record.used for record in lied.strategy.history][HONEST:] == [
        len(lied.strategy.clients) - 1
    ] * (ROUNDS - HONEST)
    assert lied.model.tobytes() == silent.model.tobytes()
    for name in lied.strategy.clients:
        mine, theirs = (r.strategy.client_state(name) for r in (lied, silent))
        for key, value in mine.items():
            assert value.tobytes() == theirs[key].tobytes()
    for record in lied.strategy.history[HONEST:]:
        ((who, why),) = record.rejected
        assert who == LIAR
        assert len(why) > 15


@pytest.mark.parametrize(("name", "correction", "lie"), CASES)
def test_a_lie_is_an_answer_that_never_came(
    name: str, correction: str, lie: str
) -> None:
    """The others' run is the same, bit for bit."""
    silent = silent_run(name, correction)
    check_ignored(played(name, correction, lie_of(name, correction, lie)), silent)


def test_scalars_that_nobody_asked_for() -> None:
    silent = silent_run("logistic, l1", "projected")
    for numbers in ([1.0], [1.0, 2.0]):
        lied = played("logistic, l1", "projected", None, numbers)
        check_ignored(lied, silent)
        assert "scalars instead of 0" in lied.strategy.history[-1].rejected[0][1]


@pytest.mark.parametrize("curvature", [1e140, 0.0])
def test_one_curvature_does_not_choose_where_the_penalty_starts(
    curvature: float,
) -> None:
    """A client that says anything in round 1, and then no more."""
    made = problem("logistic, l1")

    def first_penalty(said: float | None) -> float:
        class Client(FedFWClient):
            def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
                result = super().fit(parameters, config)
                if self.client_id == LIAR and said is not None:
                    self.numbers = np.array([said])
                return result

        grid = grid_of(Client, made.objectives, made.domain)
        run = play(FedFW(made.domain, seed=0), grid, made.start, 1)
        found = run.strategy.half.penalty
        assert found is not None
        return float(found)

    honest = first_penalty(None)
    assert 0.2 < first_penalty(curvature) / honest < 5.0
