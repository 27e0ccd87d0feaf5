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
from fedtrellis.objectives.reference import certified_minimum
from fedtrellis.wire.arrays import record_arrays
from reproduce.common import load_results, save_results
from reproduce.provenance import versions

from .measure import FULL, RESULTS
from .methods import STEPS, facts
from .problems import NODES, PROBLEMS, Problem, experiment, optimum
from .runs import Cost, Trace
from .tuning import TUNING_SEED, VALUES, choose

__all__ = [
    "CASES",
    "FILE",
    "Case",
    "Entrant",
    "balls_table",
    "compare",
    "complete",
    "table",
    "whole_balls",
]

FILE = RESULTS / "equal-bytes.json"
#: Radii of the ℓ1 ball whose optimum on MNIST is judged.
RADII = (10.0, 30.0, 100.0, 300.0)

#: From a problem, a seed, the experiment and the model to a measure of it.
Judge = Callable[[Problem, int, Experiment, Any], float]


@dataclass(frozen=True)
class Entrant:
    """A method, and what of it is tuned by the training loss.

    Attributes
    ----------
    title : str
    config : mapping
        Its part of the run config.
    tuned : str
        The key of its step size or penalty.
    centre : callable
        From L to the middle of what is tried.
    """

    title: str
    config: Mapping[str, Any] = field(hash=False)
    tuned: str
    centre: Callable[[float], float] = field(hash=False)

    def told(self, value: float, lipschitz: float) -> dict[str, Any]:
        """Its part of the run config, with a value of what is tuned."""
        local = {}
        if self.tuned == "compressed-sgd.server-step-size":
            # a sign has no length: the server's step is tuned, the clients' fixed
            local = {"compressed-sgd.step-size": 1.0 / lipschitz}
        return {**self.config, **local, self.tuned: value}


@dataclass(frozen=True)
class Case:
    """A problem, and what a model of it is judged by.

    Attributes
    ----------
    title : str
    measure : str
        In words.
    judge : callable
    percent : bool
        How the measure is printed.
    problem : Problem
    entrants : tuple of Entrant
    checkpoints : tuple of int
        Bytes up of all clients that the measure is taken at.
    rounds : int
        After which a run ends.
    """

    title: str
    measure: str
    judge: Judge = field(hash=False)
    percent: bool
    problem: Problem
    entrants: tuple[Entrant, ...]
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


def _compressed(parameters: int) -> tuple[Entrant, ...]:
    def one(title: str, compressor: str, **more: Any) -> Entrant:
        sign = compressor == "sign"
        settings = {
            "compressor": compressor,
            "local-steps": STEPS,
            "batch-fraction": 1.0,
            "server-momentum": 0.0,
        } | more
        config = {f"compressed-sgd.{key}": value for key, value in settings.items()}
        return Entrant(
            title,
            {"method": "compressed-sgd", **config},
            f"compressed-sgd.{'server-step-size' if sign else 'step-size'}",
            (lambda lipschitz: 0.01) if sign else (lambda lipschitz: 1.0 / lipschitz),
        )

    return (
        one("top-1, error feedback", "top-k", **{"kept-fraction": 1.0 / parameters}),
        one("top 1 %, error feedback", "top-k", **{"kept-fraction": 0.01}),
        one("QSGD, 2 bits", "qsgd", levels=1),
        one("sign, majority", "sign"),
    )


def _fedfw(title: str, **more: Any) -> Entrant:
    return Entrant(
        title,
        {"method": "fedfw", "fedfw.local-steps": STEPS, **more},
        "fedfw.penalty",
        lambda lipschitz: 0.03 * lipschitz / NODES,
    )


