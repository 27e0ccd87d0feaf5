"""Figures 1 to 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduce.common import Options, Run, SkippedError, execute, mean_of, read_config
from reproduce.drawing import measured, new_figure, save, style_of

from .tables import FEDAVG_STEP, METHODS, QSAR, qot_config, step_sizes

__all__ = [
    "compute_figure_1",
    "compute_figure_2",
    "compute_figure_3",
    "compute_figure_4",
    "render_figure_1",
    "render_figure_2",
    "render_figure_3",
    "render_figure_4",
]

HERE = Path(__file__).parent
HESSIANS = {"FedGiA_G": "gram", "FedGiA_D": "diagonal"}
TITLES = {"FedGiA_G": "FedGiA$_G$", "FedGiA_D": "FedGiA$_D$"}
METRIC = "squared-gradient-norm"


# ------------------------------------------------------------------------------ 1


def compute_figure_1(options: Options) -> dict[str, Any]:
    """One seed, k_0 = 1, 5, 10, 15, 20, m = 64, s = 0.5."""
    base = read_config(HERE / "v1.toml") | FEDAVG_STEP
    steps = (1, 10) if options.quick else (1, 5, 10, 15, 20)
    runs = [
        Run(
            (name, k0),
            base | {"hessian": hessian, "local-steps": k0},
            nodes=16 if options.quick else 64,
            stop=base["stop-tolerance"],
            curve=True,
        )
        for name, hessian in HESSIANS.items()
        for k0 in steps
    ]
    results = execute(runs, options.jobs)
    return {
        "curves": [
            {"method": name, "k0": k0, **value["curve"]}
            for (name, k0), value in results.items()
        ]
    }


def render_figure_1(results: dict[str, Any], out: Path) -> str:
    """Objective and error over iterations, k_0 of them a round."""
    figure, grid = new_figure(2, len(HESSIANS))
    steps = sorted({curve["k0"] for curve in results["curves"]})
    lowest = min(min(curve["loss"]) for curve in results["curves"])
    for (left, right), method in zip(grid, HESSIANS, strict=True):
        for curve in results["curves"]:
            if curve["method"] != method:
                continue
            k0 = curve["k0"]
            style = style_of(steps.index(k0)) | {"label": f"$k_0 = {k0}$"}
            iterations = [max(1, k0 * t) for t in curve["round"]]
            # the last iterate of the best run stands for the minimum
            above = [max(value - lowest, 1e-12) for value in curve["loss"]]
            left.plot(iterations, above, **style)
            right.plot(iterations, curve[METRIC], **style)
        left.set_ylabel("$f(x)$ above the lowest")
        right.set_ylabel(r"$\|\nabla f(x)\|^2$")
        for axes in (left, right):
            axes.set_title(TITLES[method])
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("iteration $k$ (the start is drawn at 1)")
        left.legend(fontsize="small")
    return f"{save(figure, out, 'figure-1')}\n\n{measured(results)}"


# -------------------------------------------------------------------------- 2 and 3


def _sweep(
    options: Options, points: list[tuple[int, float, int]], seeds: int
) -> dict[str, Any]:
    """Runs of both variants at points (m, s, k_0)."""
    base = read_config(HERE / "v1.toml") | FEDAVG_STEP
    runs = [
        Run(
            (name, m, s, k0, seed),
            base
            | {
                "hessian": hessian,
                "local-steps": k0,
                "selected-fraction": s,
                "seed": seed,
            },
            nodes=m,
            stop=base["stop-tolerance"],
        )
        for m, s, k0 in points
        for seed in range(seeds)
        for name, hessian in HESSIANS.items()
    ]
    results = execute(runs, options.jobs)
    rows = []
    for name in HESSIANS:
        for m, s, k0 in points:
            row: dict[str, Any] = {"method": name, "m": m, "s": s, "k0": k0}
            for metric in ("broadcasts", "seconds"):
                row[metric] = mean_of(results, metric, name, m, s, k0)
            row["failed"] = sum(
                "failed" in value or not value["passed"]
                for key, value in results.items()
                if key[:4] == (name, m, s, k0)
            )
            rows.append(row)
    return {"rows": rows, "seeds": seeds}


def _render_sweep(
    results: dict[str, Any], out: Path, name: str, over: str, by: str
) -> str:
    figure, grid = new_figure(2, len(HESSIANS))
    groups = sorted({row[by] for row in results["rows"]})
    symbols = {"m": "m", "k0": "k_0", "s": "s"}
    for (left, right), method in zip(grid, HESSIANS, strict=True):
        for k, group in enumerate(groups):
            rows = [
                row
                for row in results["rows"]
                if row["method"] == method and row[by] == group
            ]
            rows.sort(key=lambda row: float(row[over]))
            for axes, metric in ((left, "broadcasts"), (right, "seconds")):
                axes.plot(
                    [row[over] for row in rows],
                    [row[metric][0] for row in rows],
                    marker=".",
                    label=f"${symbols[by]} = {group}$",
                    **style_of(k),
                )
        left.set_ylabel("communication rounds (broadcasts)")
        right.set_ylabel("seconds of the rounds, one process")
        words = {"k0": "local steps $k_0$", "s": "selected fraction $s$"}
        for axes in (left, right):
            axes.set_title(TITLES[method])
            axes.set_xlabel(words[over])
            axes.set_ylim(bottom=0)
        left.legend(fontsize="small")
    failed = sum(row["failed"] for row in results["rows"])
    note = f" {failed} runs did not pass (30)." if failed else " Every run passed (30)."
    return (
        f"{save(figure, out, name)}\n\nMeans of {results['seeds']} seeds.{note} "
        f"{measured(results)}"
    )


def compute_figure_2(options: Options) -> dict[str, Any]:
    """M = 64 to 256, k_0 = 1 to 20, s = 0.5; at most 10 seeds."""
    clients, steps = [64, 96, 128, 196, 256], [1, 2, 3, 4, 5, 7, 10, 15, 20]
    if options.quick:
        clients, steps = [16], [1, 10]
    points = [(m, 0.5, k0) for m in clients for k0 in steps]
    return _sweep(options, points, min(options.seeds, 10))


def render_figure_2(results: dict[str, Any], out: Path) -> str:
    """Over k_0, a line for every m."""
    return _render_sweep(results, out, "figure-2", "k0", "m")


def compute_figure_3(options: Options) -> dict[str, Any]:
    """S from 0.1 to 1, k_0 = 1, 5, 10, m = 64."""
    fractions, steps, m = [round(0.1 * i, 1) for i in range(1, 11)], [1, 5, 10], 64
    if options.quick:
        fractions, steps, m = [0.25, 1.0], [1, 5], 16
    points = [(m, s, k0) for s in fractions for k0 in steps]
    return _sweep(options, points, options.seeds)


def render_figure_3(results: dict[str, Any], out: Path) -> str:
    """Over s, a line for every k_0."""
    return _render_sweep(results, out, "figure-3", "s", "k0")


# ------------------------------------------------------------------------------ 4


def compute_figure_4(options: Options) -> dict[str, Any]:
    """Four algorithms, k_0 = 1, 10; V.1, and V.2 if the data is there; one seed."""
    problems = {"V.1": read_config(HERE / "v1.toml") | FEDAVG_STEP}
    try:
        problems["V.2, qot"] = qot_config(options)
    except SkippedError:
        print(f"  without V.2: {QSAR} is not there")
    rounds = 30 if options.quick else 300
    runs = []
    for problem, base in problems.items():
        for name, settings in METHODS.items():
            for k0 in (1, 10):
                config = base | settings | {"local-steps": k0, "rounds": rounds}
                if problem != "V.1":
                    config |= step_sizes(name, 8992, 64)
                elif name == "LocalSGD":
                    config["local-step-size"] = 0.005
                # as far as the picture goes, whoever has arrived before
                runs.append(Run((problem, name, k0), config, 64, curve=True))
    curves = []
    for (problem, name, k0), value in execute(runs, options.jobs).items():
        if "failed" not in value:
            curve = {key: value["curve"][key] for key in ("round", "loss")}
            curves.append({"problem": problem, "method": name, "k0": k0, **curve})
    return {"curves": curves}


def render_figure_4(results: dict[str, Any], out: Path) -> str:
    """Objective over communication rounds, above the lowest of all."""
    problems = list(dict.fromkeys(curve["problem"] for curve in results["curves"]))
    steps = sorted({curve["k0"] for curve in results["curves"]})
    figure, grid = new_figure(len(problems), len(steps))
    names = list(METHODS)
    for column, problem in enumerate(problems):
        curves = [c for c in results["curves"] if c["problem"] == problem]
        lowest = min(min(curve["loss"]) for curve in curves)
        start = curves[0]["loss"][0] - lowest
        for row, k0 in enumerate(steps):
            one = grid[row][column]
            for curve in curves:
                if curve["k0"] == k0:
                    one.plot(
                        [max(t, 0.7) for t in curve["round"]],
                        [max(value - lowest, 1e-9 * start) for value in curve["loss"]],
                        label=curve["method"],
                        **style_of(names.index(curve["method"])),
                    )
            one.set_title(f"{problem}, $k_0 = {k0}$")
            one.set_xscale("log")
            one.set_yscale("log")
            one.set_ylim(1e-8 * start, 3.0 * start)
            one.set_xlabel("communication round (the start is drawn at 0.7)")
            one.set_ylabel("$f(x)$ above the lowest")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center")
    return f"{save(figure, out, 'figure-4')}\n\n{measured(results)}"
