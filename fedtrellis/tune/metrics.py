"""The seven metrics by which the HyFDCA paper (section 7.3) compares settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.settings import SettingsError

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
    """Why a run is left out of the comparison; empty if it is not."""
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
    """Return the metrics of a run that did not diverge, from its whole history.

    ``seconds-L`` for each L of ``LATENCIES``: mean seconds of a round, and L for each
    of its round trips; round 1 is left out, where there are others, as it has the
    introductions and loads the data. ``loss``: mean of the last five. ``accuracy``: the
    best, missing where the run has no such metric. ``volatility``: standard deviation
    of the differences of consecutive losses. ``rounds-to-90``: first round that has
    90 % of the way from the first loss to the lowest behind it. SettingsError if there
    are fewer than two losses, or no round.
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
