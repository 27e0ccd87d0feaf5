"""The hand-written digits that come with scikit-learn, by logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fedtrellis.objectives import MultinomialLogistic

from .data.datasets import split_digits
from .data.partition import PartitionedTask
from .data.task import Dealt

__all__ = ["Digits"]


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

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "hand-written digits (scikit-learn), logistic regression"

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
