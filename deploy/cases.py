"""What the trial runs, and the nodes' files that it cuts for that."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

from sklearn.datasets import load_breast_cancer

__all__ = ["FAMILIES", "METHODS", "NODES", "Files", "write_data"]

#: The nodes' names: their ``client-id``, and those of their keys and files.
NODES = ("node-1", "node-2", "node-3", "node-4")

#: Whole rows of a table, or blocks of it that are split by rows and columns.
Files = Literal["rows", "blocks"]

_ROWS = (
    'task="logistic-regression" logistic-regression.dataset="nodes" '
    "data.features=30 data.examples=569"
)
_COMPONENTS = (
    'task="kernel-pca" kernel-pca.dataset="nodes" kernel-pca.scale=false '
    "data.features=30"
)
_BLOCKS = (
    'task="hybrid-svm" hybrid-svm.dataset="nodes" hybrid-svm.bias=0.0 '
    'data.features=30 data.labels="0,1"'
)

#: Each method's files and run config.
METHODS: dict[str, tuple[Files, str]] = {
    "fedfw": ("rows", f'{_ROWS} variant="augmented"'),
    "naive-frank-wolfe": ("rows", _ROWS),
    "projected-fedavg": ("rows", _ROWS),
    "feddr": ("rows", _ROWS),
    "fedgia": ("rows", f'{_ROWS} hessian="gram"'),
    "fedavg-gd": ("rows", _ROWS),
    "local-sgd": ("rows", _ROWS),
    "fedprox": ("rows", _ROWS),
    "first-order-rfl": ("rows", _COMPONENTS),
    "zeroth-order-rfl": ("rows", f"{_COMPONENTS} samples=10"),
    "hyfdca": ("blocks", _BLOCKS),
    "hyfem": ("blocks", _BLOCKS),
    "hybrid-fedavg": ("blocks", _BLOCKS),
}

#: One method of each family.
FAMILIES = ("fedfw", "fedgia", "zeroth-order-rfl", "hyfdca")


def write_data(folder: Path) -> None:
    """Cut scikit-learn's breast cancer data into files, one for each node.

    ``rows/NODE.csv`` has a quarter of the patients with all that was measured,
    ``blocks/NODE.csv`` half of the patients with half of it, and their ids. The scaling
    is by the means and deviations of all patients: nodes of several owners would have
    to agree on such numbers beforehand.
    """
    data = load_breast_cancer()
    features = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    names, half = list(data.feature_names), len(data.feature_names) // 2
    for index, node in enumerate(NODES):
        row, column = divmod(index, 2)
        for kind, patients, chosen in (
            ("rows", range(index, len(features), len(NODES)), slice(None)),
            ("blocks", range(row, len(features), 2), slice(column * half, None))
            if column
            else ("blocks", range(row, len(features), 2), slice(half)),
        ):
            path = folder / kind / f"{node}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["id", *names[chosen], "label"])
                for patient in patients:
                    # repr() of a float is read back as the same float
                    values = [repr(float(x)) for x in features[patient, chosen]]
                    label = int(data.target[patient])
                    writer.writerow([f"patient-{patient}", *values, label])
