"""What an oracle costs, clients with sets of their own, and an ℓ1 ball's optimum."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord

import sim
from clients import FedFWClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import (
    BirkhoffPolytope,
    Domain,
    L1Ball,
    L2Ball,
    NuclearNormBall,
    Spectrahedron,
)
from fedtrellis.objectives.reference import certified_minimum
from fedtrellis.wire.arrays import FloatArray
from reproduce.common import Item, Options, app_config, evaluated_rounds, read_config
from reproduce.drawing import percent, spread, table
from reproduce.rates import late_slope, optimum
from strategies import FedFW

from .convergence import CONVEX, HERE, NODES, SEEDS, powers
from .tables import BALLS, SYNTHETIC

__all__ = ["ITEMS"]

#: Sets whose points are vectors, or square matrices, and a side.
SETS: dict[str, tuple[Domain, tuple[int, ...]]] = {
    "ℓ1 ball, 10⁶ entries": (L1Ball(1.0), (1_000_000,)),
    "ℓ2 ball, 10⁶ entries": (L2Ball(1.0), (1_000_000,)),
    "nuclear-norm ball, 400 × 400": (NuclearNormBall(1.0), (400, 400)),
    "spectrahedron, 400 × 400": (Spectrahedron(1.0), (400, 400)),
    "Birkhoff polytope, 100 × 100": (BirkhoffPolytope(), (100, 100)),
}


#: Of ℓ1 balls; the paper's is 10.
RADII = (10.0, 30.0, 100.0, 300.0)


def _seconds(work: Callable[[FloatArray], object], point: FloatArray) -> float:
    """The quickest of three."""
    spent = []
    for _ in range(3):
        began = time.perf_counter()
        work(point)
        spent.append(time.perf_counter() - began)
    return min(spent)


def compute_oracle(options: Options) -> dict[str, Any]:
    """A linear minimisation and a projection of the same random points."""
    rows = []
    for name, (domain, shape) in SETS.items():
        shape = tuple(min(side, 20) for side in shape) if options.quick else shape
        row: dict[str, Any] = {"set": name, "minimisation": [], "projection": []}

        def minimised(point: FloatArray, domain: Domain = domain) -> FloatArray:
            return domain.lmo(point).dense()

        for seed in options.numbers(SEEDS):
            point = np.random.default_rng(seed).standard_normal(shape)
            row["minimisation"].append(_seconds(minimised, point))
            row["projection"].append(_seconds(domain.project, point))
        rows.append(row)
    return {"rows": rows}


def render_oracle(results: dict[str, Any], out: Path) -> str:
    """Milliseconds, a set a row."""
    lines = [
        (row["set"], *(spread([1e3 * s for s in row[k]]) for k in list(row)[1:]))
        for row in results["rows"]
    ]
    return table("set | ms a linear minimisation | ms a projection", lines)


def _split_run(seed: int, rounds: int) -> list[float]:
    """F − F* in the evaluated rounds; every other client has an ℓ2 ball around D."""
    base = read_config(HERE / "lasso.toml") | {"rounds": rounds, "seed": seed}
    setup = sim.app.experiment(app_config(base), NODES)
    task, domain = setup.task, setup.domain
    assert isinstance(domain, L1Ball)
    outer, best = L2Ball(domain.radius), optimum(base, NODES, 1e-9)[0]
    wanted, above = evaluated_rounds(rounds), list[float]()

    def client_fn(context: Context) -> FedFWClient:
        k = int(context.node_config["partition-id"])
        own = outer if k % 2 else domain
        return FedFWClient(context, task.client_objective(k), own)

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        if t in wanted:
            above.append(task.value(arrays.to_numpy_ndarrays()[0]) - best)
        return MetricRecord({})

    settings = CONVEX["lasso"]["FedFW"]
    strategy = FedFW(domain, client_domains=[outer], seed=seed, **settings)
    grid, start = LocalGrid(client_app(client_fn), NODES), task.initial_point()
    strategy.start(grid, ArrayRecord(start), rounds, evaluate_fn=evaluate)
    return above


def compute_split(options: Options) -> dict[str, Any]:
    """The 2022 LASSO with two sets, five seeds."""
    rounds = 60 if options.quick else 2000
    times = sorted(evaluated_rounds(rounds))
    residuals = [_split_run(seed, rounds) for seed in options.numbers(SEEDS)]
    row = {"problem": "LASSO", "method": "half on ℓ2 balls", "round": times}
    row |= {"residuals": residuals}
    row |= {"exponents": [late_slope(times, own) for own in residuals]}
    return {"rows": [row], "rounds": rounds}


def render_split(results: dict[str, Any], out: Path) -> str:
    """F − F* at the end, and its exponents."""
    lines = [
        (
            row["problem"],
            row["method"],
            spread([r[-1] for r in row["residuals"]]),
            powers(row),
        )
        for row in results["rows"]
    ]
    return table("problem | clients | F − F* at the end | exponent, by seed", lines)


def compute_ball(options: Options) -> dict[str, Any]:
    """Certified optima of table 1's problems on balls, and their accuracy."""
    examples = 200 if options.quick else 5000
    mnist: dict[str, Any] = {
        "classification.dataset": "mnist",
        "classification.path": str(options.file("mnist")),
        "classification.train-limit": examples,
    }
    cases = [(f"MNIST, {examples:,}", mnist, "l1-ball", radius, 1) for radius in RADII]
    for ball in ("l2-ball", "l1-ball"):
        for partition in ("iid", "natural"):
            own = SYNTHETIC | {"classification.partition": partition}
            cases.append((f"synthetic, {partition}", own, ball, RADII[0], 10))
    base, rows = read_config(HERE / "table-1.toml"), []
    for data, settings, ball, radius, count in cases:
        bests = []
        for seed in options.numbers(count):
            config = base | settings | {"domain": ball, "radius": radius, "seed": seed}
            made = sim.app.experiment(app_config(config), NODES)
            start = np.asarray(made.layout.objective_point(made.start_point()))
            best = certified_minimum(
                made.task.objective(), made.domain, start, 1e-3, max_iterations=1000
            )
            accuracy = float(made.task.metrics(best.point)["accuracy"])
            bests.append({"loss": best.value, "gap": best.gap, "accuracy": accuracy})
        lists = {key: [one[key] for one in bests] for key in bests[0]}
        rows.append({"data": data, "ball": ball, "radius": radius, **lists})
    return {"rows": rows}


def render_ball(results: dict[str, Any], out: Path) -> str:
    """A data set, ball and radius a row."""
    lines = [
        (
            *(row["data"], BALLS[row["ball"]], f"{row['radius']:g}"),
            *(spread(row["loss"], "{:.3f}"), f"{max(row['gap']):.1g}"),
            percent(row["accuracy"]),
        )
        for row in results["rows"]
    ]
    head = "data | ball | radius | training loss of the optimum | certified to"
    text = "Synthetic data: means of the seeds of table 1, extremes in brackets."
    return f"{table(f'{head} | test accuracy', lines)}\n\n{text}"


ITEMS = {
    "ball": Item(
        "table 1: what the best model of a ball comes to", compute_ball, render_ball
    ),
    "oracle": Item(
        "section 1: a linear minimisation beside a projection",
        compute_oracle,
        render_oracle,
    ),
    "split": Item(
        "section 4.3: half of the clients on an enclosing ball",
        compute_split,
        render_split,
    ),
}
