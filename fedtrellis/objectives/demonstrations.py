"""What tasks demonstrate methods on: a network of low rank, and an attack on images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.domains.numerics import thin_svd
from fedtrellis.manifolds import Euclidean, FixedRank, Manifold, Product, Stiefel
from fedtrellis.objectives import base
from fedtrellis.objectives.base import Array, FiniteSum, IntArray, Point, PointForms
from fedtrellis.objectives.losses import CrossEntropy
from fedtrellis.settings import need

_LOSS = CrossEntropy()


class LowRankPerceptron(FiniteSum):
    """The mean cross-entropy of a perceptron with one hidden layer of low rank.

    f(x) = (weight/d) Σ_k [ln Σ_c exp(z_kc) − z_k,y_k] with scores
    z_k = tanh(a_kᵀW + b) B + e, where W is p × h, b the hidden bias, B the h × c output
    layer and e its bias.

    ``factored``: W = U diag(s) Vᵀ, and the model's arrays are U (p × R), s (R),
    V (h × R), b, B, e, so that a model of low rank also travels as one; else they are
    W, b, B, e. A point is a list of these arrays or the flat vector of all their
    entries, each in C order; a gradient has the form of the point given.

    ``features`` has the a_k in its rows, (d, p); ``labels`` are whole numbers; h is
    ``hidden``, R ``rank``, None for no bound. A ValueError: what is given does not fit.

    §5.3 of arXiv 2507.22855, which keeps W as one matrix.
    """

    def __init__(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        classes: int,
        hidden: int,
        rank: int | None = None,
        *,
        factored: bool = True,
        weight: float = 1.0,
    ) -> None:
        self._features = base.check_examples("features", np.asarray(features))
        self.num_examples, self.inputs = self._features.shape
        self.classes = base.check_count("classes", classes, 2)
        self.hidden = base.check_count("hidden", hidden, 1)
        self._labels = base.check_integers("labels", labels, self.num_examples, classes)
        if rank is not None:
            rank = base.check_count("rank", rank, 1, min(self.inputs, hidden))
        self.bound_on_rank = rank
        self.factored = bool(factored) and rank is not None
        self._weigh(weight)
        first: list[tuple[int, ...]] = [(self.inputs, hidden)]
        if self.factored and rank is not None:  # W as its factors
            first = [(self.inputs, rank), (rank,), (hidden, rank)]
        self.shapes = [*first, (hidden,), (hidden, classes), (classes,)]
        self._forms = PointForms(self.shapes)
        self.shape = self._forms.flat

    def manifold(self) -> Product:
        """Return the manifold of the flat points, on which the rest is free.

        U and V have orthonormal columns, and s may have zeros; or W has the rank R.
        """
        parts: list[Manifold] = [Euclidean(shape) for shape in self.shapes]
        if self.factored:
            parts[0], parts[2] = Stiefel(self.shapes[0]), Stiefel(self.shapes[2])
        elif self.bound_on_rank is not None:
            parts[0] = FixedRank(self.shapes[0], self.bound_on_rank)
        return Product(parts)

    def draw(self, rng: np.random.Generator) -> list[Array]:
        """Draw a model on the manifold, the same for either way to keep W.

        W and B have the variance 2/(rows + columns) of Glorot and Bengio (AISTATS
        2010), before W is cut to rank R, and the biases are zero.
        """
        W, B = (
            np.sqrt(2.0 / sum(shape)) * rng.standard_normal(shape)
            for shape in ((self.inputs, self.hidden), (self.hidden, self.classes))
        )
        first = [W]
        if self.bound_on_rank is not None:
            R, (U, s, Vt) = self.bound_on_rank, thin_svd(W)
            U, s, Vt = U[:, :R], s[:R], Vt[:R]
            first = (
                [U.copy(), s.copy(), Vt.T.copy()] if self.factored else [(U * s) @ Vt]
            )
        return [*first, np.zeros(self.hidden), B, np.zeros(self.classes)]

    def _point(self, x: Any, name: str = "x") -> Array:
        return self._forms.vector(x).astype(np.float64, copy=False)

    def _points(self, points: Any) -> Array:
        return self._forms.vectors(points).astype(np.float64, copy=False)

    def _like(self, x: Any, gradient: Array) -> Any:
        return self._forms.like(x, gradient)

    # -- evaluation: examples are on the last axis, m points on the first

    def _scores(
        self, points: Array, features: Array
    ) -> tuple[Array | None, Array, Array]:
        """Return Uᵀaᵀ (m, R, d) if factored, tanh(…) (m, h, d) and z (m, c, d)."""
        left, *rest = self._forms.split(points)
        bias, output, output_bias = rest[-3:]
        # the points' columns below each other: one product for all of them
        columns = left.swapaxes(1, 2).reshape(-1, self.inputs)
        first = (columns @ features.T).reshape(len(points), -1, len(features))
        inner = None
        if self.factored:
            inner = first
            # V diag(s) (Uᵀ aᵀ)
            first = (rest[1] * rest[0][:, None, :]) @ inner
        first += bias[:, :, None]
        np.tanh(first, out=first)
        scores = output.swapaxes(1, 2) @ first
        scores += output_bias[:, :, None]
        return inner, first, scores

    def _chosen(self, rows: IntArray | None) -> tuple[Array, IntArray]:
        part = slice(None) if rows is None else rows
        return self._features[part], self._labels[part]

    def _room(self, rows: IntArray | None) -> int:
        # slices of an eighth of the usual stay in the processor's caches
        examples = self.num_examples if rows is None else len(rows)
        return 8 * examples * max(self.hidden, self.classes)

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        features, labels = self._chosen(rows)
        scores = self._scores(points, features)[2]
        # (1/d) Σ_k [ln Σ_c exp(z_kc) − z_k,y_k]
        losses: Array = _LOSS.value(scores.swapaxes(1, 2), labels[None]).mean(axis=1)
        losses *= self.weight
        return losses

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        features, labels = self._chosen(rows)
        layers = self._forms.split(x)
        inner, active, scores = self._scores(x[None], features)
        # ∂f/∂z = weight/d (softmax(z) − e_y)
        z, hidden = scores[0], active[0]
        _LOSS.slope(z.T, labels, z.T)
        z *= self.weight * self._inverse(rows) / self.num_examples
        slope = layers[-2] @ z
        # tanh′ = 1 − tanh²
        slope *= 1.0 - hidden**2
        if inner is None:
            # ∂f/∂W = Σ_k a_k slope_kᵀ
            first = [features.T @ slope.T]
        else:
            s, V, projected = layers[1], layers[2], inner[0]
            back = V.T @ slope
            # ∂f/∂U = Σ_k a_k (s ∘ Vᵀ slope_k)ᵀ,  ∂f/∂s = Σ_k Uᵀa_k ∘ Vᵀ slope_k,
            # ∂f/∂V = Σ_k slope_k (s ∘ Uᵀa_k)ᵀ
            first = [
                features.T @ (s[:, None] * back).T,
                np.einsum("rk,rk->r", projected, back),
                slope @ (s[:, None] * projected).T,
            ]
        parts = [*first, slope.sum(axis=1), hidden @ z.T, z.sum(axis=1)]
        return np.concatenate([part.ravel() for part in parts])

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}``, the fraction of labels predicted correctly."""
        scores = self._scores(self._point(x)[None], self._features)[2][0]
        return {"accuracy": float(np.mean(scores.argmax(axis=0) == self._labels))}


