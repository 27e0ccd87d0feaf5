"""Linear models with any loss on data that is split by samples and features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedtrellis.dual.penalty import Penalty
from fedtrellis.objectives.losses import LOSSES, Loss, make_loss
from fedtrellis.settings import SettingsError, setting

from .data.settings import FILE, NODES
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
    told from the rest: P is the sum of C problems, the model has shape (p, C), and a
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
        "two, made of the data set's as it is said there, or all that it has, each "
        "told from the rest",
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
    smoothing: float = setting(1.0, "width of the smoothed hinge's parabola", above=0.0)

    required_options: ClassVar[tuple[str, ...]] = (
        "l1_ratio",
        "free_feature",
        "classes",
    )

    def make_penalty(self) -> Penalty:  # noqa: D102
        free = -1
        if self.free_feature:
            free = list(self.feature_names()).index(self.free_feature)
        return Penalty(self.l1_ratio, free)

    def method_options(self) -> dict[str, Any]:
        """Return what every hybrid task says, and of the penalty what is not usual."""
        penalty = {"l1_ratio": self.l1_ratio, "free_feature": self.free_feature}
        return super().method_options() | {k: v for k, v in penalty.items() if v}

    def make_loss(self) -> Loss:  # noqa: D102
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
        """Whether each class is told from the rest, and labels are their numbers."""
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
