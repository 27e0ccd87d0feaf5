"""Classification of images and of synthetic data, by linear models and networks."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from fedtrellis.objectives import MultinomialLogistic, Objective
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, Point, data_path, derived_seed
from .data.datasets import (
    BUILT_IN,
    DATASETS,
    EMNIST_CLASSES,
    Examples,
    hold_out,
    load_cifar10,
    load_emnist,
    load_mnist,
    synthetic,
)
from .data.partition import LabelledData, PartitionedTask, arrange
from .data.settings import NODES, Schema
from .data.table import NodeTable
from .digits import split_digits

__all__ = ["Classification"]

# models of images
_CNNS = ("cnn", "small-cnn")


@dataclass(frozen=True)
class Classification(PartitionedTask):
    """F = the mean cross-entropy over all training examples of a model.

    f_i is n·d_i/d times the mean over the client's d_i examples, so that
    F = (1/n) Σ f_i. Bytes of images are divided by 255.

    Models: ``mclr``, multi-class logistic regression, one array of shape
    (features + 1, classes) with the intercept last, which starts at zero; ``dnn``,
    ``cnn`` and ``small-cnn``, networks in PyTorch with seeded initial weights
    (:func:`~.networks.classification.make_model`).

    The synthetic data is federated by nature: ``partition = "natural"`` keeps every
    client's own distribution; the other partitions deal examples of one distribution.

    Notes
    -----
    The experiments of FedFW, arXiv 2408.10090, §6.
    """

    name: ClassVar[str] = "classification"
    summary: ClassVar[str] = (
        "digits, MNIST, EMNIST, CIFAR-10 or synthetic; linear, DNN or CNN"
    )

    not_on_nodes: ClassVar[tuple[str, ...]] = (
        *("path", "split", "partition", "labels_per_client", "alpha", "train_limit"),
        *("test_limit", "validation_fraction", "partial"),
    )
    node_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    dataset: str = setting(
        "synthetic",
        "the data set; 'nodes': every node's own file",
        choices=(*DATASETS, NODES),
    )
    model: str = setting("mclr", "the model", choices=("mclr", "dnn", *_CNNS))
    path: str = setting(
        "",
        "the folder of the data set's files",
        only={"dataset": tuple(name for name in DATASETS if name not in BUILT_IN)},
    )
    split: str = setting("mnist", "EMNIST's split", choices=tuple(EMNIST_CLASSES))
    partition: str = setting(
        "iid",
        "how examples are dealt to clients; 'natural' with synthetic data only",
        choices=("iid", "natural", "labels", "dirichlet"),
    )
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
    device: str = setting(
        "auto",
        "where PyTorch's models are computed: 'cpu', 'cuda', 'cuda:1'; auto: a GPU "
        "where there is one",
    )
    partial: bool = setting(
        False, "go on where some training files of CIFAR-10 or EMNIST are missing"
    )

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """Whether F is convex, as that of no network is."""
        return self.model == "mclr"

    def check(self) -> None:  # noqa: D102
        if self.model != "mclr" and importlib.util.find_spec("torch") is None:
            raise SettingsError(
                f"classification.model = {self.model!r} needs PyTorch: "
                'pip install "fedtrellis[torch]"'
            )
        if self.model != "mclr":
            self._check_device()
        if self.on_nodes:
            self.check_nodes()
            self._shape()
            return
        if self.dataset in BUILT_IN and self.model in _CNNS:
            raise SettingsError(
                f"classification.model = {self.model!r} does not fit "
                f"classification.dataset = {self.dataset!r}, which has no images of "
                "16 x 16 pixels or more; allowed: dnn, mclr"
            )
        if self.partition == "natural" and self.dataset != "synthetic":
            raise SettingsError(
                "classification.partition = 'natural' is for synthetic data, not for "
                f"{self.dataset!r}; allowed: dirichlet, iid, labels"
            )
        if not self.path and self.dataset not in BUILT_IN:
            raise SettingsError(
                f"classification.path is empty; for {self.dataset!r} it must name the "
                "folder of its files"
            )
        # Nothing can be generated for none, so this comes before the data.
        self.check_clients(max(self.num_clients, 1), "examples")
        super().check()

    def _check_device(self) -> None:
        from fedtrellis.objectives.torch_module import choose_device

        try:
            choose_device(self.device)
        except ValueError as error:
            raise SettingsError(f"classification.{error}") from None

    def num_examples(self) -> int:  # noqa: D102
        if self.on_nodes:
            return self.nodes.examples
        return len(_data(self).labels)

    def node_schema(self) -> Schema:  # noqa: D102
        return Schema(
            self.nodes.num_features(),
            self.nodes.names(),
            "class",
            self.nodes.class_labels(),
            self.nodes.label_column,
        )

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [array.shape for array in self._initial()]

    def initial_point(self) -> list[Array]:
        """Return zeros for mclr, else the networks' seeded initial weights."""
        return [array.copy() for array in self._initial()]

    def domains(self) -> dict[str, float]:
        """Return the paper's balls of radius 10, and for mclr those of matrices."""
        balls = {"l2-ball": 10.0, "l1-ball": 10.0, "linf-ball": 1.0}
        if self.model == "mclr":
            balls["nuclear-norm-ball"] = 10.0
        return balls

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}`` on the test examples."""
        return _test_objective(self).metrics(self.argument(x))

    def _initial(self) -> list[Array]:
        return _initial_point(self.model, self._shape(), self._classes(), self.seed)

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of an example, as the model takes it."""
        if not self.on_nodes:
            return DATASETS[self.dataset]
        features = self.nodes.num_features()
        if self.model not in _CNNS:
            return (features,)
        images = {
            math.prod(shape): shape
            for name, shape in DATASETS.items()
            if name not in BUILT_IN
        }
        if len(images.get(features, ())) != 3:
            raise SettingsError(
                f"classification.model = {self.model!r} with data.features = "
                f"{features}: images of 1 x 28 x 28 or 3 x 32 x 32 pixels, 784 or 3072 "
                "features, are needed"
            )
        return images[features]

    def _classes(self) -> int:
        if self.on_nodes:
            return len(self.nodes.class_labels())
        return EMNIST_CLASSES[self.split] if self.dataset == "emnist" else 10

    def _build_objective(self) -> Objective:
        data = _data(self)
        if self.model == "mclr":
            return data.objective()
        return self._torch_objective(data.features, data.labels, 1.0)

    def _build_client_objective(self, client: int) -> Objective:
        data = _data(self)
        if self.model == "mclr":
            return data.client_objective(client)
        features, labels = data.share(client)
        return self._torch_objective(
            features, labels, data.weight(client), self.values_only
        )

    def _build_node_objective(self, table: NodeTable, weight: float) -> Objective:
        assert table.targets is not None
        labels = table.targets.astype(np.intp)
        if self.model == "mclr":
            classes = self._classes()
            features = _dense(table)
            return MultinomialLogistic(features, labels, classes, weight=weight)
        inputs = _dense(table).astype(np.float32).reshape(-1, *self._shape())
        return self._torch_objective(inputs, labels, weight, self.values_only)

    def _build_test_objective(self) -> Objective:
        data = _data(self)
        if self.model == "mclr":
            return data.test_objective()
        return self._torch_objective(data.test_features, data.test_labels, 1.0)

    def _torch_objective(
        self, features: Any, labels: Any, weight: float, values_only: bool = False
    ) -> Objective:
        from .networks.objective import network_loss

        return network_loss(
            partial(_make_model, self.model, self._shape(), self._classes(), self.seed),
            (features, labels),
            weight=weight,
            device=self.device,
            values_only=values_only,
        )


