"""FedFW and compressed updates at equal bytes up: what each has to show for them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from fedtrellis import Callback, RoundRecord
from fedtrellis.app import Experiment
from fedtrellis.wire.arrays import record_arrays
from reproduce.common import LEDGER, save_results

from .measure import FULL, RESULTS, kept, provenance
from .methods import METHODS, Method, compressed, facts
from .problems import NODES, PROBLEMS, Problem, experiment, optimum
from .runs import TUNING_SEED, VALUES, choose

__all__ = ["CASES", "FILE", "Case", "compare", "complete", "table"]

FILE = RESULTS / "equal-bytes.json"
#: From a problem, a seed, the experiment and the model to a measure of it.
Judge = Callable[[Problem, int, Experiment, Any], float]


@dataclass(frozen=True)
class Case:
    """A problem, and what a model of it is judged by.

    Attributes
    ----------
    title : str
    measure : str
        In words.
    judge : callable
    problem : Problem
    entrants : tuple of Method
        By the training loss one setting of each is tuned.
    percent : bool
        How the measure is printed.
    checkpoints : tuple of int
        Bytes up of all clients that the measure is taken at.
    rounds : int
        After which a run ends.
    """

    title: str
    measure: str
    judge: Judge = field(hash=False)
    problem: Problem
    entrants: tuple[Method, ...]
    percent: bool = True
    checkpoints: tuple[int, ...] = (100_000, 500_000)
    rounds: int = 500


def _accuracy(problem: Problem, seed: int, made: Experiment, x: Any) -> float:
    return float(made.task.metrics(x)["accuracy"])


def _support(problem: Problem, seed: int, made: Experiment, x: Any) -> float:
    """The part of x*'s support among as many of the largest entries of x."""
    truth = np.flatnonzero(made.task.solution())
    largest = np.argsort(-np.abs(np.asarray(x)), kind="stable")[: len(truth)]
    return len(np.intersect1d(truth, largest)) / len(truth)


def _projected_gap(problem: Problem, seed: int, made: Experiment, x: Any) -> float:
    """The relative gap of the model's projection onto the set."""
    domain = experiment(problem, seed, {"method": "fedfw"}).domain
    best = optimum(problem, seed)
    value = float(made.task.value(domain.project(np.asarray(x))))
    return (value - best.value) / (best.start - best.value)


def _fedfw(title: str, **of_run: Any) -> Method:
    return replace(METHODS["fedfw"], title=title, of_run=of_run)


def _updates(parameters: int) -> tuple[Method, ...]:
    """Compressed updates of so many entries."""
    return (
        compressed("top-k", "top-1, error feedback", kept_fraction=1.0 / parameters),
        compressed("top-k", "top 1 %, error feedback", kept_fraction=0.01),
        compressed("qsgd", "QSGD, 2 bits", levels=1),
        compressed("sign", "sign, majority"),
    )


def _with(name: str, config: Mapping[str, Any]) -> Problem:
    """A problem with a few other settings, and a name of its own."""
    more = "-".join(map(str, config.values()))
    one = PROBLEMS[name]
    return replace(one, name=f"{name}-{more}", config={**one.config, **config})


#: By name.
CASES: dict[str, Case] = {
    "support": Case(
        "LASSO, 20 of 400 entries",
        "part of the support found",
        _support,
        PROBLEMS["lasso-l1"],
        (_fedfw("FedFW, ℓ1 ball"), *_updates(400)),
    ),
    "simplex": Case(
        "least squares on the simplex",
        "relative gap once projected",
        _projected_gap,
        PROBLEMS["lasso-simplex"],
        (_fedfw("FedFW, simplex"), *_updates(400)),
        percent=False,
    ),
    "accuracy": Case(
        "digits, multinomial",
        "test accuracy",
        _accuracy,
        PROBLEMS["digits-l1"],
        (
            _fedfw("FedFW, ℓ1 radius 30", radius=30.0),
            _fedfw("FedFW, ℓ1 radius 300", radius=300.0),
            *_updates(650),
        ),
    ),
    "text": Case(
        "News20, 1 241 220 entries",
        "test accuracy",
        _accuracy,
        _with("news20-l1", {"logistic-regression.test-fraction": 0.2}),
        (_fedfw("FedFW, ℓ1 ball"), *_updates(1_241_220)),
        checkpoints=(100_000, 10_000_000),
        rounds=8,
    ),
}


