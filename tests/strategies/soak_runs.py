"""Long runs of every method under faults, with what they violate and what they keep.

``python -m tests.strategies.soak_runs`` runs 2 000 rounds of each and prints a table;
``--rounds``, and names of cases, make it shorter; ``--dtype float32`` runs models of
that.
"""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedtrellis import Callback, LocalGrid, RoundRecord
from tests.harness import calm, contexts, node_states
from tests.strategies.soak_cases import CASES, Case, Errors

#: A message is lost with probability 1 − 0.84 · 0.9 · 0.926 = 0.3.
FAULTS: dict[str, Any] = {
    "request_loss": 0.16,
    "reply_loss": 0.1,
    "late_reply": 0.074,
    "garbage": 0.05,
    "duplicate": 0.05,
    # not asked for, but what deployed nodes do: they answer, and store nothing
    "state_loss": 0.01,
}
#: Blocks of Python's memory that a round may leave behind beside its record (its
#: metrics in Flower's Result are some ten), and all rounds together.
KEPT_A_ROUND, KEPT_AT_ALL = 15, 1_000
#: By how much all arrays of server and nodes may grow between the samples, in bytes: a
#: node of HyFDCA that was just wiped has 28 kB less than it gets again.
KEPT_ARRAYS = 40_000

_WIPE_EVERY, _CALM, _CHECKPOINT_EVERY, _AHEAD = 40, 10, 10, 3


class ServerDiedError(Exception):
    """The server's process ends in the middle of a run."""


class Nodes(LocalGrid):
    """A grid whose nodes' states are no part of a checkpoint, as with a SuperLink."""

    def client_states(self) -> dict[str, bytes]:
        return {}


