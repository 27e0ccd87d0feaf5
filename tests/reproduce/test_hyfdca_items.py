"""A small run of every item of the HyFDCA paper."""

from __future__ import annotations

import bz2
import itertools
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.app.command_line import flatten
from fedtrellis.wire.arrays import array_record
from reproduce import hyfdca
from reproduce.__main__ import folder_of, main
from reproduce.common import (
    Options,
    Run,
    SkippedError,
    app_config,
    load_results,
    read_config,
)
from reproduce.hyfdca import figures, honest_server, tables
from reproduce.hyfdca.one_place import (
    Available,
    Proposer,
    State,
    Table,
    accelerated,
    bundle,
    line_search,
    load,
    paper_step,
    with_averages,
)
from reproduce.hyfdca.problems import (
    PROBLEMS,
    Split,
    config_of,
    inner_steps,
    present,
)
from reproduce.hyfdca.runs import perform_hybrid
from reproduce.hyfdca.steps import STEPS, follow, presence
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
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of all items by name, and where their pictures are."""
    out = tmp_path_factory.mktemp("hyfdca")
    page = HERE / "README.md"
    before = page.read_bytes()
    arguments = ["--quick", "--seeds", "1", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDTRELLIS_DATA", raising=False)
        assert main(["hyfdca", *arguments]) == 0
    # only a full run changes the page
    assert page.read_bytes() == before
    results = {
        item: load_results(out / "results" / f"{item}.json") for item in hyfdca.ITEMS
    }
    return results | {"out": out}


@pytest.fixture(scope="module")
def table() -> Table:
    return load(BASE, 8)


def taken(states: Any, count: int) -> list[State]:
    return list(itertools.islice(states, count))


# ------------------------------------------------------------------------------- items


def test_pictures_and_tables(quick: dict[str, Any]) -> None:
    out: Path = quick["out"]
    for name in ("figure-3-digits", "figure-6-digits", "steps", "availability"):
        picture = out / f"{name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 10_000
    for item, definition in hyfdca.ITEMS.items():
        text = definition.render(quick[item], out)
        assert "Measured in" in text
        assert "nan" not in text
        # every line of a table has its header's columns
        for before, line in itertools.pairwise(text.splitlines()):
            if before.startswith("|") and line.startswith("|"):
                assert line.count("|") == before.count("|"), line


def test_nothing_is_found_in_a_run_and_rows_in_what_was_sent_before(
    quick: dict[str, Any],
) -> None:
    rows = quick["honest-server"]["rows"]
    attacks = [*honest_server.ATTACKS, "parts", "claims"]
    for row in rows:
        if row["source"] == "run":
            assert {attack: row[attack] for attack in attacks} == dict.fromkeys(
                attacks, 0
            )
        else:
            assert row["parts"] + row.get("differences", 0) > 0
    assert {row["source"] for row in rows} == {"run", "dual points", "v_k"}


def test_more_answers_give_more_rows_and_noise_fewer(quick: dict[str, Any]) -> None:
    results = quick["chosen-w"]
    for row in results["rows"]:
        few, many = np.sum(list(row["found"].values()), axis=0)
        assert few <= many
    exact, noisy = results["noise"]
    assert max(n for _, n in exact["found"].values()) > 0
    assert max(n for _, n in noisy["found"].values()) == 0
    assert noisy["loss"] > exact["loss"]


def test_a_client_that_helps_opens_its_own_samples_only(quick: dict[str, Any]) -> None:
    for row in quick["collusion"]["rows"]:
        assert row["solved"] == row["own"]
        assert all(row[attack] == 0 for attack in honest_server.ATTACKS)


def test_the_optimum_is_certified(quick: dict[str, Any]) -> None:
    (row,) = quick["table-5"]["rows"]
    assert row["problem"] == "digits"
    assert row["gap"] <= 1e-9 * row["value"]
    assert row["samples"] == 1437


def test_curves_start_at_zero_and_fall(quick: dict[str, Any]) -> None:
    for panel in quick["figure-3"]["panels"]:
        for curve in panel["curves"].values():
            assert not curve["failed"]
            assert curve["loss"][0] == pytest.approx(1.0)
            assert curve["round"][-1] == figures.QUICK_ITERATIONS
            assert np.all(np.diff(curve["trips"]) >= 0)
        ours = panel["curves"][figures.BUNDLE]
        assert ours["loss"][-1] < 0.8
    tuned = quick["figure-3"]["tuned"]["digits"]
    assert set(tuned) == {figures.PRACTICAL, figures.FEDAVG, figures.HYFEM}
    for best in tuned.values():
        assert best["tried"] == 2
        assert not best["paper"]
    rows = quick["figures-6-8"]["rows"]
    assert {row["available"] for row in rows} == {0.1, 0.5, 0.9}


def test_encryption_is_measured(quick: dict[str, Any]) -> None:
    for row in quick["tables-6-8"]["rows"]:
        for method in (figures.BUNDLE, figures.PRACTICAL):
            own = row[method]
            assert own["encryption"] > 0.0
            assert own["computation"] > 0.0
            # one client's at a time is no less than the slowest of each wave
            assert own["secret"] >= 0.99 * own["encryption"]
            parts = own["local"] + own["secret"] + own["messages"] + own["search"]
            assert parts == pytest.approx(own["total"], rel=1e-6)
        assert row[figures.FEDAVG]["secret"] == row[figures.HYFEM]["secret"] == 0.0
    text = hyfdca.ITEMS["tables-6-8"].render(quick["tables-6-8"], quick["out"])
    assert "18.882 ms" in text


def test_steps_and_availability(quick: dict[str, Any]) -> None:
    for row in quick["steps"]["rows"]:
        if row["step"].startswith(("bundle", "line")):
            assert row["falls"] == 0
            assert row["trips"] == 2.0
        else:
            assert row["trips"] == 3.0
        lowest = row["curve"]["loss"]
        assert np.all(np.diff(lowest) <= 0.0)
    for row in quick["availability"]["rows"]:
        assert row["bundle"]["falls"] == 0
        if row["available"] == 0.9:
            assert row["bundle"]["last"] < row["paper"]["last"]


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


def test_the_papers_hyper_parameters() -> None:
    # (13): ⌈IIC · N/(KQ)⌉
    assert inner_steps(0.001564, 60_000, 5) == 19
    for problem in PROBLEMS.values():
        if problem.tuned is None:
            continue
        settings = [
            (split.paper, s) for split in problem.splits for s in (0.1, 0.5, 0.9)
        ]
        assert set(problem.tuned) == set(settings)
        assert all(len(numbers) == 8 for numbers in problem.tuned.values())
    for name, seconds in tables.PAPER_SECONDS.items():
        assert set(seconds) == set(PROBLEMS[name].tuned or {})


def test_a_run_that_diverges_is_kept() -> None:
    config = BASE | {"method": "hybrid-fedavg", "local-step-size": 1e200, "rounds": 5}
    result = perform_hybrid(Run((), config, 8))
    assert result["failed"]
    assert result["round"][0] == 0
    assert figures.last_loss(result) == np.inf


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


def test_the_accelerated_gradient_converges(table: Table) -> None:
    found = follow(table, accelerated(table), 3000)
    assert min(found["loss"]) < 1e-4
    assert found["falls"] == 0
    assert found["trips"][-1] >= 2 * 3000


def test_a_pass_of_one_client_is_coordinate_ascent(table: Table) -> None:
    """With one feature group Q is 1, and a pass sees its own changes exactly."""
    whole = Table(
        table.X,
        table.y,
        table.regularization,
        [np.arange(len(table.y))],
        [np.arange(table.X.shape[1])],
        table.optimum,
    )
    proposer = Proposer(whole, ("passes",))
    alpha = np.zeros(len(table.y))
    dual = 0.0
    for _ in range(5):
        z = whole.X @ whole.weights(alpha)
        (alpha,) = proposer(alpha, z)
        new = whole.dual(alpha, whole.weights(alpha))
        assert new > dual
        dual = new
    # a search towards what a pass ends at takes all of it, or more nearly all
    states = taken(line_search(whole, Proposer(whole, ("passes",))), 6)
    assert states[-1].dual >= dual - 1e-12


def test_averages_are_weighted_by_the_iteration(table: Table) -> None:
    plain = taken(line_search(table, Proposer(table, ("coordinate",))), 4)
    averaged = taken(
        with_averages(line_search(table, Proposer(table, ("coordinate",)))), 4
    )
    expected = sum((s + 1) * plain[s].w for s in range(4)) / 10.0
    np.testing.assert_allclose(averaged[3].w, expected, atol=1e-12)


def test_who_is_there_is_drawn_by_the_seed() -> None:
    here = presence(1000, 0.3, 1)
    assert here(1) == presence(1000, 0.3, 1)(1)
    assert here(1) != here(2)
    assert len(here(1)) == pytest.approx(300, abs=60)


def test_the_committed_config_is_known_settings() -> None:
    text = (HERE / "hyfdca.toml").read_text(encoding="utf-8")
    assert set(flatten(tomllib.loads(text))) <= set(sim.app.default_config())
