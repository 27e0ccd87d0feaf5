"""What tables 1, 2 and 3 are made of: data, methods, budgets, the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproduce.common import read_csv
from reproduce.tuning import BUDGET, SEEDS, Space

__all__ = ["BALLS", "TABLES", "Table", "published"]

BALLS = {"l2-ball": "ℓ2", "l1-ball": "ℓ1"}
PARTITIONS = {"iid": "IID", "labels": "{} labels a node", "natural": "natural"}

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

# Steps of 0.1 are far too long on CIFAR-10, and a search there ends among them.
SHORTER = Space(DOUGLAS_RACHFORD.names, (1.0, -2.0))


@dataclass(frozen=True)
class Table:
    """One data set's part of one of the paper's tables.

    ``folder`` has the data's files, below ``--data``; of ``examples`` (0: all there
    are) ``choice`` choose the hyper-parameters, by ``budget`` candidates on the seeds
    ``choosing``, a fifth of them for validation. ``rounds`` 0 are the file's.
    """

    title: str
    dataset: dict[str, Any]
    folder: str = ""
    rounds: int = 0
    nodes: int = 10
    seeds: int = 5
    examples: int = 0
    choice: int = 5000
    budget: int = BUDGET
    choosing: tuple[int, ...] = SEEDS
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
    usual: dict[str, Any] = {
        "balls": ("l2-ball",),
        "methods": STOCHASTIC,
        "nodes": 20,
        "examples": 20_000,
        "choice": 10_000,
        "budget": 8,
    }
    return Table(title, THIRD | dataset, folder, **usual | more)


#: What tables 2 and 3 change in the run config of table 1.
SECOND = {"schedule": "nonconvex", "classification.model": "dnn"}
THIRD: dict[str, Any] = {
    "variant": "stochastic",
    "schedule": "stochastic",
    "batch-size": 64,
    "rounds": 300,
}
SYNTHETIC = {"classification.dataset": "synthetic"}
MNIST = {"classification.dataset": "mnist", "dtype": "float32"}
CIFAR = {"classification.dataset": "cifar10", "dtype": "float32"}
EMNIST = {"classification.dataset": "emnist", "dtype": "float32"}
TABLES = {
    "table-1-synthetic": Table("table 1, synthetic data", SYNTHETIC, seeds=10),
    "table-1-mnist": Table(
        "table 1, MNIST", MNIST, "mnist", examples=20_000, choice=2000, budget=12
    ),
    "table-1-cifar10": Table(
        "table 1, CIFAR-10",
        CIFAR,
        "cifar10",
        examples=10_000,
        choice=2000,
        budget=8,
        methods=METHODS | {"FedDR": (METHODS["FedDR"][0], SHORTER)},
    ),
    "table-2-synthetic": Table(
        "table 2, DNN, synthetic data", SECOND | SYNTHETIC, seeds=10, budget=12
    ),
    "table-2-synthetic-product": Table(
        "table 2, DNN, synthetic data, a ball a tensor",
        SECOND | SYNTHETIC | {"layers": "product"},
        seeds=10,
        budget=8,
    ),
    "table-2-mnist": Table(
        "table 2, CNN, MNIST",
        SECOND
        | MNIST
        | {"classification.model": "small-cnn", "classification.test-limit": 2000},
        "mnist",
        rounds=50,
        seeds=3,
        examples=10_000,
        choice=1000,
        budget=8,
    ),
    "table-3-synthetic": _stochastic(
        "table 3, synthetic data", SYNTHETIC, "", nodes=100, choosing=SEEDS[:2]
    ),
    "table-3-emnist10": _stochastic(
        "table 3, EMNIST-10",
        EMNIST | {"classification.split": "mnist"},
        "emnist",
        rounds=100,
    ),
    "table-3-emnist62": _stochastic(
        "table 3, EMNIST-62",
        EMNIST
        | {
            "classification.split": "byclass",
            "classification.labels-per-client": 20,
            "classification.test-limit": 10_000,
        },
        "emnist",
        rounds=100,
        seeds=3,
        examples=40_000,
    ),
    "table-3-cifar10": _stochastic(
        "table 3, CIFAR-10",
        CIFAR,
        "cifar10",
        rounds=100,
        methods=STOCHASTIC | {"FedDR": (STOCHASTIC["FedDR"][0], SHORTER)},
    ),
}


def published(name: str) -> dict[tuple[str, str], dict[str, float]]:
    """The paper's accuracies in %, by partition and ball, then by method."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in read_csv(Path(__file__).parent / "published.csv"):
        # theirs has a ball for each tensor, as the second of our two
        if row["table"] == name.removesuffix("-product"):
            cell = found.setdefault((row["partition"], row["ball"]), {})
            cell[row["method"]] = float(row["accuracy"])
    return found