#: By name.
CASES: dict[str, Case] = {
    "support": Case(
        "LASSO, 20 of 400 entries",
        "part of the support found",
        _support,
        True,
        PROBLEMS["lasso-l1"],
        (_fedfw("FedFW, ℓ1 ball"), *_compressed(400)),
    ),
    "simplex": Case(
        "least squares on the simplex",
        "relative gap once projected",
        _projected_gap,
        False,
        PROBLEMS["lasso-simplex"],
        (_fedfw("FedFW, simplex"), *_compressed(400)),
    ),
    "accuracy": Case(
        "digits, multinomial",
        "test accuracy",
        _accuracy,
        True,
        PROBLEMS["digits-l1"],
        (
            *(
                _fedfw(f"FedFW, ℓ1 radius {radius}", radius=float(radius))
                for radius in (30, 300)
            ),
            *_compressed(650),
        ),
    ),
    "text": Case(
        "News20, 1 241 220 entries",
        "test accuracy",
        _accuracy,
        True,
        replace(
            PROBLEMS["news20-l1"],
            name="news20-held-out",
            config={
                **PROBLEMS["news20-l1"].config,
                "logistic-regression.test-fraction": 0.2,
            },
        ),
        (_fedfw("FedFW, ℓ1 ball"), *_compressed(1_241_220)),
        (100_000, 10_000_000),
        8,
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


def _choose(case: Case, entrant: Entrant) -> tuple[dict[str, Any], list[Any]]:
    """The config with the value of the least training loss on the tuning seed."""
    lipschitz = facts(case.problem, TUNING_SEED).lipschitz

    def run(value: float) -> Trace:
        loss = _loss(case, entrant.told(value, lipschitz))
        return Trace({}, loss, Cost(0, 0.0, 0, 0, 0.0))

    found = choose(run, entrant.centre(lipschitz))
    tried = ((value, loss) for value, (_, loss) in found.tried)
    told = [{"value": v, "loss": x if math.isfinite(x) else None} for v, x in tried]
    return entrant.told(found.value, lipschitz), told


def _loss(case: Case, config: Mapping[str, Any]) -> float:
    """The training loss at the last checkpoint; infinite where a run diverged."""
    try:
        made, found = _models(case, config, TUNING_SEED)
        return float(made.task.value(found[-1][1]))
    except RuntimeError:
        return math.inf


def whole_balls() -> list[dict[str, float]]:
    """What the ℓ1 ball's certified optimum on MNIST comes to, by its radius."""
    rows = []
    for radius in RADII:
        problem = replace(
            PROBLEMS["mnist-l1"],
            name=f"mnist-{radius:g}",
            config={**PROBLEMS["mnist-l1"].config, "radius": radius},
        )
        made = experiment(problem, 0, {"method": "fedfw"})
        start = np.asarray(made.layout.objective_point(made.start_point()))
        best = certified_minimum(
            made.task.objective(), made.domain, start, 1e-3, max_iterations=1000
        )
        rows.append(
            {
                "radius": radius,
                "loss": best.value,
                "gap": best.gap,
                "entries": int(np.count_nonzero(best.point)),
                "accuracy": float(made.task.metrics(best.point)["accuracy"]),
            }
        )
    return rows


def compare(
    say: Callable[[str], None] = print, until: float = math.inf, anew: bool = False
) -> bool:
    """Measure all cases and write :data:`FILE`; what is measured stays.

    Parameters
    ----------
    say, until, anew
        As in :func:`~.measure.measure`.

    Returns
    -------
    bool
        Whether everything is measured now.

    Raises
    ------
    MissingError
        A data file is not there.
    """
    settings = {"nodes": NODES, "values": VALUES}
    results: dict[str, Any] = {
        "provenance": {
            "seeds": {"tuning": TUNING_SEED, "measured": list(FULL.seeds)},
            "settings": settings,
            "versions": versions(),
        },
        "checkpoints": {name: list(one.checkpoints) for name, one in CASES.items()},
        "cases": {},
    }
    before = load_results(FILE) if FILE.is_file() and not anew else {}
    # other settings are other results
    if before.get("provenance", {}).get("settings") == settings:
        results |= {key: before[key] for key in ("cases", "balls") if key in before}
    for name, case in CASES.items():
        rows = results["cases"].setdefault(name, {})
        for entrant in case.entrants:
            if entrant.title in rows:
                continue
            if time.monotonic() > until:
                return False
            config, tried = _choose(case, entrant)
            runs = []
            for seed in FULL.seeds:
                made, found = _models(case, config, seed)
                values = [case.judge(case.problem, seed, made, x) for _, x in found]
                rounds = [place for place, _ in found]
                runs.append({"seed": seed, "values": values, "rounds": rounds})
            rows[entrant.title] = {"settings": config, "tried": tried, "runs": runs}
            save_results(FILE, results)
            say(f"{name}: {entrant.title}: {[run['values'] for run in runs]}")
    if "balls" not in results:
        results["balls"] = whole_balls()
        save_results(FILE, results)
    return True


def complete(results: Mapping[str, Any]) -> bool:
    """Whether every case has all its rows."""
    return "balls" in results and all(
        set(results.get("cases", {}).get(name, {}))
        == {one.title for one in case.entrants}
        for name, case in CASES.items()
    )


def table(results: Mapping[str, Any]) -> str:
    """The stored results as the page has them: medians over the seeds, a row a case."""
    names = ["FedFW", *(one.title for one in _compressed(1))]
    lines = [
        f"| problem | measure | bytes up | {' | '.join(names)} |",
        f"| {' | '.join(['---'] * (3 + len(names)))} |",
    ]
    for name, case in CASES.items():
        rows = results["cases"][name]
        own = [one.title for one in case.entrants if one.title not in names]
        for place, most in enumerate(case.checkpoints):
            # the larger ball beside the smaller
            mine = " / ".join(_cell(case, rows[title], place) for title in own)
            cells = [mine, *(_cell(case, rows[title], place) for title in names[1:])]
            first = [case.title, case.measure] if place == 0 else ["", ""]
            told = f"{most / 1e6:g} MB"
            lines.append(f"| {' | '.join([*first, told, *cells])} |")
    return "\n".join(lines)


def _cell(case: Case, row: Mapping[str, Any], place: int) -> str:
    value = median(run["values"][place] for run in row["runs"])
    told = f"{100 * value:.0f} %" if case.percent else f"{value:.2g}"
    losses = [one["loss"] or math.inf for one in row["tried"]]
    return told + "\\*" * (min(losses) in (losses[0], losses[-1]))


def balls_table(results: Mapping[str, Any]) -> str:
    """What the ℓ1 ball's optimum on MNIST comes to, as the page has it."""
    lines = [
        "| radius | training loss | certified to | non-zero entries | test accuracy |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['radius']:g} | {row['loss']:.3f} | {row['gap']:.1g} | "
        f"{row['entries']:.0f} of 7850 | {100 * row['accuracy']:.0f} % |"
        for row in results["balls"]
    ]
    return "\n".join(lines)
