"""A problem's part of the matrix: each method tuned, then measured, kept as it goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reproduce.common import load_results, save_results
from reproduce.provenance import versions

from .methods import Method, facts, methods_of
from .problems import NODES, Problem, optimum
from .runs import TARGETS, play
from .tuning import TUNING_SEED, VALUES, choose

__all__ = [
    "FULL",
    "QUICK_SIZES",
    "RESULTS",
    "Sizes",
    "load_all",
    "measure",
    "stored",
]

#: Where the results that the page shows lie.
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Sizes:
    """How much is computed.

    Attributes
    ----------
    seeds : tuple of int
        Measured, the same for all methods.
    values : int
        Of the tuned setting, before the grid is extended.
    budget : int
        Gradients of a client; 0: the problem's own number.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    values: int = VALUES
    budget: int = 0


FULL = Sizes()
QUICK_SIZES = Sizes(seeds=(0, 1), values=3, budget=30)


def stored(folder: Path, problem: Problem) -> dict[str, Any] | None:
    """A problem's results, None before there are any."""
    path = folder / f"{problem.name}.json"
    return load_results(path) if path.is_file() else None


def measure(
    problem: Problem,
    sizes: Sizes,
    folder: Path,
    say: Callable[[str], None] = print,
    until: float = float("inf"),
    anew: bool = False,
) -> bool:
    """Measure what of a problem is not measured yet.

    Parameters
    ----------
    problem : Problem
    sizes : Sizes
    folder : pathlib.Path
        Of the results; each method's are written as soon as they are there.
    say : callable
        Told a line a method.
    until : float
        ``time.monotonic()`` after which no further method begins.
    anew : bool
        Whether results that are there count for nothing.

    Returns
    -------
    bool
        Whether all methods of the problem are measured now.

    Raises
    ------
    MissingError
        A data file is not there.
    """
    budget = sizes.budget or problem.budget
    settings = {
        "config": dict(problem.config),
        "nodes": NODES,
        "budget": budget,
        "values": sizes.values,
        "targets": list(TARGETS),
    }
    before = None if anew else stored(folder, problem)
    # other sizes are other results
    same = before is not None and (
        before["provenance"]["settings"] == json.loads(json.dumps(settings))
        and before["provenance"]["seeds"]["measured"] == list(sizes.seeds)
    )
    results: dict[str, Any] = {
        "problem": problem.name,
        "provenance": {
            "seeds": {"tuning": TUNING_SEED, "measured": list(sizes.seeds)},
            "settings": settings,
            "versions": versions(),
        },
        "optimum": {
            str(seed): asdict(optimum(problem, seed))
            | {"relative": optimum(problem, seed).relative}
            for seed in sizes.seeds
        },
        "methods": dict(before["methods"]) if same and before else {},
    }
    for method in methods_of(problem):
        if method.name in results["methods"]:
            continue
        if time.monotonic() > until:
            return False
        began = time.process_time()
        entry = _method(problem, method, sizes, budget)
        entry["processor-seconds"] = round(time.process_time() - began, 1)
        results["methods"][method.name] = entry
        save_results(folder / f"{problem.name}.json", results)
        ends = [run["gap"] for run in entry["runs"]]
        say(f"{problem.name}: {method.title}: {entry['processor-seconds']} s, {ends}")
    return True


def _method(
    problem: Problem, method: Method, sizes: Sizes, budget: int
) -> dict[str, Any]:
    known = facts(problem, TUNING_SEED)
    entry: dict[str, Any] = {"gradients-a-round": method.cost(problem)}
    value = None
    if method.tuned:
        choice = choose(
            lambda tried: play(
                problem, method, method.config(tried, known), TUNING_SEED, budget
            ),
            method.centre(known),
            sizes.values,
        )
        value = choice.value
        entry["tuned"] = {"setting": method.tuned, **choice.record()}
    entry["settings"] = method.config(value, known)
    entry["runs"] = [
        {
            "seed": seed,
            **play(problem, method, entry["settings"], seed, budget).record(),
        }
        for seed in sizes.seeds
    ]
    return entry


def load_all(folder: Path, problems: Sequence[Problem]) -> dict[str, dict[str, Any]]:
    """The results there are, by problem; one that lacks a method is not there yet."""
    found = {one: stored(folder, one) for one in problems}
    return {
        one.name: results
        for one, results in found.items()
        if results is not None
        and set(results["methods"]) == {method.name for method in methods_of(one)}
    }