def _dense(table: NodeTable) -> Array:
    features = table.features
    return features if isinstance(features, np.ndarray) else features.toarray()


def _make_model(name: str, shape: tuple[int, ...], classes: int, seed: int) -> Any:
    from .networks.classification import make_model

    return make_model(name, shape, classes, derived_seed(seed, "initial model"))


@lru_cache(maxsize=4)
def _initial_point(
    name: str, shape: tuple[int, ...], classes: int, seed: int
) -> list[Array]:
    if name == "mclr":
        return [np.zeros((int(np.prod(shape)) + 1, classes))]
    model = _make_model(name, shape, classes, seed)
    return [p.detach().numpy().astype(np.float64) for p in model.parameters()]


def _examples(task: Classification) -> Examples:
    """Load or generate, with the limits applied."""
    if task.dataset == "synthetic":
        clients, limit = task.num_clients, task.train_limit
        iid = task.partition != "natural"
        examples = synthetic(clients, limit, task.seed, iid=iid)
    elif task.dataset == "digits":
        examples = split_digits(task.seed)
        shape = (-1, *DATASETS["digits"])
        examples = examples._replace(
            features=examples.features.reshape(shape),
            test_features=examples.test_features.reshape(shape),
        )
    else:
        examples = _loaded(task)
    if 0 < task.train_limit < len(examples.labels) and task.dataset != "synthetic":
        chosen = _some(len(examples.labels), task.train_limit, task.seed, "train")
        examples = examples._replace(
            features=examples.features[chosen], labels=examples.labels[chosen]
        )
    if 0 < task.test_limit < len(examples.test_labels):
        chosen = _some(len(examples.test_labels), task.test_limit, task.seed, "test")
        examples = examples._replace(
            test_features=examples.test_features[chosen],
            test_labels=examples.test_labels[chosen],
        )
    if task.validation_fraction:
        examples = hold_out(examples, task.validation_fraction, task.seed)
    return examples


def _loaded(task: Classification) -> Examples:
    """Load from the files of the path."""
    folder = data_path("classification.path", task.path, folder=True)
    if task.dataset == "mnist":
        return load_mnist(folder)
    if task.dataset == "emnist":
        return load_emnist(folder, task.split, partial=task.partial, seed=task.seed)
    return load_cifar10(folder, partial=task.partial)


def _some(count: int, limit: int, seed: int, part: str) -> Any:
    return np.sort(generator(seed, "limit", part).permutation(count)[:limit])


@lru_cache(maxsize=2)
def _data(task: Classification) -> LabelledData:
    examples = _examples(task)
    if examples.owners is not None and task.partition == "natural":
        shares = [np.flatnonzero(examples.owners == i) for i in range(task.num_clients)]
    else:
        shares = task.deal(examples.labels)
    return arrange(
        examples.features,
        examples.labels,
        shares,
        examples.test_features,
        examples.test_labels,
        examples.classes,
        prepare=partial(_as_inputs, model=task.model),
    )


def _as_inputs(features: Any, model: str) -> Any:
    """Return rows of float64 for mclr, else float32 of the examples' shape."""
    scale = 255.0 if features.dtype == np.uint8 else 1.0
    if model == "mclr":
        return features.reshape(len(features), -1) / scale
    return np.asarray(features / np.float32(scale), dtype=np.float32)


@lru_cache(maxsize=2)
def _test_objective(task: Classification) -> Objective:
    return task._build_test_objective()
