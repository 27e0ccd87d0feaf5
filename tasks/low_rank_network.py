"""Classification by a perceptron whose hidden weight matrix has low rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrellis.manifolds import Product
from fedtrellis.objectives.demonstrations import LowRankPerceptron
from fedtrellis.random import generator
from fedtrellis.settings import setting

from .base import Array, Nonconvex, Point, data_path
from .data.datasets import limited, load_mnist, rows_of, split_digits
from .data.settings import NODES
from .data.task import (
    Dealt,
    PartitionedTask,
    dense,
    limit_setting,
    validation_setting,
)

__all__ = ["LowRankNetwork"]

# Features of an example.
_INPUTS = {"digits": 64, "mnist": 784}
_CLASSES = 10


@dataclass(frozen=True)
class LowRankNetwork(Nonconvex, PartitionedTask):
    """F = the mean cross-entropy over all training images of a perceptron.

    One hidden layer, its p × h weight matrix W of rank R; f_i is n·d_i/d times the mean
    over the client's d_i images plus (l2/2)‖x‖², so that F = (1/n) Σ f_i has it once.
    The model's arrays are, with ``factored``, U (p × R), s (R), V (h × R) of
    W = U diag(s) Vᵀ, the hidden bias (h), the output layer (h × 10) and its bias; else
    W instead of the first three. ``full-rank`` puts no bound on the rank and keeps
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

    name = "low-rank-network"
    summary = "digits or MNIST by a perceptron of low rank"

    dataset: str = setting(
        "digits",
        "the data set; 'nodes': every node's own file",
        choices=(*_INPUTS, NODES),
    )
    path: str = setting("", "the folder of MNIST's files", only={"dataset": ("mnist",)})
    train_limit: int = limit_setting("training")
    test_limit: int = limit_setting("test")
    validation_fraction: float = validation_setting()
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

    def check_settings(self) -> None:  # noqa: D102
        largest = min(self._inputs(), self.hidden)
        if not self.full_rank and self.rank > largest:
            size = f"{self._inputs()} x {self.hidden}"
            why = f"is too high: the hidden matrix is {size}, so at most {largest}"
            raise self.refused("rank", why)

    def _inputs(self) -> int:
        on_nodes = self.on_nodes
        return self.nodes.num_features() if on_nodes else _INPUTS[self.dataset]

    def _classes(self) -> int:
        return len(self.nodes.class_labels()) if self.on_nodes else _CLASSES

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        rank = self.rank if self.factored and not self.full_rank else None
        return LowRankPerceptron.layer_shapes(
            self._inputs(), self._classes(), self.hidden, rank
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

    def hidden_rank(self, x: Point) -> int:
        """Return the numerical rank of the hidden weight matrix of a model."""
        return self._template().rank(self.argument(x))

    def _template(self) -> LowRankPerceptron:
        """Return the network on an example made up, so that no data is loaded."""
        return self._loss(np.zeros((1, self._inputs())), [0], 1.0)

    def _load(self) -> Dealt:
        if self.dataset == "digits":
            examples = split_digits(self.seed)
        else:
            key = "low-rank-network.path"
            examples = load_mnist(data_path(key, self.path, folder=True), key)
        limits = self.train_limit, self.test_limit, self.validation_fraction
        return self.deal_examples(limited(examples, *limits, self.seed), rows_of)

    def _node_inputs(self, features: Any) -> Any:
        return dense(features)

    def _loss(self, features: Any, targets: Any, weight: float) -> LowRankPerceptron:
        # The penalty counts once whatever the weight of a client's examples.
        return LowRankPerceptron(
            features,
            targets,
            self._classes(),
            self.hidden,
            None if self.full_rank else self.rank,
            factored=self.factored,
            activation=self.activation,
            l2=self.l2 / weight,
            weight=weight,
        )
