"""Linear models with any loss on data that is split by samples and features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedtrellis.objectives.losses import LOSSES, Loss, make_loss
from fedtrellis.settings import SettingsError, setting

from .data.settings import FILE, NODES
from .hybrid import HybridTask
from .hybrid.rows import DATASETS, TARGETS

__all__ = ["HybridLinear"]


@dataclass(frozen=True)
class HybridLinear(HybridTask):
    """A linear model with any loss that has a dual: classification and regression.

    ``hinge``, ``smoothed-hinge`` and ``logistic`` are losses of two classes, −1 and +1.
    ``squared`` and ``poisson`` are losses of numbers, the latter of counts, whose mean
    is e^z: of ``diabetes`` (scikit-learn's, features standardised, the target as it is:
    a whole number from 25 to 346), or of the nodes' own files, whose label column then
    holds numbers. ``squared`` takes the data sets of two classes, too. Everything else
    is :class:`tasks.hybrid.task.HybridTask`'s.
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
    smoothing: float = setting(1.0, "width of the smoothed hinge's parabola", above=0.0)

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
        super().check()
