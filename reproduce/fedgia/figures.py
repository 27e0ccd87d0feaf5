"""Figures 2 and 3, and theorem IV.3."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import sim
from reproduce.common import Item, Options, app_config, read_config, repeat
from reproduce.drawing import new_figure, panel, save, table
from reproduce.rates import NONCONVEX_LOGISTIC, batched, late_slope

from .tables import NODES, base_of, settings_of

__all__ = ["ITEMS", "bounds", "factor"]

HERE = Path(__file__).parent
HESSIANS = {"FedGiA_G": "gram", "FedGiA_D": "diagonal"}
METRIC = "squared-gradient-norm"


# -------------------------------------------------------------------------- 2 and 3

#: What the figure is over and by; m, s and k_0; seeds.
SWEEPS: dict[str, tuple[str, str, list[tuple[int, float, int]], int]] = {
    "figure-2": (
        "k0",
        "m",
        [
            (m, 0.5, k0)
            for m in (64, 96, 128, 196, 256)
            for k0 in (1, 2, 3, 4, 5, 7, 10, 15, 20)
        ],
        10,
    ),
    "figure-3": (
        "s",
        "k0",
        [(64, round(0.1 * i, 1), k0) for i in range(1, 11) for k0 in (1, 5, 10)],
        20,
    ),
}


def compute_sweep(options: Options, name: str) -> dict[str, Any]:
    """Runs of both variants at points (m, s, k_0)."""
    base = base_of(options, "table-3-v1")
    _, _, points, most = SWEEPS[name]
    points, seeds = points[:: 15 if options.quick else 1], options.numbers(most)
    cases = {
        (method, m, s, k0): base
        | settings_of("table-3-v1", method, k0)
        | {"selected-fraction": s}
        for method in HESSIANS
        for m, s, k0 in points
    }
    counts = {case: case[1] for case in cases}
    rows = []
    how = {"stop": base["stop-tolerance"]}
    for case, own in repeat(options, cases, seeds, counts, **how).items():
        good = [run for run in own if "failed" not in run]
        row: dict[str, Any] = dict(zip(("method", "m", "s", "k0"), case, strict=True))
        for what in ("broadcasts", "seconds"):
            values = [run[what] for run in good]
            row[what] = [float(np.mean(values)), float(np.std(values))]
            row[f"{what}-seeds"] = values
        row["failed"] = len(seeds) - sum(run["passed"] for run in good)
        rows.append(row)
    return {"rows": rows, "seeds": len(seeds)}


def render_sweep(results: dict[str, Any], out: Path, name: str) -> str:
    """Rounds and seconds, a line for every value that the figure is by."""
    over, by, _, _ = SWEEPS[name]
    symbols = {"m": "m", "k0": "k_0", "s": "s"}
    across = {"k0": "local steps $k_0$", "s": "selected fraction $s$"}[over]
    figure, grid = new_figure(2, len(HESSIANS))
    for line, method in zip(grid, HESSIANS, strict=True):
        rows = [row for row in results["rows"] if row["method"] == method]
        for axes, metric, up in (
            (line[0], "broadcasts", "communication rounds (broadcasts)"),
            (line[1], "seconds", "seconds of the rounds, one process"),
        ):
            curves: dict[str, Any] = {}
            for group in sorted({row[by] for row in rows}):
                mine = sorted((r[over], r[metric][0]) for r in rows if r[by] == group)
                curves[f"${symbols[by]} = {group}$"] = tuple(zip(*mine, strict=True))
            panel(axes, curves, across, up, title=method, log="")
            axes.set_ylim(bottom=0)
    failed = sum(row["failed"] for row in results["rows"])
    note = f"{failed} runs did not pass (30)." if failed else "Every run passed (30)."
    return f"{save(figure, out, name)}\n\nMeans of {results['seeds']} seeds. {note}"


#: t of σ = t r/m. The theorem has t > 6; the paper's experiments have 0.15.
SCALE = 7.0


def factor(t: float) -> float:
    """ρ/r of theorem IV.3, 10 t³ / (t² − 5t − 6), for t > 6."""
    return 10.0 * t**3 / (t * t - 5.0 * t - 6.0)


def bounds(base: dict[str, Any], nodes: int, seeds: range) -> list[float]:
    """ρ (L⁰ − f*) by seed; L⁰ = f(0), as x_i⁰ = π_i⁰ = 0; f* ≥ 0 where unknown."""
    found = []
    for seed in seeds:
        setup = sim.app.experiment(app_config(base | {"seed": seed}), nodes)
        task = setup.task
        r = max(task.client_objective(i).lipschitz() for i in range(nodes))
        best = task.reference_optimum(setup.domain) or 0.0
        above = task.value(task.initial_point()[0]) - best
        found.append(factor(SCALE) * float(r) * float(above))
    return found


def compute_rate(options: Options) -> dict[str, Any]:
    """Both problems with t = 7, both variants, k_0 = 1 and 10, five seeds."""
    rounds, nodes, seeds = 100, NODES, options.numbers(5)
    if options.quick:
        rounds, nodes = 40, 8
    base = read_config(HERE / "v1.toml")
    base |= {"sigma-scale": SCALE, "rounds": rounds, "stop-tolerance": 0.0}
    bases = {"V.1": base, "not convex": base | NONCONVEX_LOGISTIC}
    cases = {
        (problem, name, k0): own | {"hessian": hessian, "local-steps": k0}
        for problem, own in bases.items()
        for name, hessian in HESSIANS.items()
        for k0 in (1, 10)
    }
    limits = {name: bounds(own, nodes, seeds) for name, own in bases.items()}
    rows = []
    how: dict[str, Any] = {"curve": True, "every": 0, "grid": batched}
    for case, found in repeat(options, cases, seeds, nodes, **how).items():
        curves = [run["curve"] for run in found]
        times = curves[0]["round"][1:]
        # after R rounds k = R k_0: min over j ≤ k of ‖∇f(x^τ_j)‖² ≤ ρ (L⁰ − f*)/R
        lowest = [np.minimum.accumulate(c[METRIC])[1:].tolist() for c in curves]
        rows.append(
            {
                **dict(zip(("problem", "method", "k0"), case, strict=True)),
                "round": times,
                "lowest": lowest,
                "headroom": [
                    min(b / t / g for t, g in zip(times, own, strict=True))
                    for b, own in zip(limits[case[0]], lowest, strict=True)
                ],
                "exponents": [late_slope(times, own) for own in lowest],
            }
        )
    return {"rows": rows, "bounds": limits, "rounds": rounds, "seeds": len(seeds)}


def render_rate(results: dict[str, Any], out: Path) -> str:
    """Smallest ‖∇f‖² over rounds, medians and bands, and the bound."""
    kinds = [(p, method) for p in results["bounds"] for method in HESSIANS]
    figure, grid = new_figure(len(HESSIANS), len(results["bounds"]))
    for one, (problem, method) in zip(grid.flat, kinds, strict=True):
        mine = [
            row
            for row in results["rows"]
            if (row["problem"], row["method"]) == (problem, method)
        ]
        times = np.asarray(mine[0]["round"], dtype=float)
        curves = {f"$k_0 = {row['k0']}$": (times, row["lowest"]) for row in mine}
        bound = float(np.median(results["bounds"][problem]))
        curves["the bound"] = (times, [bound / times])
        up = r"smallest $\|\nabla f(x)\|^2$ so far"
        title = f"{problem}, {method}"
        panel(one, curves, "communication round $k/k_0$", up, title=title)
    lines = [
        (
            *(row["problem"], row["method"], row["k0"]),
            f"{np.median([own[-1] for own in row['lowest']]):.2g}",
            f"×{min(row['headroom']):,.0f}",
            ", ".join(f"{value:.1f}" for value in row["exponents"]),
        )
        for row in results["rows"]
    ]
    head = "problem | algorithm | k_0 | smallest ‖∇f‖² at the end"
    head += " | bound over it, least by seed"
    return (
        f"{save(figure, out, 'rate')}\n\n"
        f"{table(f'{head} | exponent, by seed', lines)}\n\n"
        f"t = {SCALE:g}, {results['rounds']} rounds; medians and extremes of "
        f"{results['seeds']} seeds."
    )


ITEMS = {
    **{
        name: Item(
            what, partial(compute_sweep, name=name), partial(render_sweep, name=name)
        )
        for name, what in (
            ("figure-2", "rounds and seconds over k_0, by the number of clients m"),
            ("figure-3", "rounds and seconds over the selected fraction s"),
        )
    },
    "rate": Item(
        "theorem IV.3: the smallest gradient over rounds, five seeds",
        compute_rate,
        render_rate,
    ),
}
