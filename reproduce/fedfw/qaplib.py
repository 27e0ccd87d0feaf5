"""Ours: FedFW's variants beside FAQ on four instances of QAPLIB, from the same starts.

FAQ is centralised Frank-Wolfe with exact line searches on the whole cost, rounded to
the nearest permutation in the end: J. T. Vogelstein et al., "Fast approximate quadratic
programming for graph matching", PLOS ONE 10(4), 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import quadratic_assignment

from reproduce.common import Item, Options, Run, app_config, execute, read_config
from reproduce.drawing import measured, new_figure, save
from tasks import QuadraticAssignmentTask, make_task

from .assignment import random_start

__all__ = ["INSTANCES", "ITEMS", "VARIANTS", "Variant", "faq"]

HERE = Path(__file__).parent
NODES = 10
STARTS = 10

#: The paper's instance, a tree, and one each of three other kinds: distances within a
#: complex of cells, distances on a grid, random numbers. Named before anything was run.
INSTANCES = ("chr12a", "had16", "nug20", "tai20a")
FAQ = "FAQ (SciPy), in one place"
BARYCENTRE = "barycentre"

#: The value of a parameter that finds itself.
AUTO = "auto"

#: Instance, variant, value of its parameter, start: a seed or the barycentre.
Key = tuple[str, str, float | str, Any]


class Variant(NamedTuple):
    """A variant of FedFW, and what is tried for its one parameter.

    Attributes
    ----------
    settings : dict
        Besides those of ``qaplib.toml``.
    parameter : str
        The setting that is chosen.
    values : tuple of float
        As multiples of the mean |entry| of ∇f_i/n at the barycentre; none where the
        parameter finds itself.
    gradients : int
        That a client computes in a round, each with a call of its oracle.
    """

    settings: dict[str, Any]
    parameter: str
    values: tuple[float, ...]
    gradients: int = 1


_PENALTIES = (0.0625, 0.25, 1.0, 4.0, 16.0)
#: All of them, each with as many gradients of a client, and as many values to try if
#: there is anything to choose.
VARIANTS = {
    "FedFW": Variant({"variant": "plain"}, "penalty", _PENALTIES),
    "FedFW+": Variant({"variant": "augmented"}, "penalty", _PENALTIES),
    **{
        f"corrective, k = {k}": Variant(
            {"variant": "corrective", "fedfw.local-steps": k}, "penalty", (), k
        )
        for k in (20, 5)
    },
}


def gradient_size(task: QuadraticAssignmentTask) -> float:
    """Return the mean |entry| of ∇f_i(x)/n at the barycentre, over all clients."""
    (x,) = task.initial_point()
    n = task.num_clients
    gradients = [task.client_objective(i).gradient(x) for i in range(n)]
    return float(np.mean(np.abs(gradients))) / n


def faq(A: NDArray[Any], B: NDArray[Any], start: NDArray[np.float64]) -> float:
    """Return the cost of FAQ's permutation, once its steps are below 1e-6."""
    found = quadratic_assignment(
        A, B, method="faq", options={"P0": start, "maxiter": 1000, "tol": 1e-6}
    )
    return float(found.fun)


