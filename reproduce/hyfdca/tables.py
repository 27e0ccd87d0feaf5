"""Table 5: the centralised optimum; tables 6 to 8: times of an iteration."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import wraps
from math import ceil
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import sim
from fedtrellis.encryption import Cipher
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.wire.local_grid import LocalGrid
from reproduce.common import Item, Options, app_config
from reproduce.drawing import table

from .figures import BUNDLE, FEDAVG, HYFEM, PRACTICAL, practical, title_of
from .problems import (
    AVAILABLE,
    PROBLEMS,
    Split,
    config_of,
    inner_steps,
    present,
    published,
)
from .runs import optimum_of

__all__ = ["ITEMS"]

PAILLIER_MS = 18.882
#: Iterations measured, after those that are not.
WARM_UP, MEASURED = 2, 8
TWO = ("computation", "encryption")


# ------------------------------------------------------------------------------ table 5


def compute_table_5(options: Options) -> dict[str, Any]:
    """P* of all training samples, and of those that the figures take."""
    rows = []
    for name, problem in present(options).items():
        nodes = problem.splits[0].nodes
        sizes = [False] if options.quick or not problem.sizes[0] else [True, False]
        for all_ in sizes:
            config = config_of(problem, options, problem.splits[0], all_=all_)
            settings = problem.settings
            rows.append(
                {
                    "problem": name,
                    "all": all_ or not problem.sizes[0],
                    "lambda": settings.get("regularization", 1e-3),
                    **optimum_of(config, nodes),
                }
            )
    return {"rows": rows}


def render_table_5(results: dict[str, Any], out: Path) -> str:
    """Optimum, certificate and the paper's number."""
    lines = []
    for row in results["rows"]:
        problem = PROBLEMS[row["problem"]]
        part = "" if row["all"] else " (the figures')"
        size = (f"{row['samples']:,}{part}", f"{row['features']:,}")
        found = (f"{row['lambda']:g}", f"{row['value']:.6g}", f"{row['gap']:.0e}")
        ends = (f"{row['seconds']:.1f}", f"{100 * row['accuracy']:.1f} %")
        lines.append(
            (problem.title, *size, *found, *ends, problem.paper_optimum or "none")
        )
    head = "data | training samples | features | λ | P* | certified: P − D | seconds"
    return table(f"{head} | test accuracy | paper: min loss", lines)


# ------------------------------------------------------------------------ tables 6 to 8


class TimedGrid(LocalGrid):
    """A grid that notes, for each wave, what each client took, and its ciphers of that.

    Seconds are of the processor. As if clients worked at the same time, an iteration
    takes of each wave the slowest client's, and the server's.
    """

    def __init__(self, app: ClientApp, num_nodes: int, **options: Any) -> None:
        super().__init__(app, num_nodes, **options)
        self._app, self.client_app = app, cast(ClientApp, self._handle)
        self.waves: list[list[tuple[float, float]]] = []
        self.inside = self.secret = self.added = 0.0
        self._busy = False
        self._since = time.process_time()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Begin a wave."""
        self.waves.append([])
        began = time.process_time()
        ids = super().push_messages(messages)
        self.inside += time.process_time() - began
        return ids

    def _handle(self, message: Message, context: Context) -> Message:
        began, before = time.process_time(), self.secret
        reply = self._app(message, context)
        secret = self.secret - before
        self.waves[-1].append((time.process_time() - began - secret, secret))
        return reply

    def watched(self, name: str) -> Any:
        """Count what happens in a cipher's function, from here on."""
        function = vars(Cipher)[name]

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if self._busy:  # one function of a cipher in another
                return function(*arguments, **options)
            self._busy, began = True, time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self._busy, took = False, time.process_time() - began
                self.secret += took
                self.added += took if name == "add" else 0.0

        return mock.patch.object(Cipher, name, call)

    def take(self) -> tuple[float, float]:
        """Computation and encryption since the last time."""
        now = time.process_time()
        # adding is the server's
        server = max(now - self._since - self.inside - self.added, 0.0)
        computation, encryption = (
            sum(max(client[k] for client in wave) for wave in self.waves if wave)
            for k in (0, 1)
        )
        found = server + computation, self.added + encryption
        self.waves.clear()
        self.inside = self.added = 0.0
        self._since = now
        return found


class _Take(Callback):
    """Takes each iteration's times from the grid."""

    def __init__(self, grid: TimedGrid) -> None:
        self.grid = grid
        self.times: list[tuple[float, float]] = []

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        self.times.append(self.grid.take())
        return False


