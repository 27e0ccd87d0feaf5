"""Whole data sets: MNIST's digits one against the rest, MNIST and Covtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.claims import Effect
from reproduce.common import Item, Options, Run, execute
from reproduce.drawing import table

from .figures import BUNDLE, CHOICE, FEDAVG, HYFEM, OWN, PRACTICAL, QUICK_ITERATIONS
from .problems import PROBLEMS, Problem, config_of
from .runs import last_accuracy, last_loss, optimum_of, perform_hybrid

__all__ = ["ITEMS"]

DIGITS = tuple(range(10))
SEEDS = {"mnist": 5, "covtype": 3}
#: With 90 % of the clients there.
AVAILABLE = 0.9
ITERATIONS = 100
#: Where grids begin: a of HybridFedAvg in powers of ten, HyFEM's a and μ. They were
#: moved until what is chosen lay inside.
LOWEST = {
    "digits": (-2.0, 0.003, 0.01),
    "digit": (-2.0, 0.003, 0.01),
    "mnist": (-3.5, 0.0003, 0.1),
    "covtype": (-2.0, 0.03, 0.0001),
}


def grids(case: str) -> dict[str, list[dict[str, float]]]:
    """Sixteen settings for each method: H/N_k of the paper's step, a, and a with μ."""
    power, a, mu = LOWEST[case]
    return {
        PRACTICAL: [{"local-fraction": 10 ** (k / 4 - 4.75)} for k in range(16)],
        FEDAVG: [{"local-step-size": 10 ** (k / 4 + power)} for k in range(16)],
        HYFEM: [
            {"local-step-size": a * 10.0**i, "matching": mu * 10.0**k}
            for i in range(4)
            for k in range(4)
        ],
    }


Settings = dict[str, Any]


def _whole(name: str, digit: int = -1) -> Problem:
    """A problem with all its samples; of MNIST a digit against the rest, if wanted."""
    problem = PROBLEMS[name]
    more = {"positive-class": digit} if digit >= 0 else {}
    return replace(problem, settings=problem.settings | more, sizes=(0, 0))


