"""Table III, and what QSAR oral toxicity needs to come near it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.objectives.reference import unconstrained_minimum
from reproduce.common import Options, Run, app_config, execute, read_config
from reproduce.drawing import measured
from tasks import make_task

__all__ = [
    "LOCAL_STEPS",
    "METHODS",
    "compute_qot",
    "compute_scaling",
    "compute_sct",
    "compute_v1",
    "qot_config",
    "render_qot",
    "render_scaling",
    "render_sct",
    "render_v1",
    "step_sizes",
]

HERE = Path(__file__).parent
LOCAL_STEPS = (1, 5, 10)
QSAR = "qsar_oral_toxicity/qsar_oral_toxicity.zip"
SANTANDER = "santander/train.csv"

#: The table's rows, by the settings that make them.
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "fedavg-gd"},
    "LocalSGD": {"method": "local-sgd"},
    "FedGiA_G": {"method": "fedgia", "hessian": "gram"},
    "FedGiA_D": {"method": "fedgia", "hessian": "diagonal"},
}

Published = dict[str, list[tuple[float, float, float]]]

# Table III: objective, communication rounds, seconds; by method and k_0.
PAPER_V1: Published = {
    "FedAvg": [(1.684, 1000, 1.17), (1.684, 1000, 3.27), (1.684, 1000, 5.64)],
    "LocalSGD": [(1.686, 1000, 2.95), (1.685, 1000, 11.0), (1.684, 1000, 19.5)],
    "FedGiA_G": [(1.684, 13.6, 0.16), (1.684, 7.40, 0.20), (1.684, 6.10, 0.25)],
    "FedGiA_D": [(1.684, 18.4, 0.13), (1.684, 10.1, 0.11), (1.684, 7.00, 0.11)],
}
PAPER_QOT: Published = {
    "FedAvg": [(0.260, 1000, 9.30), (0.237, 572, 14.5), (0.237, 289, 13.0)],
    "LocalSGD": [(0.325, 1000, 13.2), (0.302, 1000, 44.1), (0.299, 1000, 81.5)],
    "FedGiA_G": [(0.236, 19.8, 0.60), (0.236, 19.9, 1.35), (0.236, 19.9, 2.10)],
    "FedGiA_D": [(0.236, 19.9, 0.44), (0.236, 19.9, 0.63), (0.236, 19.9, 0.87)],
}
PAPER_SCT: Published = {
    "FedAvg": [(0.327, 96.6, 4.65), (0.327, 20.0, 2.75), (0.327, 10.0, 2.49)],
    "LocalSGD": [(0.333, 1000, 58.9), (0.331, 1000, 196.0), (0.330, 1000, 369.0)],
    "FedGiA_G": [(0.326, 5.00, 0.59), (0.325, 5.00, 0.97), (0.325, 5.00, 1.45)],
    "FedGiA_D": [(0.326, 5.00, 0.49), (0.325, 4.90, 0.76), (0.325, 4.90, 1.05)],
}


#: a of example V.1 for FedAvg; LocalSGD's is 0.005.
FEDAVG_STEP = {"local-step-size": 0.01}


def step_sizes(method: str, examples: int, clients: int) -> dict[str, float]:
    """Return a of example V.2, 0.5 d/m and 0.1 d/m: it fits columns of norm 1."""
    factor = {"FedAvg": 0.5, "LocalSGD": 0.1}.get(method)
    if factor is None:
        return {}
    return {"local-step-size": factor * examples / clients}


def _runs(
    base: dict[str, Any],
    options: Options,
    nodes: int,
    slow_seeds: int,
    examples: int = 0,
) -> list[Run]:
    runs = []
    for name, settings in METHODS.items():
        # thousands of rounds a run: fewer repetitions of those
        slow = name in ("FedAvg", "LocalSGD")
        seeds = min(options.seeds, slow_seeds) if slow else options.seeds
        for k0 in LOCAL_STEPS:
            for seed in range(seeds):
                config = base | settings | {"local-steps": k0, "seed": seed}
                if examples:
                    config |= step_sizes(name, examples, nodes)
                elif name == "LocalSGD":
                    config["local-step-size"] = 0.005
                runs.append(
                    Run(
                        (name, k0, seed),
                        config,
                        nodes,
                        base["stop-tolerance"],
                        every=10 if slow else 1,
                    )
                )
    return runs


def _table(runs: list[Run], options: Options) -> dict[str, Any]:
    results = execute(runs, options.jobs)
    rows = []
    for name in METHODS:
        for k0 in LOCAL_STEPS:
            found = [v for key, v in results.items() if key[:2] == (name, k0)]
            good = [v for v in found if "failed" not in v]
            rows.append(
                {
                    "method": name,
                    "k0": k0,
                    "seeds": len(found),
                    "failed": len(found) - len(good),
                    "passed": sum(v["passed"] for v in good),
                    **{
                        what: [v[what] for v in good]
                        for what in ("loss", "broadcasts", "seconds", "bytes")
                    },
                }
            )
    return {"rows": rows}


def _markdown(results: dict[str, Any], paper: Published) -> str:
    lines = [
        "| algorithm | k_0 | objective | CR | seconds | stopped by (30) | MB moved "
        "| paper: objective | CR | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        loss, count, seconds = paper[row["method"]][LOCAL_STEPS.index(row["k0"])]
        ours = "| diverged | | | | " if not row["loss"] else ""
        if row["loss"]:
            ours = (
                f"| {np.mean(row['loss']):.4f} "
                f"| {np.mean(row['broadcasts']):.1f} ± {np.std(row['broadcasts']):.1f} "
                f"| {np.mean(row['seconds']):.2f} "
                f"| {row['passed']} of {row['seeds']} "
                f"| {np.mean(row['bytes']) / 1e6:.1f} "
            )
        lines.append(
            f"| {row['method']} | {row['k0']} {ours}"
            f"| {loss:.3f} | {count:g} | {seconds:g} |"
        )
    return "\n".join([*lines, "", measured(results)])


# ------------------------------------------------------------------------ example V.1


def compute_v1(options: Options) -> dict[str, Any]:
    """Four algorithms, k_0 = 1, 5, 10; FedAvg and LocalSGD on at most 5 seeds."""
    base = read_config(HERE / "v1.toml") | FEDAVG_STEP
    nodes = 64
    if options.quick:
        base, nodes = base | {"rounds": 50}, 16
    results = _table(_runs(base, options, nodes, slow_seeds=5), options)
    lowest = []
    for seed in range(options.seeds):
        task = make_task(base["task"], base, nodes, seed)
        lowest.append(task.objective().value(task.solution()))  # type: ignore[attr-defined]
    results["optimum"] = lowest
    errors = []
    for row in results["rows"]:
        if row["method"].startswith("FedGiA"):
            pairs = zip(row["loss"], lowest, strict=True)
            errors += [abs(loss - low) / low for loss, low in pairs]
    results["largest-relative-error"] = max(errors)
    return results


def render_v1(results: dict[str, Any], out: Path) -> str:
    """The table, and how far FedGiA's objective is from the least-squares solution."""
    text = _markdown(results, PAPER_V1)
    return (
        f"{text}\n\nThe least-squares solution has the objective "
        f"{np.mean(results['optimum']):.4f} ({len(results['optimum'])} seeds); where "
        f"(30) stops FedGiA, its objective is at most "
        f"{results['largest-relative-error']:.1e} of it higher."
    )


