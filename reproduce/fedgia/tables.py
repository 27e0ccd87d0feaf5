"""Table III: four algorithms on example V.1 and on two real data sets."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.objectives.reference import unconstrained_minimum
from reproduce.common import Item, Options, app_config, read_config, read_csv, repeat
from reproduce.drawing import table
from tasks import LinearRegression, make_task

__all__ = ["ITEMS", "METHODS", "base_of", "settings_of"]

HERE = Path(__file__).parent
NODES = 64
LOCAL_STEPS = (1, 5, 10)
SEEDS = 20
QSAR = "qsar_oral_toxicity/qsar_oral_toxicity.zip"

#: The table's rows, by the settings that make them.
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "fedavg-gd"},
    "LocalSGD": {"method": "local-sgd"},
    "FedGiA_G": {"method": "fedgia", "hessian": "gram"},
    "FedGiA_D": {"method": "fedgia", "hessian": "diagonal"},
}
#: The table's parts: a run config and the number of examples. a of example V.2 is
#: 0.5 d/m and 0.1 d/m, which fits columns of norm 1, and constants for V.1.
PARTS = {"table-3-v1": ("v1", 0), "table-3-qot": ("qot", 8992)}
STEPS = {"FedAvg": (0.01, 0.5), "LocalSGD": (0.005, 0.1)}


def base_of(options: Options, item: str) -> dict[str, Any]:
    """The run config of a part; of V.2 it names a file."""
    config, _ = PARTS[item]
    base = read_config(HERE / f"{config}.toml")
    if item == "table-3-qot":
        base["logistic-regression.path"] = str(options.file(QSAR))
    return base


def settings_of(item: str, method: str, k0: int) -> dict[str, Any]:
    """A method's settings there, with its published step."""
    own = METHODS[method] | {"local-steps": k0}
    if method in STEPS:
        constant, factor = STEPS[method]
        examples = PARTS[item][1]
        own["local-step-size"] = factor * examples / NODES if examples else constant
    return own


def compute(options: Options, item: str) -> dict[str, Any]:
    """Four algorithms, k_0 = 1, 5, 10; FedAvg and LocalSGD on fewer seeds."""
    base, nodes, v1 = base_of(options, item), NODES, item == "table-3-v1"
    if options.quick:
        base |= {"rounds": 50 if v1 else 40}
        nodes = 16 if v1 else NODES
    rows = []
    for name in METHODS:
        # thousands of rounds a run: fewer repetitions of those
        slow = name in STEPS
        seeds = options.numbers((5 if v1 else 1) if slow else SEEDS)
        cases = {k0: base | settings_of(item, name, k0) for k0 in LOCAL_STEPS}
        how = {"stop": base["stop-tolerance"], "every": 10 if slow else 1}
        for k0, found in repeat(options, cases, seeds, nodes, **how).items():
            good = [v for v in found if "failed" not in v]
            row = {"method": name, "k0": k0, "seeds": len(found)}
            row["passed"] = sum(v["passed"] for v in good)
            lists = ("loss", "broadcasts", "seconds", "bytes")
            rows.append(row | {what: [v[what] for v in good] for what in lists})
    items = tuple(sorted((k, v) for k, v in base.items() if "regression" in k))
    optima = [_optimum(base["task"], items, nodes, s) for s in options.numbers(SEEDS)]
    return {"rows": rows, "optimum": optima}


@lru_cache(maxsize=32)
def _optimum(
    name: str, items: tuple[tuple[str, Any], ...], nodes: int, seed: int
) -> float:
    """The minimum of F with the shares of a seed."""
    task = make_task(name, app_config({"task": name, **dict(items)}), nodes, seed)
    if isinstance(task, LinearRegression):
        return float(task.objective().value(task.solution()))
    return unconstrained_minimum(task.objective(), task.initial_point()[0]).value


def render(results: dict[str, Any], out: Path, item: str) -> str:
    """The table, with the paper's numbers, and the minimum."""
    paper = {
        (row["method"], int(row["k0"])): row
        for row in read_csv(HERE / "published.csv")
        if row["item"] == item
    }
    lines = []
    for row in results["rows"]:
        cells = ["diverged", "", "", "", ""]
        if row["loss"]:
            rounds = row["broadcasts"]
            cells = [
                f"{np.mean(row['loss']):.4f}",
                f"{np.mean(rounds):.1f} ± {np.std(rounds):.1f}",
                f"{np.mean(row['seconds']):.2f}",
                f"{row['passed']} of {row['seeds']}",
                f"{np.mean(row['bytes']) / 1e6:.1f}",
            ]
        theirs = paper[row["method"], row["k0"]]
        numbers = (theirs[k] for k in ("objective", "rounds", "seconds"))
        lines.append((row["method"], row["k0"], *cells, *numbers))
    head = "algorithm | k_0 | objective | CR | seconds | stopped by (30) | MB moved"
    minima = results["optimum"]
    return (
        f"{table(f'{head} | paper: objective | CR | seconds', lines)}\n\n"
        f"The minimum is {np.mean(minima):.4f} ± {np.std(minima):.4f} "
        f"({len(minima)} seeds)."
    )


ITEMS = {
    name: Item(
        f"table III: {what}", partial(compute, item=name), partial(render, item=name)
    )
    for name, what in (
        ("table-3-v1", "example V.1, four algorithms on linear regression"),
        ("table-3-qot", "example V.2, logistic regression on QSAR oral toxicity"),
    )
}
