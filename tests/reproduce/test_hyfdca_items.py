"""A small run of every item of the HyFDCA paper."""

import itertools
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.wire.arrays import array_record
from reproduce.__main__ import folder_of
from reproduce.common import (
    app_config,
    read_config,
)
from reproduce.hyfdca.one_place import (
    Available,
    Proposer,
    State,
    Table,
    bundle,
    load,
    paper_step,
)
from strategies import HyFDCA

HERE = folder_of("hyfdca")
SMALL = {
    "hybrid-svm.train-limit": 120,
    "hybrid-svm.sample-groups": 2,
    "hybrid-svm.feature-groups": 4,
}
BASE = read_config(HERE / "hyfdca.toml") | SMALL | {"tolerance": 0.0}


@pytest.fixture(scope="module")
def table() -> Table:
    return load(BASE, 8)


def taken(states: Any, count: int) -> list[State]:
    return list(itertools.islice(states, count))


# ----------------------------------------------------------------- in one place and not


def run(
    config: dict[str, Any], nodes: int, rounds: int
) -> tuple[list[Any], list[set[int]]]:
    """Each round's w from a run with messages, and who was there."""
    setup = sim.app.experiment(app_config(config), nodes)
    strategy = setup.strategy(max_failed_rounds=rounds)
    assert isinstance(strategy, HyFDCA)
    seen: list[Any] = []
    there: list[set[int]] = []
    original = strategy.run_round

    def run_round(*arguments: Any) -> Any:
        result = original(*arguments)
        seen.append(strategy.steps.w.copy())
        there.append({int(name) for name in strategy.sampled})
        return result

    vars(strategy)["run_round"] = run_round
    start = array_record([np.zeros(setup.task.shapes()[0])])
    strategy.start(setup.grid(), start, num_rounds=rounds)
    return seen, there


def at(there: list[set[int]]) -> Available:
    return lambda t: there[t - 1]


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize(
    ("step", "kind", "memory"),
    [("bundle", "dual-point", 40), ("line-search", "coordinate", 2)],
)
def test_the_bundle_in_one_place_is_the_products(
    table: Table, step: str, kind: str, memory: int, participation: float
) -> None:
    # which of several dependent points is forgotten is up to rounding: none is, here
    config = BASE | {"step": step, "memory": max(memory, 3)}
    config |= {"participation": participation}
    seen, there = run(config, 8, 6)
    proposer = Proposer(table, (kind,))
    states = taken(bundle(table, proposer, memory, available=at(there)), 7)
    for w, state in zip(seen, states[1:], strict=True):
        np.testing.assert_allclose(state.w, w, atol=1e-6)


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("rule", ["practical", "theoretical"])
def test_the_papers_steps_in_one_place_are_the_products(
    table: Table, rule: str, participation: float
) -> None:
    # all samples move: nothing is drawn but who is there
    config = BASE | {"step": rule, "participation": participation}
    seen, there = run(config, 8, 6)
    states = taken(paper_step(table, rule, available=at(there)), 7)
    for w, state in zip(seen, states[1:], strict=True):
        scale = 1.0 + float(np.abs(w).max())
        np.testing.assert_allclose(state.w / scale, w / scale, atol=1e-8)
