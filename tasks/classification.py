"""Classification of images, rows and next characters, linear and by networks."""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.manifolds import Product
from fedtrellis.objectives import MultinomialLogistic
from fedtrellis.objectives.demonstrations import LowRankPerceptron
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, check_torch, data_path, derived_seed, once
from .data.datasets import (
    BUILT_IN,
    DATASETS,
    EMNIST_CLASSES,
    Examples,
    limited,
    load_images,
    rows_of,
    split_digits,
)
from .data.table import NODES, dense
from .data.task import Dealt, Nonconvex, PartitionedTask, arrange

# models of images
_CNNS = ("cnn", "small-cnn")
# those with images
_OF_IMAGES = tuple(name for name in DATASETS if name not in BUILT_IN)
# pFedMe's clients have 5·(lognormal(4, 2) + 50) examples; the lognormal's tail, 7 % of
# the clients but most of the examples, is cut here.
_SIZE_CAP = 1000
_TRAIN_SHARE = 0.75

#: The symbols that a text is made of; a symbol's number is its place here.
ALPHABET = " abcdefghijklmnopqrstuvwxyz,."
#: The source that no client holds.
LETTERS = "letters"
# of its text, on which the network is trained before the clients have it
_LETTERS = 2000

# Sentences of each source, and the words that one is drawn of where braces are. It is
# beside this module, whichever of its two names the package is imported under.
_TEXT = resources.files(__package__).joinpath("data/characters.json").read_text()
_SENTENCES, _WORDS = json.loads(_TEXT).values()
_CHOICES = {slot: words.split() for slot, words in _WORDS.items()}
#: The sources that clients hold, in the order of their labels.
SOURCES = tuple(source for source in _SENTENCES if source != LETTERS)


@dataclass(frozen=True)
class NetworkTask(PartitionedTask):
    """A task whose model is a network in PyTorch; F is the mean cross-entropy."""

    device: str = setting(
        "auto",
        "where networks are computed: 'cpu', 'cuda', 'cuda:1'; auto: a GPU if any",
    )

    @abstractmethod
    def _make_model(self, *, trained: bool = False) -> Any:
        """Make the torch.nn.Module, with the same weights whenever it is asked."""

    @abstractmethod
    def _input(self) -> NDArray[Any]:
        """Return an example, as the network takes it."""

    def network(self) -> tuple[Any, Any] | None:  # noqa: D102
        import torch

        return self._make_model(), torch.tensor(np.stack([self._input()] * 2))

    @once(8)
    def _parameters(self, *, trained: bool) -> list[Array]:
        """Return the weights at the start, made once per process."""
        model = self._make_model(trained=trained)
        return [p.detach().numpy().astype(np.float64) for p in model.parameters()]

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [array.shape for array in self._parameters(trained=False)]

    def initial_point(self) -> list[Array]:
        """Return seeded weights, trained where the task's settings say so."""
        return [array.copy() for array in self._parameters(trained=True)]

    def _loss(self, features: Any, targets: Any, weight: float) -> Any:
        from torch.nn import CrossEntropyLoss

        from fedtrellis.objectives.torch_objective import TorchObjective

        given = self._make_model(), CrossEntropyLoss(), (features, targets)
        return TorchObjective(*given, weight=weight, device=self.device)