class _Stop(Callback):
    """Ends a run once so many bytes went up."""

    def __init__(self, most: int) -> None:
        self.most, self.sent = most, 0

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        self.sent += record.bytes_up
        return self.sent > self.most


def _models(
    case: Case, config: Mapping[str, Any], seed: int
) -> tuple[Experiment, list[tuple[int, Any]]]:
    """The rounds and models of the last round within each checkpoint's bytes."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    made = experiment(case.problem, seed, config, case.rounds)
    models: list[Any] = []

    def note(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        point = made.layout.point(record_arrays(arrays))
        models.append(np.array(made.layout.objective_point(point)))
        return MetricRecord({})

    strategy = made.strategy(callbacks=[_Stop(max(case.checkpoints))])
    made.start(strategy, made.grid(batched=True), evaluate_fn=note)
    sent = np.cumsum([record.bytes_up for record in strategy.history])
    places = [
        int(np.searchsorted(sent, most, side="right")) - 1 for most in case.checkpoints
    ]
    return made, [(place, models[place]) for place in places]


def _entry(case: Case, entrant: Method) -> dict[str, Any]:
    """Tuned by the training loss at the last checkpoint, then measured."""
    known = facts(case.problem, TUNING_SEED)

    def score(value: float) -> tuple[float, float]:
        try:
            made, found = _models(case, entrant.config(value, known), TUNING_SEED)
            loss = float(made.task.value(found[-1][1]))
        except RuntimeError:  # it diverged
            loss = math.inf
        return math.inf, loss if math.isfinite(loss) else math.inf

    choice = choose(score, entrant.centre(known))
    config, runs = entrant.config(choice.value, known), []
    for seed in FULL.seeds:
        made, found = _models(case, config, seed)
        values = [case.judge(case.problem, seed, made, x) for _, x in found]
        rounds = [place for place, _ in found]
        runs.append({"seed": seed, "values": values, "rounds": rounds})
    tried = [
        {"value": one["value"], "loss": one["gap"]} for one in choice.record()["tried"]
    ]
    return {"settings": config, "tried": tried, "runs": runs}


def compare(
    say: Callable[[str], None] = print, until: float = math.inf, anew: bool = False
) -> bool:
    """Measure all cases and write :data:`FILE`, as :func:`~.measure.measure` does."""
    LEDGER.clear()
    now = provenance("equal-bytes", {"nodes": NODES, "values": VALUES})
    before = kept(FILE, now, anew)
    results: dict[str, Any] = {
        "provenance": now,
        "checkpoints": {name: list(one.checkpoints) for name, one in CASES.items()},
        "cases": before.get("cases", {}),
    }
    for name, case in CASES.items():
        rows = results["cases"].setdefault(name, {})
        for entrant in case.entrants:
            if entrant.title in rows:
                continue
            if time.monotonic() > until:
                return False
            rows[entrant.title] = entry = _entry(case, entrant)
            now["data"] = LEDGER.digests()
            save_results(FILE, results)
            values = [run["values"] for run in entry["runs"]]
            say(f"{name}: {entrant.title}: {values}")
    return True


def complete(results: Mapping[str, Any]) -> bool:
    """Whether every case has all its rows."""
    return all(
        set(results.get("cases", {}).get(name, {}))
        == {one.title for one in case.entrants}
        for name, case in CASES.items()
    )


def table(results: Mapping[str, Any]) -> list[list[str]]:
    """The stored results: medians over the seeds, a row a case and checkpoint."""
    names = [one.title for one in _updates(1)]
    lines = [["problem", "measure", "bytes up", "FedFW", *names]]
    for name, case in CASES.items():
        rows, first = results["cases"][name], [case.title, case.measure]
        own = [one.title for one in case.entrants if one.title not in names]
        for place, most in enumerate(case.checkpoints):
            # the larger ball beside the smaller
            mine = " / ".join(_cell(case, rows[title], place) for title in own)
            others = [_cell(case, rows[title], place) for title in names]
            lines.append([*first, f"{most / 1e6:g} MB", mine, *others])
            first = ["", ""]
    return lines


def _cell(case: Case, row: Mapping[str, Any], place: int) -> str:
    value = median(run["values"][place] for run in row["runs"])
    told = f"{100 * value:.0f} %" if case.percent else f"{value:.2g}"
    losses = [one["loss"] or math.inf for one in row["tried"]]
    return told + "*" * (min(losses) in (losses[0], losses[-1]))
