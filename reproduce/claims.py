"""Claims of papers as data, and the one rule by which all of them are judged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.runs import interval

from .common import read_csv

__all__ = [
    "NEAR",
    "OUTCOMES",
    "PROTOCOLS",
    "STATES",
    "Claim",
    "Effect",
    "Effects",
    "Exhibit",
    "Levels",
    "Paper",
    "Results",
    "Verdict",
    "counted",
    "judge",
    "paired",
    "points",
    "ratio",
    "read_paper",
    "tally",
]

#: Results of a paper's items by their names.
Results = Mapping[str, dict[str, Any]]
#: What holds of a claim, and what a case of it can be.
STATES = ("for", "against", "open", "not tested")
OUTCOMES = ("holds", "in part", "contradicted", "undecided", "not tested")
_DATA = ("MNIST", "News20", "Covtype")
_SETS = ("ℓ1", "ℓ2", "ℓ∞", "nuclear", "Birkhoff", "spectrahedron")
_PROBLEMS = ("LASSO", "digits", "synthetic", "EMNIST-10", "EMNIST-62", "CIFAR-10")
#: Words of cases' names by which a claim's cases are counted apart too: by sets, and by
#: the first group of data or problems of which two have some.
GROUPS = (
    (_SETS,),
    (
        tuple(f"{data}, {of}" for of in ("loss", "accuracy") for data in _DATA),
        _DATA,
        ("V.1, linear", "V.2, logistic"),
        (*_PROBLEMS, "MNIST"),  # of EMNIST's what is left
    ),
)
#: How far our experiment is the paper's: its algorithm, measure and sizes; smaller or
#: fewer; or another algorithm, measure or problem.
PROTOCOLS = ("the paper's", "reduced", "other")
#: Fewer values than these have no interval that says anything.
LEAST = 3
#: Points within which an accuracy counts as the published one.
NEAR = 10.0


@dataclass(frozen=True)
class Effect:
    """What a claim says of one case, measured: positive is as the paper has it.

    What a reader is shown is the measured number itself, and the bound that it has to
    keep: ``bound + values``, or ``bound − values`` where less is as the paper has it.

    Attributes
    ----------
    case : str
        For example a data set and a set.
    values : sequence of float
        One for each unit; differences are paired by it.
    bound : float
        What the measured number is compared with; of a ratio its logarithm.
    below : bool
        Whether the measured number has to be below the bound.
    unit : str
        Over what the values vary: ``"seeds"``, or ``"settings"``, ``"data sets"``.
    form : str
        How the mean is written, for example ``"{:+.1f} points"``.
    ratio : bool
        Whether values are natural logarithms of ratios and are written as ratios.
    exact : bool
        Whether there is nothing random in the value, a count of bytes for example.
    error : float
        Probability that the interval misses the mean; a claim's cases share 0.05.
    """

    case: str
    values: Sequence[float]
    unit: str = "seeds"
    form: str = "{:+.3g}"
    ratio: bool = False
    exact: bool = False
    bound: float = 0.0
    below: bool = False
    error: float = 0.05

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(np.mean(self.values))

    def interval(self) -> tuple[float, float] | None:
        """Student's interval of the mean; None: too few values for one.

        An exact value is its own interval.
        """
        if self.exact:
            return self.mean, self.mean
        if len(self.values) < LEAST:
            return None
        mean, half = interval(self.values, self.error)
        return mean - half, mean + half

    def state(self) -> str:
        """For the paper: the whole interval is above 0; one of :data:`STATES`."""
        found = self.interval()
        if found is None or not all(map(math.isfinite, found)):
            return "not tested"
        return "for" if found[0] > 0.0 else "against" if found[1] < 0.0 else "open"

    def shown(self, value: float) -> float:
        """The measured number of a value."""
        number = self.bound - value if self.below else self.bound + value
        return math.exp(number) if self.ratio else number

    def written(self) -> str:
        """The mean of what was measured, with its interval in brackets."""
        text = self.form.format(self.shown(self.mean))
        found = self.interval()
        if self.exact:
            return text
        if found is None:
            return f"{text} ({counted(len(self.values), self.unit)})"
        ends = sorted(map(self.shown, found))
        # what rounding leaves of zero is zero
        low, high = (f"{round(value, 12) + 0.0:.3g}" for value in ends)
        return f"{text} [{low}, {high}]"

    def needed(self) -> str:
        """What the number has to be for the claim, ``"below 2 points"``."""
        before, after = re.split(r"\{.*?\}", self.form)
        side = "below" if self.below else "above"
        return f"{side} {before}{self.shown(0.0):.3g}{after}"


def counted(count: int, unit: str) -> str:
    """A number of units, ``"1 seed"``."""
    return f"{count} {unit if count != 1 else unit.removesuffix('s')}"


def tally(found: Sequence[str]) -> str:
    """How many states or outcomes there are of each, ``"6 for, 6 open of 12"``."""
    names = (name for name in (*STATES[:-1], *OUTCOMES) if name in found)
    return ", ".join(f"{found.count(k)} {k}" for k in names) + f" of {len(found)}"


Values = Sequence[float] | NDArray[Any]


def paired(case: str, larger: Values, smaller: Values, **how: Any) -> Effect:
    """Differences of two lists that belong together, or logarithms of ratios.

    The longer list is cut: seeds count from 0 in both.
    """
    first, second = np.asarray(larger, float), np.asarray(smaller, float)
    count = min(len(first), len(second))
    first, second = first[:count], second[:count]
    values = np.log(first / second) if how.get("ratio") else first - second
    return Effect(case, tuple(values.tolist()), **how)


def ratio(case: str, larger: Values, smaller: Values, **how: Any) -> Effect:
    """Ratios of two lists that belong together."""
    return paired(case, larger, smaller, ratio=True, form="×{:.3g}", **how)


def points(case: str, larger: Values, smaller: Values, **how: Any) -> Effect:
    """Differences of two lists of shares, in percentage points."""
    how = {"form": "{:+.1f} points"} | how
    return paired(case, 100 * np.array(larger), 100 * np.array(smaller), **how)


Effects = Callable[[Results], list[Effect]]
#: Pairs of a measured and a published accuracy, in percent.
Levels = Callable[[Results], list[tuple[float, float]]]


@dataclass(frozen=True)
class Claim:
    """What a paper says, and what of ours measures it.

    Attributes
    ----------
    name : str
        Unique in the paper's folder.
    short : str
        The claim in a few words of ours.
    words, where : str
        The paper's, at most 30 of them; section, table or page.
    protocol : str
        One of :data:`PROTOCOLS`.
    theirs : str
        The paper's effect.
    size : str
        Of our experiment in numbers, and what is reduced.
    meaning : str
        What the measured numbers are; with any bound that is ours.
    items : tuple of str
        Whose stored results are needed.
    effects : callable
        From results to effects; a KeyError means that what it needs is not stored.
    levels : callable, optional
        From results to measured and published levels, where a level is published.
    """

    name: str
    short: str
    words: str
    where: str
    protocol: str
    theirs: str
    size: str
    meaning: str
    items: tuple[str, ...]
    effects: Effects
    levels: Levels | None = None


@dataclass(frozen=True)
class Verdict:
    """A claim as judged.

    Attributes
    ----------
    claim : Claim
    outcome : str
        One of :data:`OUTCOMES`.
    effects : list of Effect
    level : str
        How many published levels are met, and the largest distance; empty: none are.
    """

    claim: Claim
    outcome: str
    effects: list[Effect]
    level: str = ""

    @property
    def cases(self) -> str:
        """How many cases there are, and in what states."""
        return tally([effect.state() for effect in self.effects])

    @property
    def apart(self) -> list[dict[str, str]]:
        """What is of each of a group that tells cases apart, and of none of it."""
        return [] if self.outcome == "holds" else [*filter(None, map(self._of, GROUPS))]

    def _of(self, groups: Iterable[tuple[str, ...]]) -> dict[str, str]:
        for group in groups:
            parts: dict[str, list[str]] = {name: [] for name in (*group, "others")}
            for effect in self.effects:
                found = (
                    n for n in group if all(w in effect.case for w in n.split(", "))
                )
                parts[next(found, "others")].append(effect.state())
            if sum(bool(parts[name]) for name in group) > 1:
                return {n: tally(p) if p else "–" for n, p in parts.items()}
        return {}


@dataclass(frozen=True)
class Exhibit:
    """A figure or table of a paper, and the items that reproduce it.

    Without items nothing does, and ``note`` says why.
    """

    name: str
    shows: str
    items: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class Paper:
    """A paper; its claims are numbered by its letter, in their order: F1, F2."""

    title: str
    link: str
    letter: str
    claims: tuple[Claim, ...]
    exhibits: tuple[Exhibit, ...]


def read_paper(
    folder: Path,
    letter: str,
    title: str,
    link: str,
    judged: Mapping[str, tuple[Any, ...]],
) -> Paper:
    """A paper from what it says and shows, and how each of its claims is judged.

    ``statements.csv`` in its folder has its claims with what is measured, and
    ``contents.csv`` its figures and tables; ``judged`` has the items that a claim
    needs, with spaces, what measures it, and its levels if some are published, in the
    claims' order.
    """
    claims, exhibits = (
        [row for row in read_csv(folder / f"{name}.csv") if row.pop("paper") == letter]
        for name in ("statements", "contents")
    )
    if [row["name"] for row in claims] != list(judged):
        raise ValueError(f"{folder.name}: other claims are judged than stated")
    return Paper(
        title,
        link,
        letter,
        tuple(
            Claim(
                items=tuple(items.split()),
                effects=effects,
                levels=levels[0] if levels else None,
                **row,
            )
            for row, (items, effects, *levels) in zip(
                claims, judged.values(), strict=True
            )
        ),
        tuple(
            Exhibit(row["name"], row["shows"], tuple(row["items"].split()), row["note"])
            for row in exhibits
        ),
    )


def judge(claim: Claim, results: Results) -> Verdict:
    """Judge a claim by stored results; nobody writes a verdict by hand.

    The intervals of a claim's cases hold together at 95 % (Bonferroni). A case holds
    where its whole interval lies above 0, and is against the paper where it lies below.
    A claim *holds* where every case does, *in part* where some do; without one that
    does it is *contradicted* where a case is against it, and else *undecided*. Without
    an interval it is *not tested*.
    """
    try:
        effects = claim.effects(results)
    except KeyError:  # an item that has not been run, or was run in another form
        return Verdict(claim, "not tested", [])
    random = sum(
        effect.interval() is not None and not effect.exact for effect in effects
    )
    effects = [replace(effect, error=0.05 / max(random, 1)) for effect in effects]
    states = {effect.state() for effect in effects}
    if states <= {"not tested"}:
        outcome = "not tested"
    elif "for" in states:
        outcome = "holds" if states == {"for"} else "in part"
    else:
        outcome = "contradicted" if "against" in states else "undecided"
    level = ""
    if claim.levels is not None:
        off = [ours - theirs for ours, theirs in claim.levels(results)]
        met = sum(abs(value) <= NEAR for value in off)
        far = max(off, key=abs)
        level = f"{met} of {len(off)} accuracies within {NEAR:g} points of the paper's,"
        level += f" the farthest {abs(far):.0f} {'above' if far > 0.0 else 'below'}"
    return Verdict(claim, outcome, effects, level)
