"""Short forms of the soak, the fuzzing and the liars; and servers that forget rounds.

The long forms are ``python -m tests.strategies.soak_runs``, ``fuzz_runs`` and
``liar_runs``; with models of float32 the soak is a slow test as well.
"""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import sim
from fedtrellis.domains import L1Ball
from tests.harness import distance, number_of
from tests.strategies.fuzz_runs import Tally, fuzz
from tests.strategies.hyfdca_runs import Forgets
from tests.strategies.liar_runs import BOUND, OWN_LOSS, apart, run
from tests.strategies.methods import EVERY, METHODS
from tests.strategies.soak_runs import CASES, NODES, soak

SINGLE = [name for name in CASES if name.endswith("float32")]
#: Of float32, one of each way to keep a state.
DAILY = {
    *("fedfw corrective float32", "fedgia gram float32", "scaffold float32"),
    *("first-order-rfl float32", "fedlmo ef21 float32"),
}
#: Other steps, variants and messages of methods that are there every day as well.
NOT_EVERY_DAY = {
    *("fedfw stochastic", "hyfdca line-search", "hyfdca practical"),
    *("hyfdca theoretical", "zeroth-order-rfl dense", *(set(SINGLE) - DAILY)),
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


# ----------------------------------------------------------------------------- the soak


def test_every_method_of_the_app_is_soaked() -> None:
    daily = [CASES[name] for name in CASES if name not in NOT_EVERY_DAY]
    assert {case.strategy().name for case in daily} == set(sim.app.registry.methods)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        *((name, 100) for name in CASES if name not in NOT_EVERY_DAY),
        *(
            pytest.param(name, 2000 if name in SINGLE else 100, marks=pytest.mark.slow)
            for name in NOT_EVERY_DAY | set(SINGLE)
        ),
    ],
)
def test_invariants_hold_and_nothing_is_kept(
    name: str, rounds: int, tmp_path: Path
) -> None:
    """100 rounds of every method under losses, garbage, duplicates and restarts."""
    problems, _ = soak(name, rounds, tmp_path)
    assert problems == []


# -------------------------------------------------- checkpoints of servers that forgot


class Scripted(Forgets):
    """Of client 0 a request is lost and a state not stored, by round."""

    script: dict[int, str] = {}  # noqa: RUF012

    def _strikes(self, message: Message) -> set[str]:
        config: Any = message.content.get("config", {})
        mine = number_of(self._contexts[message.metadata.dst_node_id]) == 0
        strike = self.script.get(int(config.get("server-round", 0)), "")
        return {strike} if mine and strike else set()


@pytest.mark.parametrize(
    "name", ["fedfw corrective", "fedfw plain", "fedfw augmented", "hyfem"]
)
def test_rounds_that_the_server_forgot_are_not_taken_for_those_it_used(
    name: str, tmp_path: Path
) -> None:
    """Rounds 5 to 7 happen twice; a node that keeps nothing still has the first ones.

    In round 5 client 0 is not heard, so that the model is another than it was; in round
    6 its answer is used, but it stores nothing: its state of round 6 is that of the
    round 6 which the server knows nothing of.
    """
    method, path = EVERY[name], tmp_path / "checkpoint"
    grid = method.grid(NODES, Scripted, seed=1)
    method.play(grid, 4, checkpoint=path)
    method.play(grid, 7, resume=path)
    grid.script = {5: "request_loss", 6: "state_loss"}
    ran = method.play(grid, 10, resume=path)
    assert [len(used) for used in ran.used] == [NODES - 1, *[NODES] * 5]
    first = [list(range(NODES))] * 4
    lost = method.play(method.grid(NODES), sets=[*first, *ran.used])
    assert distance(ran.models, lost.models[4:]) < 1e-9


# -------------------------------------------------------------------------- the fuzzing


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


# one of each kind of message and of state; the long form has all cases
@pytest.mark.parametrize(
    "name",
    [
        *("fedfw augmented", "fedfw corrective", "naive-frank-wolfe", "fedgia gram"),
        *("fedfw corrective float32", "zeroth-order-rfl", "hyfdca bundle"),
        *("hyfdca practical", "hyfdca bundle apart", "hyfem"),
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


# --------------------------------------------------------------------------- the liars

AVERAGING = [name for name, method in METHODS.items() if "median" in method.rules]
# HyFDCA's baselines take the mean alone, and nothing bounds what a liar sends
SPLIT = ["hybrid-fedavg", "hyfem"]
#: What moves some method's mean by the most.
STRONGEST = ("times 10⁶", "no step at all", "within the scatter", OWN_LOSS)
MORE = ("random, as long", "against the others", "10¹⁵ examples")


@pytest.mark.parametrize("name", AVERAGING)
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