# ------------------------------------------------------------------------ example V.2


def qot_config(options: Options) -> dict[str, Any]:
    """QSAR oral toxicity as in the authors' code."""
    base = read_config(HERE / "qot.toml")
    return base | {"logistic-regression.path": str(options.file(QSAR))}


def compute_qot(options: Options) -> dict[str, Any]:
    """Four algorithms, k_0 = 1, 5, 10; FedAvg and LocalSGD on one seed."""
    base = qot_config(options)
    if options.quick:
        base |= {"rounds": 40}
    runs = _runs(base, options, 64, slow_seeds=1, examples=8992)
    results = _table(runs, options)
    results["optimum"] = [_optimum(_items(base), seed) for seed in range(options.seeds)]
    return results


def render_qot(results: dict[str, Any], out: Path) -> str:
    """The table, with the minimum."""
    return f"{_markdown(results, PAPER_QOT)}\n\n{_minimum(results)}"


def compute_sct(options: Options) -> dict[str, Any]:
    """The same on Santander's transactions, if the user has the file."""
    base = read_config(HERE / "qot.toml") | {
        "logistic-regression.dataset": "santander",
        "logistic-regression.path": str(options.file(SANTANDER)),
        "stop-tolerance": 200e-9,
        "sigma-scale": 8.0 / 200 * float(np.log(200_000)),
    }
    runs = _runs(base, options, 64, slow_seeds=1, examples=200_000)
    results = _table(runs, options)
    results["optimum"] = [_optimum(_items(base), 0)]
    return results


