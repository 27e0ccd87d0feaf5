"""A perceptron whose hidden weight matrix has low rank, in NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.manifolds import Euclidean, FixedRank, Manifold, Product, Stiefel
from fedtrellis.objectives.base import FiniteSum, inverse_fraction
from fedtrellis.objectives.checks import (
    Array,
    IntArray,
    check_count,
    check_examples,
    check_integers,
    check_number,
)
from fedtrellis.objectives.losses import CrossEntropy
from fedtrellis.objectives.points import Point, PointForms

__all__ = ["LowRankPerceptron"]

_LOSS = CrossEntropy()


class _Layers(NamedTuple):
    """Views of a batch of m flat points."""

    left: Array  # U: (m, p, R); or W: (m, p, h)
    values: Array | None  # s: (m, R)
    right: Array | None  # V: (m, h, R)
    bias: Array  # (m, h)
    output: Array  # (m, h, c)
    output_bias: Array  # (m, c)


class LowRankPerceptron(FiniteSum):
    """The mean cross-entropy of a perceptron with one hidden layer of low rank.

    f(x) = weight · ((1/d) Σ_k [ln Σ_c exp(z_kc) − z_k,y_k] + (l2/2)‖x‖²) with scores
    z_k = φ(a_kᵀW + b) B + e, where W is p × h, b the hidden bias, B the h × c output
    layer and e its bias.

    ``factored``: W = U diag(s) Vᵀ, and the model's arrays are U (p × R), s (R),
    V (h × R), b, B, e, so that a model of low rank also travels as one; else they are
    W, b, B, e. On the manifold l2 acts on W through ‖W‖ = ‖s‖, as ‖U‖ and ‖V‖ are
    constant there.

    A point is a list of these arrays or the flat vector of all their entries, each in C
    order; every method accepts both, and a gradient has the form of the point given.

    Parameters
    ----------
    features : array_like of shape (d, p)
    labels : array_like of shape (d,)
        Whole numbers in [0, classes).
    classes : int
        c, at least 2.
    hidden : int
        h, the width of the hidden layer.
    rank : int, optional
        R, at most min(p, h); None puts no bound on the rank.
    factored : bool, default True
        Whether W is kept as its factors; nothing without ``rank``.
    activation : {"tanh", "relu"}
        φ; f is smooth with tanh only.
    l2 : float, default 0.0
    weight : float, default 1.0
        A positive factor on the whole function.

    Raises
    ------
    ValueError
        If shapes disagree, an entry is not finite, or a label or parameter is not
        allowed.

    Notes
    -----
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
        activation: str = "tanh",
        l2: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        self._features = check_examples("features", np.asarray(features))
        self.num_examples, inputs = self._features.shape
        self.inputs = inputs
        self.classes = check_count("classes", classes, 2)
        self.hidden = check_count("hidden", hidden, 1)
        self._labels = check_integers("labels", labels, self.num_examples, classes)
        if rank is not None:
            rank = check_count("rank", rank, 1, min(inputs, hidden))
        if activation not in ("tanh", "relu"):
            raise ValueError(f"activation is {activation!r}; allowed: 'relu', 'tanh'")
        self.bound_on_rank = rank
        self.factored = bool(factored) and rank is not None
        self.activation = activation
        self.l2 = check_number("l2", l2)
        self.weight = check_number("weight", weight, positive=True)
        self.shapes = self.layer_shapes(
            inputs, self.classes, self.hidden, rank if self.factored else None
        )
        self._forms = PointForms(self.shapes)
        self.shape = self._forms.flat

    @staticmethod
    def layer_shapes(
        inputs: int, classes: int, hidden: int, rank: int | None
    ) -> list[tuple[int, ...]]:
        """Return the shapes of the model's arrays; with a rank, W as its factors."""
        first: list[tuple[int, ...]] = [(inputs, hidden)]
        if rank is not None:
            first = [(inputs, rank), (rank,), (hidden, rank)]
        return [*first, (hidden,), (hidden, classes), (classes,)]

    def manifold(self) -> Product:
        """Return the manifold of the flat points.

        U and V have orthonormal columns, or W the rank R; the rest is free. s may have
        zeros, so that the rank of W is at most R where it is factored.
        """
        first: list[Manifold]
        if self.factored:
            U, s, V = (shape for shape in self.shapes[:3])
            first = [Stiefel(U), Euclidean(s), Stiefel(V)]
        elif self.bound_on_rank is not None:
            first = [FixedRank(self.shapes[0], self.bound_on_rank)]
        else:
            first = [Euclidean(self.shapes[0])]
        return Product([*first, *(Euclidean(shape) for shape in self.shapes[-3:])])

    # -- points

    def initial_point(self, rng: np.random.Generator) -> list[Array]:
        """Draw a model on the manifold.

        W and B have the variance 2/(rows + columns) of Glorot and Bengio (AISTATS
        2010), before W is cut to rank R, and the biases are zero. One state of the
        generator gives the same network for either way to keep W.
        """
        W, B = (
            np.sqrt(2.0 / (rows + columns)) * rng.standard_normal((rows, columns))
            for rows, columns in (
                (self.inputs, self.hidden),
                (self.hidden, self.classes),
            )
        )
        first = [W]
        if self.bound_on_rank is not None:
            low_rank = FixedRank(W.shape, self.bound_on_rank)
            U, s, Vt = low_rank.factors(W)
            first = [low_rank.from_factors(U, s, Vt)]
            if self.factored:
                first = [U.copy(), s.copy(), Vt.T.copy()]
        return [*first, np.zeros(self.hidden), B, np.zeros(self.classes)]

    def hidden_matrix(self, x: Point) -> Array:
        """Return W, of shape (p, h)."""
        layers = self._split(self._flat(x)[None])
        W: Array = layers.left[0].copy()
        if layers.values is not None and layers.right is not None:
            # W = U diag(s) Vᵀ
            W = (W * layers.values[0]) @ layers.right[0].T
        return W

    def rank(self, x: Point) -> int:
        """Return the numerical rank of W."""
        return int(np.linalg.matrix_rank(self.hidden_matrix(x)))

    def _flat(self, x: Point, batch: tuple[int, ...] = ()) -> Array:
        """Return a point, or a batch of them, as float64 of shape (*batch, q)."""
        return self._forms.vector(x, batch).astype(np.float64, copy=False)

    def _split(self, points: Array) -> _Layers:
        parts = self._forms.split(points)
        if self.factored:
            return _Layers(*parts)
        return _Layers(parts[0], None, None, *parts[1:])

    def _like(self, x: Point, flat: Array) -> Any:
        return flat if isinstance(x, np.ndarray) else self._forms.split(flat)

    # -- evaluation: examples are on the last axis, m points on the first

    def _scores(self, x: _Layers, features: Array) -> tuple[Array | None, Array, Array]:
        """Return Uᵀaᵀ (m, R, d) if factored, φ(…) (m, h, d) and z (m, c, d)."""
        count, examples = len(x.bias), len(features)
        # the points' columns below each other: one product for all of them
        columns = x.left.swapaxes(1, 2).reshape(-1, self.inputs)
        first = (columns @ features.T).reshape(count, -1, examples)
        inner = None
        if x.values is not None and x.right is not None:
            inner = first
            # V diag(s) (Uᵀ aᵀ)
            first = (x.right * x.values[:, None, :]) @ inner
        first += x.bias[:, :, None]
        if self.activation == "tanh":
            np.tanh(first, out=first)
        else:
            np.maximum(first, 0.0, out=first)
        scores = x.output.swapaxes(1, 2) @ first
        scores += x.output_bias[:, :, None]
        return inner, first, scores

    def _chosen(self, rows: IntArray | None) -> tuple[Array, IntArray]:
        if rows is None:
            return self._features, self._labels
        return self._features[rows], self._labels[rows]

    def _penalty(self, points: Array) -> Any:
        # (l2/2)‖x‖²
        return 0.5 * self.l2 * np.einsum("...q,...q->...", points, points)

    def _entries_per_point(self, rows: IntArray | None) -> int:
        # slices of an eighth of the usual stay in the processor's caches
        examples = self.num_examples if rows is None else len(rows)
        return 8 * examples * max(self.hidden, self.classes)

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        features, labels = self._chosen(rows)
        scores = self._scores(self._split(points), features)[2]
        # (1/d) Σ_k [ln Σ_c exp(z_kc) − z_k,y_k]
        losses: Array = _LOSS.value(scores.swapaxes(1, 2), labels[None]).mean(axis=1)
        if self.l2:
            losses += self._penalty(points)
        losses *= self.weight
        return losses

    def _gradient(self, x: Array, rows: IntArray | None) -> Array:
        features, labels = self._chosen(rows)
        layers = self._split(x[None])
        inner, active, scores = self._scores(layers, features)
        # ∂f/∂z = weight/d (softmax(z) − e_y)
        z = scores[0]
        _LOSS.slope(z.T, labels, z.T)
        z *= self.weight * inverse_fraction(rows, self.num_examples) / self.num_examples
        hidden = active[0]
        slope = layers.output[0] @ z
        # through φ: tanh′ = 1 − tanh², relu′ = 1[· > 0]
        slope *= (hidden > 0.0) if self.activation == "relu" else 1.0 - hidden**2
        if inner is None:
            # ∂f/∂W = Σ_k a_k slope_kᵀ
            first = [features.T @ slope.T]
        else:
            assert layers.values is not None
            assert layers.right is not None
            s, V, projected = layers.values[0], layers.right[0], inner[0]
            back = V.T @ slope
            # ∂f/∂U = Σ_k a_k (s ∘ Vᵀ slope_k)ᵀ,  ∂f/∂s = Σ_k Uᵀa_k ∘ Vᵀ slope_k,
            # ∂f/∂V = Σ_k slope_k (s ∘ Uᵀa_k)ᵀ
            first = [
                features.T @ (s[:, None] * back).T,
                np.einsum("rk,rk->r", projected, back),
                slope @ (s[:, None] * projected).T,
            ]
        parts = [*first, slope.sum(axis=1), hidden @ z.T, z.sum(axis=1)]
        result = np.concatenate([part.ravel() for part in parts])
        if self.l2:
            result += (self.weight * self.l2) * x
        return result

    def value(self, x: Point) -> float:
        """Return f(x)."""
        return float(self.values(self._flat(x)[None])[0])

    def gradient(self, x: Point) -> Any:
        """Return ∇f(x), in the form of x."""
        return self._like(x, super().gradient(self._flat(x)))

    def stochastic_gradient(
        self, x: Point, rng: np.random.Generator, batch_size: int
    ) -> Any:
        """Return the gradient on a mini-batch that ``rng`` draws, in the form of x."""
        gradient = super().stochastic_gradient(self._flat(x), rng, batch_size)
        return self._like(x, gradient)

    def values(
        self,
        points: Point,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at each of m points, in a few products; see ``Objective.values``.

        Points have shape (m, q), or are a list of ndarrays of (m, *array shape).
        """
        flat = self._flat(points, self._forms.count(points))
        return super().values(flat, rng, batch_size=batch_size)

    def predict(self, x: Point) -> IntArray:
        """Return the class of the largest score of each example."""
        layers = self._split(self._flat(x)[None])
        scores = self._scores(layers, self._features)[2][0]
        return np.asarray(np.argmax(scores, axis=0), dtype=np.intp)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}``, the fraction of labels predicted correctly."""
        return {"accuracy": float(np.mean(self.predict(x) == self._labels))}
