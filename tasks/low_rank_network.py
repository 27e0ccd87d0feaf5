"""Classification by a perceptron whose hidden weight matrix has low rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fedtrellis.manifolds import Product
from fedtrellis.objectives.low_rank_network import LowRankPerceptron
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, Point, data_path
from .data.datasets import Examples, hold_out, load_mnist
from .data.partition import LabelledData, PartitionedTask, arrange
from .data.settings import NODES, Schema
from .data.table import NodeTable
from .digits import split_digits

__all__ = ["LowRankNetwork"]

# Features of an example.
_INPUTS = {"digits": 64, "mnist": 784}
_CLASSES = 10


@dataclass(frozen=True)
class LowRankNetwork(PartitionedTask):
    """F = the mean cross-entropy over all training images of a perceptron.

    One hidden layer, its p × h weight matrix W of rank R; f_i is n·d_i/d times the mean
    over the client's d_i images plus (l2/2)‖x‖², so that F = (1/n) Σ f_i has it once.
    The model's arrays are, with ``factored``, U (p × R), s (R), V (h × R) of
    W = U diag(s) Vᵀ, the hidden bias (h), the output layer (h × 10) and its bias; else
    W in the place of the first three. ``full-rank`` puts no bound on the rank and keeps
    W whole, for comparison. For one seed all of them start from one draw of W, cut to
    rank R.

    Data sets: ``digits`` comes with scikit-learn, split as by the task ``digits``
    (1 437 images of 8 × 8 for training); ``mnist`` is a folder of the user's. Pixels
    lie in [0, 1].

    Notes
    -----
    §5.3 of arXiv 2507.22855: MNIST, W one matrix of fixed rank; it does not say how
    many hidden layers there are, how wide, or with which activation.
    """

    name: ClassVar[str] = "low-rank-network"
    summary: ClassVar[str] = "digits or MNIST by a perceptron of low rank"
    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedfw": {"schedule": "nonconvex"},
        "naive-frank-wolfe": {"schedule": "nonconvex"},
    }
    convex: ClassVar[bool] = False
    not_on_nodes: ClassVar[tuple[str, ...]] = (
        *("path", "partition", "labels_per_client", "alpha"),
        *("train_limit", "test_limit", "validation_fraction"),
    )
    node_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    dataset: str = setting(
        "digits",
        "the data set; 'nodes': every node's own file",
        choices=(*_INPUTS, NODES),
    )
    path: str = setting("", "the folder of MNIST's files", only={"dataset": ("mnist",)})
    train_limit: int = setting(
        0, "the most training examples, drawn by the seed; 0 for all", minimum=0
    )
    test_limit: int = setting(
        0, "the most test examples, drawn by the seed; 0 for all", minimum=0
    )
    validation_fraction: float = setting(
        0.0,
        "share of the training examples that takes the place of the test data, "
        "to choose settings on; 0: none",
        minimum=0.0,
        maximum=0.9,
    )
    hidden: int = setting(32, "h, the width of the hidden layer", minimum=1)
    rank: int = setting(8, "R, the rank of the hidden weight matrix", minimum=1)
    full_rank: bool = setting(False, "do without the bound on the rank")
    factored: bool = setting(
        True, "keep and send the hidden matrix as its factors; not with full-rank"
    )
    activation: str = setting(
        "tanh", "the hidden layer's activation", choices=("tanh", "relu")
    )
    l2: float = setting(0.0, "the factor of ‖x‖²/2 in F", minimum=0.0)

    def check(self) -> None:  # noqa: D102
        if self.on_nodes:
            self.check_nodes()
        largest = min(self._inputs(), self.hidden)
        if not self.full_rank and self.rank > largest:
            raise SettingsError(
                f"low-rank-network.rank = {self.rank} is too high: the hidden matrix "
                f"is {self._inputs()} x {self.hidden}, so at most {largest}"
            )
        if self.dataset == "mnist" and not self.path:
            raise SettingsError(
                "low-rank-network.path is empty; for low-rank-network.dataset = "
                "'mnist' it must name the folder of its files"
            )
        if not self.on_nodes:
            super().check()

    def _inputs(self) -> int:
        """Return the number of features."""
        if self.on_nodes:
            return self.nodes.num_features()
        return _INPUTS[self.dataset]

    def _classes(self) -> int:
        return len(self.nodes.class_labels()) if self.on_nodes else _CLASSES

    def num_examples(self) -> int:  # noqa: D102
        if self.on_nodes:
            return self.nodes.examples
        return len(_data(self).labels)

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        rank = self.rank if self.factored and not self.full_rank else None
        return LowRankPerceptron.layer_shapes(
            self._inputs(), self._classes(), self.hidden, rank
        )

    def node_schema(self) -> Schema:  # noqa: D102
        return Schema(
            self.nodes.num_features(),
            self.nodes.names(),
            "class",
            self.nodes.class_labels(),
            self.nodes.label_column,
        )

    def domains(self) -> dict[str, float]:
        """Return the balls that the task ``classification`` has for its networks."""
        return {"l2-ball": 10.0, "l1-ball": 10.0, "linf-ball": 1.0}

    def manifold(self) -> Product:
        """Return orthonormal U and V, or W of rank R; the rest of the model is free.

        With ``full-rank`` all of it is.
        """
        return self._template().manifold()

    def initial_point(self) -> list[Array]:
        """Return seeded weights and zero biases, on the manifold."""
        return self._template().initial_point(generator(self.seed, "initial model"))

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}`` on the test images."""
        return _test_objective(self).metrics(self.argument(x))

    def hidden_rank(self, x: Point) -> int:
        """Return the numerical rank of the hidden weight matrix of a model."""
        return self._template().rank(self.argument(x))

    def _template(self) -> LowRankPerceptron:
        """Return the network on an example made up, so that no data is loaded."""
        return self._make(np.zeros((1, self._inputs())), [0], 1.0)

    def _build_objective(self) -> LowRankPerceptron:
        data = _data(self)
        return self._make(data.features, data.labels, 1.0)

    def _build_client_objective(self, client: int) -> LowRankPerceptron:
        data = _data(self)
        return self._make(*data.share(client), data.weight(client))

    def _build_node_objective(
        self, table: NodeTable, weight: float
    ) -> LowRankPerceptron:
        assert table.targets is not None
        features = table.features
        if not isinstance(features, np.ndarray):
            features = features.toarray()
        return self._make(features, table.targets.astype(np.intp), weight)

    def _make(self, features: Any, labels: Any, weight: float) -> LowRankPerceptron:
        # The penalty counts once whatever the weight of a client's examples.
        return LowRankPerceptron(
            features,
            labels,
            self._classes(),
            self.hidden,
            None if self.full_rank else self.rank,
            factored=self.factored,
            activation=self.activation,
            l2=self.l2 / weight,
            weight=weight,
        )