@dataclass(frozen=True)
class ImageTask(PartitionedTask):
    """A task on a set of images, or on rows of nodes' own; it has ``dataset``."""

    path: str = setting(
        "", "the folder of the data set's files", only={"dataset": _OF_IMAGES}
    )
    train_limit: int = setting(
        0, "the most training examples, drawn by the seed; 0 for all", minimum=0
    )
    test_limit: int = setting(
        0, "the most test examples, drawn by the seed; 0 for all", minimum=0
    )
    validation_fraction: float = setting(
        0.0,
        "share of the training examples to test on instead, to choose settings",
        minimum=0.0,
        maximum=0.9,
    )

    split = ""
    partial = False

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of an example, as the model takes it."""
        if self.on_nodes:
            return (self.nodes.num_features(),)
        return DATASETS[self.dataset]

    def _classes(self) -> int:
        if self.on_nodes:
            return len(self.nodes.class_labels())
        return EMNIST_CLASSES[self.split] if self.dataset == "emnist" else 10

    def _prepared(self, features: Any) -> Any:
        return rows_of(dense(features))

    def _read(self) -> Examples:
        """Read the data set, all of it."""
        if self.dataset == "digits":
            return split_digits(self.seed)
        key = f"{self.name}.path"
        return load_images(
            self.dataset,
            data_path(key, self.path, folder=True),
            key,
            split=self.split,
            partial=self.partial,
            seed=self.seed,
        )

    def _load(self) -> Dealt:
        limits = self.train_limit, self.test_limit, self.validation_fraction
        return self.deal_examples(limited(self._read(), *limits, self.seed))


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
        """Return balls that fifty rounds of FedFW make use of."""
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
class Classification(ImageTask, NetworkTask):
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
    split: str = setting(
        "mnist",
        "EMNIST's split",
        choices=tuple(EMNIST_CLASSES),
        only={"dataset": ("emnist",)},
    )
    partition: str = setting(
        "iid",
        "how examples are dealt to clients; 'natural' with synthetic data only",
        choices=("iid", "natural", "labels", "dirichlet"),
    )
    partial: bool = setting(
        False, "go on where some training files of CIFAR-10 or EMNIST are missing"
    )

    suggested = Nonconvex.suggested

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """Whether F is convex, as that of no network is."""
        return self.model == "mclr"

    def check_settings(self) -> None:  # noqa: D102
        if self.model != "mclr":
            what = f"classification.model = {self.model!r}"
            check_torch(self.name, what, self.device)
        if self.on_nodes:
            self._shape()
            return
        if self.dataset in BUILT_IN and self.model in _CNNS:
            why = "which has no images of 16 x 16 pixels or more; allowed: dnn, mclr"
            data = f"classification.dataset = {self.dataset!r}"
            raise self.refused("model", f"does not fit {data}, {why}")
        if self.partition == "natural" and self.dataset != "synthetic":
            why = f"is for synthetic data, not for {self.dataset!r}"
            raise self.refused("partition", f"{why}; allowed: dirichlet, iid, labels")

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

    def _make_model(self, *, trained: bool = False) -> Any:
        from .networks import make_model

        seed = derived_seed(self.seed, "initial model")
        return make_model(self.model, self._shape(), self._classes(), seed)

    def _input(self) -> NDArray[Any]:
        return np.zeros(self._shape(), np.float32)

    def network(self) -> tuple[Any, Any] | None:  # noqa: D102
        return None if self.model == "mclr" else super().network()

    def _shape(self) -> tuple[int, ...]:
        if not (self.on_nodes and self.model in _CNNS):
            return super()._shape()
        features = self.nodes.num_features()
        images = {math.prod(DATASETS[name]): DATASETS[name] for name in _OF_IMAGES}
        if features not in images:
            why = f"needs data.features of 784 or 3072, not {features}"
            raise self.refused("model", why)
        return images[features]

    def _read(self) -> Examples:
        if self.dataset != "synthetic":
            return super()._read()
        iid, n = self.partition != "natural", self.num_clients
        # the limit is on all clients' examples, and their sizes shrink alike
        return synthetic(n, self.train_limit, self.seed, iid=iid)

    def _prepared(self, features: Any) -> Any:
        """Return rows of float64 for mclr, else float32 of the examples' shape."""
        if self.model == "mclr":
            return super()._prepared(features)
        scale = np.float32(255.0 if features.dtype == np.uint8 else 1.0)
        inputs = np.asarray(dense(features) / scale, dtype=np.float32)
        return inputs.reshape(-1, *self._shape())

    def _loss(self, features: Any, targets: Any, weight: float) -> Any:
        if self.model != "mclr":
            return super()._loss(features, targets, weight)
        return MultinomialLogistic(features, targets, self._classes(), weight=weight)