# -- one perturbation for many images that a fixed classifier is to get wrong


class PerceptronClassifier:
    """A multilayer perceptron with ReLU, from its weights.

    As scikit-learn's ``MLPClassifier`` has them in ``coefs_`` and ``intercepts_``. A
    ValueError: they do not fit together, or an entry is not finite.
    """

    def __init__(
        self, weights: Sequence[ArrayLike], biases: Sequence[ArrayLike]
    ) -> None:
        self._weights = [base.check_array("weights", weight, 2) for weight in weights]
        self._biases = [base.check_array("biases", bias, 1) for bias in biases]
        shapes, lengths = [W.shape for W in self._weights], list(map(len, self._biases))
        chained = all(before[1] == after[0] for before, after in pairwise(shapes))
        if not shapes or not chained or lengths != [shape[1] for shape in shapes]:
            found = f"weights of shapes {shapes} and biases of lengths {lengths}"
            raise ValueError(f"{found} do not make a perceptron")

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


SCORES = ("logits", "probabilities")

_FLOATS = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2"}
# Images that are put through the network at once.
_AT_ONCE = 256
# A probability that rounding has made 0 still has a logarithm.
_LEAST = 1e-30


class OnnxClassifier:
    """Scores of images by ONNX Runtime, on the CPU: a black box.

    The model has one input of floating-point numbers, (batch, ...), and an output of
    shape (batch, classes); of several, the first such. It may want axes of length 1
    beside an image's ``shape``, or all numbers in one axis, in the same order. The
    ``scores`` are ``"logits"``, or ``"probabilities"``, whose logarithms count.

    SettingsError: ONNX Runtime is not installed. ValueError: the file does not fit.
    """

    def __init__(
        self, path: str | Path, shape: tuple[int, ...], scores: str = "logits"
    ) -> None:
        need("onnxruntime", f"the model {str(path)!r}", "onnx")
        import onnxruntime

        options = onnxruntime.SessionOptions()  # many nodes share a machine
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the library's own kinds have no common one
            raise _fault(path, "is no ONNX model that can be run", error) from None
        self.path, self.shape, self.scores = Path(path), tuple(shape), scores
        inputs, outputs = (
            [(e.name, e.type, e.shape or []) for e in ends if e.type in _FLOATS]
            for ends in (self._session.get_inputs(), self._session.get_outputs())
        )
        tables = [name for name, _, axes in outputs if len(axes) == 2]
        if len(self._session.get_inputs()) != 1 or not inputs or not tables:
            ends = f"the inputs {inputs} and the outputs {outputs}"
            expected = "one of real numbers, and one of shape (batch, classes)"
            raise ValueError(f"{path} has {ends}, expected {expected}")
        [(self._input, kind, wanted)], self._output = inputs, tables[0]
        self._dtype = _FLOATS[kind]
        self._batch = wanted[0] if wanted and isinstance(wanted[0], int) else None
        self._fitted = self._fit(wanted) if wanted else self.shape
        self.classes = self._scores(np.zeros((1, *self.shape))).shape[1]
        if self.classes < 2:
            raise ValueError(f"{path} has {self.classes} class, expected at least 2")

    def _fit(self, wanted: list[Any]) -> tuple[int, ...]:
        """The shape that an image goes in with."""
        # all in one axis; as it is; or with other axes of length 1, the rest in order
        rest = iter([n for n in self.shape if n != 1])
        other = tuple(1 if n == 1 else next(rest, 0) for n in wanted[1:])
        for shape in ((math.prod(self.shape),), self.shape, other):
            alike = len(shape) == len(wanted) - 1 and all(
                n == m or not isinstance(n, int)
                for n, m in zip(wanted[1:], shape, strict=True)
            )
            if alike and math.prod(shape) == math.prod(self.shape):
                return shape
        axes = (str(n) if isinstance(n, int) else "any" for n in wanted)
        takes = f"{self.path} takes arrays of shape ({', '.join(axes)})"
        raise ValueError(f"{takes}, which does not fit images of shape {self.shape}")

    def logits(self, images: Array) -> Array:
        """Scores of shape (n, classes), float64, for images of shape (n, ...)."""
        together = self._batch or _AT_ONCE
        starts = range(0, len(images), together)
        return np.concatenate(
            [self._scores(np.asarray(images[i : i + together])) for i in starts]
        )

    def _scores(self, images: Array) -> Array:
        count = len(images)
        given = images.reshape(count, *self._fitted).astype(self._dtype, order="C")
        if self._batch:
            # a model of a fixed batch gets it filled up
            given = given[np.minimum(np.arange(self._batch), count - 1)]
        try:
            (found,) = self._session.run([self._output], {self._input: given})
        except Exception as error:  # as above
            raise _fault(self.path, f"fails at {self.shape}", error) from None
        scores = np.asarray(found, dtype=np.float64)[:count]
        if self.scores == "probabilities":
            if scores.min() < -1e-6 or scores.max() > 1.0 + 1e-6:
                ends = f"{scores.min():.3g} to {scores.max():.3g}"
                raise ValueError(f"{self.path}: {ends}, which are no probabilities")
            scores = np.log(np.maximum(scores, _LEAST))
        return scores


