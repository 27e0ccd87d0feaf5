"""Table 5: the centralised optimum; tables 6 to 8: times of an iteration."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

import sim
from fedtrellis.server.callbacks import Callback, RoundRecord
from reproduce.common import Item, Options, Run, app_config
from reproduce.drawing import table

from .figures import BUNDLE, FEDAVG, HYFEM, PRACTICAL, practical, title_of
from .iteration_times import Clock, IterationTimes, SplitGrid, instrumented
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


class _Times(Callback):
    """Takes each iteration's times from the grid."""

    def __init__(self, grid: SplitGrid) -> None:
        self.grid = grid
        self.times: list[IterationTimes] = []
        self._before = dict(grid.clock.seconds)

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        if record.round:
            self.times.append(self.grid.take(self._before))
        self.grid.waves.clear()
        self._before = dict(self.grid.clock.seconds)
        return False


def time_iterations(run: Run) -> list[IterationTimes]:
    """Perform a run in this process, with messages as bytes; its iterations' times."""
    config = app_config(run.config)
    experiment = sim.app.experiment(config, run.nodes)
    clock = Clock()
    grid = SplitGrid(
        sim.client_app,
        run.nodes,
        clock,
        seed=experiment.options["seed"],
        run_config=config,
        encode=True,
    )
    times = _Times(grid)
    strategy = experiment.strategy(
        callbacks=[times], max_failed_rounds=experiment.config["rounds"]
    )
    with instrumented(clock):
        strategy.start(
            grid, experiment.initial_arrays(), num_rounds=experiment.config["rounds"]
        )
    return times.times


def _methods(
    name: str, split: Split, fraction: float, samples: int
) -> dict[str, dict[str, Any]]:
    own = published(name, split.paper, fraction)
    steps = [
        inner_steps(own[k], samples, split.nodes) if own else usual
        for k, usual in (("IIC", 1), ("FedAvg IIC", 100), ("HyFEM IIC", 100))
    ]
    secret = {"encryption": "stream", "tolerance": 0.0}
    return {
        BUNDLE: secret,
        PRACTICAL: practical(steps[0], ceil(samples / split.samples)) | secret,
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
                    config = base | settings
                    config |= {
                        "participation": fraction,
                        "sampling": "fixed",
                        "rounds": WARM_UP + count,
                        "local-step-size": 1e-3,
                    }
                    found = time_iterations(Run((), config, split.nodes))[WARM_UP:]
                    row[method] = _means(found)
                rows.append(row)
            print(f"  {problem.title}, {split.label} clients", flush=True)
    return {"rows": rows, "iterations": count}


def _means(times: list[IterationTimes]) -> dict[str, float]:
    return {
        "computation": float(np.mean([t.slowest_computation for t in times])),
        "encryption": float(np.mean([t.slowest_encryption for t in times])),
        "total": float(np.mean([t.total for t in times])),
        "local": float(np.mean([t.parts["local"] for t in times])),
        "secret": float(np.mean([t.encryption for t in times])),
        "messages": float(np.mean([t.messages for t in times])),
        "search": float(np.mean([t.parts["search"] for t in times])),
    }


def _seconds(value: float) -> str:
    if value == 0.0:
        return "0"
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def render_tables_6_8(results: dict[str, Any], out: Path) -> str:
    """Ours with the paper's beside them, and where the time goes."""
    lines, parts = [], []
    for row in results["rows"]:
        paper = published(row["problem"], row["paper"], row["available"])
        ours = [row[m][k] for m in (BUNDLE, PRACTICAL) for k in TWO]
        ours += [row[m]["computation"] for m in (FEDAVG, HYFEM)]
        theirs = ["none", *[""] * 4]
        if paper:
            keys = (*TWO, "FedAvg seconds", "HyFEM seconds")
            theirs = [f"{row['paper']}, {row['available']}"]
            theirs += [_seconds(paper[k]) if k in paper else "n/a" for k in keys]
        lines.append((title_of(row), *map(_seconds, ours), *theirs))
        own = row[BUNDLE]
        shares = (f"{100 * own[k] / own['total']:.0f} %" for k in PARTS)
        parts.append((title_of(row), f"{own['total']:.3f}", *shares))
    head = "data, clients | bundle: computation | encryption | practical step: "
    head += (
        "computation | encryption | HybridFedAvg | HyFEM | paper's setting | HyFDCA: "
    )
    head += "computation | encryption (estimated) | FedAvg | HyFEM"
    goes = (
        "data, clients | seconds | local work | encryption | messages, state | search"
    )
    return (
        f"{table(head, lines)}\n\n"
        "Seconds an iteration, as if clients worked at the same time: of each wave the "
        "slowest client's, and the server's. Computation has the messages in it, their "
        f"encoding too. Means of {results['iterations']} iterations. The paper's "
        f"encryption is an estimate from {PAILLIER_MS} ms for each number (Paillier)."
        "\n\nWhere the bundle's iteration goes, all clients one after the other:\n\n"
        f"{table(goes, parts)}"
    )


TWO = ("computation", "encryption")
PARTS = ("local", "secret", "messages", "search")
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
