"""Steps compared, and availability: digits, in one place, round trip by round trip."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.random import generator
from reproduce.common import Options, read_config, workers
from reproduce.drawing import color, measured, new_figure, save, style_of

from .one_place import (
    Available,
    Proposer,
    State,
    Table,
    accelerated,
    bundle,
    line_search,
    load,
    paper_step,
    with_averages,
)

__all__ = [
    "compute_availability",
    "compute_steps",
    "render_availability",
    "render_steps",
]

HERE = Path(__file__).parent
FLOOR = 1e-9
#: The picture's six; the table has them all.
DRAWN = (
    "bundle, memory 40, sums over all (default)",
    "bundle, memory 12, 5 parts",
    "line search, one γ",
    "accelerated projected gradient",
    "practical, H = 2",
    "theoretical, H = N_k",
)
SCALINGS = {"none": "unscaled", "unit": "rows of norm 1"}
AT = (100, 300, 1000, 3000)
TRIPS = (200, 600, 2000)
DUAL_POINT, COORDINATE, PASSES = ("dual-point",), ("coordinate",), ("passes",)

Steps = Callable[[Table], Iterator[State]]


def _mixed(kinds: tuple[str, ...], memory: int, parts: int = 1) -> Steps:
    return lambda table: bundle(table, Proposer(table, kinds), memory, parts)


def _searched(kinds: tuple[str, ...]) -> Steps:
    return lambda table: line_search(table, Proposer(table, kinds))


#: The steps by name, and how many iterations of each are made.
STEPS: dict[str, tuple[Steps, int]] = {
    "line search, one γ": (_searched(COORDINATE), 3000),
    "line search, a γ for each group": (_mixed(COORDINATE, 2), 3000),
    "line search, one γ, averaged w": (
        lambda table: with_averages(_searched(COORDINATE)(table)),
        3000,
    ),
    "bundle, memory 4": (_mixed(DUAL_POINT, 4), 3000),
    "bundle, memory 12": (_mixed(DUAL_POINT, 12), 3000),
    "bundle, memory 20": (_mixed(DUAL_POINT, 20), 3000),
    "bundle, memory 40, sums over all (default)": (
        lambda table: bundle(table, Proposer(table, ("mixed",)), 40, together=True),
        3000,
    ),
    "bundle, memory 12, 5 parts": (_mixed(DUAL_POINT, 12, 5), 1000),
    "bundle, memory 12, averaged w": (
        lambda table: with_averages(_mixed(DUAL_POINT, 12)(table)),
        3000,
    ),
    "bundle, memory 12, coordinate proposals": (_mixed(COORDINATE, 12), 3000),
    "accelerated projected gradient": (accelerated, 3000),
    "local passes, line search": (_searched(PASSES), 300),
    "local passes, bundle, memory 12": (_mixed(PASSES, 12), 300),
    "dual points and local passes, bundle": (_mixed((*DUAL_POINT, *PASSES), 12), 300),
    "practical, H = 2": (lambda table: paper_step(table, "practical", 2), 3000),
    "practical, H = 12": (lambda table: paper_step(table, "practical", 12), 3000),
    "theoretical, H = N_k": (lambda table: paper_step(table, "theoretical"), 3000),
}
QUICK_STEPS = ("line search, one γ", "bundle, memory 12", "practical, H = 2")


def _config(scaling: str, features: int = 4) -> dict[str, Any]:
    return read_config(HERE / "hyfdca.toml") | {
        "hybrid-svm.test-fraction": 0.0,
        "hybrid-svm.row-scaling": scaling,
        "hybrid-svm.sample-groups": 4,
        "hybrid-svm.feature-groups": features,
    }


def follow(table: Table, states: Iterator[State], iterations: int) -> dict[str, Any]:
    """Relative loss, D and round trips of every iteration from 0, and their summary."""
    losses, duals, trips = [], [], []
    began = time.process_time()
    with np.errstate(over="ignore", invalid="ignore"):
        for state in itertools.islice(states, iterations + 1):
            losses.append(table.primal(state.w, state.z) / table.optimum - 1.0)
            duals.append(state.dual)
            trips.append(state.trips)
    seconds = time.process_time() - began
    falls = np.diff(duals) < -1e-12
    return {"loss": losses, "trips": trips, "falls": int(falls.sum()), "s": seconds}


def _thin(count: int) -> list[int]:
    """Iterations to draw: the first hundred, and then a geometric sequence."""
    later = np.unique(np.geomspace(100, max(count - 1, 100), 150).astype(int))
    return [*range(min(100, count)), *[int(i) for i in later if i < count]]


def _step_row(job: tuple[str, str, int]) -> dict[str, Any]:
    scaling, name, iterations = job
    table = load(_config(scaling), 16)
    found = follow(table, STEPS[name][0](table), iterations)
    lowest = np.minimum.accumulate(np.nan_to_num(found["loss"], nan=np.inf))
    trips = np.asarray(found["trips"])
    reached = {}
    for goal in (1e-2, 1e-3, 1e-6):
        where = np.flatnonzero(lowest <= goal)
        reached[f"{goal:g}"] = int(trips[where[0]]) if len(where) else -1
    drawn = _thin(len(lowest))
    return {
        "scaling": scaling,
        "step": name,
        "after": {str(n): float(lowest[n]) for n in AT if n < len(lowest)},
        "last": float(found["loss"][-1]),
        "by-trips": {
            str(n): float(lowest[np.searchsorted(trips, n, side="right") - 1])
            for n in TRIPS
            if trips[-1] >= n
        },
        "reached": reached,
        "trips": float(trips[-1]) / max(len(trips) - 1, 1),
        "falls": found["falls"],
        "iterations": len(lowest) - 1,
        "ms": 1e3 * found["s"] / iterations,
        "curve": {
            "iteration": drawn,
            "trips": [int(trips[i]) for i in drawn],
            "loss": [float(lowest[i]) for i in drawn],
        },
    }


def compute_steps(options: Options) -> dict[str, Any]:
    """Every step on digits, 4 × 4, unscaled and with rows of norm 1."""
    names = QUICK_STEPS if options.quick else tuple(STEPS)
    jobs = [
        (scaling, name, 120 if options.quick else STEPS[name][1])
        for scaling in SCALINGS
        for name in names
    ]
    with workers(options.jobs) as pool:
        rows = list(pool.map(_step_row, jobs))
    tables = {scaling: load(_config(scaling), 16) for scaling in SCALINGS}
    return {
        "rows": rows,
        "optima": {scaling: table.optimum for scaling, table in tables.items()},
        "samples": len(next(iter(tables.values())).y),
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1e}" if value >= FLOOR else "< 1e-9"


def render_steps(results: dict[str, Any], out: Path) -> str:
    """Lowest relative loss so far over iterations, and over round trips."""
    text = []
    figure, axes = new_figure(2, 2)
    figure.set_size_inches(13.5, 8.5)
    for line, scaling in enumerate(SCALINGS):
        rows = [row for row in results["rows"] if row["scaling"] == scaling]
        for row in (row for row in rows if row["step"] in DRAWN):
            style = style_of(DRAWN.index(row["step"])) | {"label": row["step"]}
            loss = np.maximum(row["curve"]["loss"], FLOOR)
            # the start has no place on a logarithmic axis
            axes[line][0].plot(row["curve"]["iteration"][1:], loss[1:], **style)
            axes[line][1].plot(row["curve"]["trips"][1:], loss[1:], **style)
        for column, what in enumerate(("iteration", "round trips")):
            one = axes[line][column]
            one.set_xscale("log")
            one.set_yscale("log")
            one.set_ylim(FLOOR / 2, 5.0)
            one.set_xlabel(what)
            one.set_title(f"digits, 4 × 4, {SCALINGS[scaling]}")
        axes[line][0].set_ylabel("lowest relative loss so far")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    text.append(save(figure, out, "steps"))
    lines = []
    for scaling in SCALINGS:
        lines += [
            f"Digits, {results['samples']:,} samples, 4 × 4, {SCALINGS[scaling]}, "
            f"P* = {results['optima'][scaling]:.7f}:",
            "",
            "| step | "
            + " | ".join(f"after {n:,} iterations" for n in AT)
            + " | round trips an iteration | "
            + " | ".join(f"after {n:,} round trips" for n in TRIPS)
            + " | round trips to 1 % | to 0.1 % | to 1e-6 | times D fell | ms |",
            "| --- " * (len(AT) + len(TRIPS) + 7) + "|",
        ]
        for row in results["rows"]:
            if row["scaling"] != scaling:
                continue
            reached = [f"{n:,}" if n >= 0 else "not" for n in row["reached"].values()]
            lines.append(
                f"| {row['step']} | "
                + " | ".join(_number(row["after"].get(str(n))) for n in AT)
                + f" | {row['trips']:.2g} | "
                + " | ".join(_number(row["by-trips"].get(str(n))) for n in TRIPS)
                + f" | {' | '.join(reached)} "
                f"| {row['falls']} of {row['iterations']} | {row['ms']:.1f} |"
            )
        lines.append("")
    lines.append(
        "Lowest relative loss (P − P*)/P* of the iterations so far, which the duality "
        "gap lets a server know. ms: an iteration's work in one place, without "
        f"messages and encryption. One seed. {measured(results)}"
    )
    return "\n\n".join([*text, "\n".join(lines)])


# ------------------------------------------------------------------------- availability

FRACTIONS = (0.1, 0.5, 0.9)
SAMPLES = (1, 2, 5, 12)
WINDOW = 50


def presence(nodes: int, fraction: float, seed: int) -> Available:
    """Each client is there with the given probability, anew in every iteration."""

    def here(t: int) -> set[int]:
        coins = generator(seed, "participation", t).random(nodes)
        return set(np.flatnonzero(coins < fraction).tolist())

    return here


def _availability_row(job: tuple[str, int, float, int, int]) -> dict[str, Any]:
    scaling, features, fraction, seed, iterations = job
    nodes = 4 * features
    table = load(_config(scaling, features), nodes)
    here = presence(nodes, fraction, seed)
    own = bundle(table, Proposer(table, DUAL_POINT), 12, available=here)
    runs = {"bundle": follow(table, own, iterations)}
    for H in SAMPLES:
        states = paper_step(table, "practical", H, seed, here)
        runs[str(H)] = follow(table, states, iterations)
    return {
        name: {
            "half": float(np.mean(run["loss"][iterations // 2 - WINDOW :][:WINDOW])),
            "last": float(np.mean(run["loss"][-WINDOW:])),
            "lowest": float(np.min(run["loss"])),
            "falls": run["falls"],
            "trips": run["trips"][-1],
            "loss": [run["loss"][i] for i in _thin(len(run["loss"]))],
        }
        for name, run in runs.items()
    }


def compute_availability(options: Options) -> dict[str, Any]:
    """10, 50 and 90 % of the clients there: the bundle, and the paper's way."""
    iterations = 120 if options.quick else 1000
    seeds = 1 if options.quick else min(options.seeds, 3)
    scalings = ("unit",) if options.quick else tuple(SCALINGS)
    cases = [
        (scaling, features, fraction)
        for scaling in scalings
        for features in (4, 2)
        for fraction in FRACTIONS
    ]
    jobs = [(*case, seed, iterations) for case in cases for seed in range(seeds)]
    with workers(options.jobs) as pool:
        found = list(pool.map(_availability_row, jobs))
    rows = []
    for number, (scaling, features, fraction) in enumerate(cases):
        runs = found[number * seeds : (number + 1) * seeds]
        # H as tuned: the lowest loss at the end
        ends = {str(H): np.mean([r[str(H)]["last"] for r in runs]) for H in SAMPLES}
        best = min(ends, key=lambda H: float(ends[H]))
        row: dict[str, Any] = {
            "scaling": scaling,
            "features": features,
            "available": fraction,
            "H": int(best),
        }
        for name, key in (("bundle", "bundle"), ("paper", best)):
            row[name] = {
                what: float(np.mean([run[key][what] for run in runs]))
                for what in ("half", "last", "lowest", "falls", "trips")
            }
            row[name]["loss"] = runs[0][key]["loss"]
        rows.append(row)
    return {
        "rows": rows,
        "iterations": iterations,
        "seeds": seeds,
        "drawn": _thin(iterations + 1),
    }


