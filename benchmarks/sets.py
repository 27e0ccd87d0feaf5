"""Sets at real sizes: quadratic assignment from ten starts, and a box of a table's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import quadratic_assignment

import sim

from .report import Comparison, Row

__all__ = ["FULL", "QUICK", "assignments", "compare"]

#: Instances of QAPLIB, whose files lie in FEDTRELLIS_DATA; "" is the built-in chr12a.
FULL = (
    *("chr12a", "chr12c", "chr15b", "chr15c", "nug12", "nug14", "rou15"),
    *("tai12a", "tai12b", "tai15a", "tai15b"),
)
QUICK = ("",)
NODES, STARTS = 10, 10


def assignments(names: Sequence[str]) -> Iterator[Row]:
    """A line for each instance: means over the starts, which FAQ has too."""
    task = "quadratic-assignment"
    for name in names:
        folder = Path(os.environ["FEDTRELLIS_DATA"]) / "qaplib" if name else Path()
        config = {"task": task, f"{task}.starts": STARTS, "evaluate-every": 500}
        config |= {f"{task}.path": str(folder / f"{name}.dat")} if name else {}
        run = sim.app.experiment(config, NODES)
        A, B, _ = run.task.instance()
        began = time.process_time()
        faq = [
            quadratic_assignment(A, B, method="faq", options={"P0": start}).fun
            for start in run.task.initial_point()
        ]
        halfway = time.process_time()
        model = run.start(grid=run.grid(batched=True)).arrays.to_numpy_ndarrays()
        costs = [run.task.cost(run.task.round(x)) for x in model]
        ended = time.process_time()
        yield {
            "instance": name or "chr12a",
            "FAQ's mean": f"{np.mean(faq):.0f}",
            "mean": f"{np.mean(costs):.0f}",
            "mean over FAQ's": f"{np.mean(costs) / np.mean(faq):.3f}",
            "FAQ's best": f"{min(faq):.0f}",
            "best": f"{min(costs):.0f}",
            "FAQ's seconds": f"{halfway - began:.2f}",
            "seconds": f"{ended - halfway:.1f}",
            "met": np.mean(costs) <= 1.1 * np.mean(faq),
        }


def compare(names: Sequence[str]) -> Iterator[Comparison]:
    """Assignments, of ten clients on FedFW's defaults for them."""
    about = (
        f"{STARTS} starts, {NODES} clients, defaults (FedFW+, 500 rounds), beside "
        "SciPy's FAQ from the same starts; processor seconds of all starts"
    )
    found = list(assignments(names))
    yield Comparison("assignment", "Quadratic assignment", about, found)
