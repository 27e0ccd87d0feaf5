"""Classification of images and of synthetic data, by linear models and networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedtrellis.objectives import MultinomialLogistic
from fedtrellis.settings import setting

from .base import Array, check_torch, data_path, derived_seed
from .data import datasets
from .data.datasets import BUILT_IN, DATASETS, EMNIST_CLASSES, Examples
from .data.partition import PartitionedTask, limit_setting, validation_setting
from .data.settings import NODES
from .data.task import Dealt, Indices, dense

__all__ = ["Classification", "NetworkTask", "device_setting"]

# models of images
_CNNS = ("cnn", "small-cnn")
# those with images
_OF_IMAGES = tuple(name for name in DATASETS if name not in BUILT_IN)


def device_setting(whose: str) -> str:
    """Return the setting of where a task's networks are computed."""
    text = f"where {whose} are computed: 'cpu', 'cuda', 'cuda:1'; auto: a GPU where "
    return setting("auto", text + "there is one")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class NetworkTask(PartitionedTask):
    """A task whose model is a network in PyTorch, with the mean cross-entropy as F.

    It makes the network, with the same weights whenever it is asked, and has a field
    ``device``.
    """

    def _make_model(self) -> Any:
        raise NotImplementedError

    def _pretrain(self, model: Any) -> None:
        """Train a new model, in place, before the clients have it; here nothing."""

    def _pair(self, features: Any, targets: Any) -> tuple[Any, Any]:
        """Return the network's inputs and what it should give."""
        return features, targets

    def _parameters(self, *, trained: bool) -> list[Array]:
        model = self._make_model()
        if trained:
            self._pretrain(model)
        return [p.detach().numpy().astype(np.float64) for p in model.parameters()]

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [array.shape for array in _initial(self, trained=False)]

    def initial_point(self) -> list[Array]:
        """Return seeded weights, trained where the task's settings say so."""
        return [array.copy() for array in _initial(self, trained=True)]

    def domains(self) -> dict[str, float]:
        """Return the balls of the experiments of FedFW."""
        return {"l2-ball": 10.0, "l1-ball": 10.0, "linf-ball": 1.0}

    def _loss(
        self, features: Any, targets: Any, weight: float, values_only: bool = False
    ) -> Any:
        from .networks import network_loss

        device: str = getattr(self, "device", "auto")
        pair = self._pair(features, targets)
        more: dict[str, Any] = {"weight": weight, "device": device}
        return network_loss(self._make_model, pair, values_only=values_only, **more)

    def _client_loss(self, features: Any, targets: Any, weight: float) -> Any:
        return self._loss(features, targets, weight, self.values_only)


@lru_cache(maxsize=4)
def _initial(task: NetworkTask, *, trained: bool) -> list[Array]:
    """Return the weights at the start, made once per process."""
    return task._parameters(trained=trained)


