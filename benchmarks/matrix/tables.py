"""What the stored results say: costs to a gap, who is ahead, profiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, get_args

from .methods import METHODS
from .problems import PROBLEMS

__all__ = [
    "COSTS",
    "Cost",
    "Results",
    "details",
    "first_table",
    "markdown",
    "places_table",
    "profile",
]

#: By problem, what :mod:`.measure` stores.
Results = Mapping[str, Mapping[str, Any]]
Cost = Literal["rounds", "gradients", "bytes", "seconds"]
COSTS: tuple[Cost, ...] = get_args(Cost)
#: The gap that tables and the picture are about.
TARGET = 1e-3
#: What ahead means: by this factor on every seed.
MARGIN = 1.1


def costs(entry: Mapping[str, Any], what: Cost) -> list[float]:
    """What a method's stored runs took to come to the gap; infinity: never."""
    hits = [run["hits"].get(f"{TARGET:g}") for run in entry["runs"]]
    keys = ("up", "down") if what == "bytes" else (what,)
    return [float(sum(hit[k] for k in keys)) if hit else math.inf for hit in hits]


@dataclass(frozen=True)
class Place:
    """How a method did on a problem by one cost, beside the best of another family.

    ``ratios`` are its costs over the rival's, a seed each, NaN where neither arrived;
    ``gap`` is the median of where it ended.
    """

    problem: str
    what: Cost
    rival: str
    ratios: tuple[float, ...]
    gap: float

    @property
    def typical(self) -> float:
        """The median ratio; infinity where most seeds did not arrive."""
        return median(r if not math.isnan(r) else math.inf for r in self.ratios)

    @property
    def ahead(self) -> bool:
        """Whether it is ahead by the margin on every seed."""
        return all(r * MARGIN <= 1.0 for r in self.ratios)


def end_of(entry: Mapping[str, Any]) -> float:
    """The median gap that a method's runs ended at; a run that diverged is infinite."""
    ends = [math.inf if run["gap"] is None else run["gap"] for run in entry["runs"]]
    return float(median(ends))


def places(results: Results, name: str) -> list[Place]:
    """A method's places on all problems, by rounds, gradients and bytes."""
    found = []
    for problem, stored in results.items():
        methods, family = stored["methods"], METHODS[name].family
        rivals = [other for other in methods if METHODS[other].family != family]
        if name not in methods or not rivals:
            continue
        for what in COSTS[:3]:
            of = {other: costs(methods[other], what) for other in rivals}
            rival = min(of, key=lambda other: median(of[other]))
            pairs = zip(costs(methods[name], what), of[rival], strict=True)
            ratios = tuple(_ratio(a, b) for a, b in pairs)
            found.append(Place(problem, what, rival, ratios, end_of(methods[name])))
    return found


def _ratio(mine: float, theirs: float) -> float:
    if math.isinf(mine) and math.isinf(theirs):
        return math.nan
    return mine / theirs if theirs else math.inf


def times(number: float) -> str:
    """A factor as it is read."""
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def _where(problem: str) -> str:
    one = PROBLEMS[problem]
    return one.title if one.over == "none" else f"{one.title}, {one.over}"


def _best(found: Iterable[Place]) -> str:
    best = min(found, key=lambda place: place.typical)
    if not math.isfinite(best.typical):
        nearest = min(found, key=lambda place: place.gap)
        return f"never at 10⁻³; closest on {_where(nearest.problem)}: {nearest.gap:.1g}"
    if best.ahead and best.typical == 0.0:
        return f"{_where(best.problem)}: the only kind of method that gets there"
    rival = METHODS[best.rival].title
    if best.ahead:
        factor = times(1.0 / best.typical)
        return f"{_where(best.problem)}: {rival} takes {factor} times the {best.what}"
    if best.typical <= MARGIN:
        return f"{_where(best.problem)}: level with {rival} in {best.what}"
    factor = times(best.typical)
    return f"{_where(best.problem)}: {factor} times the {best.what} of {rival}"


def _worst(found: Sequence[Place]) -> str:
    lost = [place for place in found if not math.isfinite(place.typical)]
    if lost:
        worst = max(lost, key=lambda place: place.gap)
        if math.isinf(worst.gap):
            return f"{_where(worst.problem)}: diverges"
        return f"{_where(worst.problem)}: ends at a gap of {worst.gap:.1g}"
    worst = max(found, key=lambda place: place.typical)
    rival, factor = METHODS[worst.rival].title, times(worst.typical)
    if worst.typical <= 1.0:
        return f"none: never behind {rival}, the next best"
    return f"{_where(worst.problem)}: {factor} times the {worst.what} of {rival}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table as a page has it."""
    head, *rest = rows
    lines = (head, ["---"] * len(head), *rest)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def places_table(results: Results) -> list[list[str]]:
    """Every method's best and worst place, a line each."""
    rows = [["method", "best on", "worst on"]]
    for name, method in METHODS.items():
        found = places(results, name)
        if found:
            rows.append([method.title, _best(found), _worst(found)])
    return rows


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
            told = _amount(medians[best], what)
            row.append(f"{METHODS[best].title}: {told}" if told else "nobody")
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


def profile(
    results: Results, names: Sequence[str], what: Cost
) -> dict[str, list[float]]:
    """A performance profile: each instance's cost over the best method's.

    Source: Dolan and Moré, "Benchmarking optimization software with performance
    profiles", Mathematical Programming 2002.

    Parameters
    ----------
    results : mapping
        Of problems that all of ``names`` were run on.
    names : sequence of str
        The methods that are compared.
    what : str

    Returns
    -------
    dict
        By method sorted ratios, one for each problem and seed; infinity where it did
        not arrive. Instances that nobody solved are left out.
    """
    found: dict[str, list[float]] = {name: [] for name in names}
    for stored in results.values():
        of = [costs(stored["methods"][name], what) for name in names]
        for instance in zip(*of, strict=True):
            best = min(instance)
            if math.isfinite(best):
                for name, cost in zip(names, instance, strict=True):
                    found[name].append(cost / best)
    return {name: sorted(ratios) for name, ratios in found.items()}