def time_iterations(config: dict[str, Any], nodes: int) -> dict[str, float]:
    """Perform a run in this process, with messages as bytes; an iteration's seconds."""
    config = app_config(config)
    experiment = sim.app.experiment(config, nodes)
    how = {"seed": experiment.options["seed"], "run_config": config, "encode": True}
    grid = TimedGrid(sim.client_app, nodes, **how)
    take, rounds = _Take(grid), experiment.config["rounds"]
    strategy = experiment.strategy(callbacks=[take], max_failed_rounds=rounds)
    with grid.watched("encrypt"), grid.watched("decrypt"), grid.watched("add"):
        strategy.start(grid, experiment.initial_arrays(), num_rounds=rounds)
    means = np.mean(take.times[-(rounds - WARM_UP) :], axis=0)
    return dict(zip(TWO, map(float, means), strict=True))


def _methods(
    name: str, split: Split, fraction: float, samples: int
) -> dict[str, dict[str, Any]]:
    own = published(name, split.paper, fraction)
    steps = [
        inner_steps(own[k], samples, split.nodes) if own else usual
        for k, usual in (("IIC", 1), ("FedAvg IIC", 100), ("HyFEM IIC", 100))
    ]
    paper = practical(steps[0], ceil(samples / split.samples))
    secret = {"encryption": "stream", "tolerance": 0.0}
    return {
        BUNDLE: secret,
        # homomorphic, as the paper's
        PRACTICAL: paper | secret | {"encryption": "tenseal-bfv"},
        # the step's length changes nothing in the time
        FEDAVG: {"method": "hybrid-fedavg", "local-steps": steps[1]},
        HYFEM: {"method": "hyfem", "local-steps": steps[2]},
    }


def compute_tables_6_8(options: Options) -> dict[str, Any]:
    """Every setting's iterations one after the other in one process."""
    rows = []
    count = 2 if options.quick else MEASURED
    for name, problem in present(options).items():
        # the splits of figure 3, whose clock they are
        splits = problem.splits[:2] if options.quick else problem.splits
        for split in splits:
            base = config_of(problem, options, split)
            setup = sim.app.experiment(app_config(base), split.nodes)
            samples = setup.task.num_examples()
            for fraction in AVAILABLE:
                row: dict[str, Any] = {
                    "problem": name,
                    "split": split.label,
                    "paper": split.paper,
                    "available": fraction,
                    "samples": samples,
                }
                methods = _methods(name, split, fraction, samples)
                for method, settings in methods.items():
                    config = base | settings | {"participation": fraction}
                    config |= {"sampling": "fixed", "rounds": WARM_UP + count}
                    config["local-step-size"] = 1e-3
                    row[method] = time_iterations(config, split.nodes)
                rows.append(row)
    return {"rows": rows, "iterations": count}


def render_tables_6_8(results: dict[str, Any], out: Path) -> str:
    """Ours with the paper's beside them."""
    lines = []
    for row in results["rows"]:
        paper = published(row["problem"], row["paper"], row["available"])
        ours = [row[m][k] for m in (BUNDLE, PRACTICAL) for k in TWO]
        ours += [row[m]["computation"] for m in (FEDAVG, HYFEM)]
        theirs = ["none", *[""] * 4]
        if paper:
            keys = (*TWO, "FedAvg seconds", "HyFEM seconds")
            theirs = [f"{row['paper']}, {row['available']}"]
            theirs += [f"{paper[k]:.2g}" if k in paper else "n/a" for k in keys]
        lines.append((title_of(row), *(f"{value:.2g}" for value in ours), *theirs))
    parts = "computation | encryption"
    head = f"data, clients | bundle: {parts} | practical step: {parts} | HybridFedAvg"
    head += f" | HyFEM | paper's setting | HyFDCA: {parts} (estimated) | FedAvg | HyFEM"
    return (
        f"{table(head, lines)}\n\n"
        "Seconds an iteration, as if clients worked at the same time: of each wave the "
        "slowest client's, and the server's. Computation has the messages in it, their "
        f"encoding too. Means of {results['iterations']} iterations. The paper's "
        f"encryption is an estimate from {PAILLIER_MS} ms for each number (Paillier)."
    )


ITEMS = {
    "table-5": Item(
        "the centralised optimum, certified", compute_table_5, render_table_5
    ),
    "tables-6-8": Item(
        "computation and encryption of an iteration, measured",
        compute_tables_6_8,
        render_tables_6_8,
    ),
}
