"""The job that all engines do, and what each says of it. Needs NumPy alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOCAL_STEPS", "STEP_SIZE", "Job", "Run", "layers", "model_of", "timed"]

LOCAL_STEPS, STEP_SIZE, CLASSES = 5, 0.5, 10


@dataclass(frozen=True)
class Job:
    """FedAvg of multinomial logistic regression, from W = 0.

    A round's clients each take five full-batch gradient steps of 0.5 from the server's
    model, whose next one is the mean of theirs. A model is W of shape (q + 1, 10), its
    last row the bias.

    Parameters
    ----------
    features : ndarray of shape (n, d, q), float64
        d examples of each of the n clients.
    labels : ndarray of shape (n, d), int64
    cohorts : ndarray of shape (rounds, m), int64
        Who takes part in each round.
    """

    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    cohorts: NDArray[np.int64]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.cohorts)

    @property
    def clients(self) -> int:
        """Number of clients n."""
        return len(self.features)

    @property
    def with_ones(self) -> NDArray[np.float64]:
        """The features with a column of ones, of shape (n, d, q + 1)."""
        ones = np.ones((*self.features.shape[:2], 1))
        return np.concatenate([self.features, ones], axis=2)

    @property
    def start(self) -> NDArray[np.float64]:
        """W = 0."""
        return np.zeros((self.features.shape[2] + 1, CLASSES))

    def save(self, path: Path) -> None:
        """Write it down for the workers."""
        np.savez(path, features=self.features, labels=self.labels, cohorts=self.cohorts)

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """Read what :meth:`save` wrote."""
        with np.load(path) as data:
            return cls(data["features"], data["labels"], data["cohorts"])


class Run(NamedTuple):
    """The final W of shape (q + 1, 10), and the seconds that all rounds took."""

    model: NDArray[np.float64]
    cpu: float
    wall: float


def timed(play: Callable[[], Any]) -> Run:
    """Run the job once, in this process and all its threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    model = play()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Run(np.asarray(model, dtype=np.float64), cpu, wall)


def layers(model: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weight (10, q) and bias (10,) of a linear layer, as PyTorch has them."""
    return model[:-1].T, model[-1]


def model_of(weight: Any, bias: Any) -> NDArray[np.float64]:
    """What :func:`layers` took apart."""
    return np.concatenate([np.asarray(weight).T, np.asarray(bias)[None]])
