"""Tables 1, 2 and 3: test accuracy of the last round's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.app import Experiment
from fedtrellis.wire.local_grid import LocalGrid
from reproduce.common import Item, Options, Run, execute, read_config
from reproduce.drawing import PALETTE, measured, new_figure, save

from .tuning import BUDGET, SEEDS, Space, search

__all__ = ["PAPER", "TABLES", "Table", "items"]

HERE = Path(__file__).parent
BALLS = {"l2-ball": "ℓ2", "l1-ball": "ℓ1"}
PARTITIONS = {"iid": "IID", "labels": "{} labels a node", "natural": "natural"}

#: The share of the training examples that hyper-parameters are judged by.
VALIDATION = 0.2
FRANK_WOLFE = Space(("penalty",), (-3.0,))
DOUGLAS_RACHFORD = Space(("proximal-step", "local-step-size"), (2.0, -1.0))

#: The methods of a table, with the settings that make them and those to search.
METHODS: dict[str, tuple[dict[str, Any], Space]] = {
    "FedDR": ({"method": "feddr"}, DOUGLAS_RACHFORD),
    "FedFW": ({}, FRANK_WOLFE),
    "FedFW+": ({"variant": "augmented"}, FRANK_WOLFE),
}
STOCHASTIC: dict[str, tuple[dict[str, Any], Space]] = {
    "FedDR": ({"method": "feddr", "local-batch-size": 64}, DOUGLAS_RACHFORD),
    "FedFW-sto": METHODS["FedFW"],
}

# Accuracies in %, by data, partition, ball and method.
PAPER: dict[str, dict[tuple[str, str], dict[str, float]]] = {
    "table-1-synthetic": {
        ("iid", "l2-ball"): {"FedDR": 78.24, "FedFW": 80.20, "FedFW+": 79.96},
        ("natural", "l2-ball"): {"FedDR": 92.97, "FedFW": 94.81, "FedFW+": 94.56},
        ("iid", "l1-ball"): {"FedDR": 79.00, "FedFW": 81.63, "FedFW+": 81.92},
        ("natural", "l1-ball"): {"FedDR": 93.81, "FedFW": 90.84, "FedFW+": 91.20},
    },
    "table-1-mnist": {
        ("iid", "l2-ball"): {"FedDR": 89.59, "FedFW": 86.96, "FedFW+": 86.50},
        ("labels", "l2-ball"): {"FedDR": 83.72, "FedFW": 86.95, "FedFW+": 86.98},
        ("iid", "l1-ball"): {"FedDR": 72.18, "FedFW": 78.07, "FedFW+": 69.17},
        ("labels", "l1-ball"): {"FedDR": 74.29, "FedFW": 80.54, "FedFW+": 71.32},
    },
    "table-1-cifar10": {
        ("iid", "l2-ball"): {"FedDR": 39.95, "FedFW": 36.30, "FedFW+": 36.30},
        ("labels", "l2-ball"): {"FedDR": 37.79, "FedFW": 38.13, "FedFW+": 37.20},
        ("iid", "l1-ball"): {"FedDR": 23.25, "FedFW": 21.86, "FedFW+": 21.99},
        ("labels", "l1-ball"): {"FedDR": 24.77, "FedFW": 25.08, "FedFW+": 25.16},
    },
    "table-2-synthetic": {
        ("iid", "l2-ball"): {"FedDR": 75.96, "FedFW": 81.70, "FedFW+": 81.96},
        ("natural", "l2-ball"): {"FedDR": 93.85, "FedFW": 96.13, "FedFW+": 96.08},
        ("iid", "l1-ball"): {"FedDR": 78.59, "FedFW": 75.52, "FedFW+": 76.44},
        ("natural", "l1-ball"): {"FedDR": 93.51, "FedFW": 91.53, "FedFW+": 91.96},
    },
    "table-2-mnist": {
        ("iid", "l2-ball"): {"FedDR": 96.89, "FedFW": 95.87, "FedFW+": 95.05},
        ("labels", "l2-ball"): {"FedDR": 88.93, "FedFW": 92.70, "FedFW+": 91.79},
        ("iid", "l1-ball"): {"FedDR": 11.72, "FedFW": 23.88, "FedFW+": 20.40},
        ("labels", "l1-ball"): {"FedDR": 16.75, "FedFW": 37.62, "FedFW+": 36.27},
    },
    "table-3-synthetic": {
        ("iid", "l2-ball"): {"FedDR": 67.68, "FedFW-sto": 72.01},
        ("natural", "l2-ball"): {"FedDR": 84.70, "FedFW-sto": 87.32},
    },
    "table-3-emnist10": {
        ("iid", "l2-ball"): {"FedDR": 92.18, "FedFW-sto": 93.79},
        ("labels", "l2-ball"): {"FedDR": 85.70, "FedFW-sto": 91.88},
    },
    "table-3-emnist62": {
        ("iid", "l2-ball"): {"FedDR": 39.58, "FedFW-sto": 41.22},
        ("labels", "l2-ball"): {"FedDR": 41.09, "FedFW-sto": 60.51},
    },
    "table-3-cifar10": {
        ("iid", "l2-ball"): {"FedDR": 36.39, "FedFW-sto": 38.52},
        ("labels", "l2-ball"): {"FedDR": 34.91, "FedFW-sto": 37.83},
    },
}


@dataclass(frozen=True)
class Table:
    """One data set's part of one of the paper's tables.

    Attributes
    ----------
    title : str
        For listings.
    config : str
        The TOML file of the table.
    dataset : dict
        The settings that name the data.
    folder : str
        Of the data's files below ``--data``; empty: it is made.
    nodes : int
    seeds : int
        The most repetitions.
    examples : int
        Training examples, of all nodes; 0: all there are.
    choice : int
        Training examples where hyper-parameters are chosen; a fifth is for validation.
    steps : tuple of int
        Local steps of a round, the same for all methods; the first is the paper's.
    balls : tuple of str
    methods : dict
    """

    title: str
    config: str
    dataset: dict[str, Any]
    folder: str = ""
    nodes: int = 10
    seeds: int = 5
    examples: int = 0
    choice: int = 5000
    steps: tuple[int, ...] = (1, 20)
    balls: tuple[str, ...] = ("l2-ball", "l1-ball")
    methods: dict[str, tuple[dict[str, Any], Space]] = field(
        default_factory=lambda: METHODS
    )

    def partitions(self) -> list[str]:
        """How the examples are dealt."""
        synthetic = self.dataset["classification.dataset"] == "synthetic"
        return ["iid", "natural"] if synthetic else ["iid", "labels"]

    def describe(self, partition: str) -> str:
        """How the examples are dealt, in words."""
        labels = self.dataset.get("classification.labels-per-client", 3)
        return PARTITIONS[partition].format(labels)


def _stochastic(title: str, dataset: dict[str, Any], folder: str, **more: Any) -> Table:
    return Table(
        title,
        "table-3",
        dataset,
        folder,
        nodes=100,
        balls=("l2-ball",),
        methods=STOCHASTIC,
        steps=(1, 5),
        **{"examples": 20_000, "choice": 10_000} | more,
    )


SYNTHETIC = {"classification.dataset": "synthetic"}
MNIST = {"classification.dataset": "mnist"}
CIFAR = {"classification.dataset": "cifar10"}

TABLES = {
    "table-1-synthetic": Table(
        "table 1, synthetic data", "table-1", SYNTHETIC, seeds=10
    ),
    "table-1-mnist": Table("table 1, MNIST", "table-1", MNIST, "mnist", examples=20000),
    "table-1-cifar10": Table(
        "table 1, CIFAR-10", "table-1", CIFAR, "cifar10", examples=10000
    ),
    "table-2-synthetic": Table("table 2, DNN, synthetic data", "table-2", SYNTHETIC),
    "table-2-mnist": Table(
        "table 2, CNN, MNIST",
        "table-2",
        MNIST
        | {
            "classification.model": "cnn",
            "classification.test-limit": 2000,
        },
        "mnist",
        seeds=3,
        steps=(1, 10),
        examples=1000,
        choice=500,
    ),
    "table-3-synthetic": _stochastic("table 3, synthetic data", SYNTHETIC, ""),
    "table-3-emnist10": _stochastic(
        "table 3, EMNIST-10",
        {"classification.dataset": "emnist", "classification.split": "mnist"},
        "emnist",
    ),
    "table-3-emnist62": _stochastic(
        "table 3, EMNIST-62",
        {
            "classification.dataset": "emnist",
            "classification.split": "byclass",
            "classification.labels-per-client": 20,
            "classification.test-limit": 10_000,
        },
        "emnist",
        seeds=3,
        examples=40_000,
        choice=30_000,
    ),
    "table-3-cifar10": _stochastic(
        "table 3, CIFAR-10", {"classification.dataset": "cifar10"}, "cifar10"
    ),
}


Case = tuple[int, str, str, str]  # local steps, partition, ball, method


def compute(options: Options, name: str) -> dict[str, Any]:
    """Choose hyper-parameters on validation data, then run all seeds with them."""
    table = TABLES[name]
    base = read_config(HERE / f"{table.config}.toml") | table.dataset
    if table.folder:
        base["classification.path"] = str(options.file(table.folder))
    choice, examples, seeds = table.choice, table.examples, options.seeds
    methods, balls, jobs = table.methods, table.balls, options.jobs
    partitions, budget, steps = table.partitions(), BUDGET, table.steps
    choosing: tuple[int, ...] = SEEDS
    if options.quick:
        base |= {
            "rounds": 3,
            "classification.test-limit": 200,
        }
        choice = examples = 120 if base["classification.model"] == "cnn" else 1500
        seeds, choosing = min(seeds, 1), SEEDS[:1]
        budget, steps = 2, steps[:1]
        # the network's sets differ by the oracle, which the other tables try
        balls = balls[:1] if base["classification.model"] != "mclr" else balls
        # reading CIFAR-10 takes most of such a run; one process reads it once
        jobs = 1
        # few examples cannot be dealt by label to a hundred nodes
        partitions = partitions[:1] if table.nodes > 10 else partitions[-1:]
    seeds = min(seeds, table.seeds)
    cases: list[Case] = [
        (count, partition, ball, method)
        for count in steps
        for partition in partitions
        for ball in balls
        for method in methods
    ]

    def config(case: Case, chosen: Mapping[str, float], seed: int) -> dict[str, Any]:
        count, partition, ball, method = case
        return {
            **base,
            **methods[method][0],
            **chosen,
            "local-steps": count,
            "fedfw.local-steps": count,
            "classification.partition": partition,
            "domain": ball,
            "seed": seed,
        }

    def scores(asked: list[tuple[Case, dict[str, float]]]) -> list[list[float]]:
        held_out = {
            "classification.train-limit": choice,
            "classification.validation-fraction": VALIDATION,
        }
        runs = [
            _run((k, seed), config(case, chosen, seed) | held_out, table.nodes)
            for k, (case, chosen) in enumerate(asked)
            for seed in choosing
        ]
        tried = execute(runs, jobs)
        return [
            [tried[k, seed].get("accuracy", float("nan")) for seed in choosing]
            for k in range(len(asked))
        ]

    found = search({case: methods[case[3]][1] for case in cases}, budget, scores)
    runs = [
        _run(
            (*case, seed),
            config(case, found[case].space.settings(found[case].best), seed)
            | {"classification.train-limit": examples},
            table.nodes,
        )
        for seed in range(seeds)
        for case in cases
    ]
    results = execute(runs, jobs)
    rounds, rows = base["rounds"], []
    for case in cases:
        count, partition, ball, method = case
        of = [results[*case, seed] for seed in range(seeds)]
        trials = len(found[case].tried)
        rows.append(
            {
                "steps": count,
                "partition": partition,
                "ball": ball,
                "method": method,
                "accuracy": [run.get("accuracy", float("nan")) for run in of],
                "loss": [run.get("loss", float("nan")) for run in of],
                **found[case].record(),
                # local gradients of a client, by all runs that led to the choice
                "tuning-gradients": trials * len(choosing) * rounds * count,
                "gradients": rounds * count,
                "bytes": of[0].get("bytes", 0) / rounds / table.nodes,
                "seconds": float(np.mean([run.get("seconds", 0.0) for run in of])),
            }
        )
    return {
        "rows": rows,
        "seeds": seeds,
        "choice-seeds": list(choosing),
        "rounds": rounds,
        "nodes": table.nodes,
    }


def _batched(experiment: Experiment) -> LocalGrid:
    """All clients as one stack, to the same numbers."""
    return experiment.grid(batched=True)


def _run(key: tuple[Any, ...], config: dict[str, Any], nodes: int) -> Run:
    return Run(key, config, nodes, every=config["rounds"], grid=_batched)


def spread(values: list[float]) -> str:
    """Write mean ± standard deviation of shares in per cent."""
    text = f"{100 * np.mean(values):.2f}"
    return f"{text} ± {100 * np.std(values):.2f}" if len(values) > 1 else text


#: Where there are not ten labels.
CLASSES = {"table-3-emnist62": 62}


def _settings(chosen: Mapping[str, float]) -> str:
    names = {"penalty": "λ_0", "proximal-step": "η", "local-step-size": "γ"}
    return ", ".join(f"{names[key]} = {value:.2g}" for key, value in chosen.items())


def _pick(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(r for r in rows if all(r.get(key) == v for key, v in wanted.items()))


def render(results: dict[str, Any], out: Path, name: str) -> str:
    """Draw bars, ours and the paper's, and the table."""
    table, published, rows = TABLES[name], PAPER[name], results["rows"]
    parts = list(dict.fromkeys(row["partition"] for row in rows))
    balls = [ball for ball in BALLS if any(row["ball"] == ball for row in rows)]
    # 0: of an earlier protocol, other steps for each method
    counts = sorted({row.get("steps", 0) for row in rows})
    rows = [{"steps": 0, **row} for row in rows]
    figure, axes = new_figure(len(balls))
    figure.set_size_inches(5.4 * len(balls), 3.7)
    methods = list(table.methods)
    for one, ball in zip(axes[0], balls, strict=True):
        width = 0.8 / len(methods)
        for k, method in enumerate(methods):
            for j, part in enumerate(parts):
                case = {"partition": part, "ball": ball, "method": method}
                row = _pick(rows, steps=counts[0], **case)
                place = j + (k - (len(methods) - 1) / 2) * width
                label = method if j == 0 else None
                values = 100 * np.array(row["accuracy"])
                one.bar(
                    place,
                    values.mean(),
                    0.9 * width,
                    yerr=values.std(),
                    color=PALETTE[k],
                    alpha=0.75,
                    capsize=3,
                    label=label,
                )
                paper = published.get((part, ball), {}).get(method)
                if paper is not None:
                    first = j == 0 and k == len(methods) - 1
                    one.plot(
                        place,
                        paper,
                        "kD",
                        markersize=5,
                        label="the paper's" if first else None,
                    )
        chance = 100.0 / CLASSES.get(name, 10)
        one.axhline(chance, color="gray", linestyle=":", label="chance")
        one.set_xticks(range(len(parts)), [table.describe(part) for part in parts])
        one.set_ylabel("test accuracy, last round (%)")
        one.set_ylim(0, 128)
        one.set_yticks(range(0, 101, 20))
        one.set_title(f"{BALLS[ball]} ball, radius 10")
        one.legend(fontsize="small", loc="upper center", ncols=3)
    heads = [_steps(count) for count in counts]
    lines = [
        "| ball | partition | method | the paper's | "
        + " | ".join(f"accuracy, %{head} | chosen" for head in heads)
        + " |",
        "| --- " * (4 + 2 * len(heads)) + "|",
    ]
    for ball in balls:
        for part in parts:
            for method in methods:
                case = {"partition": part, "ball": ball, "method": method}
                value = published.get((part, ball), {}).get(method)
                cells = []
                for count in counts:
                    row = _pick(rows, steps=count, **case)
                    edge = "" if row.get("inside", True) else " (edge)"
                    cells += [
                        spread(row["accuracy"]),
                        f"{_settings(row['chosen'])}{edge}",
                    ]
                lines.append(
                    f"| {BALLS[ball]} | {table.describe(part)} | {method} "
                    f"| {'–' if value is None else f'{value:.2f}'} "
                    f"| {' | '.join(cells)} |"
                )
    count = results["seeds"]
    seeds = "One seed" if count == 1 else f"Mean ± standard deviation of {count} seeds"
    lines += [
        "",
        f"{seeds}, {results['nodes']} nodes, {results['rounds']} rounds. "
        f"{_protocol(rows, results)} {measured(results)}",
    ]
    return f"{save(figure, out, name)}\n\n" + "\n".join(lines)


def _steps(count: int) -> str:
    if not count:
        return ""
    return f", {count} local step{'s' if count > 1 else ''}"


def _protocol(rows: list[dict[str, Any]], results: dict[str, Any]) -> str:
    """What each method was given, in a sentence."""
    if not rows[0]["steps"]:
        return (
            "Measured by an earlier protocol: FedDR took several local steps where "
            "FedFW took one, four candidates were tried on one validation seed."
        )
    budgets = {row["steps"]: len(row["tried"]) for row in rows}
    words = " and ".join(
        f"{number} candidates with {count} local step{'s' if count > 1 else ''}"
        for count, number in budgets.items()
    )
    seeds = len(results["choice-seeds"])
    return f"Each method tried {words}, {seeds} validation seeds each."


def _bound(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments, name)


def items() -> dict[str, Item]:
    """Return an item for every data set of every table."""
    return {
        name: Item(
            f"{table.title}: accuracy of FedDR and FedFW",
            _bound(compute, name),
            _bound(render, name),
        )
        for name, table in TABLES.items()
    }