@dataclass
class Report:
    """What came of a run; ``kept`` is by how much each measure has grown."""

    name: str
    rounds: int
    errors: Errors
    seconds: float
    wipes: int
    faults: dict[str, int]
    kept: dict[str, int]
    tolerance: float

    def problems(self) -> list[str]:
        found = [
            f"{what}: violated by {error:.2g}"
            for what, error in self.errors.items()
            if not error < self.tolerance
        ]
        allowed = {
            "blocks": KEPT_AT_ALL + KEPT_A_ROUND * (self.rounds // 2),
            **{"arrays": KEPT_ARRAYS, "items": 50},
        }
        return found + [
            f"{self.kept[what]} {what} more are kept in the end than halfway"
            for what, most in allowed.items()
            if self.kept[what] > most
        ]

    def row(self) -> str:
        worst, kept = max(self.errors.values()), self.kept
        blocks = kept["blocks"] / (self.rounds // 2)
        more = f"{blocks:.1f},{kept['arrays']},{kept['items']:+d},{self.seconds:.0f}"
        return f"{self.name},{worst:.1e},{kept['rss'] / 1024:.0f},{more}"


# ---------------------------------------------------------------------------- measuring


def _walk(root: Any, skip: frozenset[str] = frozenset()) -> Iterator[Any]:
    """Everything that can be reached from an object of ours, each once."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset | deque):
            waiting += item
        elif not callable(item) or hasattr(item, "configure_train"):
            attributes = getattr(item, "__dict__", {})
            waiting += [v for k, v in attributes.items() if k not in skip]


def measure(strategy: Any, grid: LocalGrid) -> dict[str, int]:
    """What the process holds: bytes, and blocks of memory but those of the history.

    And what server and nodes hold, but for history and result: items of their
    collections and bytes of their arrays.
    """
    strategy.state()  # steps that were only noted down are worked in
    for item in gc.get_objects():
        # caches have a bound each, and are full at different times; isinstance would
        # ask proxies of lazy modules, which then load theirs
        if type(item) is functools._lru_cache_wrapper:
            module = str(getattr(item, "__module__", ""))
            if module.split(".")[0] in ("fedtrellis", "strategies", "clients"):
                item.cache_clear()
    gc.collect()
    blocks = sys.getallocatedblocks()
    found = {"blocks": blocks - sum(1 for _ in _walk(strategy.history))}
    found |= {"items": 0, "arrays": 0, "rss": 0}
    skip = frozenset({"history", "result", "callbacks", "client_app"})
    for item in _walk([strategy, grid], skip):
        if isinstance(item, dict | list | set | deque | tuple):
            found["items"] += len(item)
        elif isinstance(item, np.ndarray):
            found["arrays"] += item.nbytes
        elif isinstance(item, Array):
            found["arrays"] += len(item.data)
    path = Path("/proc/self/statm")
    if path.is_file():  # pages of memory that the process has
        pages = int(path.read_text().split()[1])
        found["rss"] = pages * os.sysconf("SC_PAGE_SIZE")
    return found


# ------------------------------------------------------------------------------ the run


class Conduct(Callback):
    """Wipes nodes, lets the server die, ends the faults, and measures twice."""

    def __init__(self, grid: Nodes, nodes: int, rounds: int) -> None:
        self.grid, self.nodes, self.rounds = grid, nodes, rounds
        self.wipes = 0
        self.dies_at = 2 * rounds // 5 // _CHECKPOINT_EVERY * _CHECKPOINT_EVERY + _AHEAD
        self.samples: list[dict[str, int]] = []

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        t = record.round
        if t == self.rounds // 2:
            measure(strategy, self.grid)  # what measuring itself makes and keeps
        if t in (self.rounds // 2, self.rounds):
            self.samples.append(measure(strategy, self.grid))
        if t == self.rounds - _CALM:
            calm(self.grid)
        elif t % _WIPE_EVERY == 0 and 0 < t < self.rounds - _CALM:
            name = strategy.clients[self.wipes % self.nodes]
            contexts(self.grid)[int(name)].state = RecordDict()
            self.wipes += 1
        if t == self.dies_at:
            self.dies_at = -1
            raise ServerDiedError


def soak(case: Case, rounds: int, folder: Path) -> Report:
    """Run a method for so many rounds, with a new server once in between."""
    grid = Nodes(case.app, case.nodes, seed=1, **FAULTS)
    conduct = Conduct(grid, case.nodes, rounds)
    path = folder / "checkpoint.npz"
    options: dict[str, Any] = {
        "callbacks": [conduct],
        "checkpoint": path,
        "checkpoint_every": _CHECKPOINT_EVERY,
        "client_evaluate_every": 10 if case.evaluates else 0,
    }
    began, arrays = time.process_time(), ArrayRecord([case.start])
    with suppress(ServerDiedError):
        case.strategy(**options).start(grid, arrays, num_rounds=rounds)
    # a new process knows the checkpoint; the nodes are some rounds ahead of it
    strategy = case.strategy(resume=path, **options)
    result = strategy.start(grid, arrays, num_rounds=rounds)
    (model,) = result.arrays.to_numpy_ndarrays()
    errors = case.errors(strategy, grid)
    if strategy.stateful:
        left_out = case.nodes - len(node_states(strategy, grid))
        errors["every node's state is compared"] = float(left_out)
    errors["the model is finite"] = 0.0 if np.isfinite(model).all() else np.inf
    everybody = strategy.history[-1].used == strategy.history[-1].sampled
    errors["in the end all take part"] = 0.0 if everybody else np.inf
    first, last = conduct.samples
    return Report(
        name=case.name,
        rounds=sum(record.round > 0 for record in strategy.history),
        errors=errors,
        seconds=time.process_time() - began,
        wipes=conduct.wipes,
        faults=dict(grid.fault_counts),
        kept={what: last[what] - first[what] for what in first},
        tolerance=case.tolerance,
    )


def cases_of_dtype(dtype: str) -> list[Case]:
    """The cases of all methods that take models of a dtype, with such a model."""
    return [
        case.of_dtype(dtype)
        for case in CASES.values()
        if dtype in case.strategy().dtypes and case.start.dtype == np.float64
    ]


def main() -> int:
    """Print the table; 1 if a run had a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--dtype", choices=("float64", "float32"))
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    failed, dtype = False, arguments.dtype
    titles = '"process, kB",blocks a round,"arrays, bytes",items,CPU seconds'
    print(f"method,worst violation,{titles}", flush=True)
    for case in cases_of_dtype(dtype) if dtype else CASES.values():
        if arguments.names and case.name not in arguments.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = soak(case, arguments.rounds, Path(folder))
        print(report.row(), flush=True)
        for problem in report.problems():
            failed = True
            print(f"{case.name}: {problem}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
