"""Table 5: the centralised optimum; tables 6 to 8: times of an iteration."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

import sim
from fedtrellis.server.callbacks import Callback, RoundRecord
from reproduce.common import Options, Run, SkippedError, app_config
from reproduce.drawing import measured

from .figures import BUNDLE, FEDAVG, HYFEM, PRACTICAL, practical
from .iteration_times import Clock, IterationTimes, SplitGrid, instrumented
from .problems import (
    AVAILABLE,
    PROBLEMS,
    Problem,
    Split,
    config_of,
    inner_steps,
    present,
)
from .runs import optimum_of

__all__ = [
    "compute_table_5",
    "compute_tables_6_8",
    "render_table_5",
    "render_tables_6_8",
]

#: Tables 6 to 8, seconds: HyFDCA's computation and encryption, FedAvg's and HyFEM's
#: computation; None where there is none.
PAPER_SECONDS: dict[str, dict[tuple[str, float], tuple[float | None, ...]]] = {
    "mnist": {
        ("5", 0.1): (0.1736, 0.1107, 0.2268, 1.210),
        ("5", 0.5): (0.2472, 3.164, 0.2544, 1.178),
        ("5", 0.9): (0.2975, 11.32, 0.1543, 1.177),
        ("500", 0.1): (0.3560, 7.827, 0.1027, 3.140),
        ("500", 0.5): (1.207, 13.67, 0.1922, 11.82),
        ("500", 0.9): (1.827, 431.0, 0.2064, 20.44),
        ("5000", 0.1): (1.900, 61.69, 0.5775, 22.46),
        ("5000", 0.5): (7.604, 1136.0, 0.6021, 108.1),
        ("5000", 0.9): (13.62, 3903.0, 0.5455, 194.8),
    },
    "news20": {
        ("3, 3", 0.1): (0.1402, 0.3916, 1.517, 0.8817),
        ("3, 3", 0.5): (0.1879, 2.180, 1.528, 0.9693),
        ("3, 3", 0.9): (0.2218, 3.444, 1.545, 1.528),
        ("5, 5", 0.1): (0.1793, 1.095, 1.452, 1.598),
        ("5, 5", 0.5): (0.2291, 4.360, 1.483, 1.491),
        ("5, 5", 0.9): (0.2749, 7.671, 1.485, 2.003),
        ("12, 12", 0.1): (0.2670, 2.360, 4.194, 4.316),
        ("12, 12", 0.5): (0.3625, 10.81, None, None),
        ("12, 12", 0.9): (0.4683, 17.99, None, None),
    },
    "covtype": {
        ("3, 3", 0.1): (0.04036, 0.07758, 0.04077, 0.06974),
        ("3, 3", 0.5): (0.0836, 1.149, 0.05855, 0.07176),
        ("3, 3", 0.9): (0.1374, 0.4694, 0.05638, 0.04288),
        ("5, 5", 0.1): (0.04416, 0.09462, 0.02457, 0.1379),
        ("5, 5", 0.5): (0.1113, 2.920, 0.02655, 0.0008275),
        ("5, 5", 0.9): (0.1936, 1.001, 0.03297, 0.04010),
        ("12, 12", 0.1): (0.1144, 0.5975, 0.001403, 0.0008799),
        ("12, 12", 0.5): (0.3472, 2.771, 0.002198, 0.009640),
        ("12, 12", 0.9): (0.5341, 5.453, 0.03100, 0.007782),
    },
}
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
    lines = [
        "| data | training samples | features | λ | P* | certified: P − D | seconds "
        "| test accuracy | paper: min loss |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        problem = PROBLEMS[row["problem"]]
        paper = f"{problem.paper_optimum:g}" if problem.paper_optimum else "none"
        part = "" if row["all"] else " (the figures')"
        lines.append(
            f"| {problem.title} | {row['samples']:,}{part} | {row['features']:,} "
            f"| {row['lambda']:g} | {row['value']:.6g} | {row['gap']:.0e} "
            f"| {row['seconds']:.1f} | {100 * row['accuracy']:.1f} % | {paper} |"
        )
    return "\n".join([*lines, "", measured(results, jobs=False)])


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
    problem: Problem, split: Split, fraction: float, samples: int
) -> dict[str, dict[str, Any]]:
    held = ceil(samples / split.samples)
    tuned = (problem.tuned or {}).get((split.paper, fraction))
    steps = [1, 100, 100]
    if tuned:
        steps = [inner_steps(tuned[i], samples, split.nodes) for i in (0, 1, 4)]
    secret = {"encryption": "stream", "tolerance": 0.0}
    return {
        BUNDLE: secret,
        PRACTICAL: practical(steps[0], held) | secret,
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
                methods = _methods(problem, split, fraction, samples)
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
    if not rows:
        raise SkippedError("there is no data")
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


def _seconds(value: float | None) -> str:
    if value is None:
        return "n/a"
    if value == 0.0:
        return "0"
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def render_tables_6_8(results: dict[str, Any], out: Path) -> str:
    """Ours with the paper's beside them, and where the time goes."""
    rows = results["rows"]
    lines = [
        "| data | clients, there | bundle: computation | encryption "
        "| practical step: computation | encryption | HybridFedAvg | HyFEM "
        "| paper's setting | HyFDCA: computation | encryption (estimated) | FedAvg "
        "| HyFEM |",
        "| --- " * 13 + "|",
    ]
    for row in rows:
        paper = PAPER_SECONDS.get(row["problem"], {}).get(
            (row["paper"], row["available"])
        )
        cells = [_seconds(v) for v in paper] if paper else [""] * 4
        name = f"{row['paper']}, {row['available']}" if paper else "none"
        ours = [
            *(row[m][k] for m in (BUNDLE, PRACTICAL) for k in _TWO),
            row[FEDAVG]["computation"],
            row[HYFEM]["computation"],
        ]
        lines.append(
            f"| {PROBLEMS[row['problem']].title} | {row['split']}, "
            f"{100 * row['available']:.0f} % | "
            + " | ".join(_seconds(v) for v in ours)
            + f" | {name} | "
            + " | ".join(cells)
            + " |"
        )
    lines += [
        "",
        "Seconds an iteration, as if clients worked at the same time: of each wave the "
        "slowest client's, and the server's. Computation has the messages in it, their "
        f"encoding too. Means of {results['iterations']} iterations. The paper's "
        f"encryption is an estimate from {PAILLIER_MS} ms for each number (Paillier).",
        "",
        "Where the bundle's iteration goes, all clients one after the other:",
        "",
        "| data | clients, there | seconds | local work | encryption | messages, state "
        "| search |",
        "| --- " * 7 + "|",
    ]
    for row in rows:
        own = row[BUNDLE]
        shares = (100 * own[k] / own["total"] for k in _PARTS)
        lines.append(
            f"| {PROBLEMS[row['problem']].title} | {row['split']}, "
            f"{100 * row['available']:.0f} % | {own['total']:.3f} | "
            + " | ".join(f"{share:.0f} %" for share in shares)
            + " |"
        )
    return "\n".join([*lines, "", measured(results, jobs=False)])


_TWO = ("computation", "encryption")
_PARTS = ("local", "secret", "messages", "search")
