"""LocalGrid's clients many at once, and in worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from clients import FedAvgGDClient
from fedtrellis.objectives import Objective
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedAvgGD

from .ray import ROOT
from .report import Aim, Comparison, Spread, ratios
from .scale import Case, local_round

__all__ = ["FULL", "QUICK", "Heavy", "Sizes", "compare"]

#: Before cohorts, and what became of messages with them.
BEFORE = "eaa8d04"
_FASTER, _PARALLEL = 6.0, 1.7


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    cases : tuple of Case
        Of FedFW with each client's arithmetic as small as it can be.
    repetitions : int
        Of everything, in turns.
    before : bool
        Whether the version before is measured too, in a checkout of its own.
    heavy : int
        Clients that compute for 20 ms.
    """

    cases: tuple[Case, ...]
    repetitions: int
    before: bool
    heavy: int


QUICK = Sizes((Case(200, 1_000, 2),), 2, False, 16)
FULL = Sizes((Case(1_000, 1_000), Case(10_000, 1_000)), 3, True, 64)


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


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """Another version of the repository, in a folder of its own."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "before"
        subprocess.run(
            [*git, "add", "--detach", str(path), commit],
            check=True,
            capture_output=True,
        )
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


_BEFORE_SCRIPT = """
import logging, sys
logging.getLogger("flwr").setLevel(logging.ERROR)
from benchmarks.scale import Case, _local
print(_local(Case(*map(int, sys.argv[1:])))["a round"].values[0])
"""


def _seconds_before(case: Case, checkout: Path) -> float:
    """CPU seconds of a round of a case in another version."""
    command = [sys.executable, "-c", _BEFORE_SCRIPT]
    numbers = [str(n) for n in (case.nodes, case.parameters, case.rounds)]
    done = subprocess.run(
        [*command, *numbers],
        cwd=checkout,
        env=_environment(checkout),
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def _environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}


def _light(sizes: Sizes) -> Comparison:
    """FedFW's rounds one by one and together, and before."""
    result = Comparison(
        "cohorts",
        "FedFW on LocalGrid, clients one by one and together: CPU of a round",
        "Everybody in every round, the cheapest of losses, so that messages, states "
        "and server are what is measured; in turns, median (min – max) of the fastest "
        f"rounds of {sizes.repetitions} runs. Before: commit {BEFORE}.",
    )
    with _checkout(BEFORE) if sizes.before else _nothing() as checkout:
        for case in sizes.cases:
            times: dict[str, list[float]] = {}
            for _ in range(sizes.repetitions):
                if checkout is not None:
                    seconds = _seconds_before(case, checkout)
                    times.setdefault("before", []).append(seconds)
                for name, batched in (("one by one", False), ("together", True)):
                    seconds = local_round(case, batched=batched)
                    times.setdefault(name, []).append(seconds)
            spreads = {name: Spread(tuple(v), "ms") for name, v in times.items()}
            first = next(iter(spreads))
            ratio = ratios(spreads[first], spreads["together"])
            result.rows.append(
                {
                    "nodes": case.nodes,
                    "p": f"{case.parameters:,}",
                    **spreads,
                    f"{first} / together": ratio,
                }
            )
            if checkout is not None and case.nodes >= 10_000:
                result.aims.append(
                    Aim(
                        f"{case.nodes:,} nodes: at most a sixth of before",
                        f"1/{ratio.median:.1f}",
                        ratio.median >= _FASTER,
                    )
                )
    return result


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


def _seconds_of_heavy(grid: LocalGrid, rounds: int = 2) -> float:
    """Wall seconds of a round of clients that compute for long."""
    strategy = FedAvgGD(local_steps=1, step_size=0.01)
    began = time.perf_counter()
    strategy.start(grid, ArrayRecord([np.ones(10)]), num_rounds=rounds)
    return (time.perf_counter() - began) / rounds


def _heavy(sizes: Sizes) -> Comparison:
    """Clients of 20 ms in one process and in two."""
    result = Comparison(
        "workers",
        "Clients that compute for 20 ms, in one process and in two: a round, wall time",
        f"{sizes.heavy} clients, all in every round; in turns, median (min – max). Two "
        "processes need two cores that nothing else wants.",
    )
    app = client_app(lambda context: FedAvgGDClient(context, Heavy(0.02)))
    counts = (1, 2)
    grids = {n: LocalGrid(app, sizes.heavy, workers=n) for n in counts}
    times: dict[int, list[float]] = {n: [] for n in counts}
    try:
        for _ in range(sizes.repetitions):
            for n in counts:
                times[n].append(_seconds_of_heavy(grids[n]))
    finally:
        for grid in grids.values():
            grid.close()
    one, two = (Spread(tuple(times[n]), "ms") for n in counts)
    ratio = ratios(one, two)
    result.rows.append({"workers=1": one, "workers=2": two, "one / two": ratio})
    result.aims.append(
        Aim(
            f"two workers: at least {_PARALLEL} times as fast",
            f"{ratio.median:.2f}",
            ratio.median >= _PARALLEL,
        )
    )
    return result


def compare(sizes: Sizes) -> Sequence[Comparison]:
    """Clients together, and clients in worker processes."""
    return [_light(sizes), _heavy(sizes)]
