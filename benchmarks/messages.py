"""Messages a second: ``LocalGrid``, with and without encoding, and Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sim

from .ray import run_on_ray
from .report import Aim, Comparison, Row, Spread, ratios

__all__ = ["FULL", "QUICK", "Case", "compare"]

_RATIO_AIM, _PLAIN_AIM, _ENCODED_AIM = 20.0, 3000.0, 1500.0
_WARM_UP = 3
_PLAIN, _ENCODED, _RAY = "LocalGrid", "LocalGrid, encode=True", "Ray (flwr run)"


@dataclass(frozen=True)
class Case:
    """A number of nodes, and how long it is measured.

    Ray starts once a repetition; ``ray_rounds=0`` leaves it out.
    """

    nodes: int
    repetitions: int
    rounds: int
    ray_rounds: int


QUICK = [Case(10, 1, 100, 60), Case(100, 3, 10, 0)]
FULL = [Case(10, 3, 300, 300), Case(100, 3, 60, 60)]


def _config(rounds: int) -> dict[str, Any]:
    # the first and the last round are evaluated, and evaluation is not counted
    return {
        "task": "lasso",
        "fedfw.variant": "plain",
        "rounds": rounds,
        "evaluate-every": 10**6,
    }


def _rate(history: Sequence[Mapping[str, Any]], nodes: int) -> float:
    """Messages a second, by the seconds that the run itself noted down."""
    counted = [line for line in history if line["round"] > _WARM_UP]
    if any(line["used"] != nodes for line in counted):
        raise RuntimeError("answers were lost; the rate would mean nothing")
    messages = sum(line["sampled"] + line["used"] for line in counted)
    return float(messages / sum(line["seconds"] for line in counted))


def _local(nodes: int, rounds: int, encode: bool) -> float:
    """The app's own run on ``LocalGrid``, without its record on disk."""
    config = sim.app.default_config() | _config(rounds + _WARM_UP)
    experiment = sim.app.experiment(config, nodes)
    strategy, grid = experiment.strategy(), experiment.grid(encode=encode)
    start = experiment.initial_arrays()
    strategy.start(grid, start, num_rounds=rounds + _WARM_UP)
    return _rate([record.to_dict() for record in strategy.history], nodes)


def _measure(case: Case, result: Comparison) -> None:
    rest: list[float] = []  # of flwr run's seconds, those that are no round

    def ray() -> float:
        run = run_on_ray(case.nodes, _config(case.ray_rounds + _WARM_UP))
        rest.append(run.wall_seconds - sum(line["seconds"] for line in run.history))
        return _rate(run.history, case.nodes)

    measures: dict[str, Callable[[], float]] = {
        _PLAIN: lambda: _local(case.nodes, case.rounds, False),
        _ENCODED: lambda: _local(case.nodes, case.rounds, True),
    }
    if case.ray_rounds:
        measures[_RAY] = ray
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(case.repetitions):
        for name, measure in measures.items():
            rates[name].append(measure())
    spreads = {name: Spread(tuple(values), "/s") for name, values in rates.items()}
    for name, spread in spreads.items():
        trips = Spread(tuple(value / 2 for value in spread.values), "/s")
        rounds = case.ray_rounds if name == _RAY else case.rounds
        row: Row = {
            "nodes": case.nodes,
            "grid": name,
            "runs": f"{case.repetitions} of {rounds}",
            "messages a second": spread,
            "round trips a second": trips,
        }
        if _RAY in spreads:
            row["times Ray"] = ratios(spread, spreads[_RAY])
        if name == _RAY:
            row["start-up"] = Spread(tuple(rest), "s")
        result.rows.append(row)
    _judge(case, spreads, result)


def _judge(case: Case, spreads: Mapping[str, Spread], result: Comparison) -> None:
    for name, aim in ((_PLAIN, _PLAIN_AIM), (_ENCODED, _ENCODED_AIM)):
        rate = spreads[name].median
        result.aims.append(
            Aim(
                f"{name}, {case.nodes} nodes: at least {aim:,.0f} messages a second",
                f"{rate:,.0f}",
                rate >= aim,
            )
        )
    if _RAY in spreads:
        ratio = ratios(spreads[_PLAIN], spreads[_RAY]).median
        result.aims.append(
            Aim(
                f"{_PLAIN}, {case.nodes} nodes: at least {_RATIO_AIM:g} times Ray",
                f"{ratio:.1f} times",
                ratio >= _RATIO_AIM,
            )
        )


def compare(cases: Sequence[Case]) -> Comparison:
    """The rates of both grids, two or three rows a case."""
    result = Comparison(
        "messages",
        "Messages a second, FedFW on LASSO (p = 400)",
        "A message is one Flower Message in one direction: requests and replies both "
        "count, two a round trip. The seconds are those of the rounds alone (client, "
        f"server, grid), {_WARM_UP} rounds left out, on both grids as the history has "
        "them. Start-up is all the rest of `flwr run`: SuperLink, app environment, "
        "Ray, its end. Ray has one client process a core.",
    )
    for case in cases:
        _measure(case, result)
    return result
