"""Theorems 1 to 3: how fast F − F* and the Frank-Wolfe gap fall, five seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import sim
from fedtrellis.objectives.reference import certified_minimum
from reproduce.common import Item, Options, Run, app_config, execute, read_config
from reproduce.drawing import band, measured, new_figure, save, style_of
from reproduce.rates import batched, late_slope

from .assignment import random_start

__all__ = ["ITEMS"]

HERE = Path(__file__).parent
NODES = 10
SEEDS = 5
ORDER = 12  # of chr12a

#: A problem's run config, and what each method changes in it.
Problems = dict[str, tuple[str, dict[str, dict[str, Any]]]]

#: Theorem 1: both 2022 problems with both variants, λ_0 as the paper has it.
CONVEX: Problems = {
    "LASSO": (
        "lasso",
        {
            "FedFW": {"variant": "plain", "penalty": 5.0},
            "FedFW+": {"variant": "augmented", "penalty": 0.5},
        },
    ),
    "digits": (
        "digits",
        {
            "FedFW": {"variant": "plain", "penalty": 4e-4},
            "FedFW+": {"variant": "augmented", "penalty": 4e-4},
        },
    ),
}
#: Theorem 3: the same with mini-batches, a fifth of a client's rows or fewer.
_STOCHASTIC = {"variant": "stochastic", "schedule": "stochastic"}
STOCHASTIC: Problems = {
    "LASSO": (
        "lasso",
        {"FedFW-sto": {**_STOCHASTIC, "penalty": 5.0, "batch-size": 4}},
    ),
    "digits": (
        "digits",
        {"FedFW-sto": {**_STOCHASTIC, "penalty": 4e-4, "batch-size": 16}},
    ),
}


def compute_residuals(
    options: Options, problems: Problems, rounds: int
) -> dict[str, Any]:
    """F − F* over rounds, five seeds, each with its own certified F*."""
    seeds = min(SEEDS, options.seeds)
    if options.quick:
        rounds, seeds = 60, 2
    rows = []
    for problem, (config, methods) in problems.items():
        base = read_config(HERE / f"{config}.toml") | {"rounds": rounds}
        optima = []
        for seed in range(seeds):
            setup = sim.app.experiment(app_config(base | {"seed": seed}), NODES)
            best = setup.task.reference_optimum(setup.domain)
            if best is None:
                best = certified_minimum(
                    setup.task.objective(),
                    setup.domain,
                    setup.task.initial_point()[0],
                    tolerance=1e-3 if options.quick else 1e-7,
                    max_iterations=300 if options.quick else 20_000,
                ).value
            optima.append(float(best))
        runs = [
            Run(
                (method, seed),
                base | settings | {"seed": seed},
                NODES,
                curve=True,
                every=0,
                grid=batched,
            )
            for method, settings in methods.items()
            for seed in range(seeds)
        ]
        results = execute(runs, options.jobs)
        for method in methods:
            curves = [results[method, seed]["curve"] for seed in range(seeds)]
            residuals = [
                [value - best for value in curve["loss"]]
                for curve, best in zip(curves, optima, strict=True)
            ]
            times = curves[0]["round"]
            exponents = [late_slope(times, errors) for errors in residuals]
            rows.append(
                {
                    "problem": problem,
                    "method": method,
                    "round": times,
                    "residuals": residuals,
                    "last": [errors[-1] for errors in residuals],
                    "exponents": exponents,
                }
            )
    return {"rows": rows, "rounds": rounds, "seeds": seeds}


def render_residuals(
    results: dict[str, Any], out: Path, name: str, power: float, label: str
) -> str:
    """F − F* over rounds, medians and bands, with a line that falls as claimed."""
    rows = results["rows"]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, (axes,) = new_figure(len(problems))
    lines = [
        "| problem | method | F − F* at the end | exponent, by seed |",
        "| --- | --- | --- | --- |",
    ]
    for one, problem in zip(axes, problems, strict=True):
        mine = [row for row in rows if row["problem"] == problem]
        for k, row in enumerate(mine):
            band(one, row["round"], row["residuals"], row["method"], **style_of(k))
        times = np.array([t for t in mine[0]["round"] if t > 0], dtype=float)
        level = float(np.median([errors[1] for errors in mine[0]["residuals"]]))
        one.plot(times, level * times**power, ":", color="gray", label=label)
        one.set_xscale("log")
        one.set_yscale("log")
        one.set_xlabel("communication round $t$")
        one.set_ylabel(r"$F(\bar x) - F^*$")
        one.set_title(problem)
        one.legend()
        for row in mine:
            powers = ", ".join(f"{value:.2f}" for value in row["exponents"])
            lines.append(
                f"| {problem} | {row['method']} | {np.median(row['last']):.3g} "
                f"| {powers} |"
            )
    return (
        f"{save(figure, out, name)}\n\n"
        + "\n".join(lines)
        + f"\n\nMedians and extremes of {results['seeds']} seeds, {results['rounds']} "
        f"rounds. {measured(results)}"
    )


# --------------------------------------------------------------------------- non-convex

#: Theorem 2 is about runs of T rounds, for each of these T up to a problem's own.
LENGTHS: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)
#: Rounds of a run, evenly spaced, whose gap is computed.
LOOKS = 50
#: What all runs have; λ_0 is FedFW's own, from the first gradients.
THEOREM = {
    "method": "fedfw",
    "variant": "plain",
    "schedule": "nonconvex",
    "penalty": "auto",
    "participation": 1.0,
    "evaluate-gap": True,
}
_LOGISTIC = {
    "task": "logistic-regression",
    "logistic-regression.dataset": "breast-cancer",
    "logistic-regression.regularizer": "nonconvex",
    "logistic-regression.l2": 0.1,
    "logistic-regression.partition": "labels",
    "radius": 10.0,
}
_DNN = {"layers": "product", "classification.train-limit": 2000}
#: A run config, if a file has one, and what differs; nodes, and the longest T.
NONCONVEX: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "logistic, ℓ1": ("", _LOGISTIC | {"domain": "l1-ball"}, NODES, 3000),
    "logistic, ℓ2": ("", _LOGISTIC | {"domain": "l2-ball"}, NODES, 3000),
    "DNN, ℓ1 a layer": ("figure-3", _DNN | {"domain": "l1-ball"}, NODES, 3000),
    "DNN, ℓ2 a layer": ("figure-3", _DNN | {"domain": "l2-ball"}, NODES, 3000),
    "chr12a": ("chr12a", {}, ORDER, 10_000),
}


def compute_nonconvex(options: Options) -> dict[str, Any]:
    """The smallest Frank-Wolfe gap of runs of T rounds, by T; five seeds."""
    every, seeds = LENGTHS, min(SEEDS, options.seeds)
    if options.quick:
        every, seeds = (2, 4, 8), 2
    runs, lengths = [], {}
    for problem, (config, settings, nodes, longest) in NONCONVEX.items():
        base = read_config(HERE / f"{config}.toml") if config else {}
        base |= settings | THEOREM
        lengths[problem] = [T for T in every if longest >= T]
        runs += [
            Run(
                (problem, seed, T),
                base | {"seed": seed, "rounds": T},
                nodes,
                curve=True,
                every=max(1, T // LOOKS),
                grid=batched,
                start=random_start(ORDER, seed) if config == "chr12a" else None,
            )
            for seed in range(seeds)
            for T in lengths[problem]
        ]
    results = execute(runs, options.jobs)
    rows = []
    for problem, mine in lengths.items():
        gaps = [
            [min(results[problem, seed, T]["curve"]["gap"]) for T in mine]
            for seed in range(seeds)
        ]
        rows.append(
            {
                "problem": problem,
                "method": "FedFW",
                "rounds": mine,
                "gaps": gaps,
                "exponents": [late_slope(mine, own) for own in gaps],
            }
        )
    return {"rows": rows, "seeds": seeds, "looks": LOOKS}


def render_nonconvex(results: dict[str, Any], out: Path) -> str:
    """Smallest gaps over T, medians and bands, with a line that falls as T^(−1/3)."""
    rows = results["rows"]
    figure, (axes,) = new_figure(len(rows))
    figure.set_size_inches(3.6 * len(rows), 3.7)
    every = max((row["rounds"] for row in rows), key=len)
    heads = ["problem", *(f"T = {T:,}" for T in every), "exponent, by seed"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for one, row in zip(axes, rows, strict=True):
        lengths = row["rounds"]
        band(one, lengths, row["gaps"], "FedFW", **style_of(0))
        times, middle = np.array(lengths, dtype=float), np.median(row["gaps"], axis=0)
        line = middle[0] * (times / times[0]) ** (-1.0 / 3.0)
        one.plot(times, line, ":", color="gray", label="$T^{-1/3}$")
        one.set_xscale("log")
        one.set_yscale("log")
        one.set_xlabel("rounds of the run $T$")
        one.set_ylabel("smallest Frank-Wolfe gap")
        one.set_title(row["problem"])
        one.legend()
        cells = [f"{value:.4g}" for value in middle]
        cells += ["–"] * (len(every) - len(lengths))
        powers = ", ".join(f"{value:.2f}" for value in row["exponents"])
        lines.append(f"| {row['problem']} | {' | '.join(cells)} | {powers} |")
    return (
        f"{save(figure, out, 'rates-nonconvex')}\n\n"
        + "\n".join(lines)
        + f"\n\nSmallest gap of the start and {results['looks']} rounds, evenly "
        f"spaced: medians and extremes of {results['seeds']} seeds. {measured(results)}"
    )


ITEMS = {
    "rates": Item(
        "theorem 1: F − F* over rounds, five seeds",
        lambda options: compute_residuals(options, CONVEX, 2000),
        lambda results, out: render_residuals(
            results, out, "rates", -0.5, "$t^{-1/2}$"
        ),
    ),
    "rates-nonconvex": Item(
        "theorem 2: the smallest gap of runs of T rounds, five seeds",
        compute_nonconvex,
        render_nonconvex,
    ),
    "rates-stochastic": Item(
        "theorem 3: F − F* over rounds with mini-batches, five seeds",
        lambda options: compute_residuals(options, STOCHASTIC, 300),
        lambda results, out: render_residuals(
            results, out, "rates-stochastic", -1.0 / 3.0, "$t^{-1/3}$"
        ),
    ),
}