def _run(
    options: Options,
    problem: Problem,
    method: str,
    settings: Settings,
    key: tuple[Any, ...],
    seed: int,
    share: float = 1.0,
) -> Run:
    """A run in the problem's first split, or the first share of it."""
    split = problem.splits[0]
    rounds = QUICK_ITERATIONS if options.quick else int(share * ITERATIONS)
    config = config_of(problem, options, split) | OWN[method] | settings
    config |= {"participation": AVAILABLE, "rounds": rounds, "seed": seed}
    return Run(key, config, split.nodes, every=max(1, rounds // 25))


def _tune(
    options: Options, problem: Problem, case: str, methods: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Settings with the lowest training loss after two fifths, on one more seed."""
    wanted = {m: grids(case)[m][: 2 if options.quick else None] for m in methods}
    runs = [
        _run(options, problem, method, settings, (method, k), CHOICE, 0.4)
        for method, grid in wanted.items()
        for k, settings in enumerate(grid)
    ]
    results = execute(runs, options.jobs, perform=perform_hybrid)
    found = {}
    for method, grid in wanted.items():
        losses = [last_loss(results[method, k]) for k in range(len(grid))]
        chosen = grid[int(np.argmin(losses))]
        # something on both sides of every setting was tried
        inside = all(
            min(one[name] for one in grid) < value < max(one[name] for one in grid)
            for name, value in chosen.items()
        )
        tried = [
            {**one, "loss": loss if np.isfinite(loss) else None}
            for one, loss in zip(grid, losses, strict=True)
        ]
        found[method] = {"chosen": chosen, "inside": inside, "tried": tried}
    return found


def _perform(run: Run) -> dict[str, Any]:
    """Perform a run, and find P* of its data, which this process has loaded."""
    return perform_hybrid(run) | {"optimum": optimum_of(run.config, run.nodes)}


def _measure(
    options: Options, problems: Sequence[tuple[Problem, int]], tuned: dict[str, Any]
) -> dict[str, Any]:
    """Optima, and each method's ends and seconds, by problem and its seed."""
    chosen = {BUNDLE: {}} | {name: one["chosen"] for name, one in tuned.items()}
    runs = [
        _run(options, problem, method, settings, (method, k), seed)
        for k, (problem, seed) in enumerate(problems)
        for method, settings in chosen.items()
    ]
    results = execute(runs, options.jobs, perform=_perform)
    optima = [results[BUNDLE, k]["optimum"] for k in range(len(problems))]
    ends = {}
    for method in chosen:
        own = [results[method, k] for k in range(len(problems))]
        pairs = zip(own, optima, strict=True)
        ends[method] = {
            "loss": [last_loss(run) / best["value"] - 1.0 for run, best in pairs],
            "accuracy": [last_accuracy(run) for run in own],
            "seconds": [run["seconds"][-1] for run in own],
        }
    split = problems[0][0].splits[0]
    return {
        "split": split.label,
        "paper": split.paper,
        "available": AVAILABLE,
        "samples": int(optima[0]["samples"]),
        "features": int(optima[0]["features"]),
        "iterations": runs[0].config["rounds"],
        "optima": [best["value"] for best in optima],
        "tuned": tuned,
        "ends": ends,
    }


def compute_one_against_rest(options: Options) -> dict[str, Any]:
    """Ten digits, each with a seed of its own."""
    name = "digits" if options.quick else "mnist"
    digits = DIGITS[:2] if options.quick else DIGITS
    problems = [(_whole(name, digit), digit) for digit in digits]
    # all settings are chosen on digit 0, dealt by another seed
    tuned = _tune(options, problems[0][0], "digit", (PRACTICAL, FEDAVG, HYFEM))
    found = _measure(options, problems, tuned)
    return {"problem": name, "digits": list(digits)} | found


def compute_full_data(options: Options) -> dict[str, Any]:
    """Ours and the baselines, several seeds."""
    rows = []
    for name, count in ({"digits": 2} if options.quick else SEEDS).items():
        problem = _whole(name)
        tuned = _tune(options, problem, name, (FEDAVG, HYFEM))
        seeds = [(problem, seed) for seed in options.numbers(count)]
        rows.append({"problem": name, **_measure(options, seeds, tuned)})
    return {"rows": rows}


def render(results: dict[str, Any], out: Path) -> str:
    """Where the runs end: means with their intervals, and each digit's ends."""
    rows, lines, choices = results.get("rows", [results]), [], []
    methods = list(rows[0]["ends"])
    for row in rows:
        name = PROBLEMS[row["problem"]].title
        ends = [row["ends"][method] for method in methods]
        columns = [
            [100 * value for value in end[what]]
            for what in ("loss", "accuracy")
            for end in ends
        ]
        columns.append(row["optima"])
        seconds = [np.mean(end["seconds"]) / row["iterations"] for end in ends]
        for k, digit in enumerate(row.get("digits", [])):
            cells = [*(f"{c[k]:.1f}" for c in columns[:-1]), f"{columns[-1][k]:.4f}"]
            lines.append((f"digit {digit}", *cells, *[""] * len(seconds)))
        data = f"{name}, {row['samples']:,} × {row['features']}, {row['split']} clients"
        forms = [*["{:.1f}"] * len(columns[:-1]), "{:.4f}"]
        means = (
            Effect("", values, form=form).written()
            for values, form in zip(columns, forms, strict=True)
        )
        lines.append((data, *means, *(f"{value:.2g}" for value in seconds)))
        parts, edges = [], sum(not one["inside"] for one in row["tuned"].values())
        for method, one in row["tuned"].items():
            values = ", ".join(f"{value:.2g}" for value in one["chosen"].values())
            parts.append(f"{method} {values} (of {len(one['tried'])})")
        choices.append(f"{name}: {'; '.join(parts)}; {edges} at the edge")
    names = " | ".join([*methods[1:]])
    head = f"data | relative loss, %: {methods[0]} | {names} | accuracy, %: "
    head += (
        f"{methods[0]} | {names} | P* | seconds an iteration: {methods[0]} | {names}"
    )
    return (
        f"{table(head, lines)}\n\n{100 * AVAILABLE:.0f} % there, "
        f"{rows[0]['iterations']} iterations. Means with 95 % intervals. "
        "Seconds: of all clients one after the other, without encryption. "
        "Chosen on another seed by the training loss, H/N_k, a, and a with μ: "
        f"{'. '.join(choices)}."
    )


ITEMS = {
    "one-against-rest": Item(
        "MNIST, each digit against the rest: P*, the paper's step and ours",
        compute_one_against_rest,
        render,
    ),
    "full-data": Item(
        "all samples of MNIST and Covtype: HyFDCA, HybridFedAvg and HyFEM",
        compute_full_data,
        render,
    ),
}
