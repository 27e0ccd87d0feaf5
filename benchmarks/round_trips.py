"""Round trips of messages that a round of each method takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sim
from fedtrellis.wire.arrays import Layout, array_record
from fedtrellis.wire.local_grid import LocalGrid

from .report import Comparison

__all__ = ["CASES", "Case", "compare"]

_NODES = 4
# of a case's settings, those that tell the cases of one method apart
_SHOWN = ("dual-step", "secure-sum")


@dataclass(frozen=True)
class Case:
    """A method on a task that fits it."""

    method: str
    task: str
    config: Mapping[str, Any] = field(default_factory=dict)


def _cases() -> list[Case]:
    cases = []
    for method in sim.app.registry.methods:
        if method == "hyfdca":
            # encryption changes the bytes, not the number of messages
            plain = {"encryption": "none", "gap-tolerance": 0.0}
            cases += [
                Case(method, "hybrid-svm", {**plain, "dual-step": step})
                for step in ("bundle", "practical")
            ]
            cases.append(Case(method, "hybrid-svm", {**plain, "secure-sum": True}))
        elif method in sim.HYBRID:
            cases.append(Case(method, "hybrid-svm"))
        elif method in sim.RIEMANNIAN:
            cases.append(Case(method, "kernel-pca", {"local-step-size": 0.01}))
        elif method in sim.UNCONSTRAINED:
            cases.append(Case(method, "linear-regression"))
        else:
            cases.append(Case(method, "lasso"))
    return cases


CASES = _cases()


def _trips(case: Case, rounds: int) -> list[int]:
    """Round trips of each round."""
    config = {**sim.app.default_config(), "method": case.method, "task": case.task}
    config |= {"seed": 0, **case.config}
    setup = sim.app.experiment(config, _NODES)
    strategy = sim.make_strategy(setup)
    grid = LocalGrid(sim.client_app, _NODES, run_config=config)
    layout = Layout(tuple(setup.task.shapes()))
    point = layout.point(setup.task.initial_point())
    if setup.manifold is not None:
        point = setup.manifold.project(point)
    strategy.start(grid, array_record(layout.layers(point)), num_rounds=rounds)
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
