"""A small run of every item of the HyFDCA paper."""

from __future__ import annotations

import bz2
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.wire.arrays import array_record
from reproduce.__main__ import folder_of
from reproduce.common import (
    Options,
    Run,
    SkippedError,
    app_config,
    read_config,
)
from reproduce.hyfdca import tables
from reproduce.hyfdca.one_place import (
    Available,
    Proposer,
    State,
    Table,
    bundle,
    load,
    paper_step,
)
from reproduce.hyfdca.problems import (
    PROBLEMS,
    Split,
    config_of,
    present,
)
from reproduce.hyfdca.runs import perform_hybrid
from reproduce.hyfdca.steps import STEPS
from strategies import HyFDCA
from tasks import HybridTask

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


# ------------------------------------------------------------------------------- items


def test_data_of_files_is_dealt_as_the_paper_says(tmp_path: Path) -> None:
    folder = tmp_path / "libsvm"
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = []
    for i in range(60):
        columns = np.sort(rng.choice(30, 9, replace=False)) + 1
        entries = " ".join(f"{c}:{rng.integers(1, 5)}" for c in columns)
        lines.append(f"{i % 6} {entries}")
    text = "\n".join(lines).encode()
    (folder / "news20_multiclass.bz2").write_bytes(bz2.compress(text))
    options = Options(tmp_path, tmp_path, 1, 1, True)
    assert set(present(options)) == {"digits", "news20"}
    split = Split(3, 3, "3, 3")
    config = config_of(PROBLEMS["news20"], options, split) | {"rounds": 4}
    setup = sim.app.experiment(app_config(config), 9)
    task = setup.task
    assert isinstance(task, HybridTask)
    assert task.regularization == 1e-5
    data = task.client_data(0)
    assert data.features.shape[0] == 16
    assert set(np.diff(data.features.indptr)) == {3}
    # features that nobody has in a part of the data do not stop a run
    result = perform_hybrid(Run((), config, 9))
    assert not result["failed"]
    assert result["round"] == [0, 1, 2, 3, 4]
    rows = tables.compute_table_5(options)["rows"]
    assert [row["problem"] for row in rows] == ["digits", "news20"]
    missing = Options(tmp_path, None, 1, 1, True)
    with pytest.raises(SkippedError, match="needs mnist/train-images"):
        present(missing, ("mnist",))


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


def test_every_step_ascends_or_says_so(table: Table) -> None:
    for name, (steps, _) in STEPS.items():
        states = taken(steps(table), 30)
        for state in states:
            # weak duality; the states' z belongs to their w
            np.testing.assert_allclose(state.z, table.X @ state.w, atol=1e-8)
            assert table.primal(state.w, state.z) >= table.optimum - 1e-8
            assert state.dual <= table.optimum + 1e-8
        if not name.startswith(("practical", "theoretical")):
            duals = [state.dual for state in states]
            assert np.all(np.diff(duals) >= -1e-12), name
