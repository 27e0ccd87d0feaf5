"""Ours: whose steps a schedule counts if answers get lost; noise in the oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

import sim
from fedtrellis.app import Experiment
from fedtrellis.objectives.reference import certified_minimum
from fedtrellis.wire.local_grid import LocalGrid
from reproduce.common import Item, Options, Run, app_config, execute
from reproduce.drawing import color, measured, new_figure, save, style_of

__all__ = ["ITEMS", "METHODS", "PATTERNS", "relative"]

#: How well F* is known, relative to it or to 1: errors below say nothing.
CERTAIN = 1e-6
NODES = 7
ROUNDS = 2000
LASSO: dict[str, Any] = {
    "task": "lasso",
    "lasso.rows": 140,
    "lasso.columns": 100,
    "lasso.nonzeros": 10,
    "lasso.noise": 0.1,
    "penalty": 10.0,
}

# ------------------------------------------------------------ answers that get lost

#: What is compared, as settings; corrective steps find a ρ of their own.
METHODS: dict[str, dict[str, Any]] = {
    "FedFW, rounds counted": {"variant": "plain", "step-count": "round"},
    "FedFW, own steps counted": {"variant": "plain", "step-count": "own"},
    "corrective, 5 steps": {
        "variant": "corrective",
        "penalty": "auto",
        "fedfw.local-steps": 5,
    },
}
#: λ_0 as it finds itself, but for LASSO; and how many seeds.
PROBLEMS: dict[str, tuple[dict[str, Any], int]] = {
    "LASSO, 140 × 100": (LASSO, 3),
    "digits": ({"task": "digits"}, 1),
    "linear regression": ({"task": "linear-regression"}, 1),
    "logistic regression": ({"task": "logistic-regression"}, 1),
}
EVERY = 20


class Rarely(LocalGrid):
    """A grid that client 0 hears from in one round of :data:`EVERY` only."""

    def _strikes(self, message: Message) -> set[str]:
        kind, server_round = message.metadata.message_type, message.metadata.group_id
        context = self._contexts[message.metadata.dst_node_id]
        first = context.node_config["partition-id"] == 0
        lost = kind == "train" and first and int(server_round) % EVERY
        return {"request_loss"} if lost else set()


def _lossy(experiment: Experiment) -> LocalGrid:
    return experiment.grid(request_loss=0.9)


def _rarely(experiment: Experiment) -> LocalGrid:
    seed = experiment.options["seed"]
    app, config = experiment.client_app, experiment.config
    return Rarely(app, experiment.task.num_clients, seed=seed, run_config=config)


#: What gets lost, by the grid that loses it.
PATTERNS: dict[str, Callable[[Experiment], LocalGrid]] = {
    "nothing is lost": Experiment.grid,
    "90 % of the requests are lost": _lossy,
    "client 0 answers in one round of 20": _rarely,
}


def optimum(config: dict[str, Any], nodes: int) -> float:
    """F*, to :data:`CERTAIN` of it or of 1."""
    experiment = sim.app.experiment(app_config(config), nodes)
    known = experiment.task.reference_optimum(experiment.domain)
    if known is not None:
        return float(known)
    start = experiment.task.initial_point()[0]
    objective, domain = experiment.task.objective(), experiment.domain
    return certified_minimum(objective, domain, start, CERTAIN).value


def relative(losses: list[float], best: float) -> list[float]:
    """(F − F*) / (F(x¹) − F*), by evaluated rounds; at least :data:`CERTAIN` / 10."""
    errors = np.array(losses) - best
    return [max(float(error / errors[0]), CERTAIN / 10) for error in errors]


def compute_lost(options: Options) -> dict[str, Any]:
    """All methods, with everything that gets lost, on all problems."""
    runs, best = [], {}
    for name, (settings, count) in PROBLEMS.items():
        for seed in range(min(count, options.seeds)):
            config = {"rounds": ROUNDS, "max-failed-rounds": 10**6, **settings}
            config |= {"seed": seed}
            if options.quick:
                config["rounds"] = 60
            best[name, seed] = optimum(config, NODES)
            runs += [
                Run(
                    (name, pattern, method, seed),
                    config | own,
                    NODES,
                    curve=True,
                    every=0,
                    grid=grid,
                )
                for pattern, grid in PATTERNS.items()
                for method, own in METHODS.items()
            ]
        if options.quick:
            break
    results = execute(runs, options.jobs)
    rows = []
    for name, pattern, method in dict.fromkeys(run.key[:3] for run in runs):
        found = {
            k[3]: r for k, r in results.items() if k[:3] == (name, pattern, method)
        }
        curves = [
            relative(run["curve"]["loss"], best[name, seed])
            for seed, run in found.items()
        ]
        rows.append(
            {
                "problem": name,
                "pattern": pattern,
                "method": method,
                "round": found[0]["curve"]["round"],
                "curve": np.mean(curves, axis=0).tolist(),
                "last": [curve[-1] for curve in curves],
                "gap": [
                    run["curve"]["gap"][-1] / run["curve"]["gap"][0]
                    for run in found.values()
                ],
                "down": [
                    (run["bytes"] - run["bytes-up"]) / NODES / run["broadcasts"]
                    for run in found.values()
                ],
            }
        )
    return {"rows": rows, "rounds": runs[0].config["rounds"]}


def render_lost(results: dict[str, Any], out: Path) -> str:
    """Draw the first problem, a panel for everything that gets lost; and a table."""
    figure, axes = new_figure(len(PATTERNS))
    methods = list(dict.fromkeys(row["method"] for row in results["rows"]))
    shown = results["rows"][0]["problem"]
    lines = [
        "| problem | what gets lost | "
        + " | ".join(methods)
        + " | gap | bytes down a node and round |",
        "| --- | --- |" + " --- |" * (len(methods) + 2),
    ]
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        cells.setdefault((row["problem"], row["pattern"]), []).append(row)
        if row["problem"] == shown:
            one = axes[0][list(PATTERNS).index(row["pattern"])]
            k = methods.index(row["method"])
            shade, style = color(k, len(methods)), "-" if k else "--"
            one.plot(
                row["round"][1:], row["curve"][1:], style, color=shade, label=methods[k]
            )
    for one, pattern in zip(axes[0], PATTERNS, strict=True):
        one.set_title(f"{shown}: {pattern}", fontsize="small")
        one.set_xlabel("communication round")
        one.set_ylabel("(F(x̄) − F*) / (F(x¹) − F*)")
        one.set_xscale("log")
        one.set_yscale("log")
        one.legend(fontsize="small")
    for (problem, pattern), rows in cells.items():
        errors = " | ".join(_spread(row["last"]) for row in rows)
        gaps = ", ".join(f"{np.mean(row['gap']):.2g}" for row in rows)
        down = ", ".join(f"{np.mean(row['down']):,.0f}" for row in rows)
        lines.append(f"| {problem} | {pattern} | {errors} | {gaps} | {down} |")
    lines += [
        "",
        f"(F(x̄) − F*) / (F(x¹) − F*) after {results['rounds']:,} rounds, "
        f"{NODES} nodes; mean and extremes over seeds, or one seed. Data and losses "
        "are the same for all methods; a corrective round has 5 gradients of a client. "
        "The gap, relative to that at x¹, and the bytes stand in the methods' order. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'lost-answers')}\n\n" + "\n".join(lines)


def _spread(values: list[float]) -> str:
    if max(values) < CERTAIN:
        return f"< {CERTAIN:g}"
    text = f"{np.mean(values):.2g}"
    if len(values) > 1:
        text += f" ({min(values):.2g} to {max(values):.2g})"
    return text


# ------------------------------------------------------------------ noise in the oracle

SIGMAS = (0.0, 1.0, 3.0, 10.0)


def compute_noise(options: Options) -> dict[str, Any]:
    """LASSO with noise that shrinks, and with noise that does not."""
    seeds = min(options.seeds, 3)
    config = {"rounds": ROUNDS, "variant": "plain", **LASSO}
    if options.quick:
        config["rounds"], seeds = 60, 1
    best = {seed: optimum(config | {"seed": seed}, NODES) for seed in range(seeds)}
    runs = [
        Run(
            (sigma, decay, seed),
            config | {"lmo-noise": sigma, "lmo-noise-decay": decay, "seed": seed},
            NODES,
            curve=True,
            every=0,
        )
        for sigma in SIGMAS
        for decay in ((True,) if sigma == 0.0 else (True, False))
        for seed in range(seeds)
    ]
    results = execute(runs, options.jobs)
    rows = []
    for sigma, decay in dict.fromkeys(run.key[:2] for run in runs):
        found = [results[sigma, decay, seed] for seed in range(seeds)]
        curves = [
            relative(run["curve"]["loss"], best[seed]) for seed, run in enumerate(found)
        ]
        rows.append(
            {
                "sigma": sigma,
                "decay": decay,
                "round": found[0]["curve"]["round"],
                "curve": np.mean(curves, axis=0).tolist(),
                "last": [curve[-1] for curve in curves],
            }
        )
    return {"rows": rows, "rounds": config["rounds"]}


def render_noise(results: dict[str, Any], out: Path) -> str:
    """Draw the error over rounds, a line for every deviation."""
    figure, ((shrinking, constant),) = new_figure(2)
    sigmas = list(dict.fromkeys(row["sigma"] for row in results["rows"]))
    lines = ["| σ | with σ √η_t | with σ |", "| --- | --- | --- |"]
    for k, sigma in enumerate(sigmas):
        rows = [row for row in results["rows"] if row["sigma"] == sigma]
        for row in rows:
            # without noise there is nothing that could shrink
            both = (shrinking, constant)
            for one in both[: 2 if not sigma else 1] if row["decay"] else both[1:]:
                one.plot(
                    row["round"][1:],
                    row["curve"][1:],
                    label=rf"$\sigma = {sigma:g}$" if sigma else "no noise",
                    **style_of(k),
                )
        lines.append(
            f"| {sigma:g} | "
            + " | ".join(_spread(row["last"]) for row in rows)
            + (" | |" if len(rows) == 1 else " |")
        )
    titles = (r"noise $\sigma\sqrt{\eta_t}$", r"noise $\sigma$")
    for one, words in zip((shrinking, constant), titles, strict=True):
        one.set_title(words)
        one.set_xlabel("communication round")
        one.set_ylabel(r"$(F(\bar x) - F^*) / (F(x^1) - F^*)$")
        one.set_xscale("log")
        one.set_yscale("log")
        one.legend(fontsize="small")
    lines += [
        "",
        f"(F(x̄) − F*) / (F(x¹) − F*) after {results['rounds']:,} rounds, LASSO, "
        f"140 × 100, {NODES} nodes, mean and extremes over the seeds. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'oracle-noise')}\n\n" + "\n".join(lines)


ITEMS = {
    "lost-answers": Item(
        "answers that get lost: rounds counted, or each client's own steps; ours",
        compute_lost,
        render_lost,
    ),
    "oracle-noise": Item(
        "noise in the oracle, shrinking and not; ours", compute_noise, render_noise
    ),
}