def run_of(key: Key, config: dict[str, Any], order: int, gradients: int) -> Run:
    """Return the run of a variant with a value of its parameter, from a start."""
    _, label, value, start = key
    variant = VARIANTS[label]
    own = {
        "rounds": max(gradients // variant.gradients, 1),
        variant.parameter: value,
        **variant.settings,
    }
    point = None
    if start != BARYCENTRE:
        point = random_start(order, start)
        # the entries are dealt anew for every start
        own["seed"] = start
    return Run(key, config | own, NODES, every=own["rounds"], start=point)


def compute(options: Options) -> dict[str, Any]:
    """Choose every variant's parameter from the barycentre, then run all starts."""
    base = read_config(HERE / "qaplib.toml")
    starts, gradients = min(options.seeds, STARTS), base["rounds"]
    if options.quick:
        starts, gradients = min(starts, 2), 20
    configs, tasks = {}, {}
    for name in INSTANCES:
        path = options.file(f"qaplib/{name}.dat")
        options.file(f"qaplib/{name}.sln")
        configs[name] = base | {"quadratic-assignment.path": str(path)}
        task = make_task("quadratic-assignment", app_config(configs[name]), NODES, 0)
        assert isinstance(task, QuadraticAssignmentTask)
        tasks[name] = task

    def all_of(keys: list[Key]) -> dict[Key, dict[str, Any]]:
        runs = [
            run_of(key, configs[key[0]], tasks[key[0]].shapes()[0][0], gradients)
            for key in keys
        ]
        return execute(runs, options.jobs)

    tried: dict[tuple[str, str], list[Any]] = {}
    for name, task in tasks.items():
        unit = gradient_size(task)
        for label, variant in VARIANTS.items():
            values = [float(f"{v * unit:.3g}") for v in variant.values]
            tried[name, label] = values or [AUTO]
    first = all_of([(*k, v, BARYCENTRE) for k, values in tried.items() for v in values])
    chosen: dict[tuple[str, str], Any] = {}
    for (name, label), values in tried.items():
        # the lowest cost of the rounded point; of equal ones the lowest relaxed cost
        ranked = [
            (one["assignment-cost"], one["loss"], value)
            for value in values
            for one in (first[name, label, value, BARYCENTRE],)
        ]
        chosen[name, label] = min(ranked)[-1]
    others = all_of([(*k, v, s) for k, v in chosen.items() for s in range(starts)])
    found: dict[str, Any] = {}
    for name, task in tasks.items():
        A, B, optimum = task.instance()
        order = len(A)
        (barycentre,) = task.initial_point()
        methods: dict[str, Any] = {
            FAQ: {
                "barycentre": faq(A, B, barycentre),
                "starts": [faq(A, B, random_start(order, s)) for s in range(starts)],
            }
        }
        for label in VARIANTS:
            value = chosen[name, label]
            runs = [others[name, label, value, start] for start in range(starts)]
            from_barycentre = {
                v: first[name, label, v, BARYCENTRE]["assignment-cost"]
                for v in tried[name, label]
            }
            methods[label] = {
                "barycentre": from_barycentre[value],
                "starts": [one["assignment-cost"] for one in runs],
                "chosen": value,
                "tried": from_barycentre,
                "rounds": runs[0]["broadcasts"],
                "bytes-up": float(np.mean([one["bytes-up"] for one in runs])),
                "seconds": float(np.mean([one["seconds"] for one in runs])),
            }
        rng = np.random.default_rng(0)
        chance = [task.cost(rng.permutation(order)) for _ in range(1000)]
        found[name] = {
            "optimum": optimum,
            "chance": float(np.mean(chance)),
            "methods": methods,
        }
    return {"instances": found, "gradients": gradients}


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean of paired differences, and half its 95 % interval (Student)."""
    mean = float(np.mean(differences))
    if len(differences) < 2:
        return mean, float("inf")
    error = float(stats.sem(differences))
    return mean, error * float(stats.t.ppf(0.975, len(differences) - 1))


def render(results: dict[str, Any], out: Path) -> str:
    """Draw every start's excess over the optimum; tables of these and of the work."""
    found = results["instances"]
    figure, axes = new_figure(len(found))
    # those that were there when this was measured
    variants = [
        label
        for label in VARIANTS
        if all(label in instance["methods"] for instance in found.values())
    ]
    labels = [FAQ, *variants]
    lines = [
        "| instance | optimum | " + " | ".join(labels) + " |",
        "| --- |" + " --- |" * (len(labels) + 1),
    ]
    paired = [
        "| instance | "
        + " | ".join(f"{label} − FAQ; chosen; at the edge" for label in variants)
        + " |",
        "| --- |" + " --- |" * len(variants),
    ]
    for one, (name, instance) in zip(axes.flat, found.items(), strict=True):
        optimum, methods = instance["optimum"], instance["methods"]
        cells, beside = [], []
        for k, label in enumerate(labels):
            method = methods[label]
            first = 100.0 * (method["barycentre"] / optimum - 1.0)
            excess = [100.0 * (cost / optimum - 1.0) for cost in method["starts"]]
            cells.append(
                f"{first:.1f}; {min(excess):.1f}, {np.mean(excess):.1f}, "
                f"{max(excess):.1f}"
            )
            # next to each other, so that equal costs are seen
            offsets = np.linspace(-0.25, 0.25, len(excess))
            one.plot(k + offsets, excess, "o", color=f"C{k}", alpha=0.7)
            one.plot([k], [first], "k_", markersize=24)
            if label == FAQ:
                continue
            theirs = [100.0 * (c / optimum - 1.0) for c in methods[FAQ]["starts"]]
            mean, half = interval([a - b for a, b in zip(excess, theirs, strict=True)])
            words = "by itself"
            if method["chosen"] != AUTO:
                chosen, tried = method["chosen"], [float(v) for v in method["tried"]]
                edge = "yes" if chosen in (min(tried), max(tried)) else "no"
                words = f"{chosen:g}; {edge}"
            beside.append(f"{round(mean, 1) + 0.0:+.1f} ± {half:.1f}; {words}")
        lines.append(f"| {name} | {optimum:,.0f} | {' | '.join(cells)} |")
        paired.append(f"| {name} | {' | '.join(beside)} |")
        one.set_title(name)
        one.set_xticks(
            range(len(labels)), [text.replace(", ", "\n") for text in labels]
        )
        one.set_ylabel("excess over the optimum, %")
        one.set_ylim(bottom=min(0.0, one.get_ylim()[0]))
    starts = len(found[name]["methods"][FAQ]["starts"])
    work = []
    for label in variants:
        variant = VARIANTS[label]
        runs = [instance["methods"][label] for instance in found.values()]
        up = np.mean([r["bytes-up"] / (NODES * r["rounds"]) for r in runs])
        seconds = np.mean([r["seconds"] for r in runs])
        work.append(
            f"| {label} | {variant.gradients} | {runs[0]['rounds']:,} | {up:,.0f} "
            f"| {seconds:.1f} |"
        )
    lines += [
        "",
        f"Cost of the rounded x̄ above the optimum, in per cent: from the barycentre "
        f"(a line in the picture); best, mean and worst of {starts} random starts. "
        "A random permutation's is "
        + ", ".join(
            f"{100.0 * (instance['chance'] / instance['optimum'] - 1.0):.0f} ({name})"
            for name, instance in found.items()
        )
        + " on average.",
        "",
        *paired,
        "",
        "Percentage points from the same start, mean and 95 % interval; the parameter "
        "that was chosen, and whether it was the smallest or largest that was tried.",
        "",
        "| variant | gradients a round | rounds | bytes up a node and round "
        "| seconds |",
        "| --- | --- | --- | --- | --- |",
        *work,
        "",
        f"{NODES} nodes; {results['gradients']:,} gradients a client in every run. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'qaplib')}\n\n" + "\n".join(lines)


ITEMS = {"qaplib": Item("ours: four instances of QAPLIB, beside FAQ", compute, render)}
