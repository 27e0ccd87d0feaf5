"""One perturbation for many images that a fixed classifier is to get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.objectives.base import FiniteSum
from fedtrellis.objectives.checks import (
    Array,
    IntArray,
    check_array,
    check_count,
    check_number,
)

__all__ = [
    "Classifier",
    "DifferentiableClassifier",
    "PerceptronClassifier",
    "UniversalPerturbation",
]


class Classifier(Protocol):
    """What an attack may ask of a classifier: its outputs."""

    def logits(self, images: Array) -> Array:
        """Return scores of shape (n, classes) for images of shape (n, ...).

        Logarithms of probabilities do as well: only differences within a row count.
        """
        ...


@runtime_checkable
class DifferentiableClassifier(Classifier, Protocol):
    """A classifier that can be differentiated, for attacks that see inside it."""

    def pullback(self, images: Array, cotangents: Array) -> Array:
        """Return ∇ Σ_kc cotangents_kc · logits_kc by the images, of their shape."""
        ...


class PerceptronClassifier:
    """A multilayer perceptron with ReLU, from its weights.

    Parameters
    ----------
    weights : sequence of array_like
        Of shapes (inputs, h_1), (h_1, h_2), …, (h_k, classes), as scikit-learn's
        ``MLPClassifier`` has them in ``coefs_``.
    biases : sequence of array_like
        Of shapes (h_1,), …, (classes,); ``intercepts_``.

    Raises
    ------
    ValueError
        The shapes do not fit together, or an entry is not finite.
    """

    def __init__(
        self, weights: Sequence[ArrayLike], biases: Sequence[ArrayLike]
    ) -> None:
        self._weights = [check_array("weights", weight, 2) for weight in weights]
        self._biases = [check_array("biases", bias, 1) for bias in biases]
        shapes = [weight.shape for weight in self._weights]
        outputs = [shape[1] for shape in shapes]
        chained = all(before[1] == after[0] for before, after in pairwise(shapes))
        if not shapes or not chained or [len(b) for b in self._biases] != outputs:
            raise ValueError(
                f"weights of shapes {shapes} and biases of lengths "
                f"{[len(bias) for bias in self._biases]} do not make a perceptron"
            )

    def _layers(self, images: Array) -> list[Array]:
        """Return the inputs of each layer, and the scores."""
        values = [np.asarray(images).reshape(len(images), -1)]
        for i, (W, b) in enumerate(zip(self._weights, self._biases, strict=True)):
            scores = values[-1] @ W
            scores += b
            if i + 1 < len(self._weights):
                np.maximum(scores, 0.0, out=scores)
            values.append(scores)
        return values

    def logits(self, images: Array) -> Array:
        """Return scores of shape (n, classes) for images of shape (n, ...)."""
        return self._layers(images)[-1]

    def pullback(self, images: Array, cotangents: Array) -> Array:
        """Return ∇ Σ_kc cotangents_kc · logits_kc by the images, of their shape."""
        values = self._layers(images)
        slope = cotangents
        for W, inputs in zip(self._weights[:0:-1], values[-2:0:-1], strict=True):
            slope = (slope @ W.T) * (inputs > 0.0)
        slope = slope @ self._weights[0].T
        return slope.reshape(np.shape(images))


class UniversalPerturbation(FiniteSum):
    """The mean margin of a class over images with one δ added to all of them.

    f(δ) = weight · ((1/d) Σ_k max(z_t(a_k + δ) − max_{c≠t} z_c(a_k + δ), −κ)
    + balance · ‖δ‖²), z the classifier's scores and t the label of the images: with
    κ = 0 the first term is 0 where all images are taken for something else. Values need
    the classifier's outputs alone; the gradient needs a
    :class:`DifferentiableClassifier`, and f has kinks.

    On a sphere ‖δ‖ = ε the distortion ‖δ‖² is a constant.

    Parameters
    ----------
    classifier : Classifier
    images : array_like of shape (d, ...)
        All of one label.
    label : int
        t.
    confidence : float, default 0.0
        κ: a margin of −κ is enough.
    balance : float, default 1.0
        What ‖δ‖² counts.
    clip : bool, default False
        Whether the classifier sees a_k + δ cut to [0, 1], the range of pixels.
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        There are no images, an entry is not finite, or a parameter is not allowed.

    Notes
    -----
    §5.2 of arXiv 2507.22855, with the loss of P.-Y. Chen et al., "ZOO", 2017, on which
    the paper is silent: log p_t − max log p_c, which is the difference of the scores,
    as the softmax's normalisation cancels.
    """

    def __init__(
        self,
        classifier: Classifier,
        images: ArrayLike,
        label: int,
        *,
        confidence: float = 0.0,
        balance: float = 1.0,
        clip: bool = False,
        weight: float = 1.0,
    ) -> None:
        given = np.asarray(images)
        if given.ndim < 2 or given.size == 0:
            raise ValueError(
                f"images has shape {given.shape}; it must be (d, *shape), d at least 1"
            )
        self._images = check_array("images", given, given.ndim)
        self.shape = self._images.shape[1:]
        self.num_examples = len(self._images)
        self._classifier = classifier
        self._classes = classifier.logits(self._images[:1]).shape[1]
        self.label = check_count("label", label, 0, self._classes - 1)
        self.confidence = check_number("confidence", confidence)
        self.balance = check_number("balance", balance)
        self.clip = bool(clip)
        self.weight = check_number("weight", weight, positive=True)

    def _seen(self, images: Array) -> Array:
        return np.clip(images, 0.0, 1.0) if self.clip else images

    def _margins(self, images: Array) -> tuple[Array, IntArray]:
        """Return z_t − max_{c≠t} z_c of every image, and which c that is."""
        z = np.array(self._classifier.logits(self._seen(images)), dtype=np.float64)
        true = z[:, self.label].copy()
        z[:, self.label] = -np.inf
        rivals = np.asarray(np.argmax(z, axis=1), dtype=np.intp)
        return true - z[np.arange(len(z)), rivals], rivals

    def _chosen(self, rows: IntArray | None) -> Array:
        return self._images if rows is None else self._images[rows]

    def _entries_per_point(self, rows: IntArray | None) -> int:
        # what the classifier keeps inside is not known: a margin of 4 for it
        return 4 * self._chosen(rows).size

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        images = self._chosen(rows)
        # every perturbation on every image: (m d, *shape)
        perturbed = (points[:, None] + images[None]).reshape(-1, *self.shape)
        margins = self._margins(perturbed)[0].reshape(len(points), -1)
        # (1/d) Σ_k max(margin_k, −κ) + balance ‖δ‖²
        losses: Array = np.maximum(margins, -self.confidence).mean(axis=1)
        flat = points.reshape(len(points), -1)
        losses += self.balance * np.einsum("mq,mq->m", flat, flat)
        losses *= self.weight
        return losses

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        classifier = self._classifier
        if not isinstance(classifier, DifferentiableClassifier):
            raise NotImplementedError(
                f"{type(classifier).__name__} has no pullback, which a gradient needs"
            )
        perturbed = self._chosen(rows) + x
        margins, rivals = self._margins(perturbed)
        count = len(margins)
        # e_t − e_c where the margin is above −κ, else 0
        active = (margins > -self.confidence) / count
        cotangents = np.zeros((count, self._classes))
        cotangents[np.arange(count), rivals] = -active
        cotangents[:, self.label] = active
        slopes = classifier.pullback(self._seen(perturbed), cotangents)
        if self.clip:
            slopes = slopes * ((perturbed > 0.0) & (perturbed < 1.0))
        # weight ((1/d) Σ_k ∇margin_k + 2 balance δ)
        result: Array = self.weight * (slopes.sum(axis=0) + 2.0 * self.balance * x)
        return result

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"misclassified": ...}``, the share of images misclassified.

        The label is that of the largest score; a tie counts as misclassified.
        """
        margins = self._margins(self._images + self._point(x))[0]
        return {"misclassified": float(np.mean(margins <= 0.0))}
