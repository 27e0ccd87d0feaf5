"""LocalGrid's clients in worker processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from clients import FedAvgGDClient
from fedtrellis.objectives import Objective
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedAvgGD

from .report import Aim, Comparison, in_turns, ratios

__all__ = ["FULL", "QUICK", "Heavy", "compare"]


#: How many clients, and how often they are measured.
QUICK, FULL = (16, 2), (64, 3)


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


def compare(size: tuple[int, int]) -> Iterator[Comparison]:
    """Clients of 20 ms in one process and in two."""
    clients, repetitions = size
    app = client_app(lambda context: FedAvgGDClient(context, Heavy(0.02)))
    with ExitStack() as stack:
        sides = {
            f"workers={n}": partial(
                _heavy_round,
                stack.enter_context(closing(LocalGrid(app, clients, workers=n))),
            )
            for n in (1, 2)
        }
        found = in_turns(sides, repetitions)
    ratio = ratios(*found.values())
    yield Comparison(
        "workers",
        "Clients that compute for 20 ms, in one process and in two: a round, wall time",
        f"{clients} clients, all in every round; in turns, median (min – max). "
        "Two processes need two cores that nothing else wants.",
        [{**found, "one / two": ratio}],
        [Aim("two workers: 1.7 times as fast", str(ratio), ratio.median >= 1.7)],
    )