def _examples(task: LowRankNetwork) -> Examples:
    """Load, with the limits applied and pixels in [0, 1]."""
    if task.dataset == "digits":
        examples = split_digits(task.seed)
    else:
        key = "low-rank-network.path"
        examples = load_mnist(data_path(key, task.path, folder=True), key)
    train = _some(len(examples.labels), task.train_limit, task.seed, "train")
    test = _some(len(examples.test_labels), task.test_limit, task.seed, "test")
    examples = examples._replace(
        features=examples.features[train],
        labels=examples.labels[train],
        test_features=examples.test_features[test],
        test_labels=examples.test_labels[test],
    )
    if task.validation_fraction:
        examples = hold_out(examples, task.validation_fraction, task.seed)
    return examples


def _some(count: int, limit: int, seed: int, part: str) -> Any:
    """Return which examples are kept: a slice for all, else drawn indices."""
    if not 0 < limit < count:
        return slice(None)
    return np.sort(generator(seed, "limit", part).permutation(count)[:limit])


@lru_cache(maxsize=2)
def _data(task: LowRankNetwork) -> LabelledData:
    examples = _examples(task)
    return arrange(
        examples.features,
        examples.labels,
        task.deal(examples.labels),
        examples.test_features,
        examples.test_labels,
        examples.classes,
        prepare=_as_rows,
    )


def _as_rows(features: Any) -> Array:
    scale = 255.0 if features.dtype == np.uint8 else 1.0
    rows: Array = features.reshape(len(features), -1) / scale
    return rows


@lru_cache(maxsize=2)
def _test_objective(task: LowRankNetwork) -> LowRankPerceptron:
    data = _data(task)
    return task._make(data.test_features, data.test_labels, 1.0)
