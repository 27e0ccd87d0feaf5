"""What the stored results say: costs to a gap, and who is ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal, get_args

from .methods import METHODS
from .problems import PROBLEMS

__all__ = ["COSTS", "Cost", "Results", "details", "factors", "first_table", "markdown"]

#: By problem, what :mod:`.measure` stores.
Results = Mapping[str, Mapping[str, Any]]
Cost = Literal["rounds", "gradients", "bytes", "seconds"]
COSTS: tuple[Cost, ...] = get_args(Cost)
#: The gap that tables and the picture are about.
TARGET = 1e-3


def costs(entry: Mapping[str, Any], what: Cost) -> list[float]:
    """What a method's stored runs took to come to the gap; infinity: never."""
    hits = [run["hits"].get(f"{TARGET:g}") for run in entry["runs"]]
    keys = ("up", "down") if what == "bytes" else (what,)
    return [float(sum(hit[k] for k in keys)) if hit else math.inf for hit in hits]


def end_of(entry: Mapping[str, Any]) -> float:
    """The median gap that a method's runs ended at; a run that diverged is infinite."""
    ends = [math.inf if run["gap"] is None else run["gap"] for run in entry["runs"]]
    return float(median(ends))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table as a page has it."""
    head, *rest = rows
    lines = (head, ["---"] * len(head), *rest)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def first_table(results: Results) -> list[list[str]]:
    """By problem, the method with the least of each cost, and that amount."""
    rows = [["problem", "set", *(f"fewest {what}" for what in COSTS)]]
    for name, stored in results.items():
        one, row = PROBLEMS[name], []
        for what in COSTS:
            medians = {
                method: median(costs(entry, what))
                for method, entry in stored["methods"].items()
            }
            best = min(medians, key=lambda method: medians[method])
            told, given = _amount(medians[best], what), METHODS[best].given(one)
            title = METHODS[best].title + (f" ({given})" if given else "")
            row.append(f"{title}: {told}" if told else "nobody")
        rows.append([one.title, one.over, *row])
    return rows


def _amount(number: float, what: Cost) -> str:
    if math.isinf(number):
        return ""
    if what == "bytes":
        return _bytes(number)
    return f"{number:.2g} s" if what == "seconds" else f"{number:.0f}"


def _bytes(number: float) -> str:
    unit, scale = ("MB", 1e6) if number >= 999_500 else ("kB", 1e3)
    if number >= 999_500_000:
        unit, scale = "GB", 1e9
    return f"{number / scale:.3g} {unit}"


_KEYS = ("rounds", "gradients", "up", "down", "seconds")


def details(results: Results, problem: str) -> list[dict[str, Any]]:
    """All numbers of a problem: a row for each method and target, and for each end."""
    stored, one = results[problem], PROBLEMS[problem]
    settings = stored["provenance"]["settings"]
    worst = max(best["relative"] for best in stored["optimum"].values())
    rows = []
    for name in (one for one in METHODS if one in stored["methods"]):
        entry = stored["methods"][name]
        runs, tuned = entry["runs"], entry.get("tuned", {})
        common = {
            "problem": problem,
            "set": one.over,
            "method": METHODS[name].title,
            "given": METHODS[name].given(one),
            "setting": tuned.get("chosen"),
            "at the grid's edge": "tuned" in entry and not tuned["inside"],
        }
        last = {"budget": settings["budget"], "optimum known to": worst}
        for target in map(float, settings["targets"]):
            found = [run["hits"].get(f"{target:g}") for run in runs]
            hits = [hit for hit in found if hit is not None]
            if 2 * len(hits) > len(runs):  # medians are of the seeds that arrived
                reached = {"gap": target, **_medians(hits), "seeds": len(hits)}
                rows.append({**common, **reached, **last})
        ends = {"gap": end_of(entry), **_medians([run["end"] for run in runs])}
        rows.append({**common, **ends, "seeds": "end", **last})
    return rows


def _medians(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: float(median(one[key] for one in costs)) for key in _KEYS}


def factors(results: Results, method: str, what: Cost) -> dict[str, float | None]:
    """By problem a method's median cost to the gap over the least of all methods.

    Infinity where most seeds did not arrive, None where it does not take part.
    """
    found: dict[str, float | None] = {}
    for problem, stored in results.items():
        medians = {
            name: median(costs(entry, what))
            for name, entry in stored["methods"].items()
        }
        mine, best = medians.get(method), min(medians.values())
        if mine is not None and math.isfinite(mine):
            mine /= best
        found[problem] = mine
    return found
