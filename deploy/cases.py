"""What the trial runs, and the nodes' files that it cuts for that.

``python -m deploy.cases FOLDER`` writes the files alone.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError, need

__all__ = [
    "FAMILIES",
    "METHODS",
    "NODES",
    "SECRET_DRAWS",
    "Files",
    "primal",
    "write_data",
]

#: The nodes' names: their ``client-id``, and those of their keys and files.
NODES = ("node-1", "node-2", "node-3", "node-4")

#: Whole rows of a table, or blocks split by rows and columns, in the clear or hidden.
Files = Literal["rows", "blocks", "hidden blocks"]

_ROWS = (
    'task="logistic-regression" logistic-regression.dataset="nodes" '
    "data.features=30 data.examples=569"
)
_SUMS = 'aggregation="secure-sum" zeroth-order-sgd.batch-size=0'
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
    "fedfw": ("rows", f'{_ROWS} fedfw.variant="augmented"'),
    "naive-frank-wolfe": ("rows", _ROWS),
    "projected-fedavg": ("rows", _ROWS),
    "feddr": ("rows", _ROWS),
    "fedgia": ("rows", f'{_ROWS} fedgia.hessian="gram"'),
    "fedavg": ("rows", f"{_ROWS} local-deadline=60.0"),
    "fedavg-gd": ("rows", _ROWS),
    "local-sgd": ("rows", _ROWS),
    "fedprox": ("rows", _ROWS),
    "fedopt": ("rows", _ROWS),
    "compressed-sgd": ("rows", _ROWS),
    "scaffold": ("rows", _ROWS),
    "fedlmo": ("rows", _ROWS),
    # scalars in the clear would show each node's gradient
    "zeroth-order-sgd": ("rows", f"{_ROWS} {_SUMS}"),
    "first-order-rfl": ("rows", _COMPONENTS),
    "zeroth-order-rfl": ("rows", f"{_COMPONENTS} zeroth-order-rfl.samples=10"),
    "hyfdca": ("hidden blocks", _BLOCKS),
    "hyfem": ("blocks", _BLOCKS),
    "hybrid-fedavg": ("blocks", _BLOCKS),
}

#: Methods whose clients draw from secrets of the run, so that no two runs are the same:
#: their models are held against what the run says of them.
SECRET_DRAWS = ("hyfdca",)

#: One method of each family.
FAMILIES = ("fedfw", "fedgia", "fedavg", "zeroth-order-rfl", "hyfdca")


def primal(weights: NDArray[np.float64]) -> float:
    """P(w) of the hinge loss on all ``blocks``, λ = 10⁻³, from the data itself.

    Features stand in the order in which the nodes have them.
    """
    features, target = _scaled()
    features = np.hstack([features[:, 0::2], features[:, 1::2]])
    margins = np.where(target == 1, 1.0, -1.0) * (features @ weights)
    return float(np.maximum(0.0, 1.0 - margins).mean() + 5e-4 * weights @ weights)


def write_data(folder: Path) -> None:
    """Cut scikit-learn's breast cancer data into files, one for each node.

    ``rows/NODE.csv`` has a quarter of the patients with all that was measured,
    ``blocks/NODE.csv`` half of the patients with half of it, and their ids. The scaling
    is by the means and deviations of all patients: nodes of several owners would have
    to agree on such numbers beforehand.
    """
    features, target = _scaled()
    names = [str(name) for name in _breast_cancer().feature_names]
    for index, node in enumerate(NODES):
        _write(
            folder / "rows" / f"{node}.csv",
            [*names, "label"],
            [
                [*_texts(features[patient]), target[patient]]
                for patient in range(index, len(features), len(NODES))
            ],
        )
        # examples that are on several nodes are known by their ids
        half = slice(index // 2, None, 2)
        _write(
            folder / "blocks" / f"{node}.csv",
            ["id", *names[half], "label"],
            [
                [
                    f"patient-{patient}",
                    *_texts(features[patient, half]),
                    target[patient],
                ]
                for patient in range(index % 2, len(features), 2)
            ],
        )


def _breast_cancer() -> Any:
    need("sklearn", "the breast cancer data", "sklearn")
    from sklearn.datasets import load_breast_cancer  # nodes do not have it

    return load_breast_cancer()


def _scaled() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    data = _breast_cancer()
    return (data.data - data.data.mean(axis=0)) / data.data.std(axis=0), data.target


def _texts(numbers: Any) -> list[str]:
    """Return numbers as texts that are read back as the same numbers."""
    return [repr(float(number)) for number in numbers]


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m deploy.cases FOLDER")
    try:
        write_data(Path(sys.argv[1]))
    except SettingsError as error:
        sys.exit(f"error: {error}")
