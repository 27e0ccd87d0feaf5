"""Example V.1 with constant steps: how far tuning takes FedAvg, and FedGiA's t."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Options, Run, execute, read_config
from reproduce.drawing import measured
from tasks import make_task

from .tables import METHODS

__all__ = ["compute_tuned", "render_tuned"]

HERE = Path(__file__).parent
CONSTANT = {"step-schedule": "constant"}

#: The table's rows: a method, k_0, and a of its constant steps or t.
ROWS = [
    *(("FedAvg", 1, a) for a in (0.1, 0.2, 0.25, 0.3, 0.5)),
    *(("FedAvg", 5, a) for a in (0.02, 0.1)),
    *(
        (name, k0, t)
        for name in ("FedGiA_G", "FedGiA_D")
        for k0 in (1, 5)
        for t in (0.1, 0.15, 0.2)
    ),
]


def compute_tuned(options: Options) -> dict[str, Any]:
    """Every row with every seed, at most 100 rounds, (30) tested in each."""
    base = read_config(HERE / "v1.toml") | {"rounds": 30 if options.quick else 100}
    nodes, wanted = (16, ROWS[2:6:3]) if options.quick else (64, ROWS)
    runs = []
    for name, k0, size in wanted:
        config = base | METHODS[name] | {"local-steps": k0}
        if name == "FedAvg":
            config |= CONSTANT | {"local-step-size": size}
        else:
            config |= {"sigma-scale": size}
        for seed in range(options.seeds):
            key = (name, k0, size, seed)
            runs.append(
                Run(key, config | {"seed": seed}, nodes, base["stop-tolerance"])
            )
    results = execute(runs, options.jobs)
    rows = []
    for name, k0, size in wanted:
        found = [v for key, v in results.items() if key[:3] == (name, k0, size)]
        good = [v for v in found if "failed" not in v]
        row: dict[str, Any] = {"method": name, "k0": k0, "size": size}
        row |= {"seeds": len(found), "passed": sum(v["passed"] for v in good)}
        for what in ("broadcasts", "bytes", "squared-gradient-norm"):
            row[what] = [v[what] for v in good]
        rows.append(row)
    conditions = []
    for seed in range(options.seeds):
        task = make_task(base["task"], base, nodes, seed)
        # f is a quadratic, whose bound is its Hessian
        eigenvalues = np.linalg.eigvalsh(np.asarray(task.objective().hessian_bound()))
        conditions.append(float(eigenvalues[-1] / eigenvalues[0]))
    return {"rows": rows, "rounds": base["rounds"], "conditions": conditions}


def render_tuned(results: dict[str, Any], out: Path) -> str:
    """Rounds until (30); where a run did not get there, the ‖∇f‖² that it left."""
    lines = [
        "| algorithm | k_0 | step | CR | stopped by (30) | largest ‖∇f‖² at the end "
        "| MB moved |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        symbol = "a" if row["method"] == "FedAvg" else "t"
        head = f"| {row['method']} | {row['k0']} | {symbol} = {row['size']:g} "
        stopped = f"| {row['passed']} of {row['seeds']} "
        if not row["broadcasts"]:
            lines.append(f"{head}| diverged {stopped}| | |")
            continue
        counts = row["broadcasts"]
        lines.append(
            f"{head}| {np.mean(counts):.1f} ± {np.std(counts):.1f} {stopped}"
            f"| {max(row['squared-gradient-norm']):.1e} "
            f"| {np.mean(row['bytes']) / 1e6:.1f} |"
        )
    conditions = results["conditions"]
    lines += [
        "",
        f"{len(conditions)} seeds, at most {results['rounds']} rounds. The condition "
        f"number of f's Hessian is {np.mean(conditions):.2f} ± "
        f"{np.std(conditions):.2f}. {measured(results)}",
    ]
    return "\n".join(lines)