def _fault(path: str | Path, what: str, error: Exception) -> ValueError:
    return ValueError(f"{path} {what}: {str(error).splitlines()[0]}")


class UniversalPerturbation(FiniteSum):
    """The mean margin of a class over images with one δ added to all of them.

    f(δ) = weight · ((1/d) Σ_k max(z_t(a_k + δ) − max_{c≠t} z_c(a_k + δ), 0)
    + balance · ‖δ‖²), z the classifier's scores, t the one ``label`` of the ``images``,
    which are of shape (d, ...). Values need the classifier's ``logits(images)`` alone,
    of shape (n, classes); logarithms of probabilities do as well, as only differences
    within a row count. The gradient needs its ``pullback`` too, and f has kinks. A
    ValueError: what is given does not fit.

    §5.2 of arXiv 2507.22855, with the loss of P.-Y. Chen et al., "ZOO", 2017, on which
    the paper is silent: log p_t − max log p_c, the difference of the scores.
    """

    def __init__(
        self,
        classifier: Any,
        images: ArrayLike,
        label: int,
        *,
        balance: float = 1.0,
        weight: float = 1.0,
    ) -> None:
        given = np.asarray(images)
        if given.ndim < 2 or given.size == 0:
            wanted = "(d, *shape), d at least 1"
            raise ValueError(f"images has shape {given.shape}; it must be {wanted}")
        self._images = base.check_array("images", given, given.ndim)
        self.shape = self._images.shape[1:]
        self.num_examples = len(self._images)
        self._classifier = classifier
        self._classes = classifier.logits(self._images[:1]).shape[1]
        self.label = base.check_count("label", label, 0, self._classes - 1)
        self.balance = base.check_number("balance", balance)
        self._weigh(weight)

    def _margins(self, images: Array) -> tuple[Array, IntArray]:
        """Return z_t − max_{c≠t} z_c of every image, and which c that is."""
        z = np.array(self._classifier.logits(images), dtype=np.float64)
        true = z[:, self.label].copy()
        z[:, self.label] = -np.inf
        rivals = np.asarray(np.argmax(z, axis=1), dtype=np.intp)
        return true - z[np.arange(len(z)), rivals], rivals

    def _chosen(self, rows: IntArray | None) -> Array:
        return self._images if rows is None else self._images[rows]

    def _room(self, rows: IntArray | None) -> int:
        # what the classifier keeps inside is not known: a margin of 4 for it
        return 4 * self._chosen(rows).size

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        images = self._chosen(rows)
        # every perturbation on every image: (m d, *shape)
        perturbed = (points[:, None] + images[None]).reshape(-1, *self.shape)
        margins = self._margins(perturbed)[0].reshape(len(points), -1)
        # (1/d) Σ_k max(margin_k, 0) + balance ‖δ‖²
        losses: Array = np.maximum(margins, 0.0).mean(axis=1)
        flat = points.reshape(len(points), -1)
        losses += self.balance * np.einsum("mq,mq->m", flat, flat)
        losses *= self.weight
        return losses

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        classifier = self._classifier
        if not hasattr(classifier, "pullback"):
            kind = type(classifier).__name__
            raise NotImplementedError(f"{kind} has no pullback: it gives no gradient")
        perturbed = self._chosen(rows) + x
        margins, rivals = self._margins(perturbed)
        count = len(margins)
        # e_t − e_c where the margin is above 0, else 0
        active = (margins > 0.0) / count
        cotangents = np.zeros((count, self._classes))
        cotangents[np.arange(count), rivals] = -active
        cotangents[:, self.label] = active
        slopes = classifier.pullback(perturbed, cotangents)
        # weight ((1/d) Σ_k ∇margin_k + 2 balance δ)
        result: Array = self.weight * (slopes.sum(axis=0) + 2.0 * self.balance * x)
        return result

    def metrics(self, x: Array) -> dict[str, float]:
        """Return ``{"misclassified": ...}``, the share of images misclassified.

        The label is that of the largest score; a tie counts as misclassified.
        """
        margins = self._margins(self._images + self._point(x))[0]
        return {"misclassified": float(np.mean(margins <= 0.0))}