@dataclass(frozen=True)
class LowRankNetwork(Nonconvex, ImageTask):
    """F = the mean cross-entropy over all training images of a perceptron.

    One hidden layer with tanh, its p × h weight matrix W of rank R; f_i is n·d_i/d
    times the mean over the client's d_i images, so that F = (1/n) Σ f_i. The model's
    arrays are, with ``factored``, U (p × R), s (R), V (h × R) of W = U diag(s) Vᵀ, the
    hidden bias (h), the output layer (h × 10) and its bias; else W instead of the first
    three. ``full-rank`` puts no bound on the rank and keeps W whole, for comparison.
    For one seed all of them start from one draw of W, cut to rank R.

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
        choices=("digits", "mnist", NODES),
    )
    path: str = setting("", "the folder of MNIST's files", only={"dataset": ("mnist",)})
    hidden: int = setting(32, "h, the width of the hidden layer", minimum=1)
    rank: int = setting(8, "R, the rank of the hidden weight matrix", minimum=1)
    full_rank: bool = setting(False, "do without the bound on the rank")
    factored: bool = setting(
        True, "keep and send the hidden matrix as its factors; not with full-rank"
    )

    def check_settings(self) -> None:  # noqa: D102
        inputs = math.prod(self._shape())
        largest = min(inputs, self.hidden)
        if not self.full_rank and self.rank > largest:
            why = f"is too high: the hidden matrix is {inputs} x {self.hidden}, so at"
            raise self.refused("rank", f"{why} most {largest}")

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return self._template().shapes

    def manifold(self) -> Product:
        """Return orthonormal U and V, or W of rank R; the rest of the model is free."""
        return self._template().manifold()

    def initial_point(self) -> list[Array]:
        """Return seeded weights and zero biases, on the manifold."""
        return self._template().draw(generator(self.seed, "initial model"))

    @once(8)
    def _template(self) -> LowRankPerceptron:
        """Return the network on an example made up, so that no data is loaded."""
        return self._loss(np.zeros((1, math.prod(self._shape()))), [0], 1.0)

    def _loss(self, features: Any, targets: Any, weight: float) -> LowRankPerceptron:
        return LowRankPerceptron(
            features,
            targets,
            self._classes(),
            self.hidden,
            None if self.full_rank else self.rank,
            factored=self.factored,
            weight=weight,
        )


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
            f"classification.train-limit = {limit} is too low for {clients} clients"
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


def passages(
    source: str, count: int, length: int, seed: int, part: str
) -> NDArray[np.int64]:
    """Return passages of a source's text, one behind the other, none overlapping.

    ``length`` counts the symbols of each; texts of two parts, such as training and
    test, are drawn independently. Of shape (count, length), numbers of symbols.
    """
    rng = generator(seed, "text", source, part)

    def one_of(words: Sequence[str]) -> str:
        return words[int(rng.integers(len(words)))]

    text = ""
    while len(text) < count * length:
        sentence = one_of(_SENTENCES[source])
        text += re.sub(r"\{(\w+)\}", lambda slot: one_of(_CHOICES[slot[1]]), sentence)
    numbers = [ALPHABET.index(symbol) for symbol in text[: count * length]]
    return np.array(numbers, dtype=np.int64).reshape(count, length)


@dataclass(frozen=True)
class Characters(Nonconvex, NetworkTask):
    """F = the mean cross-entropy of the next character over all training passages.

    f_i is n·d_i/d times the mean over the client's d_i passages, so that
    F = (1/n) Σ f_i. A passage has ``context`` characters and what follows each.

    The text is made of templates and word lists by the run's seed: recipes, weather
    reports, a station's announcements and games of chess. These four sources are the
    labels that ``partition`` deals by. Letters, a fifth source, are held by no client:
    with ``pretrained-steps`` the network is first trained on them, in one place, and
    the run starts there.

    The model is a transformer in PyTorch with 4 heads a block, causal attention and
    layer norms in front (:class:`~.networks.CharacterTransformer`), in
    float32.
    """

    name = "characters"
    summary = "generated text by characters, a small transformer"

    partition: str = setting(
        "iid",
        "how passages are dealt to clients; 'labels': by the sources of the text",
        choices=("iid", "labels", "dirichlet"),
    )
    labels_per_client: int = setting(
        1,
        "sources, of four, that a client holds, with partition = 'labels'",
        minimum=1,
        only={"partition": ("labels",)},
    )
    train_passages: int = setting(
        2000, "training passages of all clients, as many of each source", minimum=1
    )
    test_passages: int = setting(400, "test passages", minimum=4)
    context: int = setting(32, "characters of a passage", minimum=2)
    width: int = setting(32, "of the transformer, a multiple of 4", minimum=4)
    blocks: int = setting(2, "of the transformer", minimum=1)
    pretrained_steps: int = setting(
        0,
        "steps of Adam on the letters, which no client holds, before the run; 0: the "
        "run starts from random weights",
        minimum=0,
    )

    def check_settings(self) -> None:  # noqa: D102
        check_torch(self.name, "task = 'characters'", self.device)
        from .networks import HEADS

        if self.width % HEADS:
            why = f"must be a multiple of {HEADS}, the number of attention heads"
            raise self.refused("width", why)

    def _make_model(self, *, trained: bool = False) -> Any:
        from .networks import CharacterTransformer, seeded, train

        sizes = len(ALPHABET), self.context, self.width, self.blocks
        with seeded(derived_seed(self.seed, "initial model")):
            model = CharacterTransformer(*sizes)
        if trained and self.pretrained_steps:
            # in about 10 ms a step
            text = passages(LETTERS, _LETTERS, self.context + 1, self.seed, "training")
            seed = derived_seed(self.seed, "letters")
            train(model, text, self.pretrained_steps, seed)
        return model

    def _input(self) -> NDArray[Any]:
        return np.zeros(self.context, np.int64)

    def _load(self) -> Dealt:
        train, test = map(_labels, (self.train_passages, self.test_passages))
        text, others = self._text(train, "training"), self._text(test, "test")
        # what is to be learnt is the text itself, and not its source
        split = text[:, :-1], text[:, 1:], self.deal(train)
        return arrange(*split, others[:, :-1], others[:, 1:])

    def _text(self, labels: Any, part: str) -> Any:
        """Return passages of the sources that the labels name."""
        length, texts = self.context + 1, []
        for label, source in enumerate(SOURCES):
            count = int(np.sum(labels == label))
            texts.append(passages(source, count, length, self.seed, part))
        return np.concatenate(texts)


def _labels(count: int) -> Any:
    """The sources of ``count`` passages: 0, …, 3, as many of each as can be."""
    return np.sort(np.arange(count) % len(SOURCES))
