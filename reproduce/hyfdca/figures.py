"""Figure 3: four methods; figures 6 to 8: client counts and availability."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Item, Options, Run, execute
from reproduce.drawing import legend_below, new_figure, panel, save, table
from reproduce.tuning import Space, search

from .problems import AVAILABLE, PROBLEMS, Problem, Split, config_of, present
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
#: Local steps of the baselines, γ_t = a/(b + √t) with b = 1.
STEPS = 100
_SGD = {"local-steps": STEPS, "step-offset": 1.0}
OWN: dict[str, dict[str, Any]] = {
    BUNDLE: {},
    PRACTICAL: {"step": "practical", "tolerance": 0.0},
    FEDAVG: {"method": "hybrid-fedavg"} | _SGD,
    HYFEM: {"method": "hyfem"} | _SGD,
}
#: What is searched for, in powers of ten: H, a, and a with μ.
SPACES = {
    PRACTICAL: Space(("samples",), (0.5,)),
    FEDAVG: Space(("local-step-size",), (-1.0,)),
    HYFEM: Space(("local-step-size", "matching"), (-1.0, 0.0)),
}
#: Of the samples that settings are chosen on; no result has it.
CHOICE = 1000
#: Candidates, and those more at an edge; powers of ten between neighbours at the end.
BUDGET, WIDER, FINEST = 12, 8, 0.25
#: Clients from which on the paper's step is not tuned.
MANY = 100

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
    return OWN[PRACTICAL] | {"local-fraction": share}


def settings_of(method: str, chosen: Settings, held: int) -> Settings:
    """A method's settings at what was chosen; ``held`` are a client's samples."""
    if method == PRACTICAL:
        return practical(max(1, round(chosen["samples"])), held)
    return OWN[method] | chosen


def tune(
    options: Options, name: str, split: Split, fraction: float, held: int
) -> dict[str, dict[str, Any]]:
    """A panel's settings, by the loss on other samples, the same budget for all.

    The paper's step, which takes ten times a baseline's seconds where clients are many,
    is left out there.
    """
    known: dict[Any, float] = {}

    def scores(asked: list[tuple[str, dict[str, float]]]) -> list[list[float]]:
        runs, keys = {}, []
        for method, point in asked:
            own = settings_of(method, point, held)
            key = (method, *own.values())
            keys.append(key)
            if key not in known:
                run = figure_run(options, name, split, fraction, own, key)
                # a fifth of the iterations
                rounds = {"seed": CHOICE, "rounds": max(3, run.config["rounds"] // 5)}
                runs[key] = replace(run, config=run.config | rounds)
        # one process needs no other: it keeps the data that it has loaded
        jobs = options.jobs if options.jobs > 1 else 0
        results = execute([*runs.values()], jobs, perform=perform_hybrid)
        known.update({key: -last_loss(result) for key, result in results.items()})
        return [[known[key]] for key in keys]

    many = split.nodes >= MANY
    spaces = {m: space for m, space in SPACES.items() if m != PRACTICAL or not many}
    budget, wider = (2, 0) if options.quick else (BUDGET, WIDER)
    found = search(spaces, budget, scores, wider, finest=FINEST)
    return {method: one.record() for method, one in found.items()}


# ----------------------------------------------------------------------------- figure 3


def compute_figure_3(options: Options) -> dict[str, Any]:
    """Few clients, most there; a middle; many clients, few of them there."""
    optima = _optima(options)
    if len(optima) > 1:
        del optima["digits"]  # ours; a quick run has nothing else
    runs: list[Run] = []
    panels: list[dict[str, Any]] = []
    for name, best in optima.items():
        samples = int(best["samples"])
        splits = _splits(PROBLEMS[name], options)
        records: dict[str, dict[str, Any]] = {}
        for split, fraction in zip(splits, reversed(AVAILABLE), strict=False):
            held, settings = ceil(samples / split.samples), {BUNDLE: OWN[BUNDLE]}
            # with many clients the paper's step has the H of the middle
            records = records | tune(options, name, split, fraction, held)
            settings |= {m: settings_of(m, records[m]["chosen"], held) for m in SPACES}
            runs += [
                figure_run(options, name, split, fraction, own, (len(panels), method))
                for method, own in settings.items()
            ]
            place = {"problem": name, "split": split.label, "paper": split.paper}
            found = {"available": fraction, "settings": settings, "tuned": records}
            panels.append(place | found)
    runs.sort(key=lambda run: -run.nodes)
    results = execute(runs, options.jobs, perform=perform_hybrid)
    for k, one in enumerate(panels):
        one["curves"] = {method: results[k, method] for method in METHODS}
    return {"optima": optima, "panels": panels}


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
    for one in panels:
        cells = []
        for record in one["tuned"].values():
            text = ", ".join(f"{value:.2g}" for value in record["chosen"].values())
            edge = "" if record["inside"] else ", at the edge"
            cells.append(f"{text} (of {len(record['tried'])}{edge})")
        settings.append((title_of(one), *cells))
    chosen = "practical step: H | HybridFedAvg: a | HyFEM: a, μ"
    return "\n\n".join(
        [
            *pictures,
            table(f"{head} | accuracy: bundle | {ours} | P*'s", lines),
            "Relative loss and test accuracy: means of the last five evaluated "
            "iterations. Dotted is the optimum's accuracy.",
            table(f"data, clients | {chosen}", settings),
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
