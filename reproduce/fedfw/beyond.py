"""What the papers leave open: local steps, mini-batches, server's step, rounding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedtrellis.app import Experiment
from fedtrellis.app.registry import MethodEntry, RunSettings
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.broadcast import Step
from reproduce.common import (
    Item,
    Options,
    Run,
    app_config,
    execute,
    read_config,
)
from reproduce.drawing import color, measured, new_figure, save
from reproduce.sweep import Point
from strategies import FedFW
from tasks import make_task

from .ablations import render_panels, sweep_panels

__all__ = ["ITEMS", "AveragingFedFW", "averaging"]

HERE = Path(__file__).parent
NODES = 10


# ---------------------------------------------------------------- the server's step


class AveragingFedFW(FedFW):
    """FedFW whose server averages the atoms of those who answered.

    x̄ ← (1 − η_t) x̄ + (η_t / |S|) Σ over S of s_i, instead of the exact step, which
    needs the x_i of those who answered. With everybody in S the two are one.
    """

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the atoms; replay the clients' steps, as FedFW does."""
        kept, half = self.broadcast, cast(Any, self.half)
        # the exact step first, for the mirrors and the duals, on a copy of x̄
        eta = half._schedule.step(server_round)
        x_bar = kept.model.copy()
        version = kept.version
        super().aggregate(server_round, answers)
        kept.model[...] = x_bar
        kept.replace(x_bar)
        kept.version = version
        atoms = tuple(atom for sent, _ in answers.values() for atom in sent)
        kept.advance(Step(1.0 - eta, eta / len(answers), atoms))
        return {}


def averaging(experiment: Experiment, **options: Any) -> LoopStrategy:
    """Return what the experiment's own strategy is, as :class:`AveragingFedFW`."""
    entry = MethodEntry(AveragingFedFW, experiment.entry.client)
    other = copy.copy(experiment)
    other.entry = entry
    return other.strategy(**options)


def compute_server_step(options: Options) -> dict[str, Any]:
    """FedFW and FedFW+ with both steps, p = 0.5 and 0.1."""
    base = read_config(HERE / "server-step.toml")
    seeds = min(options.seeds, 3)
    if options.quick:
        base["rounds"], seeds = 100, 1
    steps: dict[str, Callable[..., LoopStrategy]] = {
        "exact": Experiment.strategy,
        "averaged atoms": averaging,
    }
    variants: dict[str, dict[str, Any]] = {
        "FedFW": {"penalty": 5.0},
        "FedFW+": {"penalty": 0.5, "variant": "augmented"},
    }
    runs = [
        Run(
            (p, name, step, seed),
            base | settings | {"participation": p, "seed": seed},
            NODES,
            curve=True,
            every=0,
            strategy=make,
        )
        for p in (0.5, 0.1)
        for name, settings in variants.items()
        for step, make in steps.items()
        for seed in range(seeds)
    ]
    results = execute(runs, options.jobs)
    rows = []
    for p, name, step, seed in results:
        if seed:
            continue
        found = [results[p, name, step, k] for k in range(seeds)]
        curves = np.array([run["curve"]["loss"] for run in found])
        rows.append(
            {
                "p": p,
                "method": name,
                "step": step,
                "round": found[0]["curve"]["round"],
                "loss": curves.mean(axis=0).tolist(),
                "start": float(curves[:, 0].mean()),
                "last": curves[:, -1].tolist(),
                "down": float(np.mean([r["bytes"] - r["bytes-up"] for r in found])),
            }
        )
    return {"rows": rows, "rounds": base["rounds"], "seeds": seeds}


