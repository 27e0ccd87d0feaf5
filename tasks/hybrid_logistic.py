"""Logistic regression on data that is split by samples and features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedtrellis.objectives.losses import DualLoss, make_loss

from .hybrid import HybridTask

__all__ = ["HybridLogistic"]


@dataclass(frozen=True)
class HybridLogistic(HybridTask):
    """The logistic loss ln(1 + e^(−yz)) of labels −1 and +1.

    Everything else is :class:`tasks.hybrid.task.HybridTask`'s.
    """

    name: ClassVar[str] = "hybrid-logistic"
    summary: ClassVar[str] = (
        "logistic regression; samples and features split over clients"
    )

    def make_loss(self) -> DualLoss:  # noqa: D102
        return make_loss("logistic")
