"""Sets at real sizes: quadratic assignment from ten starts, and made-up ratings."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from flwr.app import ArrayRecord
from scipy.optimize import quadratic_assignment

import sim

from .report import Comparison, Row

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
        yield {
            "instance": name or "chr12a",
            "FAQ's mean": f"{np.mean(faq):.0f}",
            "mean": f"{np.mean(costs):.0f}",
            "mean over FAQ's": f"{np.mean(costs) / np.mean(faq):.3f}",
            "FAQ's best": f"{min(faq):.0f}",
            "best": f"{min(costs):.0f}",
            "FAQ's seconds": f"{halfway - began:.2f}",
            "seconds": f"{time.process_time() - halfway:.1f}",
            "met": np.mean(costs) <= 1.1 * np.mean(faq),
        }


def completion(users: int, items: int, count: int, rounds: int) -> Row:
    """Biases, five tastes and noise of .8, rounded to 1 to 5; FedFW's defaults."""
    rng = np.random.default_rng(0)
    often = rng.lognormal(0, 1, (users, 1)) * rng.lognormal(0, 1, items)
    chosen = rng.choice(often.size, count, False, often.ravel() / often.sum())
    taste = rng.normal(size=(users, 5)) @ rng.normal(size=(5, items)) / 5**0.5
    means = rng.normal(3.5, 0.45, (users, 1)) + rng.normal(0, 0.5, items)
    rated = (means + 0.35 * taste).flat[chosen] + rng.normal(0, 0.8, count)
    looks: list[tuple[float, dict[str, float]]] = []

    def look(_: int, arrays: ArrayRecord) -> None:
        looks.append((time.process_time(), run.evaluate(arrays)))

    with TemporaryDirectory() as folder:
        path, (i, j) = f"{folder}/r.csv", np.divmod(chosen, items)
        table = np.column_stack([i + 1, j + 1, rated.round().clip(1, 5)])
        np.savetxt(path, table, "%d", ",", header="user,item,rating", comments="")
        task = {"task": "matrix-completion", "matrix-completion.path": path}
        run = sim.app.experiment(
            {**task, "rounds": rounds, "evaluate-gap": False}, NODES
        )
        run.start(grid=run.grid(batched=True), evaluate_fn=look)
    spent = (looks[-1][0] - looks[-6][0]) / 5
    biases, *_, rmse = (metrics["rmse"] for _, metrics in looks)
    row: Row = {"ratings": count, "rounds": rounds, "seconds a round": f"{spent:.2f}"}
    row |= {"RMSE": f"{rmse:.4f}", "biases' RMSE": f"{biases:.4f}"}
    return row | {"met": spent <= 1.0 and rmse < biases}


def compare(names: Sequence[str]) -> Iterator[Comparison]:
    """Both, of ten clients on FedFW's defaults for them."""
    about = (
        f"{STARTS} starts, {NODES} clients, defaults (FedFW+, 500 rounds), beside "
        "SciPy's FAQ from the same starts; processor seconds of all starts"
    )
    yield Comparison("assignment", "Assignments", about, [*assignments(names)])
    size = (670, 453, 43_000, 40) if len(names) > 1 else (60, 40, 800, 9)
    about = f"{NODES} clients, defaults; processor seconds a round of the last five"
    yield Comparison("completion", "Matrix completion", about, [completion(*size)])
