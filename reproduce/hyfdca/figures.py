"""Figure 3: four methods; figures 6 to 8: client counts and availability."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Item, Options, Run, execute
from reproduce.drawing import legend_below, new_figure, panel, save, table

from .problems import (
    AVAILABLE,
    PROBLEMS,
    Problem,
    Split,
    config_of,
    inner_steps,
    present,
    published,
)
from .runs import last_accuracy, last_loss, optimum_of, perform_hybrid

__all__ = ["BUNDLE", "FEDAVG", "HYFEM", "ITEMS", "PRACTICAL", "figure_run", "practical"]

#: Iterations by the fraction of clients that are there: fewer come, more pass.
ITERATIONS = {0.1: 600, 0.5: 250, 0.9: 150}
#: Of figures 6 to 8, which have three times as many runs.
FEWER = {0.1: 400, 0.5: 150, 0.9: 100}
QUICK_ITERATIONS = 12
FLOOR = 1e-6
BUNDLE, PRACTICAL = "HyFDCA, bundle", "HyFDCA, practical step"
FEDAVG, HYFEM = "HybridFedAvg", "HyFEM"
METHODS = (BUNDLE, PRACTICAL, FEDAVG, HYFEM)

Settings = dict[str, Any]


def figure_run(
    options: Options,
    name: str,
    split: Split,
    fraction: float,
    settings: Settings,
    key: tuple[Any, ...],
    iterations: dict[float, int] = ITERATIONS,
) -> Run:
    """One line of a panel; of a quick run a few iterations."""
    rounds = QUICK_ITERATIONS if options.quick else iterations[fraction]
    config = config_of(PROBLEMS[name], options, split) | settings
    config |= {"participation": fraction, "rounds": rounds}
    return Run(key, config, split.nodes, every=max(1, rounds // 50))


def _splits(problem: Problem, options: Options) -> tuple[Split, ...]:
    return problem.splits[:2] if options.quick else problem.splits


def _optima(options: Options) -> dict[str, dict[str, float]]:
    """P* of every problem that is there."""
    found = {}
    for name, problem in present(options).items():
        middle = problem.splits[1]
        found[name] = optimum_of(config_of(problem, options, middle), middle.nodes)
    return found


# --------------------------------------------------------------------- hyper-parameters


def practical(samples: int, held: int) -> Settings:
    """The paper's step with H samples of the ``held`` that a client has."""
    share = min(1.0, samples / held)
    return {"step": "practical", "local-fraction": share, "tolerance": 0.0}


def practical_at(
    chosen: Settings, samples: int, problem: Problem, split: Split
) -> Settings:
    """The paper's step with the H that was chosen at the middle setting."""
    held, middle = (ceil(samples / s.samples) for s in (split, problem.splits[1]))
    return practical(min(held, round(chosen["local-fraction"] * middle)), held)


def _sgd(method: str, steps: int, a: float, b: float, mu: float = 1.0) -> Settings:
    return {
        "method": method,
        "local-steps": steps,
        "local-step-size": a,
        "step-offset": b,
        "matching": mu,
    }


def candidates(name: str, samples: int, split: Split) -> dict[str, list[Settings]]:
    """What is tried for each method; the paper's values for the setting come first."""
    held, own = ceil(samples / split.samples), published(name, split.paper, 0.5)
    found: dict[str, list[Settings]] = {PRACTICAL: [], FEDAVG: [], HYFEM: []}
    if own:

        def steps(which: str) -> int:
            return inner_steps(own[which], samples, split.nodes)

        found[PRACTICAL].append(practical(steps("IIC"), held))
        for method, short, task in (
            (FEDAVG, "FedAvg", "hybrid-fedavg"),
            (HYFEM, "HyFEM", "hyfem"),
        ):
            numbers = [
                own[f"{short} {k}"] for k in ("a", "b", "μ") if f"{short} {k}" in own
            ]
            found[method].append(_sgd(task, steps(f"{short} IIC"), *numbers))
    found[PRACTICAL] += [practical(H, held) for H in (1, 2, 5, 12)]
    found[FEDAVG] += [
        _sgd("hybrid-fedavg", steps, a, 1.0)
        for steps in (10, 100)
        for a in (0.03, 0.3, 3.0)
    ]
    found[HYFEM] += [
        _sgd("hyfem", steps, a, 1.0, mu)
        for steps in (10, 100)
        for a in (0.03, 0.3)
        for mu in (0.1, 1.0, 10.0)
    ]
    return found


