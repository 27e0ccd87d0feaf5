"""A problem's part of the matrix: each method tuned, then measured, kept as it goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reproduce.common import LEDGER, load_results, save_results
from reproduce.provenance import origin, versions

from .methods import Method, facts, methods_of
from .problems import NODES, Problem, optimum
from .runs import TARGETS, TUNING_SEED, VALUES, choose, play

__all__ = [
    "FULL",
    "QUICK_SIZES",
    "RESULTS",
    "Sizes",
    "kept",
    "load_all",
    "measure",
    "provenance",
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


def provenance(
    name: str, settings: Mapping[str, Any], sizes: Sizes = FULL
) -> dict[str, Any]:
    """What results of a problem come from; its data files have been named by now."""
    return {
        "seeds": {"tuning": TUNING_SEED, "measured": list(sizes.seeds)},
        "settings": dict(settings),
        "versions": versions(),
        **origin(f"python -m benchmarks matrix --only {name} --anew"),
        "data": LEDGER.digests(),
    }


def kept(path: Path, now: Mapping[str, Any], anew: bool) -> dict[str, Any]:
    """The results of a file that have the provenance of now, versions apart."""
    before = load_results(path) if path.is_file() and not anew else {}
    same = ("seeds", "settings")
    known = before.get("provenance", {})
    # other settings are other results
    if [known.get(k) for k in same] == [json.loads(json.dumps(now[k])) for k in same]:
        return before
    return {}


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
    budget, path = sizes.budget or problem.budget, folder / f"{problem.name}.json"
    settings = {
        "config": dict(problem.config),
        "nodes": NODES,
        "budget": budget,
        "values": sizes.values,
        "targets": list(TARGETS),
    }
    LEDGER.clear()
    optima = {seed: optimum(problem, seed) for seed in sizes.seeds}
    now = provenance(problem.name, settings, sizes)
    results: dict[str, Any] = {
        "problem": problem.name,
        "provenance": now,
        "optimum": {
            str(seed): {**asdict(best), "relative": best.relative}
            for seed, best in optima.items()
        },
        "methods": kept(path, now, anew).get("methods", {}),
    }
    for method in methods_of(problem):
        if method.name in results["methods"]:
            continue
        if time.monotonic() > until:
            return False
        began = time.process_time()
        entry = _method(problem, method, sizes, budget)
        entry["processor-seconds"] = round(time.process_time() - began, 1)
        entry["commit"] = now["commit"]  # others may be of an earlier one
        results["methods"][method.name] = entry
        save_results(path, results)
        ends = [run["gap"] for run in entry["runs"]]
        say(f"{problem.name}: {method.title}: {entry['processor-seconds']} s, {ends}")
    return True


def _method(
    problem: Problem, method: Method, sizes: Sizes, budget: int
) -> dict[str, Any]:
    known = facts(problem, TUNING_SEED)
    entry: dict[str, Any] = {"gradients-a-round": method.cost(problem)}
    value = None

    def score(tried: float) -> tuple[float, float]:
        settings = method.config(tried, known)
        return play(problem, method, settings, TUNING_SEED, budget).score

    if method.tuned:
        choice = choose(score, method.centre(known), sizes.values)
        value = choice.value
        entry["tuned"] = {"setting": method.key(method.tuned), **choice.record()}
    settings = method.config(value, known)
    runs = [
        {"seed": seed, **play(problem, method, settings, seed, budget).record()}
        for seed in sizes.seeds
    ]
    return {**entry, "settings": settings, "runs": runs}


def load_all(folder: Path, problems: Sequence[Problem]) -> dict[str, dict[str, Any]]:
    """The results there are, by problem; one that lacks a method is not there yet."""
    found = {}
    for one in problems:
        path = folder / f"{one.name}.json"
        results = load_results(path) if path.is_file() else {"methods": ()}
        if set(results["methods"]) == {method.name for method in methods_of(one)}:
            found[one.name] = results
    return found
