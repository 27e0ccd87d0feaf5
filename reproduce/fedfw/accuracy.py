"""Tables 1, 2 and 3: test accuracy of the last round's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Item, Options, Run, execute, read_config
from reproduce.drawing import measured, new_figure, save

__all__ = ["PAPER", "TABLES", "Table", "items"]

HERE = Path(__file__).parent
# Of the runs that hyper-parameters are chosen on; no seed of a result is near it.
CHOICE_SEED = 1000
BALLS = {"l2-ball": "ℓ2", "l1-ball": "ℓ1"}
PARTITIONS = {"iid": "IID", "labels": "{} labels a node", "natural": "natural"}

FRANK_WOLFE = [{"penalty": value} for value in (1e-1, 1e-2, 1e-3, 1e-4)]
DOUGLAS_RACHFORD = [
    {"proximal-step": eta, "local-step-size": gamma}
    for eta in (100.0, 1000.0)
    for gamma in (0.1, 0.01)
]

#: Of FedDR, by table: more than one local step, as its authors have.
DOUGLAS_RACHFORD_STEPS: dict[str, dict[str, Any]] = {
    "table-1": {"local-steps": 20},
    "table-2": {"local-steps": 20},
    "table-3": {"local-steps": 5, "local-batch-size": 64},
}

#: The methods of a table, with the settings that make them and those to choose from.
METHODS: dict[str, tuple[dict[str, Any], list[dict[str, float]]]] = {
    "FedDR": ({"method": "feddr"}, DOUGLAS_RACHFORD),
    "FedFW": ({}, FRANK_WOLFE),
    "FedFW+": ({"variant": "augmented"}, FRANK_WOLFE),
}
STOCHASTIC = {"FedDR": METHODS["FedDR"], "FedFW-sto": METHODS["FedFW"]}

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
    trial_rounds : int
        Of the runs that hyper-parameters are chosen on; 0: as many as the others have.
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
    trial_rounds: int = 0
    balls: tuple[str, ...] = ("l2-ball", "l1-ball")
    methods: dict[str, tuple[dict[str, Any], list[dict[str, float]]]] = field(
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
        trial_rounds=100,
        **{"examples": 20_000, "choice": 10_000} | more,
    )


SYNTHETIC = {"classification.dataset": "synthetic"}
MNIST = {"classification.dataset": "mnist", "local-batch-size": 100}
CIFAR = {"classification.dataset": "cifar10", "local-batch-size": 50}

TABLES = {
    "table-1-synthetic": Table("table 1, synthetic data", "table-1", SYNTHETIC),
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
            "local-batch-size": 10,
            "local-steps": 10,
        },
        "mnist",
        seeds=3,
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


def compute(options: Options, name: str) -> dict[str, Any]:
    """Choose hyper-parameters on validation data, then run all seeds with them."""
    table = TABLES[name]
    base = DOUGLAS_RACHFORD_STEPS[table.config] | read_config(
        HERE / f"{table.config}.toml"
    )
    base |= table.dataset
    if table.folder:
        base["classification.path"] = str(options.file(table.folder))
    choice, examples, seeds = table.choice, table.examples, options.seeds
    methods, balls, jobs = table.methods, table.balls, options.jobs
    partitions = table.partitions()
    if options.quick:
        base |= {
            "rounds": 3,
            "classification.test-limit": 200,
        }
        choice = examples = 120 if base["classification.model"] == "cnn" else 1500
        seeds = min(seeds, 1)
        methods = {k: (settings, some[1:3]) for k, (settings, some) in methods.items()}
        # the network's sets differ by the oracle, which the other tables try
        balls = balls[:1] if base["classification.model"] != "mclr" else balls
        # reading CIFAR-10 takes most of such a run; one process reads it once
        jobs = 1
        # few examples cannot be dealt by label to a hundred nodes
        partitions = partitions[:1] if table.nodes > 10 else partitions[-1:]
    seeds = min(seeds, table.seeds)
    rounds = base["rounds"]
    trial_rounds = min(table.trial_rounds or rounds, rounds)
    cases = [
        (partition, ball, method)
        for partition in partitions
        for ball in balls
        for method in methods
    ]
    runs = []
    for case in cases:
        settings, candidates = methods[case[2]]
        for i, candidate in enumerate(candidates):
            config = base | settings | candidate | _case(case)
            config |= {
                "seed": CHOICE_SEED,
                "rounds": trial_rounds,
                "classification.train-limit": choice,
                "classification.validation-fraction": 0.2,
            }
            runs.append(Run((*case, i), config, table.nodes, every=trial_rounds))
    tried = execute(runs, jobs)
    chosen = {}
    for case in cases:
        found = [
            tried[*case, i].get("accuracy", 0.0)
            for i in range(len(methods[case[2]][1]))
        ]
        chosen[case] = int(np.argmax(found))
    runs = []
    for seed in range(seeds):
        for case in cases:
            settings, candidates = methods[case[2]]
            config = base | settings | candidates[chosen[case]] | _case(case)
            config |= {"seed": seed, "classification.train-limit": examples}
            runs.append(Run((*case, seed), config, table.nodes, every=rounds))
    results = execute(runs, jobs)
    rows = []
    for case in cases:
        partition, ball, method = case
        found = [results[*case, seed] for seed in range(seeds)]
        candidates = methods[method][1]
        rows.append(
            {
                "partition": partition,
                "ball": ball,
                "method": method,
                "accuracy": [run.get("accuracy", float("nan")) for run in found],
                "loss": [run.get("loss", float("nan")) for run in found],
                "chosen": candidates[chosen[case]],
                "validation": [
                    tried[*case, i].get("accuracy", 0.0) for i in range(len(candidates))
                ],
                "bytes": found[0].get("bytes", 0) / rounds / table.nodes,
                "seconds": float(np.mean([run.get("seconds", 0.0) for run in found])),
            }
        )
    return {"rows": rows, "seeds": seeds, "rounds": rounds, "nodes": table.nodes}


def _case(case: tuple[str, str, str]) -> dict[str, Any]:
    return {"classification.partition": case[0], "domain": case[1]}


def spread(values: list[float]) -> str:
    """Write mean ± standard deviation of shares in per cent."""
    text = f"{100 * np.mean(values):.2f}"
    return f"{text} ± {100 * np.std(values):.2f}" if len(values) > 1 else text


def _settings(chosen: Mapping[str, float]) -> str:
    names = {"penalty": "λ_0", "proximal-step": "η", "local-step-size": "γ"}
    return ", ".join(f"{names[key]} = {value:g}" for key, value in chosen.items())


def render(results: dict[str, Any], out: Path, name: str) -> str:
    """Draw bars, ours and the paper's, and the table."""
    table, published, rows = TABLES[name], PAPER[name], results["rows"]
    parts = list(dict.fromkeys(row["partition"] for row in rows))
    balls = [ball for ball in BALLS if any(row["ball"] == ball for row in rows)]
    figure, axes = new_figure(len(balls))
    figure.set_size_inches(5.4 * len(balls), 3.7)
    methods = list(table.methods)
    for one, ball in zip(axes[0], balls, strict=True):
        width = 0.8 / len(methods)
        for k, method in enumerate(methods):
            for j, part in enumerate(parts):
                (row,) = (
                    r
                    for r in rows
                    if (r["partition"], r["ball"], r["method"]) == (part, ball, method)
                )
                place = j + (k - (len(methods) - 1) / 2) * width
                label = method if j == 0 else None
                values = 100 * np.array(row["accuracy"])
                one.bar(
                    place,
                    values.mean(),
                    0.9 * width,
                    yerr=values.std(),
                    color=f"C{k}",
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
        one.set_xticks(range(len(parts)), [table.describe(part) for part in parts])
        one.set_ylabel("test accuracy, last round (%)")
        one.set_ylim(0, 118)
        one.set_yticks(range(0, 101, 20))
        one.set_title(f"{BALLS[ball]} ball, radius 10")
        one.legend(fontsize="small", loc="upper center", ncols=len(methods) + 1)
    lines = [
        "| ball | partition | method | accuracy, % | the paper's | chosen | by "
        "validation, % | bytes a node and round |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for ball in balls:
        for row in rows:
            if row["ball"] != ball:
                continue
            value = published.get((row["partition"], ball), {}).get(row["method"])
            tried = " / ".join(f"{100 * v:.1f}" for v in row["validation"])
            lines.append(
                f"| {BALLS[ball]} | {table.describe(row['partition'])} "
                f"| {row['method']} "
                f"| {spread(row['accuracy'])} "
                f"| {'–' if value is None else f'{value:.2f}'} "
                f"| {_settings(row['chosen'])} | {tried} | {row['bytes']:,.0f} |"
            )
    count = results["seeds"]
    seeds = "One seed" if count == 1 else f"Mean ± standard deviation of {count} seeds"
    lines += [
        "",
        f"{seeds}, {results['nodes']} nodes, {results['rounds']} rounds. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, name)}\n\n" + "\n".join(lines)


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
