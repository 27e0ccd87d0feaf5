"""What tables 1, 2 and 3 are made of: data, methods, budgets, the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .tuning import BUDGET, SEEDS, Space

__all__ = ["BALLS", "PAPER", "TABLES", "Table", "published"]

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


# Theirs has a ball for each tensor, as the second of our two; the first has one ball.
PAPER["table-2-synthetic-product"] = PAPER["table-2-synthetic"]


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
        The settings that name the data, and the model where it is not the file's.
    folder : str
        Of the data's files below ``--data``; empty: it is made.
    steps : int
        Local steps of a round, the same for all methods; the paper has one.
    rounds : int
        0: the file's.
    nodes : int
    seeds : int
        The most repetitions.
    examples : int
        Training examples, of all nodes; 0: all there are.
    choice : int
        Training examples where hyper-parameters are chosen; a fifth is for validation.
    budget : int
        Settings that each method tries there.
    choosing : tuple of int
        Seeds of these runs.
    balls : tuple of str
    methods : dict
    """

    title: str
    config: str
    dataset: dict[str, Any]
    folder: str = ""
    steps: int = 1
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
    return Table(title, "table-3", dataset, folder, **usual | more)


SYNTHETIC = {"classification.dataset": "synthetic"}
MNIST = {"classification.dataset": "mnist", "dtype": "float32"}
CIFAR = {"classification.dataset": "cifar10", "dtype": "float32"}
EMNIST = {"classification.dataset": "emnist", "dtype": "float32"}
#: Twenty local steps cost twenty times as much: fewer rounds, seeds and settings.
TWENTY: dict[str, Any] = {
    "steps": 20,
    "rounds": 20,
    "budget": 6,
    "choosing": SEEDS[:2],
    "choice": 2000,
}

TABLES = {
    "table-1-synthetic": Table(
        "table 1, synthetic data", "table-1", SYNTHETIC, seeds=10
    ),
    "table-1-mnist": Table(
        "table 1, MNIST",
        "table-1",
        MNIST,
        "mnist",
        examples=20_000,
        choice=2000,
        budget=12,
    ),
    "table-1-cifar10": Table(
        "table 1, CIFAR-10",
        "table-1",
        CIFAR,
        "cifar10",
        examples=10_000,
        choice=2000,
        budget=8,
        methods=METHODS | {"FedDR": (METHODS["FedDR"][0], SHORTER)},
    ),
    "table-2-synthetic": Table(
        "table 2, DNN, synthetic data", "table-2", SYNTHETIC, seeds=10, budget=12
    ),
    "table-2-synthetic-product": Table(
        "table 2, DNN, synthetic data, a ball a tensor",
        "table-2",
        SYNTHETIC | {"layers": "product"},
        seeds=10,
        budget=8,
    ),
    "table-2-mnist": Table(
        "table 2, CNN, MNIST",
        "table-2",
        MNIST
        | {
            "classification.model": "small-cnn",
            "classification.test-limit": 2000,
        },
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
    "table-1-mnist-20": Table(
        "table 1, MNIST, 20 local steps",
        "table-1",
        MNIST,
        "mnist",
        examples=5000,
        **TWENTY,
    ),
    "table-2-synthetic-20": Table(
        "table 2, DNN, synthetic data, 20 local steps",
        "table-2",
        SYNTHETIC,
        examples=5000,
        **TWENTY,
    ),
    "table-3-synthetic-20": _stochastic(
        "table 3, synthetic data, 20 local steps",
        SYNTHETIC,
        "",
        **TWENTY | {"examples": 5000},
    ),
}


def published(name: str) -> dict[tuple[str, str], dict[str, float]]:
    """The paper's numbers for a table, with the steps that it took; else nothing."""
    table = TABLES[name]
    return PAPER[name] if table.steps == 1 else {}