def tune(
    options: Options, names: Iterable[str], samples: dict[str, int]
) -> dict[str, dict[str, dict[str, Any]]]:
    """The best of the candidates, at the middle setting with half of the clients."""
    runs, tried = [], {}
    for name in names:
        split = PROBLEMS[name].splits[1]
        for method, several in candidates(name, samples[name], split).items():
            for number, settings in enumerate(several[: 2 if options.quick else None]):
                key = (name, method, number)
                tried[key] = settings
                run = figure_run(options, name, split, 0.5, settings, key)
                run.config["rounds"] = max(6, run.config["rounds"] * 2 // 5)
                runs.append(run)
    results = execute(runs, options.jobs, perform=perform_hybrid)
    losses = {key: last_loss(result) for key, result in results.items()}
    chosen: dict[str, dict[str, dict[str, Any]]] = {}
    for name, method in dict.fromkeys(key[:2] for key in losses):
        mine = [key for key in losses if key[:2] == (name, method)]
        best = min(mine, key=losses.__getitem__)
        paper = best[2] == 0 and bool(
            published(name, PROBLEMS[name].splits[1].paper, 0.5)
        )
        one = {"loss": losses[best], "tried": len(mine), "settings": tried[best]}
        chosen.setdefault(name, {})[method] = one | {"paper": paper}
    return chosen


# ----------------------------------------------------------------------------- figure 3


def compute_figure_3(options: Options) -> dict[str, Any]:
    """Few clients, most there; a middle; many clients, few of them there."""
    optima = _optima(options)
    samples = {name: int(best["samples"]) for name, best in optima.items()}
    tuned = tune(options, optima, samples)
    runs: list[Run] = []
    panels: list[dict[str, Any]] = []
    for name in optima:
        chosen = {k: v["settings"] for k, v in tuned[name].items()}
        splits = _splits(PROBLEMS[name], options)
        for split, fraction in zip(splits, reversed(AVAILABLE), strict=False):
            settings = {BUNDLE: {}, **chosen}
            settings[PRACTICAL] = practical_at(
                chosen[PRACTICAL], samples[name], PROBLEMS[name], split
            )
            runs += [
                figure_run(options, name, split, fraction, own, (len(panels), method))
                for method, own in settings.items()
            ]
            panel_: Settings = {
                "problem": name,
                "split": split.label,
                "paper": split.paper,
            }
            panels.append(panel_ | {"available": fraction})
    runs.sort(key=lambda run: -run.nodes)
    results = execute(runs, options.jobs, perform=perform_hybrid)
    for k, one in enumerate(panels):
        one["curves"] = {method: results[k, method] for method in METHODS}
    return {"optima": optima, "tuned": tuned, "panels": panels}


def relative(curve: dict[str, Any], best: float) -> Any:
    """(P − P*)/P*, held above what P* is certified to."""
    return np.maximum(np.asarray(curve["loss"]) / best - 1.0, FLOOR)


def title_of(row: dict[str, Any]) -> str:
    """Data, clients and how many of them are there."""
    there = f"{100 * row['available']:.0f} % there"
    return f"{PROBLEMS[row['problem']].title}, {row['split']}, {there}"


def share(value: float) -> str:
    """A relative loss in percent."""
    if not np.isfinite(value):
        return "diverged"
    if value < FLOOR:
        return "< 0.0001 %"
    return f"{100 * value:.2g} %" if value < 1.0 else f"{100 * value:,.0f} %"


def _picture(
    out: Path, name: str, best: dict[str, float], columns: dict[str, dict[str, Any]]
) -> str:
    """Relative loss and accuracy over iterations, a column for each title."""
    figure, (above, below) = new_figure(len(columns), 2)
    every = [c for curves in columns.values() for c in curves.values() if c["loss"]]
    losses = np.concatenate([relative(curve, best["value"]) for curve in every])
    for upper, lower, (title, curves) in zip(
        above, below, columns.items(), strict=True
    ):
        loss = {k: (c["round"], relative(c, best["value"])) for k, c in curves.items()}
        tops = {k: (c["round"], c["accuracy"]) for k, c in curves.items()}
        how: dict[str, Any] = {"legend": None}
        panel(upper, loss, "", "$(P - P^*)/P^*$", title=title, log="y", **how)
        # what diverges leaves the axis
        upper.set_ylim(0.5 * losses.min(), min(2.0 * losses.max(), 200.0))
        panel(lower, tops, "iteration", "test accuracy", log="", **how)
        lower.axhline(best["accuracy"], color="gray", linestyle=":")
        lower.axhline(0.5, color="gray")
    legend_below(figure, above[0])
    return save(figure, out, name)


def render_figure_3(results: dict[str, Any], out: Path) -> str:
    """A picture for each data set, and one table of where the lines end."""
    pictures, lines, panels = [], [], results["panels"]
    for name, best in results["optima"].items():
        mine = {
            title_of(p): {method: p["curves"][method] for method in METHODS}
            for p in panels
            if p["problem"] == name
        }
        pictures.append(_picture(out, f"figure-3-{name}", best, mine))
    for one in panels:
        best = results["optima"][one["problem"]]
        curves = [one["curves"][method] for method in METHODS]
        paper = f"{one['paper']}, {one['available']}"
        lines.append(
            (
                title_of(one),
                paper if PROBLEMS[one["problem"]].paper_optimum else "none",
                *(share(max(last_loss(c) / best["value"] - 1.0, 0.0)) for c in curves),
                *(f"{100 * last_accuracy(c):.1f} %" for c in curves),
                f"{100 * best['accuracy']:.1f} %",
            )
        )
    ours = "practical step | HybridFedAvg | HyFEM"
    head = f"data, clients | paper's setting | HyFDCA, bundle | {ours}"
    settings = []
    for name, methods in results["tuned"].items():
        cells = []
        for method in (PRACTICAL, FEDAVG, HYFEM):
            one = methods[method]
            names: tuple[str, ...] = (
                "local-steps",
                "local-step-size",
                "step-offset",
                "matching",
            )
            names = ("local-fraction",) if method == PRACTICAL else names
            names = names[:3] if method == FEDAVG else names
            text = ", ".join(f"{one['settings'][k]:.3g}" for k in names)
            paper = ", the paper's" if one["paper"] else ""
            cells.append(f"{text} (of {one['tried']}{paper})")
        settings.append((PROBLEMS[name].title, *cells))
    chosen = "practical step: H/N_k | HybridFedAvg: H, a, b | HyFEM: H, a, b, μ"
    return "\n\n".join(
        [
            *pictures,
            table(f"{head} | accuracy: bundle | {ours} | P*'s", lines),
            "Relative loss and test accuracy: means of the last five evaluated "
            "iterations. Dotted is the optimum's accuracy.",
            table(f"data | {chosen}", settings),
        ]
    )


# ----------------------------------------------------------------------- figures 6 to 8


def compute_figures_6_8(options: Options) -> dict[str, Any]:
    """HyFDCA's default for three numbers of clients, 10, 50 and 90 % there."""
    optima = _optima(options)
    runs = [
        figure_run(options, name, split, f, {}, (name, split.label, f), FEWER)
        for name in optima
        for split in _splits(PROBLEMS[name], options)
        for f in AVAILABLE
    ]
    order = [run.key for run in runs]
    runs.sort(key=lambda run: -run.nodes)
    results = execute(runs, options.jobs, perform=perform_hybrid)
    names = ("problem", "split", "available")
    rows = [dict(zip(names, key, strict=True)) | results[key] for key in order]
    return {"optima": optima, "rows": rows}


def render_figures_6_8(results: dict[str, Any], out: Path) -> str:
    """Relative loss and accuracy for each data set, and where the lines end."""
    numbers = {"mnist": "figure-6", "news20": "figure-7", "covtype": "figure-8"}
    pictures, lines = [], []
    for name, best in results["optima"].items():
        columns: dict[str, dict[str, Any]] = {}
        for row in (row for row in results["rows"] if row["problem"] == name):
            title = f"{PROBLEMS[name].title}, {row['split']} clients"
            there = f"{100 * row['available']:.0f} % there"
            columns.setdefault(title, {})[there] = row
            loss = relative(row, best["value"])
            third = loss[np.searchsorted(row["round"], row["round"][-1] / 3.0)]
            end = max(last_loss(row) / best["value"] - 1.0, 0.0)
            top = f"{100 * last_accuracy(row):.1f} % ({100 * best['accuracy']:.1f})"
            ends = (share(float(third)), share(end), top, row["trips"][-1])
            seconds = f"{row['seconds'][-1]:.1f}"
            lines.append((title_of(row), row["round"][-1], *ends, seconds))
        file = numbers.get(name, f"figure-6-{name}")
        pictures.append(_picture(out, file, best, columns))
    head = "data, clients | iterations | relative loss after a third | after all"
    return "\n\n".join(
        [
            *pictures,
            table(f"{head} | accuracy (P*'s) | round trips | seconds", lines),
            "Losses after all iterations and accuracies are means of the last five "
            "evaluations. Seconds: of all clients one after the other, without "
            "encryption. A run ends early where its duality gap certifies 1e-7.",
        ]
    )


ITEMS = {
    "figure-3": Item(
        "HyFDCA, HybridFedAvg and HyFEM over iterations",
        compute_figure_3,
        render_figure_3,
    ),
    "figures-6-8": Item(
        "HyFDCA by the number of clients and the fraction that is there",
        compute_figures_6_8,
        render_figures_6_8,
    ),
}
