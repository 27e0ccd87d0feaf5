"""Rounds with a quorum in virtual time, where one or three of ten nodes are slower.

A node handles one message after the other, in log-normal times that its index, the seed
and the message's number at the node decide; before round 1 it takes no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import Any

import numpy as np

from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.local_grid import LocalGrid

from .matrix.problems import NODES, PROBLEMS, Problem, experiment, optimum
from .networks.problems import PROBLEMS as NETWORKS
from .report import Comparison, Row, Spread, at_most, ratios

__all__ = ["FULL", "QUICK", "Case", "compare"]

#: How many times as long slow nodes take, and σ of all times.
FACTOR, SIGMA = 10.0, 0.3
# a timeout that nothing reaches
_FOREVER, _AUTO = 1e9, "auto"

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A method on a problem, and the settings that each side tries, equally many.

    They are chosen by ``tuning`` seeds from 100 on, and measured with ``seeds`` from 0;
    ``aim`` is what late answers are to take of the other side's time. A run has arrived
    at an ``accuracy`` or, if that is 0, where 10⁻⁶ of F(x_0) − F* is left.
    """

    name: str
    problem: Problem
    method: Settings
    beside: str
    other: Sequence[Settings]
    late: Sequence[Settings]
    accuracy: float = 0.0
    rounds: int = 3000
    aim: float = 0.7
    tuning: int = 2
    seeds: int = 5


class Arrival(Callback):
    """Ends a run where it has arrived, or after ``most`` seconds; the nodes' times."""

    grid: LocalGrid

    def __init__(self, seed: int, slow: int, accuracy: float, loss: float) -> None:
        self._rngs = [np.random.default_rng([seed, index]) for index in range(NODES)]
        self._slow, self._free = slow, [0.0] * NODES
        self._accuracy, self._loss = accuracy, loss
        self._began, self.most, self.seconds = inf, inf, inf

    def delay(self, index: int, number: int) -> float:
        """Seconds until a node has answered what it is sent now."""
        if self._began == inf:
            return 0.0
        taken = self._rngs[index].lognormal(0.0, SIGMA)
        now = self.grid.clock()
        start = max(now, self._free[index])
        self._free[index] = start + taken * (FACTOR if index < self._slow else 1.0)
        return float(self._free[index] - now)

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool:
        """Whether the run is over."""
        now, metrics = self.grid.clock(), record.metrics
        if not record.round:
            self._began = now
            return False
        # a round whose answers were all dropped has no metrics
        there = metrics.get("loss", inf) <= self._loss
        if self._accuracy:
            there = metrics.get("accuracy", 0.0) >= self._accuracy
        if there:
            self.seconds = now - self._began
        return there or now - self._began > self.most


@lru_cache
def _loss(problem: Problem, seed: int) -> float:
    """At most 10⁻⁶ of F(x_0) − F* above F*."""
    found = optimum(problem, seed)
    return found.value - found.gap + 1e-6 * (found.start - found.value)


def seconds(
    case: Case, settings: Settings, seed: int, slow: int, most: float = inf
) -> float:
    """Virtual seconds until a run arrives; infinite if it does not within ``most``."""
    loss = 0.0 if case.accuracy else _loss(case.problem, seed)
    made = {"timeout": _FOREVER, **case.method, **settings}
    run = experiment(case.problem, seed, made, case.rounds)
    arrival = Arrival(seed, slow, case.accuracy, loss)
    arrival.most, arrival.grid = most, run.grid(delay=arrival.delay)
    try:
        run.start(run.strategy(callbacks=[arrival]), arrival.grid)
    except RuntimeError:  # it diverged
        return inf
    return arrival.seconds


def tuned(case: Case, tried: Sequence[Settings], slow: int) -> Settings:
    """The settings that arrive first on average of the tuning's seeds."""
    best, least = tried[0], inf
    for settings in tried:
        total = 0.0
        for seed in range(100, 100 + case.tuning):
            total += seconds(case, settings, seed, slow, least - total)
        if total < least:
            best, least = settings, total
    return best


def row(case: Case, slow: int) -> Row:
    """Each side tuned, a star where the best value is at the grid's end; measured."""
    seeds = range(case.seeds)
    found: Row = {"case": case.name, "slow": slow}
    found |= {"seeds": case.seeds, "beside": case.beside}
    both = list[Spread]()
    for side, tried in (("other", case.other), ("late", case.late)):
        best, shown = tuned(case, tried, slow), []
        for key, value in best.items():
            values = sorted({one[key] for one in tried} - {_AUTO, _FOREVER})
            end = len(values) > 1 and value in (values[0], values[-1])
            text = value if value == _AUTO else f"{value:.3g}"
            shown.append(f"{key.rpartition('.')[2]} = {text}{'*' * end}")
        measured = [seconds(case, best, seed, slow) for seed in seeds]
        both.append(Spread(tuple(measured), ""))
        found |= {f"{side} settings": ", ".join(shown), f"{side} seconds": both[-1]}
    return {**found, "ratio": ratios(*both[::-1])}


