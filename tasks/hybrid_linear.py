"""Linear models with any loss on data that is split by samples and features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedtrellis.dual.penalty import Penalty
from fedtrellis.dual.weights import BALANCED, ClassRule, class_rule, labels_of
from fedtrellis.objectives.losses import LOSSES, DualLoss, make_loss
from fedtrellis.settings import SettingsError, setting

from .data.settings import FILE, NODES
from .data.table import to_number
from .hybrid import HybridTask
from .hybrid.rows import DATASETS, TARGETS
from .hybrid.shares import samples_of

__all__ = ["HybridLinear"]


@dataclass(frozen=True)
class HybridLinear(HybridTask):
    """A linear model with any loss that has a dual: classification and regression.

    ``hinge``, ``smoothed-hinge`` and ``logistic`` are losses of two classes, −1 and +1.
    ``squared`` and ``poisson`` are losses of numbers, the latter of counts, whose mean
    is e^z: of ``diabetes`` (scikit-learn's, features standardised, the target as it is:
    a whole number from 25 to 346), or of the nodes' own files, whose label column then
    holds numbers. ``squared`` takes the data sets of two classes, too.

    With ``classes = "all"`` the data set's own classes stay as they are, and each is
    set against the rest: P is the sum of C problems, the model has shape (p, C), and a
    sample's class is the one of its largest score. Everything else is
    :class:`tasks.hybrid.task.HybridTask`'s.
    """

    name: ClassVar[str] = "hybrid-linear"
    summary: ClassVar[str] = (
        "linear model with any loss; samples and features split over clients"
    )

    dataset: str = setting(
        "digits",
        "the data set; 'file': a csv, npz or LIBSVM file; 'nodes': every node's own",
        choices=(*DATASETS, *TARGETS, NODES),
    )
    loss: str = setting("logistic", "the loss", choices=tuple(LOSSES))
    classes: str = setting(
        "two",
        "two, made of the data set's as described there, or all that it has, each "
        "against the rest",
        choices=("two", "all"),
    )
    l1_ratio: float = setting(
        0.0,
        "ρ of the penalty λ((1 − ρ)/2 ‖w‖² + ρ‖w‖₁)",
        minimum=0.0,
        below=1.0,
    )
    free_feature: str = setting(
        "",
        "a constant column whose weight is not penalised, an intercept: 'bias', or one "
        "of the nodes' files; empty: none",
    )
    class_weight: str = setting(
        "",
        "what samples of a class count: 'balanced', or labels with their weights, as "
        "'no:1, yes:5', where others count 1; empty: all alike",
    )
    smoothing: float = setting(1.0, "width of the smoothed hinge's parabola", above=0.0)

    required_options: ClassVar[tuple[str, ...]] = (
        "l1_ratio",
        "free_feature",
        "classes",
        "class_weight",
        *HybridTask.required_options,
    )

    def make_penalty(self) -> Penalty:  # noqa: D102
        free = -1
        if self.free_feature:
            free = list(self.feature_names()).index(self.free_feature)
        return Penalty(self.l1_ratio, free)

    def method_options(self) -> dict[str, Any]:
        """Return what every hybrid task says, and of the penalty what is not usual."""
        more = {
            "l1_ratio": self.l1_ratio,
            "free_feature": self.free_feature,
            "class_weight": self._class_weights(),
        }
        return super().method_options() | {k: v for k, v in more.items() if v}

    def class_rule(self) -> ClassRule:  # noqa: D102
        return class_rule(self._class_weights(), self.num_classes())

    def _class_weights(self) -> str | dict[float, float]:
        """Classes' weights by the labels that clients have, ``"balanced"``, or none."""
        text, key = self.class_weight.strip(), f"{self.name}.class-weight"
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
                raise SettingsError(
                    f"{key} = {self.class_weight!r}: {part.strip()!r} is not a class "
                    f"and its weight; allowed: 'balanced', or of the classes "
                    f"{', '.join(names)} for example '{names[-1]}:2.5'"
                )
            found[label_of[name]] = to_number(weight)
        return found

    def make_loss(self) -> DualLoss:  # noqa: D102
        return make_loss(self.loss, self.smoothing)

    @property
    def target(self) -> Literal["class", "number"]:
        """What labels are of: classes, or any numbers."""
        if self.on_nodes:
            return "class" if self.make_loss().labels == "signs" else "number"
        if self.on_file:
            return "class" if self.make_loss().labels == "signs" else "number"
        return "number" if self.dataset in TARGETS else "class"

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
        return len(np.unique(samples_of(self).labels))

    def check(self) -> None:  # noqa: D102
        kind = self.make_loss().labels
        allowed = {
            "signs": tuple(DATASETS),
            "real": (*DATASETS, *TARGETS),
            "counts": (*TARGETS, FILE),
        }[kind]
        if self.dataset not in (*allowed, NODES):
            raise SettingsError(
                f"{self.name}.loss = {self.loss!r} does not suit {self.name}.dataset = "
                f"{self.dataset!r}; allowed: {', '.join((*allowed, NODES))}"
            )
        if self.target == "number" and self.positive_class != -1:
            raise SettingsError(
                f"{self.name}.positive-class = {self.positive_class}: the labels are "
                "numbers and no classes; allowed: -1"
            )
        if self.every_class:
            self._check_classes(kind)
        if self.class_weight and kind != "signs":
            raise SettingsError(
                f"{self.name}.class-weight = {self.class_weight!r} does not suit "
                f"{self.name}.loss = {self.loss!r}, which is none of classes; allowed: "
                "empty"
            )
        try:
            self.class_rule()
        except SettingsError as error:
            raise SettingsError(f"{self.name}.class-weight: {error}") from None
        # without clients there are no features either, which the rest says
        names = self.feature_names() if self.free_feature and self.num_clients else ()
        if names and self.free_feature not in names:
            raise SettingsError(
                f"{self.name}.free-feature = {self.free_feature!r} is not the name of "
                f"any feature; allowed: empty, {', '.join(map(repr, names[-3:]))} and "
                "the others"
            )
        super().check()

    def _check_classes(self, kind: str) -> None:
        key = f"{self.name}.classes = 'all'"
        if kind != "signs":
            raise SettingsError(
                f"{key} does not suit {self.name}.loss = {self.loss!r}; allowed: "
                "hinge, smoothed-hinge, logistic"
            )
        if self.positive_class != -1:
            raise SettingsError(
                f"{self.name}.positive-class = {self.positive_class} does not suit "
                f"{key}; allowed: -1"
            )
        if self.num_classes() < 3:
            raise SettingsError(
                f"{key}: there are {self.num_classes()} of them; allowed: 'two'"
            )