def render_availability(results: dict[str, Any], out: Path) -> str:
    """Loss over iterations, and a table of both ways."""
    scalings = list(dict.fromkeys(row["scaling"] for row in results["rows"]))
    figure, axes = new_figure(2, len(scalings))
    for row in results["rows"]:
        one = axes[scalings.index(row["scaling"])][0 if row["features"] == 4 else 1]
        shade = color(FRACTIONS.index(row["available"]), 3)
        for name, line in (("bundle", "-"), ("paper", ":")):
            loss = np.maximum(row[name]["loss"], FLOOR)
            label = f"{100 * row['available']:.0f} %" if name == "bundle" else None
            one.plot(
                results["drawn"][1:], loss[1:], color=shade, linestyle=line, label=label
            )
        one.set_title(f"4 × {row['features']}, {SCALINGS[row['scaling']]}")
        one.set_xlabel("iteration")
        one.set_ylabel("relative loss (P − P*)/P*")
        one.set_xscale("log")
        one.set_yscale("log")
        one.set_ylim(FLOOR / 2, 100.0)
    axes[0][0].legend(title="there; bundle —, paper ···", fontsize="small")
    n = results["iterations"]
    lines = [
        "| rows | clients | there | bundle: relative loss after "
        f"{n // 2} | after {n} | lowest | D fell | paper's way, H | after {n // 2} "
        f"| after {n} | lowest | D fell |",
        "| --- " * 12 + "|",
    ]
    for row in results["rows"]:
        cells = []
        for name in ("bundle", "paper"):
            own = row[name]
            numbers = [_number(own[key]) for key in ("half", "last", "lowest")]
            cells.append([*numbers, f"{own['falls']:.0f}"])
        lines.append(
            f"| {SCALINGS[row['scaling']]} | 4 × {row['features']} "
            f"| {100 * row['available']:.0f} % | {' | '.join(cells[0])} "
            f"| {row['H']} | {' | '.join(cells[1])} |"
        )
    lines += [
        "",
        f"After n iterations: the mean of {WINDOW}. Means of {results['seeds']} seeds "
        "(who is there, and what is drawn); the picture has the first. H is the best "
        f"of {', '.join(map(str, SAMPLES))} by the last column but two. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'availability')}\n\n" + "\n".join(lines)
