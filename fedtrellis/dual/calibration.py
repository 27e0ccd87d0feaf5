"""Probabilities from scores: Platt's sigmoid, of one column or of one a class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike, NDArray

from fedtrellis.wire.arrays import FloatArray


@dataclass(frozen=True)
class Sigmoid:
    """P(class | score z) = σ(a z + b), with an a and a b for each column of scores.

    Platt, "Probabilistic outputs for support vector machines", 1999; what
    scikit-learn's ``CalibratedClassifierCV(method="sigmoid")`` fits, with −a and −b.
    """

    slopes: FloatArray
    offsets: FloatArray

    @classmethod
    def of(
        cls, scores: FloatArray, positive: ArrayLike, weights: ArrayLike | None = None
    ) -> Sigmoid:
        """Fit it to scores, (n,) or (n, C), that the model was not trained on.

        ``positive`` says of each whether the sample is of the class, and ``weights``,
        of shape (n,), what a sample counts, by default 1. A ValueError: a class has no
        sample of a weight above 0, or all of them; or a score is not finite.
        """
        columns = np.asarray(scores, dtype=np.float64).reshape(len(scores), -1)
        inside = np.asarray(positive, dtype=np.bool_).reshape(columns.shape)
        if not np.isfinite(columns).all():
            raise ValueError("a score is not finite")
        s = np.ones(len(columns)) if weights is None else np.asarray(weights, float)
        columns, inside, s = columns[s > 0.0], inside[s > 0.0], s[s > 0.0]
        if (inside.all(axis=0) | ~inside.any(axis=0)).any():
            raise ValueError("samples of the class and others are needed for a sigmoid")
        pairs = [_fit(z, own, s) for z, own in zip(columns.T, inside.T, strict=True)]
        slopes, offsets = np.array(pairs).T
        return cls(slopes, offsets)

    def probabilities(self, scores: FloatArray) -> FloatArray:
        """Return them, of the scores' shape; of several classes they add up to 1."""
        columns = np.asarray(scores, dtype=np.float64).reshape(len(scores), -1)
        return shares(columns * self.slopes + self.offsets).reshape(np.shape(scores))


def shares(exponents: FloatArray) -> FloatArray:
    """σ of each; with several columns, each class against the rest, over their sum."""
    found: FloatArray = scipy.special.expit(exponents)
    if found.ndim == 2 and found.shape[1] > 1:
        total = found.sum(axis=1, keepdims=True)
        # where all are 0 no class is likelier than another
        even = np.full_like(found, 1.0 / found.shape[1])
        found = np.divide(found, total, out=even, where=total != 0.0)
    return found


def _fit(
    z: FloatArray, positive: NDArray[np.bool_], s: FloatArray
) -> tuple[float, float]:
    """Minimise Σ s (ln(1 + e^u) − t u), u = a z + b, which is convex."""
    inside, outside = float(s[positive].sum()), float(s[~positive].sum())
    # Platt's targets: as if one more sample of each kind had been seen
    high, low = (inside + 1.0) / (inside + 2.0), 1.0 / (outside + 2.0)
    t = np.where(positive, high, low)
    size = max(float(np.abs(z).max()), 1e-300)
    x = np.stack([z / size, np.ones_like(z)])

    def gradient(ab: FloatArray) -> FloatArray:
        slopes: FloatArray = x @ (s * (scipy.special.expit(ab @ x) - t))
        return slopes

    start = np.array([0.0, np.log((inside + 1.0) / (outside + 1.0))])
    found = scipy.optimize.root(gradient, start, tol=1e-14)
    return float(found.x[0] / size), float(found.x[1])
