"""Choosing settings: the metrics of a run, and the best of several trials.

The seven metrics and the choice by grey relational analysis are those of the HyFDCA
paper (section 7.3), and so is the random search of :mod:`fedtrellis.tune.search_space`.
``fedtrellis tune`` puts them to work; see :mod:`fedtrellis.command_line`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.settings import SettingsError
from fedtrellis.tune.grey_relational import grey_relational_grades, pareto_front

__all__ = [
    "LATENCIES",
    "METRICS",
    "Ranking",
    "Trial",
    "divergence",
    "measure",
    "rank",
]

#: Seconds of a round trip: none, from the USA to Singapore, a geostationary satellite.
LATENCIES = (0.0, 0.2575, 0.8)
#: Metrics of a run, and whether small or large ones are wanted.
METRICS = {
    **{f"seconds-{latency:g}": "min" for latency in LATENCIES},
    "loss": "min",
    "accuracy": "max",
    "volatility": "min",
    "rounds-to-90": "min",
}
_LAST = 5  # losses whose mean is the final one


def _losses(history: Sequence[RoundRecord]) -> tuple[list[int], list[float]]:
    """Rounds with a loss, and the losses; the first is the start's."""
    known = [record for record in history if "loss" in record.metrics]
    if len(known) < 2:
        raise SettingsError(
            f"the run's history has {len(known)} rounds with the metric 'loss'; "
            "at least 2 are needed"
        )
    return [r.round for r in known], [float(r.metrics["loss"]) for r in known]


def _final(losses: Sequence[float]) -> float:
    # the start's loss is no result, also in a run shorter than five rounds
    return float(np.mean(losses[1:][-_LAST:]))


def divergence(history: Sequence[RoundRecord]) -> str:
    """Say why a run is left out of the comparison; empty if it is not.

    Raises
    ------
    SettingsError
        If the history has fewer than two losses.
    """
    rounds, losses = _losses(history)
    for number, loss in zip(rounds, losses, strict=True):
        if not math.isfinite(loss):
            return f"loss {loss} in round {number}"
    final = _final(losses)
    if not final < losses[0]:
        return (
            f"last losses {final:.4g} on average, not below the first {losses[0]:.4g}"
        )
    return ""


def measure(history: Sequence[RoundRecord]) -> dict[str, float]:
    """Return the metrics of a run that did not diverge.

    Parameters
    ----------
    history : sequence of RoundRecord
        Of the whole run.

    Returns
    -------
    dict
        ``seconds-L`` for each L of ``LATENCIES``: mean seconds of a round, and L for
        each of its round trips; round 1 is left out, where there are others, as it
        has the introductions and loads the data. ``loss``: mean of the last five.
        ``accuracy``: the best, missing where the run has no such metric.
        ``volatility``: standard deviation of the differences of consecutive losses.
        ``rounds-to-90``: first round that has 90 % of the way from the first loss to
        the lowest behind it.

    Raises
    ------
    SettingsError
        If the history has fewer than two losses, or no round.
    """
    numbers, losses = _losses(history)
    rounds = [record for record in history if record.round > 0]
    if not rounds:
        raise SettingsError("the run's history has no round")
    steady = [record for record in rounds if record.round > 1] or rounds
    seconds = float(np.mean([record.seconds for record in steady]))
    trips = float(np.mean([record.round_trips for record in steady]))
    metrics = {f"seconds-{lag:g}": seconds + lag * trips for lag in LATENCIES}
    metrics["loss"] = _final(losses)
    accuracies = [r.metrics["accuracy"] for r in history if "accuracy" in r.metrics]
    if accuracies:
        metrics["accuracy"] = float(max(accuracies))
    metrics["volatility"] = float(np.std(np.diff(losses)))
    goal = losses[0] - 0.9 * (losses[0] - min(losses))
    reached = next(i for i, loss in enumerate(losses) if loss <= goal)
    metrics["rounds-to-90"] = float(numbers[reached])
    return metrics


@dataclass(frozen=True)
class Trial:
    """One run of the search.

    Attributes
    ----------
    number : int
        From 1.
    settings : dict
        What was drawn for it.
    status : {"completed", "diverged", "failed"}
    reason : str
        Why it diverged or failed.
    metrics : dict
        See :func:`measure`; empty if it failed.
    record : str
        The run's record, relative to the search's directory; empty if there is none.
    """

    number: int
    settings: dict[str, Any]
    status: str
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    record: str = ""

    @property
    def counts(self) -> bool:
        """Whether it takes part in the comparison."""
        return self.status == "completed"


@dataclass(frozen=True)
class Ranking:
    """Trials that neither failed nor diverged, best first.

    Attributes
    ----------
    trials : list of Trial
        The Pareto front by falling grade, then the others by rising loss.
    grades : list of float
        Of the front; NaN for the others.
    metrics : list of str
        Those that all of the trials have.
    """

    trials: list[Trial]
    grades: list[float]
    metrics: list[str]

    @property
    def front(self) -> list[bool]:
        """Which trials no other one dominates."""
        return [not math.isnan(grade) for grade in self.grades]


def rank(trials: Sequence[Trial]) -> Ranking:
    """Put the trials that count in order, by grey relational analysis of their front.

    Raises
    ------
    SettingsError
        If none counts.
    """
    left = sorted((t for t in trials if t.counts), key=lambda t: t.number)
    if not left:
        first = min(trials, key=lambda t: t.number)
        raise SettingsError(
            f"none of {len(trials)} trials is left; trial {first.number} "
            f"{first.status}: {first.reason}"
        )
    metrics = [name for name in METRICS if all(name in t.metrics for t in left)]
    senses = [METRICS[name] for name in metrics]
    table = np.array([[t.metrics[name] for name in metrics] for t in left])
    front = pareto_front(table, senses)
    grades = np.full(len(left), np.nan)
    # the method is for points of a front; how bad the others are has no say
    grades[front] = grey_relational_grades(table[front], senses)
    order = sorted(
        range(len(left)),
        key=lambda i: (
            not front[i],
            -grades[i] if front[i] else left[i].metrics["loss"],
        ),
    )
    return Ranking([left[i] for i in order], [float(grades[i]) for i in order], metrics)
