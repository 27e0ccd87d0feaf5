"""Classification of images and of synthetic data, by linear models and networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.objectives import MultinomialLogistic
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, check_torch, data_path, derived_seed, once
from .data.datasets import (
    BUILT_IN,
    DATASETS,
    EMNIST_CLASSES,
    Examples,
    limited,
    load_cifar10,
    load_emnist,
    load_mnist,
    rows_of,
    split_digits,
)
from .data.settings import NODES
from .data.task import (
    Dealt,
    PartitionedTask,
    dense,
    limit_setting,
    validation_setting,
)

__all__ = ["Classification", "Digits", "NetworkTask", "device_setting", "synthetic"]

# models of images
_CNNS = ("cnn", "small-cnn")
# those with images
_OF_IMAGES = tuple(name for name in DATASETS if name not in BUILT_IN)
# pFedMe's clients have 5·(lognormal(4, 2) + 50) examples; the lognormal's tail, 7 % of
# the clients but most of the examples, is cut here.
_SIZE_CAP = 1000
_TRAIN_SHARE = 0.75


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

    @once(8)
    def _parameters(self, *, trained: bool) -> list[Array]:
        """Return the weights at the start, made once per process."""
        model = self._make_model()
        if trained:
            self._pretrain(model)
        return [p.detach().numpy().astype(np.float64) for p in model.parameters()]

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [array.shape for array in self._parameters(trained=False)]

    def initial_point(self) -> list[Array]:
        """Return seeded weights, trained where the task's settings say so."""
        return [array.copy() for array in self._parameters(trained=True)]

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


@dataclass(frozen=True)
class Digits(PartitionedTask):
    """Multinomial logistic regression on 1 797 images of 8 × 8 pixels.

    Pixels are divided by 16; 80 % of the images, drawn by the seed and stratified by
    label, are dealt to the clients, 20 % are test data. The model is one array of
    shape (65, 10), the intercept in its last row. F is the mean cross-entropy of all
    training images and f_i is n·d_i/d times the mean of the client's d_i, so that
    F = (1/n) Σ f_i.

    Notes
    -----
    Figure 1b of the FedFW workshop paper (2022) uses these images (the UCI set's test
    half), with an ℓ1 ball whose radius it does not name.
    """

    name = "digits"
    summary = "hand-written digits (scikit-learn), logistic regression"

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [(65, 10)]

    def domains(self) -> dict[str, float]:
        """Return balls that fifty rounds of FedFW make use of.

        The accuracy of the minimiser grows with the radius (ℓ1: 0.83 at 30 with 44
        non-zero weights, 0.89 at 50, 0.97 at 200; seed 0), and so does the number of
        rounds that Frank-Wolfe needs to come near it.
        """
        return {
            "l1-ball": 30.0,
            "l2-ball": 10.0,
            "linf-ball": 1.0,
            "nuclear-norm-ball": 20.0,
            "spectral-norm-ball": 5.0,
        }

    def _load(self) -> Dealt:
        return self.deal_examples(split_digits(self.seed))

    def _loss(self, features: Any, targets: Any, weight: float) -> MultinomialLogistic:
        return MultinomialLogistic(features, targets, 10, weight=weight)


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

    name = "classification"
    summary = "digits, MNIST, EMNIST, CIFAR-10 or synthetic; linear, DNN or CNN"

    not_on_nodes = (*PartitionedTask.not_on_nodes, "split")

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
        limit, path = self.train_limit, Path()
        if self.dataset in _OF_IMAGES:
            path = data_path("classification.path", self.path, folder=True)
        if self.dataset == "synthetic":
            iid = self.partition != "natural"
            examples = synthetic(self.num_clients, limit, self.seed, iid=iid)
            limit = 0  # the clients' sizes shrink alike
        elif self.dataset == "digits":
            examples = split_digits(self.seed)
        elif self.dataset == "mnist":
            examples = load_mnist(path)
        elif self.dataset == "emnist":
            given: Any = {"partial": self.partial, "seed": self.seed}
            examples = load_emnist(path, self.split, **given)
        else:
            examples = load_cifar10(path, partial=self.partial)
        others = self.test_limit, self.validation_fraction, self.seed
        examples, shares = limited(examples, limit, *others), None
        if self.partition == "natural":
            shares = [
                np.flatnonzero(examples.owners == i) for i in range(self.num_clients)
            ]
        return self.deal_examples(examples, self._inputs, shares)

    def _inputs(self, features: Any) -> Any:
        """Return rows of float64 for mclr, else float32 of the examples' shape."""
        if self.model == "mclr":
            return rows_of(features)
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


def synthetic(clients: int, limit: int, seed: int, *, iid: bool) -> Examples:
    """Generate pFedMe's synthetic data, 60 features and 10 labels, α = β = 0.5.

    Client i has 5·(min(lognormal(4, 2), 1000) + 50) examples, 75 % of them for
    training. Its features are N(v_i, Σ) with Σ_jj = j^−1.2 and v_i,j from N(B_i, 1),
    its labels the largest of xᵀW_i + b_i with the entries of W_i and b_i from
    N(u_i, 1); B_i from N(0, β²), u_i from N(0, α²). With ``iid`` one W and b for all,
    and v_i = 0: all clients have the same distribution. ``limit`` is the most training
    examples of all clients together, 0 for none; the clients' sizes shrink alike.

    Notes
    -----
    C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized federated learning with Moreau
    envelopes", NeurIPS 2020, after T. Li et al., MLSys 2020. The cap is ours.
    """
    if 0 < limit < clients:
        raise SettingsError(
            f"classification.train-limit = {limit} is too low: "
            f"each of {clients} clients needs at least one example"
        )
    inputs, classes = DATASETS["synthetic"][0], 10
    rng = generator(seed, "synthetic")
    lognormal = np.minimum(rng.lognormal(4.0, 2.0, clients).astype(int), _SIZE_CAP)
    sizes = 5 * (lognormal + 50)
    train_sizes = (_TRAIN_SHARE * sizes).astype(int)
    kept = train_sizes
    if 0 < limit < train_sizes.sum():
        # One each, and a proportional share of the rest.
        spare = limit - clients
        kept = 1 + (train_sizes - 1) * spare // (train_sizes.sum() - clients)
    deviations = np.arange(1, inputs + 1) ** -0.6  # the roots of Σ_jj
    shared = generator(seed, "synthetic model")
    W_shared = shared.standard_normal((inputs, classes))
    b_shared = shared.standard_normal(classes)
    parts = []
    for i in range(clients):
        rng = generator(seed, "synthetic", i)
        centre, W, b = np.zeros(inputs), W_shared, b_shared
        if not iid:
            u, B = rng.normal(0.0, 0.5, 2)
            centre = rng.normal(B, 1.0, inputs)
            W = rng.normal(u, 1.0, (inputs, classes))
            b = rng.normal(u, 1.0, classes)
        x = centre + deviations * rng.standard_normal((sizes[i], inputs))
        y = (x @ W + b).argmax(axis=1)
        first, last = train_sizes[i], kept[i]
        parts.append((x[:last], y[:last], x[first:], y[first:], np.full(last, i)))
    x, y, test_x, test_y, owners = map(np.concatenate, zip(*parts, strict=True))
    return Examples(x, y, test_x, test_y, owners)