def compare(size: tuple[Any, ...]) -> Iterator[Comparison]:
    """All cases, with each number of slow nodes."""
    cases, counts = size
    result = Comparison(
        "late",
        "Late answers beside waiting and dropping, in virtual seconds",
        f"{NODES} clients, log-normal times (σ = {SIGMA}), slow ones {FACTOR:g} times, "
        "a message after the other; until 10⁻⁶ of F(x_0) − F* is left, or an accuracy "
        "of .95. Both sides try equally many settings, with other seeds; median (min – "
        "max) of seeds that are the same for both. A star: at the grid's end.",
    )
    for case, slow in product(cases, counts):
        made = row(case, slow)
        result.rows.append(made)
        ratio = made["ratio"]
        if case.aim < inf and isinstance(ratio, Spread):
            of = f"{case.name}, {slow} slow"
            result.aims.append(at_most(of, ratio, case.aim, case.beside))
    yield result


def _grid(**values: Sequence[Any]) -> list[Settings]:
    """All settings of such values."""
    chosen = product(*values.values())
    return [dict(zip(values, one, strict=True)) for one in chosen]


_QUORUMS, _DEADLINES = (1, 2, 3, 5, 7, 8), (1.0, 1.2, 1.4, 1.7, 2.2, 3.0)
_BY_LABEL = {"task": "digits", "digits.partition": "labels"}
_DIGITS = replace(PROBLEMS["digits-l1"], kind="none", config=_BY_LABEL)
_NETWORK = replace(_DIGITS, config=NETWORKS["digits"].config(0, tuning=False))
_LASSO = replace(PROBLEMS["lasso-l1"], name="lasso", config={"task": "lasso"})
_GRADIENTS = {"method": "fedavg", "fedavg.batch-fraction": 1.0}
_ORACLES = {"method": "fedlmo", "fedlmo.step-schedule": "constant"}


def _waiting(name: str, problem: Problem, least: float, most: float) -> Case:
    """Corrective FedFW; waiting has one setting, of which it tries more values."""
    finer, few = ([_AUTO, *np.geomspace(least, most, n).tolist()] for n in (15, 3))
    other = _grid(**{"fedfw.penalty": finer})
    late = _grid(quorum=_QUORUMS[2:], **{"fedfw.penalty": few})
    return Case(name, problem, {"method": "fedfw"}, "waiting", other, late)


def _dropping(name: str, problem: Problem, method: Settings, *sizes: float) -> Case:
    """Changes that count less with age."""
    steps = {f"{method['method']}.step-size": sizes}
    other, late = _grid(**steps, timeout=_DEADLINES), _grid(**steps, quorum=_QUORUMS)
    many = {"tuning": 20, "seeds": 20}
    return Case(name, problem, method, "dropping", other, late, 0.95, 400, **many)


def _retry(name: str, problem: Problem) -> Case:
    """A fixed σ beside an adapted one, which needs everybody's answer at one x."""
    timeouts, key = (12.0, 15.0, 20.0, 30.0, 60.0, _FOREVER), "fedgia.selected-fraction"
    other = _grid(timeout=timeouts, **{key: (0.1, 0.3, 0.5, 1.0)})
    scales = {"fedgia.sigma-scale": (0.05, 0.1, 0.2, 0.4), "fedgia.tolerance": (0.0,)}
    late = _grid(quorum=_QUORUMS, **scales)
    return Case(name, problem, {"method": "fedgia"}, "retry", other, late, aim=inf)


_SLOWER = _dropping("FedLMO, network", _NETWORK, _ORACLES, 0.02, 0.04, 0.08, 0.16)
CASES = (
    _waiting("FedFW, LASSO", _LASSO, 10.0, 1000.0),
    _waiting("FedFW, a9a", PROBLEMS["a9a-l1"], 1e-5, 1e-2),
    _dropping("FedAvg, digits", _DIGITS, _GRADIENTS, 1.0, 3.0, 10.0, 30.0),
    _dropping("FedLMO, digits", _DIGITS, _ORACLES, 0.1, 0.3, 1.0, 3.0),
    replace(_SLOWER, tuning=2, seeds=5),
    _retry("FedGiA, least squares", PROBLEMS["least-squares"]),
)
#: Cases, and how many nodes are slow.
FULL = CASES, (1, 3)
_SHORT = replace(CASES[2], other=CASES[2].other[8:10], late=CASES[2].late[7:9])
QUICK = (replace(_SHORT, tuning=5, seeds=1),), (1,)
