"""Support vector machines on data that is split by samples and features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedtrellis.objectives.losses import DualLoss, make_loss
from fedtrellis.settings import setting

from .hybrid import HybridTask

__all__ = ["HybridSVM"]


@dataclass(frozen=True)
class HybridSVM(HybridTask):
    """The hinge loss, the one of HyFDCA's experiments, smoothed, or a square.

    Labels are −1 and +1; ``squared`` is ½(z − y)² of them, the least-squares support
    vector machine. Everything else is :class:`tasks.hybrid.task.HybridTask`'s.
    """

    name: ClassVar[str] = "hybrid-svm"
    summary: ClassVar[str] = (
        "support vector machine; samples and features split over clients"
    )

    loss: str = setting(
        "hinge", "the loss", choices=("hinge", "smoothed-hinge", "squared")
    )
    smoothing: float = setting(1.0, "width of the smoothed hinge's parabola", above=0.0)

    def make_loss(self) -> DualLoss:  # noqa: D102
        return make_loss(self.loss, self.smoothing)
