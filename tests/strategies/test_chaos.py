"""Chaos of every method, mutated answers and liars.

The long forms are ``python -m tests.strategies.soak_runs``, a slow test as well,
``fuzz_runs`` and ``liar_runs``.
"""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sim
from fedtrellis.domains import L1Ball
from tests.harness import in_part, not_daily
from tests.strategies.fuzz_runs import Tally, fuzz
from tests.strategies.liar_runs import BOUND, OWN_LOSS, apart, run
from tests.strategies.methods import METHODS
from tests.strategies.soak_runs import CASES, ROUNDS, soak, table_of_states

#: A split method, and two of float32 that keep a state in other ways; those of
#: float64 are under chaos in ``test_contracts.py``.
DAILY = {
    *("hyfdca bundle apart", "fedfw corrective float32", "fedlmo ef21 float32"),
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def test_every_method_of_the_app_is_there() -> None:
    named = {case.strategy().name for case in CASES.values()}
    assert named == set(sim.app.registry.methods)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        *((name, 100) for name in CASES if name in DAILY),
        *not_daily(*ROUNDS.items()),
    ],
)
def test_invariants_and_nothing_is_kept(name: str, rounds: int, tmp_path: Path) -> None:
    """At least 1 000 faults in the long ones; what differs is what the method says."""
    problems, row = soak(name, rounds, tmp_path, 1)
    assert problems == []
    assert row["faults"] >= (1000 if rounds == ROUNDS[name] else 200)


def test_the_page_says_what_a_lost_state_costs() -> None:
    page = (Path(__file__).parents[2] / "docs/faults.md").read_text("utf-8")
    rows = ["| method | lost; the client |", "| --- | --- |", *table_of_states()]
    assert "\n".join(rows) + "\n\n" in page


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


# one of each kind of message and of state; the long form has all cases
@pytest.mark.parametrize(
    "name",
    [
        *("fedfw augmented", "fedfw corrective float32", "fedgia gram"),
        *("zeroth-order-rfl", "hyfdca bundle apart"),
        *not_daily("fedfw corrective", "naive-frank-wolfe", "hyfdca bundle"),
        *not_daily("hyfdca practical", "hyfem"),
    ],
)
def test_mutated_answers(name: str, traced: None) -> None:
    tally = fuzz(name, 30, np.random.default_rng(7), rounds=5)
    assert tally.problems == []
    assert tally.refused > 10


def test_the_harness_sees_what_it_looks_for(traced: None) -> None:
    """What allocates, or is refused without a reason, would be found."""
    tally = Tally()
    with tally.bounded(8):
        np.zeros(10**6)
    tally.refuse("ValueError: ")
    found = " ".join(tally.problems)
    for what in ("bytes were allocated", "without a reason"):
        assert what in found


AVERAGING = [name for name, method in METHODS.items() if "median" in method.rules]
# HyFDCA's baselines take the mean alone, and nothing bounds what a liar sends
SPLIT = ["hybrid-fedavg", "hyfem"]
#: What moves some method's mean by the most.
STRONGEST = ("times 10⁶", "no step at all", "within the scatter", OWN_LOSS)
MORE = ("random, as long", "against the others", "10¹⁵ examples")


@pytest.mark.parametrize("name", in_part(AVERAGING, 3))
def test_robust_rules_hold_and_the_mean_is_the_liars(name: str) -> None:
    """Without a rule one of these lies is worth more than all honest rounds."""
    rules = [rule for rule in METHODS[name].rules if rule != "mean"]
    pairs = [(kind, "median") for kind in (*STRONGEST, *MORE)]
    pairs += [(kind, rule) for kind in STRONGEST[2:] for rule in rules[1:]]
    far = {(kind, rule): apart(name, run(name, kind, rule)) for kind, rule in pairs}
    assert {key: d for key, d in far.items() if d > BOUND} == {}
    assert any(apart(name, run(name, kind)) > 1.0 for kind in STRONGEST)


@pytest.mark.parametrize("name", [n for n in METHODS if n not in AVERAGING + SPLIT])
def test_whoever_sends_atoms_has_no_more_than_its_share_of_the_set(name: str) -> None:
    for kind in (*STRONGEST, *MORE[:2], "shifted by 5", "step reversed"):
        model = run(name, kind)
        assert L1Ball(3.0).contains(model), kind
        assert apart(name, model) < 0.75, kind
