"""Sentences of the papers that no table or picture of theirs gives a number for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

import sim
from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.app import Experiment
from fedtrellis.domains import Box
from fedtrellis.objectives import LeastSquares
from fedtrellis.objectives.reference import certified_minimum
from reproduce.common import Item, Options, Run, app_config, execute, read_config
from reproduce.drawing import band, measured, new_figure, save, style_of
from strategies import FedFW, NaiveFrankWolfe

from .convergence import slope

__all__ = ["ITEMS"]

HERE = Path(__file__).parent
NODES = 10
SEEDS = 5


def batched(experiment: Experiment) -> LocalGrid:
    """All clients as one stack, to the same numbers."""
    return experiment.grid(batched=True)


# -------------------------------------------------------------------------------- rates

#: Both 2022 problems with both variants, λ_0 as the paper has it.
PROBLEMS = {
    "LASSO": ("lasso", {"FedFW": 5.0, "FedFW+": 0.5}),
    "digits": ("digits", {"FedFW": 4e-4, "FedFW+": 4e-4}),
}
VARIANTS = {"FedFW": "plain", "FedFW+": "augmented"}


def compute_rates(options: Options) -> dict[str, Any]:
    """F − F* over 2 000 rounds, five seeds, each with its own certified F*."""
    rounds, seeds = (60, 2) if options.quick else (2000, min(SEEDS, options.seeds))
    rows = []
    for problem, (config, penalties) in PROBLEMS.items():
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
                base | {"variant": VARIANTS[method], "penalty": penalty, "seed": seed},
                NODES,
                curve=True,
                every=0,
                grid=batched,
            )
            for method, penalty in penalties.items()
            for seed in range(seeds)
        ]
        results = execute(runs, options.jobs)
        for method in penalties:
            curves = [results[method, seed]["curve"] for seed in range(seeds)]
            residuals = [
                [value - best for value in curve["loss"]]
                for curve, best in zip(curves, optima, strict=True)
            ]
            times = curves[0]["round"]
            # over the last decade: what comes before is the start's
            late = [k for k, t in enumerate(times) if t >= rounds / 10]
            exponents = [
                slope([times[k] for k in late], [errors[k] for k in late])
                for errors in residuals
            ]
            rows.append(
                {
                    "problem": problem,
                    "kind": "convex",
                    "method": method,
                    "round": times,
                    "residuals": residuals,
                    "last": [errors[-1] for errors in residuals],
                    "exponents": exponents,
                }
            )
    return {"rows": rows, "rounds": rounds, "seeds": seeds}


def render_rates(results: dict[str, Any], out: Path) -> str:
    """F − F* over rounds, medians and bands, with a line that falls as t^(−1/2)."""
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
        one.plot(times, level * times**-0.5, ":", color="gray", label="$t^{-1/2}$")
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
        f"{save(figure, out, 'rates')}\n\n"
        + "\n".join(lines)
        + f"\n\nMedians and extremes of {results['seeds']} seeds, {results['rounds']} "
        f"rounds. {measured(results)}"
    )


# ---------------------------------------------------------------------------- early gap

PENALTIES = (1e-1, 1e-3, 1e-5)
FIRST = 10
#: The convex panels: there a schedule does not know how many rounds a run will have.
PANELS = {"MCLR, MNIST, ℓ1": "l1-ball", "MCLR, MNIST, ℓ2": "l2-ball"}


def compute_early(options: Options) -> dict[str, Any]:
    """Frank-Wolfe gaps of the first ten rounds, by λ_0."""
    seeds = 2 if options.quick else min(SEEDS, options.seeds)
    base = read_config(HERE / "figure-4.toml") | {
        "classification.path": str(options.file("mnist")),
        "classification.train-limit": 500 if options.quick else 5000,
        "classification.test-limit": 500,
        "rounds": FIRST,
        "evaluate-gap": True,
    }
    panels = {}
    for panel, ball in PANELS.items():
        config = base | {"domain": ball}
        runs = [
            Run(
                (penalty, seed),
                config | {"penalty": penalty, "seed": seed},
                NODES,
                curve=True,
            )
            for penalty in PENALTIES
            for seed in range(seeds)
        ]
        results = execute(runs, options.jobs)
        panels[panel] = {
            f"{penalty:g}": [
                float(np.mean(results[penalty, seed]["curve"]["gap"][1:]))
                for seed in range(seeds)
            ]
            for penalty in PENALTIES
        }
    return {"panels": panels, "rounds": FIRST, "seeds": seeds}


def render_early(results: dict[str, Any], out: Path) -> str:
    """Write the table."""
    lines = [
        "| case | " + " | ".join(f"λ_0 = {value:g}" for value in PENALTIES) + " |",
        "| --- " * (1 + len(PENALTIES)) + "|",
    ]
    for panel, gaps in results["panels"].items():
        cells = [
            f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            for values in gaps.values()
        ]
        lines.append(f"| {panel} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Mean gap of rounds 1 to {results['rounds']}, mean and extremes of "
        f"{results['seeds']} seeds. {measured(results)}",
    ]
    return "\n".join(lines)


# --------------------------------------------------------------------------- appendix A


def compute_appendix_a(options: Options) -> dict[str, Any]:
    """(x − 3)²/2 and (x + 1)²/2 on [−1, 1] from 0: averaged steps and FedFW."""
    rounds = 50 if options.quick else 2000
    losses = [LeastSquares(np.eye(1), np.array([target])) for target in (3.0, -1.0)]
    box = Box(-np.ones(1), np.ones(1))
    found: dict[str, Any] = {"rounds": rounds, "seeds": 0}
    for name, strategy, client in (
        ("naive", NaiveFrankWolfe(box), NaiveFrankWolfeClient),
        ("FedFW", FedFW(box, variant="plain", penalty=1.0), FedFWClient),
    ):
        grid = LocalGrid(client_app(partial(_node, client, losses, box)), 2)
        result = strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds=rounds)
        (x,) = result.arrays.to_numpy_ndarrays()
        found[name] = abs(float(x[0]) - 1.0)
    return found


def _node(client: Any, losses: list[Any], box: Box, context: Any) -> Any:
    return client(context, losses[context.node_config["partition-id"]], box)


def render_appendix_a(results: dict[str, Any], out: Path) -> str:
    """Write how far both end from x* = 1."""
    return (
        f"After {results['rounds']} rounds averaged Frank-Wolfe steps are "
        f"{results['naive']:.3g} away from x* = 1, FedFW is {results['FedFW']:.2g} "
        f"away. "
        f"{measured(results)}"
    )


ITEMS = {
    "rates": Item(
        "theorem 1: F − F* over rounds, five seeds", compute_rates, render_rates
    ),
    "early-gap": Item(
        "figure 4's claim: the gap of the first rounds by λ_0",
        compute_early,
        render_early,
    ),
    "appendix-a": Item(
        "appendix A: averaged Frank-Wolfe steps do not arrive",
        compute_appendix_a,
        render_appendix_a,
    ),
}
