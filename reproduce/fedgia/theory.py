"""Theorem IV.3: the smallest ‖∇f‖² so far, below its bound, with t above 6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import sim
from reproduce.common import Options, Run, app_config, execute, read_config
from reproduce.drawing import band, measured, new_figure, save, style_of
from reproduce.rates import batched, late_slope

from .figures import HESSIANS, METRIC, TITLES

__all__ = ["compute_rate", "factor", "render_rate"]

HERE = Path(__file__).parent
#: Of σ = t r/m. The theorem has t > 6; the paper's experiments have 0.15.
SCALE = 7.0
STEPS = (1, 10)
SEEDS = 5


def factor(t: float) -> float:
    """ρ/r of theorem IV.3, 10 t³ / (t² − 5t − 6), for t > 6."""
    return 10.0 * t**3 / (t * t - 5.0 * t - 6.0)


def _bounds(base: dict[str, Any], nodes: int, seeds: range) -> list[float]:
    """ρ (L⁰ − f*) by seed; L⁰ = f(0), as x_i⁰ = π_i⁰ = 0."""
    found = []
    for seed in seeds:
        setup = sim.app.experiment(app_config(base | {"seed": seed}), nodes)
        task = setup.task
        r = max(task.client_objective(i).lipschitz() for i in range(nodes))
        best = task.reference_optimum(setup.domain)
        assert best is not None
        above = task.value(task.initial_point()[0]) - best
        found.append(factor(SCALE) * float(r) * float(above))
    return found


def compute_rate(options: Options) -> dict[str, Any]:
    """Example V.1 with t = 7, both variants, k_0 = 1 and 10, five seeds."""
    rounds, nodes, seeds = 100, 64, options.numbers(SEEDS)
    if options.quick:
        rounds, nodes = 40, 8
    base = read_config(HERE / "v1.toml") | {
        "sigma-scale": SCALE,
        "rounds": rounds,
        "stop-tolerance": 0.0,
    }
    runs = [
        Run(
            (name, k0, seed),
            base | {"hessian": hessian, "local-steps": k0, "seed": seed},
            nodes,
            curve=True,
            every=0,
            grid=batched,
        )
        for name, hessian in HESSIANS.items()
        for k0 in STEPS
        for seed in seeds
    ]
    results = execute(runs, options.jobs)
    bounds = _bounds(base, nodes, seeds)
    rows = []
    for name in HESSIANS:
        for k0 in STEPS:
            curves = [results[name, k0, seed]["curve"] for seed in seeds]
            times = curves[0]["round"][1:]
            # after R rounds k = R k_0: min over j ≤ k of ‖∇f(x^τ_j)‖² ≤ ρ (L⁰ − f*)/R
            lowest = [
                np.minimum.accumulate(curve[METRIC])[1:].tolist() for curve in curves
            ]
            rows.append(
                {
                    "method": name,
                    "k0": k0,
                    "round": times,
                    "lowest": lowest,
                    "headroom": [
                        min(b / t / g for t, g in zip(times, own, strict=True))
                        for b, own in zip(bounds, lowest, strict=True)
                    ],
                    "exponents": [late_slope(times, own) for own in lowest],
                }
            )
    return {"rows": rows, "bounds": bounds, "rounds": rounds, "seeds": len(seeds)}


def render_rate(results: dict[str, Any], out: Path) -> str:
    """Smallest ‖∇f‖² over rounds, medians and bands, and the bound."""
    figure, (axes,) = new_figure(len(HESSIANS))
    lines = [
        "| algorithm | k_0 | smallest ‖∇f‖² at the end | bound over it, least by seed "
        "| exponent, by seed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one, method in zip(axes, HESSIANS, strict=True):
        mine = [row for row in results["rows"] if row["method"] == method]
        for k, row in enumerate(mine):
            label = f"$k_0 = {row['k0']}$"
            band(one, row["round"], row["lowest"], label, **style_of(k))
            last = float(np.median([own[-1] for own in row["lowest"]]))
            powers = ", ".join(f"{value:.1f}" for value in row["exponents"])
            lines.append(
                f"| {method} | {row['k0']} | {last:.2g} | ×{min(row['headroom']):,.0f} "
                f"| {powers} |"
            )
        times = np.asarray(mine[0]["round"], dtype=float)
        bound = float(np.median(results["bounds"])) / times
        one.plot(times, bound, ":", color="gray", label="the bound")
        one.set_xscale("log")
        one.set_yscale("log")
        one.set_xlabel("communication round $k/k_0$")
        one.set_ylabel(r"smallest $\|\nabla f(x)\|^2$ so far")
        one.set_title(TITLES[method])
        one.legend(fontsize="small")
    return (
        f"{save(figure, out, 'rate')}\n\n"
        + "\n".join(lines)
        + f"\n\nt = {SCALE:g}, {results['rounds']} rounds; medians and extremes of "
        f"{results['seeds']} seeds. {measured(results)}"
    )
