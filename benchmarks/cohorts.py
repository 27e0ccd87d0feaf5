"""LocalGrid's clients many at once, and in worker processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
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
from .scale import Case, fastest_round

__all__ = ["FULL", "QUICK", "Heavy", "Sizes", "compare"]

_PARALLEL = 1.7


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    cases : tuple of Case
        Of FedFW with each client's arithmetic as small as it can be.
    repetitions : int
        Of everything, in turns.
    heavy : int
        Clients that compute for 20 ms.
    """

    cases: tuple[Case, ...]
    repetitions: int
    heavy: int


QUICK = Sizes((Case(200, 1_000, 2),), 2, 16)
FULL = Sizes((Case(1_000, 1_000), Case(10_000, 1_000)), 3, 64)


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


def _light(sizes: Sizes) -> Comparison:
    """FedFW's rounds one by one and together."""
    result = Comparison(
        "cohorts",
        "FedFW on LocalGrid, clients one by one and together: CPU of a round",
        "Everybody in every round, the cheapest of losses, so that messages, states "
        "and server are what is measured; in turns, median (min – max) of the fastest "
        f"rounds of {sizes.repetitions} runs.",
    )
    for case in sizes.cases:
        sides = {
            name: partial(lambda c, b: fastest_round(c, batched=b)[0], case, batched)
            for name, batched in (("one by one", False), ("together", True))
        }
        found = in_turns(sides, sizes.repetitions)
        result.rows.append(
            {
                "nodes": case.nodes,
                "p": f"{case.parameters:,}",
                **found,
                "one by one / together": ratios(*found.values()),
            }
        )
    return result


def _heavy_round(grid: LocalGrid, rounds: int = 2) -> float:
    """Wall seconds of a round of clients that compute for long."""
    strategy = FedAvgGD(local_steps=1, step_size=0.01)
    began = time.perf_counter()
    strategy.start(grid, ArrayRecord([np.ones(10)]), num_rounds=rounds)
    return (time.perf_counter() - began) / rounds


def _heavy(sizes: Sizes) -> Comparison:
    """Clients of 20 ms in one process and in two."""
    app = client_app(lambda context: FedAvgGDClient(context, Heavy(0.02)))
    with ExitStack() as stack:
        sides = {
            f"workers={n}": partial(
                _heavy_round,
                stack.enter_context(closing(LocalGrid(app, sizes.heavy, workers=n))),
            )
            for n in (1, 2)
        }
        found = in_turns(sides, sizes.repetitions)
    ratio = ratios(*found.values())
    return Comparison(
        "workers",
        "Clients that compute for 20 ms, in one process and in two: a round, wall time",
        f"{sizes.heavy} clients, all in every round; in turns, median (min – max). Two "
        "processes need two cores that nothing else wants.",
        [{**found, "one / two": ratio}],
        [
            Aim(
                f"two workers: at least {_PARALLEL} times as fast",
                str(ratio),
                ratio.median >= _PARALLEL,
            )
        ],
    )


def compare(sizes: Sizes) -> Iterator[Comparison]:
    """Clients together, and clients in worker processes."""
    yield _light(sizes)
    yield _heavy(sizes)
