"""Figure 3: four methods; figures 6 to 8: client counts and availability."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Options, Run, execute
from reproduce.drawing import PALETTE, measured, new_figure, save, style_of

from .problems import (
    AVAILABLE,
    PROBLEMS,
    Problem,
    Split,
    config_of,
    inner_steps,
    present,
)
from .runs import optimum_of, perform_hybrid

__all__ = [
    "compute_figure_3",
    "compute_figures_6_8",
    "figure_run",
    "last_accuracy",
    "last_loss",
    "render_figure_3",
    "render_figures_6_8",
]

#: Iterations by the fraction of clients that are there: fewer come, more pass.
ITERATIONS = {0.1: 600, 0.5: 250, 0.9: 150}
#: Of figures 6 to 8, which have three times as many runs.
FEWER = {0.1: 400, 0.5: 150, 0.9: 100}
QUICK_ITERATIONS = 12
FLOOR = 1e-6
#: Evaluations at a run's end that a loss and an accuracy are the mean of.
LAST = 5
BUNDLE, PRACTICAL = "HyFDCA, bundle", "HyFDCA, practical step"
PARTS = "HyFDCA, bundle, 5 parts"
FEDAVG, HYFEM = "HybridFedAvg", "HyFEM"
STYLES = dict(zip((BUNDLE, PARTS, PRACTICAL, FEDAVG, HYFEM), PALETTE, strict=False))

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


# --------------------------------------------------------------------- hyper-parameters


def practical(samples: int, held: int) -> Settings:
    """The paper's step with H samples of the ``held`` that a client has."""
    return {
        "step": "practical",
        "local-fraction": min(1.0, samples / held),
        "tolerance": 0.0,
    }


def _sgd(method: str, steps: int, a: float, b: float, mu: float = 1.0) -> Settings:
    return {
        "method": method,
        "local-steps": steps,
        "local-step-size": a,
        "step-offset": b,
        "matching": mu,
    }


def candidates(
    problem: Problem, samples: int, split: Split, quick: bool
) -> dict[str, list[Settings]]:
    """What is tried for each method; the paper's values for the setting come first."""
    held = ceil(samples / split.samples)
    paper = (problem.tuned or {}).get((split.paper, 0.5))
    found: dict[str, list[Settings]] = {PRACTICAL: [], FEDAVG: [], HYFEM: []}
    if paper:
        n = split.nodes
        found[PRACTICAL].append(practical(inner_steps(paper[0], samples, n), held))
        steps = inner_steps(paper[1], samples, n)
        found[FEDAVG].append(_sgd("hybrid-fedavg", steps, *paper[2:4]))
        steps = inner_steps(paper[4], samples, n)
        found[HYFEM].append(_sgd("hyfem", steps, *paper[5:8]))
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
    return {k: v[:2] for k, v in found.items()} if quick else found


def last_loss(result: dict[str, Any]) -> float:
    """Mean of the last five losses that were evaluated; infinite for a failed run."""
    losses = result["loss"][-LAST:]
    if result["failed"] or not losses:
        return float("inf")
    mean = float(np.mean(losses))
    return mean if np.isfinite(mean) else float("inf")


def last_accuracy(result: dict[str, Any]) -> float:
    """Mean of the last five accuracies that were evaluated."""
    return float(np.mean(result["accuracy"][-LAST:]))


