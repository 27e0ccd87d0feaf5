"""Theorems 1 to 3, and the workshop paper's LASSO and digits: how fast F falls."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.domains import BirkhoffPolytope
from reproduce.claims import counted
from reproduce.common import Item, Options, Run, execute, read_config, repeat
from reproduce.drawing import new_figure, panel, save, table
from reproduce.rates import NONCONVEX_LOGISTIC, batched, late_slope, optimum

__all__ = ["ITEMS"]

HERE = Path(__file__).parent
NODES = 10
SEEDS = 5
ORDER = 12  # of chr12a

Methods = dict[str, dict[str, Any]]

#: Theorem 1: both 2022 problems with both variants, λ_0 as the paper has it.
CONVEX: dict[str, Methods] = {
    "lasso": {
        "FedFW": {"variant": "plain", "penalty": 5.0},
        "FedFW+": {"variant": "augmented", "penalty": 0.5},
    },
    "digits": {
        "FedFW": {"variant": "plain", "penalty": 4e-4},
        "FedFW+": {"variant": "augmented", "penalty": 4e-4},
    },
}
#: Theorem 3: the same with mini-batches, a fifth of a client's rows or fewer.
_STO = {"variant": "stochastic", "schedule": "stochastic"}
STOCHASTIC: dict[str, Methods] = {
    "lasso": {"FedFW-sto": {**_STO, "penalty": 5.0, "batch-size": 4}},
    "digits": {"FedFW-sto": {**_STO, "penalty": 4e-4, "batch-size": 16}},
}
NAMES = {"lasso": "LASSO", "digits": "digits"}
#: Equation (17): the first again with some of the clients in a round.
SOME: dict[str, Methods] = {
    "lasso": {
        f"FedFW, p = {p:g}": {**CONVEX["lasso"]["FedFW"], "participation": p}
        for p in (0.2, 0.5)
    },
}


def compute_residuals(
    options: Options, problems: dict[str, Methods], rounds: int, most: int = SEEDS
) -> dict[str, Any]:
    """F − F* over rounds, each seed with its own certified F*."""
    seeds = options.numbers(most)
    rounds = 60 if options.quick else rounds
    rows = []
    for problem, methods in problems.items():
        base = read_config(HERE / f"{problem}.toml") | {"rounds": rounds}
        exact = (1e-3, 300) if options.quick else (1e-9, 50_000)
        optima = [optimum(base | {"seed": seed}, NODES, *exact)[0] for seed in seeds]
        cases = {method: base | settings for method, settings in methods.items()}
        how: dict[str, Any] = {"curve": True, "every": 0, "grid": batched}
        for method, found in repeat(options, cases, seeds, NODES, **how).items():
            curves = [run["curve"] for run in found]
            times = curves[0]["round"]
            residuals = [
                [value - best for value in curve["loss"]]
                for curve, best in zip(curves, optima, strict=True)
            ]
            rows.append(
                {
                    "problem": NAMES[problem],
                    "method": method,
                    "round": times,
                    "residuals": residuals,
                    "last": [errors[-1] for errors in residuals],
                    "exponents": [late_slope(times, errors) for errors in residuals],
                }
            )
    return {"rows": rows, "rounds": rounds, "seeds": len(seeds)}


def powers(row: dict[str, Any]) -> str:
    """The exponents by seed."""
    return ", ".join(f"{value:.2f}" for value in row["exponents"])


def render_residuals(
    results: dict[str, Any], out: Path, name: str, power: float, label: str
) -> str:
    """F − F* over rounds, medians and bands, with a line that falls as claimed."""
    rows = results["rows"]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, (axes,) = new_figure(len(problems))
    for one, problem in zip(axes, problems, strict=True):
        curves = {
            row["method"]: (row["round"], row["residuals"])
            for row in rows
            if row["problem"] == problem
        }
        up = r"$F(\bar x) - F^*$"
        how: dict[str, Any] = {"title": problem, "reference": (power, label)}
        panel(one, curves, "communication round $t$", up, **how)
    lines = [
        (row["problem"], row["method"], f"{np.median(row['last']):.3g}", powers(row))
        for row in rows
    ]
    return (
        f"{save(figure, out, name)}\n\n"
        + table("problem | method | F − F* at the end | exponent, by seed", lines)
        + f"\n\n{counted(results['seeds'], 'seeds')} (medians, extremes shaded), "
        f"{results['rounds']:,} rounds; the exponent is that of the last decade."
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
    "evaluate-gap": True,
}
_LOGISTIC = NONCONVEX_LOGISTIC | {"radius": 10.0}
_DNN = {"layers": "product", "classification.train-limit": 2000}
#: A run config, if a file has one, and what differs; nodes, and the longest T.
NONCONVEX: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "logistic, ℓ1": ("", _LOGISTIC | {"domain": "l1-ball"}, NODES, 3000),
    "logistic, ℓ2": ("", _LOGISTIC | {"domain": "l2-ball"}, NODES, 3000),
    "DNN, ℓ1 a layer": ("figure-3", _DNN | {"domain": "l1-ball"}, NODES, 3000),
    "DNN, ℓ2 a layer": ("figure-3", _DNN | {"domain": "l2-ball"}, NODES, 3000),
    "chr12a": ("chr12a", {}, ORDER, 10_000),
}

#: Equation (18): those of them that take a minute.
HALF = ("logistic, ℓ1", "logistic, ℓ2")


def compute_nonconvex(
    options: Options, problems: Iterable[str], participation: float
) -> dict[str, Any]:
    """The smallest Frank-Wolfe gap of runs of T rounds, by T; five seeds."""
    every = (2, 4, 8) if options.quick else LENGTHS
    seeds = options.numbers(SEEDS)
    runs, lengths = [], {}
    for problem in problems:
        config, settings, nodes, longest = NONCONVEX[problem]
        base = read_config(HERE / f"{config}.toml") if config else {}
        base |= settings | THEOREM | {"participation": participation}
        lengths[problem] = [T for T in every if longest >= T]
        runs += [
            Run(
                (problem, seed, T),
                base | {"seed": seed, "rounds": T},
                nodes,
                curve=True,
                every=max(1, T // LOOKS),
                grid=batched,
                start=BirkhoffPolytope().random_point(
                    (ORDER, ORDER), np.random.default_rng(seed)
                )
                if config == "chr12a"
                else None,
            )
            for seed in seeds
            for T in lengths[problem]
        ]
    results = execute(runs, options.jobs)
    rows = []
    for problem, mine in lengths.items():
        gaps = [
            [min(results[problem, seed, T]["curve"]["gap"]) for T in mine]
            for seed in seeds
        ]
        exponents = [late_slope(mine, own) for own in gaps]
        row = {"problem": problem, "method": "FedFW", "rounds": mine}
        rows.append(row | {"gaps": gaps, "exponents": exponents})
    return {"rows": rows, "seeds": len(seeds), "looks": LOOKS}


def render_nonconvex(results: dict[str, Any], out: Path, name: str) -> str:
    """Smallest gaps over T, medians and bands, with a line that falls as T^(−1/3)."""
    rows = results["rows"]
    figure, (axes,) = new_figure(len(rows))
    every = max((row["rounds"] for row in rows), key=len)
    lines = []
    for one, row in zip(axes, rows, strict=True):
        curves = {"FedFW": (row["rounds"], row["gaps"])}
        how: dict[str, Any] = {"reference": (-1.0 / 3.0, "$T^{-1/3}$")}
        how["title"] = row["problem"]
        panel(one, curves, "rounds of the run $T$", "smallest Frank-Wolfe gap", **how)
        cells = [f"{value:.4g}" for value in np.median(row["gaps"], axis=0)]
        cells += ["–"] * (len(every) - len(cells))
        lines.append((row["problem"], *cells, powers(row)))
    lengths = " | ".join(f"T = {T:,}" for T in every)
    return (
        f"{save(figure, out, name)}\n\n"
        + table(f"problem | {lengths} | exponent, by seed", lines)
        + f"\n\nSmallest gap of the start and {results['looks']} rounds, evenly "
        f"spaced: medians and extremes of {results['seeds']} seeds."
    )


ITEMS = {
    **{
        name: Item(
            f"{what}: F − F* over rounds, five seeds",
            partial(compute_residuals, problems=problems, rounds=2000),
            partial(render_residuals, name=name, power=-0.5, label="$t^{-1/2}$"),
        )
        for name, what, problems in (
            ("rates", "theorem 1", CONVEX),
            ("rates-participation", "equation (17)", SOME),
        )
    },
    **{
        name: Item(
            f"{what}: the smallest gap of runs of T rounds, five seeds",
            partial(compute_nonconvex, problems=problems, participation=p),
            partial(render_nonconvex, name=name),
        )
        for name, what, problems, p in (
            ("rates-nonconvex", "theorem 2", NONCONVEX, 1.0),
            ("rates-nonconvex-half", "equation (18), p = 0.5", HALF, 0.5),
        )
    },
    "rates-stochastic": Item(
        "theorem 3: F − F* over rounds with mini-batches, five seeds",
        partial(compute_residuals, problems=STOCHASTIC, rounds=300),
        partial(
            render_residuals, name="rates-stochastic", power=-1 / 3, label="$t^{-1/3}$"
        ),
    ),
    **{
        f"workshop-{name}": Item(
            f"2022, figure 1: {NAMES[name]}, 10⁵ rounds",
            partial(compute_residuals, problems={name: methods}, rounds=10**5, most=1),
            partial(
                render_residuals,
                name=f"workshop-{name}",
                power=-0.5,
                label="$t^{-1/2}$",
            ),
        )
        for name, methods in CONVEX.items()
    },
}
