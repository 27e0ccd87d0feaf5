"""The hand-written digits that come with scikit-learn, by logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from fedtrellis.extras import need
from fedtrellis.objectives import MultinomialLogistic

from .base import Point, derived_seed
from .data.datasets import Examples
from .data.partition import LabelledData, PartitionedTask, arrange

__all__ = ["Digits", "split_digits"]


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

    def num_examples(self) -> int:  # noqa: D102
        return len(_data(self).labels)

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

    def _build_objective(self) -> MultinomialLogistic:
        return _data(self).objective()

    def _build_client_objective(self, client: int) -> MultinomialLogistic:
        return _data(self).client_objective(client)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}`` on the test images."""
        return _test_objective(self).metrics(self.argument(x))


def split_digits(seed: int) -> Examples:
    """Return the images, pixels from 0 to 1, split as the class above says."""
    need("sklearn", "task = 'digits'", "sklearn")
    # half a second that other tasks' nodes need not spend
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=0.2,
        stratify=labels,
        random_state=derived_seed(seed, "digits split"),
    )
    features = pixels / 16.0
    return Examples(
        features[train], labels[train], features[test], labels[test], classes=10
    )


@lru_cache(maxsize=4)
def _data(task: Digits) -> LabelledData:
    examples = split_digits(task.seed)
    return arrange(
        examples.features,
        examples.labels,
        task.deal(examples.labels),
        examples.test_features,
        examples.test_labels,
        examples.classes,
    )


@lru_cache(maxsize=4)
def _test_objective(task: Digits) -> MultinomialLogistic:
    return _data(task).test_objective()