def tune(
    options: Options, names: Iterable[str], samples: dict[str, int]
) -> dict[str, dict[str, dict[str, Any]]]:
    """The best of the candidates, at the middle setting with half of the clients."""
    runs, tried = [], {}
    for name in names:
        split = PROBLEMS[name].splits[1]
        found = candidates(PROBLEMS[name], samples[name], split, options.quick)
        for method, several in found.items():
            for number, settings in enumerate(several):
                key = (name, method, number)
                tried[key] = settings
                run = figure_run(options, name, split, 0.5, settings, key)
                run.config["rounds"] = max(6, run.config["rounds"] * 2 // 5)
                runs.append(run)
    results = execute(runs, options.jobs, perform=perform_hybrid)
    chosen: dict[str, dict[str, dict[str, Any]]] = {}
    for (name, method, number), result in results.items():
        best = chosen.setdefault(name, {}).setdefault(
            method, {"loss": float("inf"), "tried": 0}
        )
        best["tried"] += 1
        loss = last_loss(result)
        if loss < best["loss"] or "settings" not in best:
            settings = tried[name, method, number]
            paper = number == 0 and PROBLEMS[name].tuned is not None
            best |= {"loss": loss, "settings": settings, "paper": paper}
    return chosen


# ----------------------------------------------------------------------------- figure 3


def compute_figure_3(options: Options) -> dict[str, Any]:
    """Few clients, most there; a middle; many clients, few of them there."""
    problems = present(options)
    optima = {
        name: optimum_of(
            config_of(problem, options, problem.splits[1]), problem.splits[1].nodes
        )
        for name, problem in problems.items()
    }
    samples = {name: int(best["samples"]) for name, best in optima.items()}
    tuned = tune(options, problems, samples)
    runs = []
    for name, problem in problems.items():
        splits = _splits(problem, options)
        for split, fraction in zip(splits, reversed(AVAILABLE), strict=False):
            held = ceil(samples[name] / split.samples)
            chosen = {k: v["settings"] for k, v in tuned[name].items()}
            middle = ceil(samples[name] / problem.splits[1].samples)
            share = chosen[PRACTICAL]["local-fraction"]
            count = min(held, round(share * middle))
            settings = {
                BUNDLE: {},
                PARTS: {"parts": 5},
                **chosen,
                PRACTICAL: practical(count, held),
            }
            runs += [
                figure_run(
                    options, name, split, fraction, own, (name, split.label, method)
                )
                for method, own in settings.items()
            ]
    runs.sort(key=lambda run: -run.nodes)
    results = execute(runs, options.jobs, perform=perform_hybrid)
    panels = []
    for name, problem in problems.items():
        splits = _splits(problem, options)
        for split, fraction in zip(splits, reversed(AVAILABLE), strict=False):
            curves = {method: results[name, split.label, method] for method in STYLES}
            panels.append(
                {
                    "problem": name,
                    "split": split.label,
                    "paper": split.paper,
                    "available": fraction,
                    "curves": curves,
                }
            )
    return {"optima": optima, "tuned": tuned, "panels": panels}


def relative(curve: dict[str, Any], best: float) -> Any:
    """(P − P*)/P*, held above what P* is certified to."""
    return np.maximum(np.asarray(curve["loss"]) / best - 1.0, FLOOR)


def _limits(curves: Sequence[dict[str, Any]], best: float) -> tuple[float, float]:
    """What an axis of relative losses shows; what diverges leaves it."""
    losses = [relative(curve, best) for curve in curves]
    high = max(float(loss.max()) for loss in losses)
    return 0.5 * min(float(loss.min()) for loss in losses), min(2.0 * high, 200.0)


def _final(curve: dict[str, Any], best: float) -> float:
    return max(last_loss(curve) / best - 1.0, 0.0)


def _share(value: float) -> str:
    """A relative loss in percent."""
    if not np.isfinite(value):
        return "diverged"
    if value < FLOOR:
        return "< 0.0001 %"
    return f"{100 * value:.2g} %" if value < 1.0 else f"{100 * value:,.0f} %"


def render_figure_3(results: dict[str, Any], out: Path) -> str:
    """A picture for each data set, and one table of where the lines end."""
    text, lines = [], []
    better = {method: {"loss": 0, "accuracy": 0} for method in (BUNDLE, PARTS)}
    for name, best in results["optima"].items():
        panels = [p for p in results["panels"] if p["problem"] == name]
        figure, axes = new_figure(len(panels), 2)
        every = [curve for panel in panels for curve in panel["curves"].values()]
        for column, panel in enumerate(panels):
            for method, curve in panel["curves"].items():
                style: dict[str, Any] = {"color": STYLES[method], "label": method}
                axes[0][column].plot(
                    curve["round"], relative(curve, best["value"]), **style
                )
                axes[1][column].plot(curve["round"], curve["accuracy"], **style)
            axes[0][column].set_yscale("log")
            axes[0][column].set_ylim(*_limits(every, best["value"]))
            axes[1][column].axhline(best["accuracy"], color="gray", linestyle=":")
            axes[1][column].axhline(0.5, color="gray")
            axes[0][column].set_title(
                f"{PROBLEMS[name].title}, {panel['split']} clients, "
                f"{100 * panel['available']:.0f} % there"
            )
            axes[1][column].set_xlabel("iteration")
        axes[0][0].set_ylabel("relative loss $(P - P^*)/P^*$")
        axes[1][0].set_ylabel("test accuracy (dotted: optimum's; chance)")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        text.append(save(figure, out, f"figure-3-{name}"))
    lines += [
        "| data | clients, there | paper's setting | HyFDCA, bundle | 5 parts "
        "| practical step | HybridFedAvg | HyFEM | accuracy: bundle | 5 parts "
        "| practical | HybridFedAvg | HyFEM | P*'s |",
        "| --- " * 14 + "|",
    ]
    for panel in results["panels"]:
        best = results["optima"][panel["problem"]]
        curves = panel["curves"]
        ends = {k: _final(curve, best["value"]) for k, curve in curves.items()}
        tops = {k: last_accuracy(curve) for k, curve in curves.items()}
        for ours, won in better.items():
            for other in (FEDAVG, HYFEM):
                won["loss"] += ends[ours] < ends[other]
                won["accuracy"] += tops[ours] > tops[other]
        paper = f"{panel['paper']}, {panel['available']}"
        if PROBLEMS[panel["problem"]].tuned is None:
            paper = "none"
        lines.append(
            f"| {PROBLEMS[panel['problem']].title} | {panel['split']}, "
            f"{100 * panel['available']:.0f} % | {paper} | "
            + " | ".join(_share(ends[k]) for k in STYLES)
            + " | "
            + " | ".join(f"{100 * tops[k]:.1f} %" for k in STYLES)
            + f" | {100 * best['accuracy']:.1f} % |"
        )
    count = 2 * len(results["panels"])
    lines += [
        "",
        "Relative loss and test accuracy: means of the last five evaluated iterations. "
        f"Of {count} comparisons with HybridFedAvg and HyFEM "
        + " and ".join(
            f"the {name} ends with the lower loss in {better[method]['loss']} and with "
            f"the higher accuracy in {better[method]['accuracy']}"
            for method, name in ((BUNDLE, "bundle"), (PARTS, "bundle with 5 parts"))
        )
        + " (the paper, over iterations: lower loss and higher accuracy in 36 of 36). "
        f"{measured(results)}",
        "",
        *_tuning_table(results["tuned"]),
    ]
    return "\n\n".join([*text, "\n".join(lines)])


def _tuning_table(tuned: dict[str, Any]) -> list[str]:
    lines = [
        "| data | practical step | HybridFedAvg: H, a, b | HyFEM: H, a, b, μ |",
        "| --- | --- | --- | --- |",
    ]
    for name, methods in tuned.items():
        cells = []
        for method in (PRACTICAL, FEDAVG, HYFEM):
            best = methods[method]
            s = best["settings"]
            if method == PRACTICAL:
                text = f"H/N_k = {s['local-fraction']:.2g}"
            else:
                text = (
                    f"{s['local-steps']}, {s['local-step-size']:g}, "
                    f"{s['step-offset']:g}"
                )
                text += f", {s['matching']:g}" if method == HYFEM else ""
            paper = ", the paper's" if best["paper"] else ""
            cells.append(f"{text} (of {best['tried']}{paper})")
        lines.append(f"| {PROBLEMS[name].title} | {' | '.join(cells)} |")
    return lines


# ----------------------------------------------------------------------- figures 6 to 8


def compute_figures_6_8(options: Options) -> dict[str, Any]:
    """HyFDCA's default for three numbers of clients, 10, 50 and 90 % there."""
    problems = present(options)
    optima, runs = {}, []
    for name, problem in problems.items():
        middle = problem.splits[1]
        optima[name] = optimum_of(config_of(problem, options, middle), middle.nodes)
        for split in _splits(problem, options):
            for fraction in AVAILABLE:
                key = (name, split.label, fraction)
                runs.append(figure_run(options, name, split, fraction, {}, key, FEWER))
    runs.sort(key=lambda run: -run.nodes)
    results = execute(runs, options.jobs, perform=perform_hybrid)
    rows = [
        {
            "problem": name,
            "split": split,
            "available": fraction,
            **results[name, split, fraction],
        }
        for name in problems
        for split in [s.label for s in _splits(problems[name], options)]
        for fraction in AVAILABLE
    ]
    return {"optima": optima, "rows": rows}


def render_figures_6_8(results: dict[str, Any], out: Path) -> str:
    """Relative loss and accuracy for each data set, and where the lines end."""
    numbers = {"mnist": "figure-6", "news20": "figure-7", "covtype": "figure-8"}
    text = []
    lines = [
        "| data | clients | there | iterations | relative loss after a third | "
        "after all | accuracy (P*'s) | round trips | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, best in results["optima"].items():
        rows = [row for row in results["rows"] if row["problem"] == name]
        splits = list(dict.fromkeys(row["split"] for row in rows))
        figure, axes = new_figure(len(splits), 2)
        for row in rows:
            column = splits.index(row["split"])
            left, right = axes[0][column], axes[1][column]
            style = style_of(AVAILABLE.index(row["available"]))
            style["label"] = f"{100 * row['available']:.0f} % there"
            left.plot(row["round"], relative(row, best["value"]), **style)
            right.plot(row["round"], row["accuracy"], **style)
            loss = relative(row, best["value"])
            third = loss[np.searchsorted(row["round"], row["round"][-1] / 3.0)]
            lines.append(
                f"| {PROBLEMS[name].title} | {row['split']} "
                f"| {100 * row['available']:.0f} % | {row['round'][-1]} "
                f"| {_share(float(third))} | {_share(_final(row, best['value']))} "
                f"| {100 * last_accuracy(row):.1f} % ({100 * best['accuracy']:.1f}) "
                f"| {row['trips'][-1]} | {row['seconds'][-1]:.1f} |"
            )
        for column, split in enumerate(splits):
            left, right = axes[0][column], axes[1][column]
            left.set_yscale("log")
            left.set_ylim(*_limits(rows, best["value"]))
            left.set_title(f"{PROBLEMS[name].title}, {split} clients")
            right.axhline(best["accuracy"], color="gray")
            right.axhline(0.5, color="gray", linestyle=":")
            right.set_xlabel("iteration")
        axes[0][0].set_ylabel("$(P - P^*)/P^*$")
        axes[1][0].set_ylabel("test accuracy (gray: optimum's, chance)")
        axes[0][0].legend(fontsize="small")
        text.append(save(figure, out, numbers.get(name, f"figure-6-{name}")))
    lines += [
        "",
        "Losses after all iterations and accuracies are means of the last five "
        "evaluations. "
        "Seconds: of all clients one after the other, without encryption. A run ends "
        f"early where its duality gap certifies 1e-7. {measured(results)}",
    ]
    return "\n\n".join([*text, "\n".join(lines)])
