"""LocalGrid's clients many at once, and in worker processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from clients import FedAvgGDClient
from fedtrellis.objectives import Objective
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedAvgGD

from . import scale
from .report import Aim, Comparison, in_turns, ratios

__all__ = ["FULL", "QUICK", "Heavy", "Size", "compare"]


@dataclass(frozen=True)
class Size:
    """FedFW's cases, and how many clients that compute for 20 ms."""

    light: scale.Sizes
    heavy: int


QUICK = Size(scale.Sizes((scale.Case(200, 1_000, 2),), 2), 16)
FULL = Size(scale.Sizes((scale.Case(1_000, 1_000), scale.Case(10_000, 1_000)), 3), 64)


class Heavy(Objective):
    """f(x) = ½‖x‖², whose gradient takes so many seconds of a core."""

    shape = (10,)
    num_examples = 1

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def value(self, x: Any) -> float:
        """Return f(x)."""
        return 0.5 * float(np.vdot(x, x))

    def gradient(self, x: Any) -> Any:
        """Return x."""
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass
        return x.copy()


def _heavy_round(grid: LocalGrid, rounds: int = 2) -> float:
    """Wall seconds of a round of clients that compute for long."""
    strategy = FedAvgGD(local_steps=1, step_size=0.01)
    began = time.perf_counter()
    strategy.start(grid, ArrayRecord([np.ones(10)]), num_rounds=rounds)
    return (time.perf_counter() - began) / rounds


def compare(size: Size) -> Iterator[Comparison]:
    """Clients together, and clients of 20 ms in one process and in two."""
    (light,) = scale.compare(size.light)
    yield replace(light, name="cohorts")
    app = client_app(lambda context: FedAvgGDClient(context, Heavy(0.02)))
    with ExitStack() as stack:
        sides = {
            f"workers={n}": partial(
                _heavy_round,
                stack.enter_context(closing(LocalGrid(app, size.heavy, workers=n))),
            )
            for n in (1, 2)
        }
        found = in_turns(sides, size.light.repetitions)
    ratio = ratios(*found.values())
    yield Comparison(
        "workers",
        "Clients that compute for 20 ms, in one process and in two: a round, wall time",
        f"{size.heavy} clients, all in every round; in turns, median (min – max). Two "
        "processes need two cores that nothing else wants.",
        [{**found, "one / two": ratio}],
        [Aim("two workers: 1.7 times as fast", str(ratio), ratio.median >= 1.7)],
    )