@dataclass(frozen=True)
class Classification(NetworkTask):
    """F = the mean cross-entropy over all training examples of a model.

    f_i is n·d_i/d times the mean over the client's d_i examples, so that
    F = (1/n) Σ f_i. Bytes of images are divided by 255.

    Models: ``mclr``, multi-class logistic regression, one array of shape
    (features + 1, classes) with the intercept last, which starts at zero; ``dnn``,
    ``cnn`` and ``small-cnn``, networks in PyTorch with seeded initial weights
    (:func:`~.networks.make_model`).

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

    dataset: str = setting(
        "synthetic",
        "the data set; 'nodes': every node's own file",
        choices=(*DATASETS, NODES),
    )
    model: str = setting("mclr", "the model", choices=("mclr", "dnn", *_CNNS))
    path: str = setting(
        "",
        "the folder of the data set's files",
        only={"dataset": _OF_IMAGES},
    )
    split: str = setting("mnist", "EMNIST's split", choices=tuple(EMNIST_CLASSES))
    partition: str = setting(
        "iid",
        "how examples are dealt to clients; 'natural' with synthetic data only",
        choices=("iid", "natural", "labels", "dirichlet"),
    )
    train_limit: int = limit_setting("training")
    test_limit: int = limit_setting("test")
    validation_fraction: float = validation_setting()
    device: str = device_setting("PyTorch's models")
    partial: bool = setting(
        False, "go on where some training files of CIFAR-10 or EMNIST are missing"
    )

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """Whether F is convex, as that of no network is."""
        return self.model == "mclr"

    def check_settings(self) -> None:  # noqa: D102
        if self.model != "mclr":
            check_torch(
                self.name, f"classification.model = {self.model!r}", self.device
            )
        if self.on_nodes:
            return
        if self.dataset in BUILT_IN and self.model in _CNNS:
            why = "which has no images of 16 x 16 pixels or more; allowed: dnn, mclr"
            data = f"classification.dataset = {self.dataset!r}"
            raise self.refused("model", f"does not fit {data}, {why}")
        if self.partition == "natural" and self.dataset != "synthetic":
            why = f"is for synthetic data, not for {self.dataset!r}"
            raise self.refused("partition", f"{why}; allowed: dirichlet, iid, labels")

    def check_nodes(self) -> None:  # noqa: D102
        super().check_nodes()
        self._shape()

    def domains(self) -> dict[str, float]:
        """Return the paper's balls of radius 10, and for mclr those of matrices."""
        balls = super().domains()
        if self.model == "mclr":
            balls["nuclear-norm-ball"] = 10.0
        return balls

    def _parameters(self, *, trained: bool) -> list[Array]:
        if self.model != "mclr":
            return super()._parameters(trained=trained)
        return [np.zeros((math.prod(self._shape()) + 1, self._classes()))]

    def _make_model(self) -> Any:
        from .networks import make_model

        seed = derived_seed(self.seed, "initial model")
        return make_model(self.model, self._shape(), self._classes(), seed)

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of an example, as the model takes it."""
        if not self.on_nodes:
            return DATASETS[self.dataset]
        features = self.nodes.num_features()
        if self.model not in _CNNS:
            return (features,)
        images = {math.prod(DATASETS[name]): DATASETS[name] for name in _OF_IMAGES}
        if len(images.get(features, ())) != 3:
            why = "images of 1 x 28 x 28 or 3 x 32 x 32 pixels, 784 or 3072 features"
            given = f"with data.features = {features}"
            raise self.refused("model", f"{given}: {why}, are needed")
        return images[features]

    def _classes(self) -> int:
        if self.on_nodes:
            return len(self.nodes.class_labels())
        return EMNIST_CLASSES[self.split] if self.dataset == "emnist" else 10

    def _load(self) -> Dealt:
        natural = self.partition == "natural"
        limit, path = self.train_limit, Path()
        if self.dataset in _OF_IMAGES:
            path = data_path("classification.path", self.path, folder=True)
        if self.dataset == "synthetic":
            examples = datasets.synthetic(
                self.num_clients, limit, self.seed, iid=not natural
            )
            limit = 0  # the clients' sizes shrink alike
        elif self.dataset == "digits":
            examples = datasets.split_digits(self.seed)
        elif self.dataset == "mnist":
            examples = datasets.load_mnist(path)
        elif self.dataset == "emnist":
            partial, seed = self.partial, self.seed
            examples = datasets.load_emnist(
                path, self.split, partial=partial, seed=seed
            )
        else:
            examples = datasets.load_cifar10(path, partial=self.partial)
        others = self.test_limit, self.validation_fraction, self.seed
        return self.deal_examples(
            datasets.limited(examples, limit, *others), self._inputs
        )

    def shares(self, examples: Examples) -> list[Indices]:  # noqa: D102
        if self.partition != "natural":
            return super().shares(examples)
        return [np.flatnonzero(examples.owners == i) for i in range(self.num_clients)]

    def _inputs(self, features: Any) -> Any:
        """Return rows of float64 for mclr, else float32 of the examples' shape."""
        if self.model == "mclr":
            return datasets.rows_of(features)
        scale = np.float32(255.0 if features.dtype == np.uint8 else 1.0)
        inputs = np.asarray(features / scale, dtype=np.float32)
        return inputs.reshape(-1, *self._shape())

    def _node_inputs(self, features: Any) -> Any:
        return self._inputs(dense(features))

    def _loss(
        self, features: Any, targets: Any, weight: float, values_only: bool = False
    ) -> Any:
        if self.model != "mclr":
            return super()._loss(features, targets, weight, values_only)
        return MultinomialLogistic(features, targets, self._classes(), weight=weight)
