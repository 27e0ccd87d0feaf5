"""Linear models whose clients hold different samples and different features.

``hybrid-linear``, ``hybrid-svm`` and ``hybrid-logistic`` differ in the loss, and in
what else can be set of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedtrellis.dual.penalty import Penalty
from fedtrellis.dual.regularized_loss import (
    OneAgainstRest,
    Optimum,
    RegularizedLoss,
    central_optimum,
)
from fedtrellis.dual.weights import (
    BALANCED,
    ClassRule,
    class_rule,
    labels_of,
    normalised,
    targets_of,
    weight_totals,
)
from fedtrellis.objectives import Objective
from fedtrellis.objectives.losses import LOSSES, DualLoss, make_loss
from fedtrellis.settings import SettingsError, setting
from fedtrellis.tables import Preparation

from ..base import Point, once
from ..data.readers import node_path
from ..data.table import FILE, NODES, Schema, to_number
from ..data.task import Task
from .samples import BY_PATH, DATASETS, TARGETS, Samples
from .shares import ClientData, client_data, held_of


@dataclass(frozen=True)
class HybridTask(Task):
    """A linear model of data that is split over the clients by samples and features.

    P(w) = (λ/2)‖w‖² + (1/N) Σ l(x_iᵀw; y_i) over all N training samples. It has no f_i:
    a client that holds some features of a sample has no loss of its own.

    Data sets and the labels made of their classes (``positive-class``: one class
    against the rest instead): ``digits``, pixels over 16, 5 and above against 0 to 4;
    ``breast-cancer``, standardised; the user's ``mnist``, pixels over 255, labelled
    like digits, whose own test images are the test data unless ``test-fraction`` is 0;
    ``covtype`` (UCI's file), scaled to [0, 1], class 2 against the rest;
    ``a9a`` (or any LIBSVM file with two labels); ``news20`` (LIBSVM's multi-class
    file), the upper half of the twenty classes against the lower; ``file``, any csv,
    npz or LIBSVM file, the larger of two labels against the smaller, columns prepared
    as :mod:`fedtrellis.tables` has it or, with ``data.prepare = false``, as they are.
    What scaling needs is measured on the training samples, all of them: real clients
    would have to agree on that, also on norms for ``row-scaling = "unit"``. The column
    ``bias`` comes after scaling and before the rows', and in the last feature group.

    Partitions, client s·Q + q of sample group s and feature group q: ``grid``,
    consecutive columns, but the images' quadrants for 4 feature groups of ``digits``
    and ``mnist``; ``entries``, 1/Q of every sample's non-zero entries, at random;
    ``horizontal``, one feature group; ``vertical``, one sample group. Test samples are
    dealt like the training samples.

    A sum over a client's samples hides none of them where only one or two are not zero
    at a feature, and HyFDCA's clients refuse to send it. So such entries are taken for
    zeros (``least-entries``), in every partition and for all methods alike, and in the
    objective, its minimum and the metrics on training samples, too: what is compared is
    one problem. Test samples keep theirs. Scaling comes before.

    Notes
    -----
    HyFDCA, arXiv 2210.08106, sections 5 and 7.2: MNIST's quadrants with a bias of 10,
    λ = 10⁻³; News20 and Covtype by entries without a bias, λ = 10⁻⁵ and 5·10⁻⁵. Its
    News20 is LIBSVM's binary file, which has rows of norm 1, and how it makes MNIST's
    ten classes two is not given.
    """

    split_data: ClassVar[bool] = True
    weighs: ClassVar[bool] = True
    prepares: ClassVar[bool] = True
    required_options: ClassVar[tuple[str, ...]] = ("weights",)
    not_on_nodes: ClassVar[tuple[str, ...]] = (
        *("path", "positive_class", "partition", "sample_groups", "feature_groups"),
        *("samples", "test_fraction", "train_limit", "least_entries"),
    )

    dataset: str = setting(
        "digits",
        "the data set; 'file': a csv, npz or LIBSVM file; 'nodes': every node's own",
        choices=(*DATASETS, NODES),
    )
    path: str = setting(
        "", "the data set's file or folder", only={"dataset": tuple(BY_PATH)}
    )
    positive_class: int = setting(
        -1, "the class against all others; -1: the data set's rule", minimum=-1
    )
    regularization: float = setting(1e-3, "λ, the factor of ½‖w‖²", above=0.0)
    partition: str = setting(
        "grid",
        "how samples and features are dealt to clients",
        choices=("grid", "entries", "horizontal", "vertical"),
    )
    sample_groups: int = setting(
        0, "sample groups; 0: clients over feature groups", minimum=0
    )
    feature_groups: int = setting(
        0, "feature groups; 0: the clients' largest divisor up to their root", minimum=0
    )
    samples: str = setting(
        "iid",
        "how samples are dealt to sample groups: evenly at random, in shares of random "
        "sizes, or evenly in the order of their labels",
        choices=("iid", "uneven", "labels"),
    )
    row_scaling: str = setting(
        "none", "how rows are scaled; 'unit': to norm 1", choices=("none", "unit")
    )
    bias: float = setting(
        1.0, "the value of a constant feature; 0 for none", minimum=0.0
    )
    test_fraction: float = setting(
        0.2, "share of the samples kept for testing", minimum=0.0, maximum=0.9
    )
    train_limit: int = setting(
        0, "the most training samples, drawn at random; 0 for all", minimum=0
    )
    least_entries: int = setting(
        3, "a client's entries of a feature are left out where it has fewer", minimum=0
    )

    # what some of these tasks have as settings
    loss = "logistic"
    smoothing = 1.0
    classes = "two"
    l1_ratio = 0.0
    free_feature = ""
    class_weight = ""

    def check(self) -> None:  # noqa: D102
        self.check_settings()
        if self.on_nodes:
            self.check_nodes()
            return
        # Nothing can be dealt to none, so this comes before the data.
        self.check_clients(max(self.num_clients, 1))
        self.objective()

    def check_settings(self) -> None:  # noqa: D102
        kind = self.make_loss().labels
        data = {
            "signs": tuple(DATASETS),
            "real": (*DATASETS, *TARGETS),
            "counts": (*TARGETS, FILE),
        }
        loss, several = f"{self.name}.loss = {self.loss!r}", self.every_class
        signs, chosen = kind == "signs", self.positive_class != -1

        def refuse(wrong: bool, name: str, why: str, allowed: str) -> None:
            if wrong:
                raise self.refused(name, f"does not suit {why}; allowed: {allowed}")

        allowed, dataset = (*data[kind], NODES), f"{self.name}.dataset"
        unknown = self.dataset not in allowed
        refuse(unknown, "loss", f"{dataset} = {self.dataset!r}", ", ".join(allowed))
        numbers = chosen and self.target == "number"
        refuse(numbers, "positive_class", "labels that are numbers", "-1")
        classes = "hinge, smoothed-hinge, logistic"
        refuse(several and not signs, "classes", loss, classes)
        one = several and chosen
        refuse(one, "positive_class", f"{self.name}.classes = 'all'", "-1")
        few = several and self.num_classes() < 3
        refuse(few, "classes", f"{self.num_classes()} of them", "'two'")
        weighed = bool(self.class_weight) and not signs
        refuse(weighed, "class_weight", f"{loss}, which is none of classes", "empty")
        self.class_rule()
        # without clients there are no features either, which the rest says
        names = self.feature_names() if self.free_feature and self.num_clients else ()
        if names and self.free_feature not in names:
            last = ", ".join(map(repr, names[-3:]))
            why = f"is not the name of any feature; allowed: empty, {last} and"
            raise self.refused("free_feature", f"{why} the others")

    def check_nodes(self) -> None:  # noqa: D102
        for name, off in (("bias", 0.0), ("row_scaling", "none")):
            if getattr(self, name) != off:
                why = f"does not fit {self.name}.dataset = {NODES!r}: it concerns a"
                where = "sample's features on all nodes (a bias is a column of a file)"
                raise self.refused(name, f"{why} {where}; allowed: {off!r}")
        if self.nodes.examples:
            given = f"data.examples = {self.nodes.examples} is not for {self.name!r}"
            why = "whose nodes agree on the number of samples"
            raise SettingsError(f"{given}, {why}; allowed: 0")
        super().check_nodes()

    @property
    def target(self) -> Literal["class", "number"]:
        """What labels are of: classes, or any numbers."""
        return "class"

    @property
    def every_class(self) -> bool:
        """Whether each class stands against the rest, and labels are their numbers."""
        return self.classes == "all"

    def num_classes(self) -> int:
        """Return how many problems of two classes there are, side by side."""
        if not self.every_class:
            return 1
        if self.on_nodes:
            return len(self.nodes.class_labels())
        return len(np.unique(self._samples().labels))

    def node_schema(self) -> Schema:
        """Return the schema: some of the features, of some samples, by their ids."""
        labels = self._class_labels() if self.target == "class" else ()
        return Schema(
            *(self.nodes.num_features(), self.nodes.names(), self.target, labels),
            label_column=self.nodes.label_column,
            split=True,
            weight_column=self.nodes.weight_column,
        )

    def _class_labels(self) -> tuple[str, ...]:
        return self.nodes.class_labels(() if self.every_class else ("-1", "1"))

    def node_client_data(self, path: Path) -> ClientData:
        """Return what a node with its own file holds; class 0 is −1, class 1 is +1.

        Labels that are numbers, or of classes that each stand against the rest, are as
        they are. A DataFileError shows nothing of the file.
        """
        table = self.node_table(path)
        labels = table.targets
        if labels is not None and self.target == "class" and not self.every_class:
            labels = 2.0 * labels - 1.0
        return ClientData(table.features, table.names, table.ids, labels, table.weights)

    @property
    def prepared(self) -> bool:
        """Whether a file of the user's is prepared; not one with samples' weights."""
        return super().prepared and not self.nodes.weight_column

    def preparation(self) -> Preparation | None:
        """Return what became of the columns of the user's file."""
        return self._samples().preparation if self.prepared else None

    def class_names(self, found: Sequence[str | float]) -> tuple[str | float, ...]:
        """Return the labels that the model predicts, of those in a file."""
        if self.every_class or self.positive_class == -1:
            return tuple(found)
        c = self.positive_class
        return ("other", found[c] if isinstance(found[-1], str) else c)

    def meaning(self) -> dict[str, Any]:
        """Return what a record holds of the model, see :mod:`fedtrellis.tables`."""
        made, loss = self.preparation(), "margin"
        if made is None or self.row_scaling != "none":
            return {}
        if self.target == "number" or (
            self.loss == "logistic" and len(made.classes) == 2
        ):
            loss = self.make_loss().name
        return made.meaning(loss, self.bias)

    def _samples(self) -> Samples:
        return held_of(self)[0]

    def num_examples(self) -> int:  # noqa: D102
        self._need_central_data()
        return self._samples().num_train

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        p = self.nodes.num_features() if self.on_nodes else len(self._samples().names)
        return [(p, self.num_classes()) if self.every_class else (p,)]

    def domains(self) -> dict[str, float]:
        """Return none: the methods for split data have no constraint."""
        return {}

    def make_loss(self) -> DualLoss:
        """Return l."""
        return make_loss(self.loss, self.smoothing)

    def feature_names(self) -> tuple[str, ...]:
        """Return the model's p names in its order; none where only nodes know them."""
        return self.nodes.names() if self.on_nodes else self._samples().names

    def client_data(self, client: int) -> ClientData:
        """Return a client's training data, made once; an IndexError: no such client."""
        return client_data(self, self._existing(client), False)

    def test_client_data(self, client: int) -> ClientData:
        """Return a client's test data: the features it has, of other samples."""
        return client_data(self, self._existing(client), True)

    def method_options(self) -> dict[str, Any]:
        """Return the loss, λ and the features, as the methods for split data ask.

        And of what is not usual what there is.
        """
        unusual = {
            "classes": self.num_classes() if self.every_class else 0,
            "weights": bool(self.nodes.weight_column),
            "l1_ratio": self.l1_ratio,
            "free_feature": self.free_feature,
            "class_weight": self._class_weights(),
            # nobody has seen the columns of nodes' own files
            "standardize": self.on_nodes,
        }
        return {
            "loss": self.make_loss().name,
            "regularization": self.regularization,
            "smoothing": self.smoothing,
            "feature_names": self.feature_names() or None,
            # dealt entry by entry, a column without any belongs to nobody
            "allow_unheld": self.partition == "entries" and not self.on_nodes,
            **{name: value for name, value in unusual.items() if value},
        }

    def option_key(self, name: str) -> str:
        """Return the key of an option; that of samples' weights is the nodes'."""
        return "data.weight-column" if name == "weights" else super().option_key(name)

    def client_parts(self, client: int) -> dict[str, Any]:
        """Return the fields of :class:`ClientData`, and ``new_samples`` to be scored.

        These are the client's test data, a :class:`ClientData`, or None.
        """
        return _parts(self.client_data(client), self.test_client_data(client))

    def node_parts(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the like of ``data``'s file; ``test-data`` may name new samples.

        A SettingsError: the two files have other features, or in another order.
        """
        data, new = self.node_client_data(node_path(node_config)), None
        if "test-data" in node_config:
            new = self.node_client_data(node_path(node_config, "test-data"))
            if new.feature_names != data.feature_names:
                must = f"must be those of {node_config['data']}, in one order"
                where = f"{node_config['test-data']}: the feature columns"
                raise SettingsError(f"{where} {must}")
        return _parts(data, new)

    def node_attributes(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``rows``: methods for split data agree on samples and features."""
        return {"rows": super().node_attributes(node_config)["rows"]}

    def make_penalty(self) -> Penalty:
        """Return g, by default ½‖w‖²."""
        names = list(self.feature_names()) if self.free_feature else []
        return Penalty(self.l1_ratio, names.index(self.free_feature) if names else -1)

    def class_rule(self) -> ClassRule:
        """Return what classes' samples count; empty: all alike."""
        return class_rule(self._class_weights(), self.num_classes())

    def _class_weights(self) -> str | dict[float, float]:
        """Classes' weights by the labels that clients have, ``"balanced"``, or none."""
        text = self.class_weight.strip()
        if text in ("", BALANCED):
            return text
        # numbers of classes, or of two −1 and +1
        values = labels_of(self.num_classes())
        names = [f"{value:g}" for value in values]
        if self.on_nodes:
            names = list(self._class_labels())
        label_of = dict(zip(names, values, strict=True))
        found: dict[float, float] = {}
        for part in text.split(","):
            name, colon, weight = (word.strip() for word in part.rpartition(":"))
            if not colon or name not in label_of:
                why = f"has {part.strip()!r}, which is not a class and its weight"
                allowed = f"'balanced', or such as '{names[-1]}:2.5' of classes"
                known = ", ".join(names)
                raise self.refused("class_weight", f"{why}; allowed: {allowed} {known}")
            found[label_of[name]] = to_number(weight)
        return found

    def certified_optimum(self) -> Optimum | None:
        """Return :meth:`optimum`; None for a penalty that has no central solver."""
        return self.optimum() if self.make_penalty().plain else None

    @once(4)
    def optimum(self) -> Optimum:
        """Return P* with its certificate, found once; else a RuntimeError."""
        return central_optimum(self.objective())  # type: ignore[arg-type]

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``"accuracy"`` on the test samples, of numbers ``"explained"``.

        Without any, ``"train-accuracy"`` or the like on the training samples.
        """
        w = np.asarray(self.argument(x))
        data = self._samples()
        if len(data.labels) > data.num_train:
            return self.test_objective().metrics(w)
        found = self.objective().metrics(w)
        return {f"train-{name}": value for name, value in found.items()}

    def baseline(self) -> dict[str, float]:
        """Return how often the most frequent class is right."""
        if not self.on_file or self.target != "class":
            return {}
        train, tests = np.split(self._samples().labels, [self.num_examples()])
        name = "accuracy" if len(tests) else "train-accuracy"
        labels, counts = np.unique(train, return_counts=True)
        tests = tests if len(tests) else train
        return {name: float(np.mean(tests == labels[counts.argmax()]))}

    def _build_objective(self) -> RegularizedLoss | OneAgainstRest:
        data = self._samples()
        N, C, rule = data.num_train, self.num_classes(), self.class_rule()
        labels, s = data.labels[:N], data.weights
        weights = None
        if s is not None or rule:
            s = np.ones(N) if s is None else s[:N]
            totals = weight_totals(s, labels, C, rule)
            weights = normalised(s, labels, C, rule, totals, N)
        return self._objective_of(data.features[:N], labels, weights)

    @once(2)
    def test_objective(self) -> RegularizedLoss | OneAgainstRest:  # noqa: D102
        data = self._samples()
        N = data.num_train
        return self._objective_of(data.features[N:], data.labels[N:])

    def _objective_of(
        self, features: Any, labels: Any, weights: Any = None
    ) -> RegularizedLoss | OneAgainstRest:
        classes, more = self.num_classes(), (self.make_loss(), self.regularization)
        parts = [
            RegularizedLoss(features, y, *more, self.make_penalty(), s)
            for y, s in zip(
                targets_of(labels, classes),
                [None] * classes if weights is None else weights,
                strict=True,
            )
        ]
        return OneAgainstRest(parts, labels) if self.every_class else parts[0]

    def _build_client_objective(self, client: int) -> Objective:
        raise SettingsError(
            f"task {self.name!r} has no loss for each client, as its samples are split "
            "by features; it needs method hyfdca, hyfem or hybrid-fedavg"
        )


def _parts(data: ClientData, new: ClientData | None) -> dict[str, Any]:
    # all new samples count alike
    kept = new._replace(weights=None) if new is not None and new.sample_ids else None
    return {**data._asdict(), "new_samples": kept}


@dataclass(frozen=True)
class HybridSVM(HybridTask):
    """The hinge loss, the one of HyFDCA's experiments, smoothed, or a square.

    ``squared`` is ½(z − y)² of labels −1 and +1, the least-squares support vector
    machine. Everything else is :class:`HybridTask`'s.
    """

    name = "hybrid-svm"
    summary = "support vector machine; samples and features split over clients"

    loss: str = setting(
        "hinge", "the loss", choices=("hinge", "smoothed-hinge", "squared")
    )
    smoothing: float = setting(
        1.0,
        "width of the smoothed hinge's parabola",
        above=0.0,
        only={"loss": ("smoothed-hinge",)},
    )


@dataclass(frozen=True)
class HybridLogistic(HybridTask):
    """The logistic loss ln(1 + e^(−yz)) of labels −1 and +1.

    Everything else is :class:`HybridTask`'s.
    """

    name = "hybrid-logistic"
    summary = "logistic regression; samples and features split over clients"


@dataclass(frozen=True)
class HybridLinear(HybridTask):
    """A linear model with any loss that has a dual: classification and regression.

    ``hinge``, ``smoothed-hinge`` and ``logistic`` are losses of two classes, −1 and +1.
    ``squared`` and ``poisson`` are losses of numbers, the latter of counts, whose mean
    is e^z: of ``diabetes`` (scikit-learn's, features standardised, the target as it is:
    a whole number from 25 to 346), or of files, whose label column then holds numbers.
    ``squared`` takes the data sets of two classes, too.

    With ``classes = "all"`` each of the data set's own classes is set against the rest:
    P is the sum of C problems, the model has shape (p, C), and a sample's class is the
    one of its largest score. Everything else is :class:`HybridTask`'s.
    """

    name = "hybrid-linear"
    summary = "linear model with any loss; samples and features split over clients"

    dataset: str = setting(
        "digits",
        "the data set; 'file': a csv, npz or LIBSVM file; 'nodes': every node's own",
        choices=(*DATASETS, *TARGETS, NODES),
    )
    loss: str = setting("logistic", "the loss", choices=tuple(LOSSES))
    classes: str = setting(
        "two",
        "two, made of the data set's, or all that it has, each against the rest",
        choices=("two", "all"),
    )
    l1_ratio: float = setting(
        0.0, "ρ of the penalty λ((1 − ρ)/2 ‖w‖² + ρ‖w‖₁)", minimum=0.0, below=1.0
    )
    free_feature: str = setting(
        "", "a constant column whose weight is not penalised, such as 'bias'"
    )
    class_weight: str = setting(
        "", "what samples of a class count: 'balanced', or such as 'no:1, yes:5'"
    )
    smoothing: float = setting(
        1.0,
        "width of the smoothed hinge's parabola",
        above=0.0,
        only={"loss": ("smoothed-hinge",)},
    )

    required_options: ClassVar[tuple[str, ...]] = (
        *("l1_ratio", "free_feature", "classes", "class_weight"),
        *HybridTask.required_options,
    )

    @property
    def target(self) -> Literal["class", "number"]:
        """What labels are of: classes, or any numbers."""
        numbers = self.dataset in TARGETS
        if self.on_nodes or self.on_file:
            numbers = self.make_loss().labels != "signs"
        return "number" if numbers else "class"