def render_sct(results: dict[str, Any], out: Path) -> str:
    """The table, with the minimum."""
    return f"{_markdown(results, PAPER_SCT)}\n\n{_minimum(results)}"


def _minimum(results: dict[str, Any]) -> str:
    minima = results["optimum"]
    return (
        f"The minimum of this problem is {np.mean(minima):.4f} ± {np.std(minima):.4f}: "
        "it depends on the shares, which the seed draws."
    )


def _items(config: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    prefix = "logistic-regression."
    return tuple(sorted((k, v) for k, v in config.items() if k.startswith(prefix)))


@lru_cache(maxsize=32)
def _optimum(items: tuple[tuple[str, Any], ...], seed: int) -> float:
    """The minimum of F with the shares of a seed, by L-BFGS."""
    config = app_config(dict(items))
    task = make_task("logistic-regression", config, 64, seed)
    start = task.initial_point()[0]
    return unconstrained_minimum(task.objective(), start).value


# ------------------------------------------------------ scalings of QSAR oral toxicity

SCALINGS = {
    f"{text}, {'μ/d_i' if per_example else 'μ'}": {
        "logistic-regression.scaling": scaling,
        "logistic-regression.l2-per-example": per_example,
        "logistic-regression.partition": "iid",
    }
    for text, scaling, per_example in (
        ("unit columns", "unit-columns", True),
        ("unit columns", "unit-columns", False),
        ("unit rows", "unit-rows", False),
        ("raw", "none", False),
    )
}
# t: table II's first, larger ones, theory's, and on the raw features smaller ones too
SCALES = (0.1, 0.5, 1.0, 6.01)
RAW_SCALES = (0.01, 0.03, 0.1, 1.0)


def compute_scaling(options: Options) -> dict[str, Any]:
    """Every scaling with several t, both H and k_0 = 1, 5; one seed, 500 rounds."""
    base = qot_config(options) | {"rounds": 40 if options.quick else 500}
    runs = []
    for name, settings in SCALINGS.items():
        scales = RAW_SCALES if name.startswith("raw") else SCALES
        for t in (0.1,) if options.quick else scales:
            for hessian in ("gram", "diagonal"):
                for k0 in (1, 5):
                    config = base | settings
                    config |= {
                        "sigma-scale": t,
                        "hessian": hessian,
                        "local-steps": k0,
                    }
                    key = (name, t, hessian, k0)
                    runs.append(Run(key, config, 64, base["stop-tolerance"]))
    rows = []
    for key, value in execute(runs, options.jobs).items():
        name, t, hessian, k0 = key
        row = {"scaling": name, "t": t, "hessian": hessian, "k0": k0}
        rows.append(row | {k: v for k, v in value.items() if k != "bytes"})
    optima = {name: _optimum(_items(base | s), 0) for name, s in SCALINGS.items()}
    return {"rows": rows, "optima": optima, "rounds": base["rounds"]}


def render_scaling(results: dict[str, Any], out: Path) -> str:
    """Rounds until (30), or the ‖∇f‖² that the last round left."""
    columns = [(h, k) for h in ("gram", "diagonal") for k in (1, 5)]
    lines = [
        "| features and regularisation | minimum | t | "
        + " | ".join(f"FedGiA_{h[0].upper()}, k_0 = {k}" for h, k in columns)
        + " |",
        "| --- | --- | --- |" + " --- |" * len(columns),
    ]
    rows = {(r["scaling"], r["t"], r["hessian"], r["k0"]): r for r in results["rows"]}
    for scaling, t in dict.fromkeys((r["scaling"], r["t"]) for r in results["rows"]):
        cells = []
        for h, k in columns:
            row = rows[scaling, t, h, k]
            if "failed" in row:
                cells.append("diverged")
            elif row["passed"]:
                cells.append(f"{row['broadcasts']} rounds, f = {row['loss']:.4f}")
            else:
                norm = row["squared-gradient-norm"]
                cells.append(f"‖∇f‖² = {norm:.1e}, f = {row['loss']:.4f}")
        optimum = results["optima"][scaling]
        lines.append(f"| {scaling} | {optimum:.5f} | {t:g} | {' | '.join(cells)} |")
    lines += ["", f"One seed, at most {results['rounds']} rounds. {measured(results)}"]
    return "\n".join(lines)