def render_server_step(results: dict[str, Any], out: Path) -> str:
    """Draw F over rounds, a panel for every p."""
    shares = list(dict.fromkeys(row["p"] for row in results["rows"]))
    figure, axes = new_figure(len(shares))
    lines = [
        "| p | method | server's step | F after them | by seed | F(0) | MB down |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one, p in zip(axes[0], shares, strict=True):
        for row in results["rows"]:
            if row["p"] != p:
                continue
            one.plot(
                row["round"][1:],
                row["loss"][1:],
                color="C0" if row["method"] == "FedFW" else "C1",
                linestyle="-" if row["step"] == "exact" else "--",
                label=f"{row['method']}, {row['step']}",
            )
            each = ", ".join(f"{value:.4g}" for value in row["last"])
            lines.append(
                f"| {p:g} | {row['method']} | {row['step']} "
                f"| {np.mean(row['last']):.4g} | {each} | {row['start']:.4g} "
                f"| {row['down'] / 1e6:.1f} |"
            )
        one.set_title(f"p = {p:g}")
        one.set_xlabel("communication round")
        one.set_ylabel("F(x̄) = F(x̄) − F*")
        one.set_xscale("log")
        one.set_yscale("log")
        one.legend(fontsize="small")
    lines += [
        "",
        f"After {results['rounds']:,} rounds, mean of {results['seeds']} seeds. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'server-step')}\n\n" + "\n".join(lines)


# --------------------------------------------------------------------- local steps


#: Tasks of the item, all full participation.
LOCAL: dict[str, dict[str, Any]] = {
    "LASSO": {"task": "lasso", "rounds": 1000, "penalty": 5.0},
    "MCLR, synthetic, ℓ1": {
        "task": "classification",
        "rounds": 200,
        "penalty": 1e-3,
        "domain": "l1-ball",
        "classification.partition": "natural",
    },
    "MCLR, synthetic, ℓ2": {
        "task": "classification",
        "rounds": 200,
        "penalty": 1e-2,
        "domain": "l2-ball",
        "classification.partition": "natural",
    },
}
STEPS = (1, 2, 5, 20)


def compute_local_steps(options: Options) -> dict[str, Any]:
    """All tasks with all k."""
    counts = STEPS[::2] if options.quick else STEPS
    runs = []
    for name, settings in LOCAL.items():
        config = {"rounds": RunSettings.rounds, "variant": "plain", **settings}
        if options.quick:
            config |= {"rounds": 10, "classification.train-limit": 500}
        every = max(1, config["rounds"] // 50)
        runs += [
            Run(
                (name, k),
                config | {"fedfw.local-steps": k},
                NODES,
                curve=True,
                every=every,
            )
            for k in counts
        ]
    results = execute(runs, options.jobs)
    rows = [
        {
            "task": name,
            "steps": k,
            "curve": results[name, k]["curve"],
            "bytes-up": results[name, k]["bytes-up"],
        }
        for name, k in (run.key for run in runs)
    ]
    return {"rows": rows}


def render_local_steps(results: dict[str, Any], out: Path) -> str:
    """Draw the loss over rounds, a panel for every task."""
    names = list(dict.fromkeys(row["task"] for row in results["rows"]))
    figure, axes = new_figure(len(names))
    lines = [
        "| task | local steps k | rounds | F | gap | test accuracy, % | atoms up, a "
        "node and round | bytes up |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one, name in zip(axes[0], names, strict=True):
        rows = [row for row in results["rows"] if row["task"] == name]
        for k, row in enumerate(rows):
            curve = row["curve"]
            one.plot(
                curve["round"][1:],
                curve["loss"][1:],
                color=color(k, len(rows)),
                label=str(row["steps"]),
            )
            accuracy = curve.get("accuracy")
            share = f"{100 * accuracy[-1]:.2f}" if accuracy else "–"
            lines.append(
                f"| {name} | {row['steps']} | {curve['round'][-1]:.0f} "
                f"| {curve['loss'][-1]:.4g} | {curve['gap'][-1]:.3g} | {share} "
                f"| {row['steps']} "
                f"| {row['bytes-up'] / NODES / curve['round'][-1]:,.0f} |"
            )
        one.set_title(name, fontsize="medium")
        one.set_xlabel("communication round")
        one.set_ylabel("loss F(x̄)")
        one.set_xscale("log")
        one.set_yscale("log")
        one.legend(title="local steps k", fontsize="small")
    lines += ["", f"{NODES} nodes, one seed. {measured(results)}"]
    return f"{save(figure, out, 'local-steps')}\n\n" + "\n".join(lines)


# ------------------------------------------------------- mini-batches and a network


def compute_stochastic(options: Options) -> dict[str, Any]:
    """FedFW-sto with two schedules and two batch sizes, beside FedFW."""
    base = read_config(HERE / "figure-3.toml")
    base |= {"participation": 1.0, "rounds": 300}
    points = [Point("FedFW, all examples", {"schedule": "nonconvex"}, NODES)]
    points += [
        Point(
            f"FedFW-sto, batch {size}, {schedule}",
            {"variant": "stochastic", "schedule": schedule, "batch-size": size},
            NODES,
        )
        for schedule in ("nonconvex", "stochastic")
        for size in (64, 16)
    ]
    return sweep_panels(options, base, {"DNN, synthetic, ℓ2": points})


# ------------------------------------------------------------ what rounding becomes

#: The change of the start: every entry by so much times a standard normal number.
CHANGE = 1e-12
ROUNDS: tuple[int, ...] = (5, 10, 20, 40, 70, 100)
SENSITIVITY: dict[str, tuple[str, dict[str, Any]]] = {
    "CIFAR-10, ℓ2, FedFW": ("cifar10", {"penalty": 1e-2}),
    "CIFAR-10, ℓ1, FedFW": ("cifar10", {"penalty": 1e-3, "domain": "l1-ball"}),
    "CIFAR-10, ℓ2, FedDR": ("cifar10", {"method": "feddr"}),
    "MNIST, ℓ2, FedFW": ("mnist", {"penalty": 1e-2}),
    "MNIST, ℓ1, FedFW": ("mnist", {"penalty": 1e-3, "domain": "l1-ball"}),
    "MNIST, ℓ2, FedDR": ("mnist", {"method": "feddr"}),
}


def compute_sensitivity(options: Options) -> dict[str, Any]:
    """Every case twice, from the start and from one that hardly differs."""
    base = read_config(HERE / "table-1.toml") | {
        "domain": "l2-ball",
        "classification.train-limit": 5000,
        # FedDR: η and γ that table 1 tries, 20 steps on a twentieth of the examples
        "proximal-step": 1000.0,
        "local-steps": 20,
        "local-step-size": 0.1,
        "local-batch-size": 25,
    }
    rounds = ROUNDS
    if options.quick:
        rounds = (2, 5)
        base |= {"classification.train-limit": 500, "classification.test-limit": 200}
    runs = []
    for name, (dataset, settings) in SENSITIVITY.items():
        config = base | settings | {"classification.dataset": dataset}
        config["classification.path"] = str(options.file(dataset))
        whole = app_config(config)
        (shape,) = make_task("classification", whole, NODES, 0).shapes()
        change = CHANGE * np.random.default_rng(0).standard_normal(shape)
        runs += [
            Run(
                (name, last, changed),
                config | {"rounds": last},
                NODES,
                every=last,
                point=True,
                start=changed * change,
            )
            for last in rounds
            for changed in (0, 1)
        ]
    results = execute(runs, options.jobs)
    cases = []
    for name in SENSITIVITY:
        apart = []
        for last in rounds:
            x, moved = (np.array(results[name, last, k]["point"]) for k in (0, 1))
            apart.append(float(np.linalg.norm(x - moved) / np.linalg.norm(x)))
        accuracies = [results[name, rounds[-1], k]["accuracy"] for k in (0, 1)]
        cases.append({"case": name, "apart": apart, "accuracy": accuracies})
    return {"rows": cases, "rounds": list(rounds), "change": CHANGE}


def render_sensitivity(results: dict[str, Any], out: Path) -> str:
    """Draw the distance of the two runs over rounds."""
    figure, axes = new_figure(1)
    figure.set_size_inches(6.4, 3.9)
    one, rounds = axes[0][0], results["rounds"]
    lines = [
        "| case | "
        + " | ".join(f"after {last} rounds" for last in rounds)
        + " | accuracies, % |",
        "| --- |" + " --- |" * (len(rounds) + 1),
    ]
    for k, row in enumerate(results["rows"]):
        style = "--" if "ℓ1" in row["case"] else ":" if "FedDR" in row["case"] else "-"
        one.plot(
            rounds,
            row["apart"],
            style,
            color="C0" if "CIFAR" in row["case"] else "C1",
            marker="os^"[k % 3],
            markersize=4,
            # 0 has no place on the axis
            label=row["case"] + ("" if any(row["apart"]) else ": 0"),
        )
        apart = " | ".join(f"{value:.0e}" for value in row["apart"])
        first, second = (f"{100 * value:.2f}" for value in row["accuracy"])
        lines.append(f"| {row['case']} | {apart} | {first} and {second} |")
    one.set_yscale("log")
    one.set_xlabel("communication round")
    one.set_ylabel("distance of the two x̄ / ‖x̄‖")
    one.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    lines += [
        "",
        f"Start changed by {results['change']:g} an entry; {NODES} nodes, IID, one "
        f"seed. {measured(results)}",
    ]
    return f"{save(figure, out, 'sensitivity')}\n\n" + "\n".join(lines)


ITEMS = {
    "sensitivity": Item(
        "how far a change of the start by 1e-12 grows; not in the papers",
        compute_sensitivity,
        render_sensitivity,
    ),
    "local-steps": Item(
        "FedFW with several local steps; not in the papers",
        compute_local_steps,
        render_local_steps,
    ),
    "stochastic-nonconvex": Item(
        "FedFW-sto on a network; not in the papers",
        compute_stochastic,
        lambda results, out: render_panels(
            results, out, "stochastic-nonconvex", "method, schedule"
        ),
    ),
    "server-step": Item(
        "partial participation: the exact server step or averaged atoms",
        compute_server_step,
        render_server_step,
    ),
}
