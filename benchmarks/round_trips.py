"""Round trips of messages that a round of each method takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sim
from strategies import HyFDCA

from .report import Comparison

__all__ = ["CASES", "Case", "compare"]

_NODES = 4
# of a case's settings, those that tell the cases of one method apart
_SHOWN = ("hyfdca.step", "hyfdca.secure-sum")


@dataclass(frozen=True)
class Case:
    """A method on a task that fits it."""

    method: str
    task: str
    config: Mapping[str, Any] = field(default_factory=dict)


def _cases() -> list[Case]:
    cases = []
    tasks = {
        "split": "hybrid-svm",
        "manifold": "kernel-pca",
        "whole": "linear-regression",
        "domain": "lasso",
    }
    # encryption changes the bytes, not the number of messages
    plain = {"hyfdca.encryption": "none", "hyfdca.tolerance": 0.0}
    # each feature has two holders here, one less than nodes want
    plain["hyfdca.exposed"] = "accept"
    steps: list[dict[str, Any]] = [
        {"hyfdca.step": "bundle"},
        {"hyfdca.step": "bundle", "hyfdca.secure-sum": False},
        {"hyfdca.step": "practical", "hyfdca.secure-sum": False},
    ]
    for method, entry in sim.app.registry.methods.items():
        task = tasks[entry.strategy.space]
        if entry.strategy is HyFDCA:
            cases += [Case(method, task, {**plain, **step}) for step in steps]
        else:
            cases.append(Case(method, task))
    return cases


CASES = _cases()


def _trips(case: Case, rounds: int) -> list[int]:
    """Round trips of each round."""
    config = {**sim.app.default_config(), "method": case.method, "task": case.task}
    config |= {"seed": 0, **case.config}
    experiment = sim.app.experiment(config, _NODES)
    strategy, grid = experiment.strategy(), experiment.grid()
    strategy.start(grid, experiment.initial_arrays(), num_rounds=rounds)
    return [record.round_trips for record in strategy.history]


def compare(cases: Sequence[Case], rounds: int = 20) -> Comparison:
    """Round trips a round, a row a case."""
    result = Comparison(
        "round-trips",
        "Round trips a round",
        f"{_NODES} nodes on LocalGrid, nothing lost, at most {rounds} rounds; the most "
        "frequent number, and the range. A round trip is one wave: a message to each "
        "of the round's clients, and their answers. One more for every wave with a "
        "client that has to be given its state; evaluation on the clients (off by "
        "default) is one more as well.",
    )
    for case in cases:
        trips = _trips(case, rounds)
        settings = " ".join(
            f"{key}={value}" for key, value in case.config.items() if key in _SHOWN
        )
        result.rows.append(
            {
                "method": case.method,
                "settings": settings,
                "rounds": len(trips),
                "round trips a round": max(set(trips), key=trips.count),
                "from, to": f"{min(trips)}, {max(trips)}",
            }
        )
    return result
