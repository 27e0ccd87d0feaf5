"""Objectives of many clients as one: the gradient of each, at its own point."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from fedtrellis.objectives.checks import Array, IntArray
from fedtrellis.objectives.losses import CrossEntropy

__all__ = ["Stacked", "StackedLinear", "stack"]

# Entries of the data that stacks hold beside the objectives' own: 64 MiB together, and
# no more than a quarter of it in one.
_KEPT, _LARGEST = 2**23, 2**21
# Keys of stacks that were made, and not kept, which are remembered.
_SEEN = 1024
# Σ s² and Σ s⁻² of sums s of exponentials up to this: none of them is near 0 or ∞, in
# float32 too.
_CALM = 1e36
# Rows of a stack, those that fill it up among them, for each of the data.
_MOST_FILLED = 2.0


class Stacked(Protocol):
    """What :func:`stack` makes of n objectives.

    One that keeps copies of the data says in ``entries`` how many numbers; one that can
    take local gradient steps offers ``local_steps(points, sizes, rows)``.
    """

    def gradients(
        self, points: Array, rows: Sequence[IntArray | None] | None = None
    ) -> Array:
        r"""∇f_i(x_i) of each, a new array, at points of shape (n, \*shape).

        ``rows`` has each one's mini-batch; None: all of its examples.
        """


def stack(objectives: Sequence[Any]) -> Stacked | None:
    """One object for many objectives, where their class offers it.

    Their class has ``stack(objectives)``, a static or class method that returns a
    :class:`Stacked`, or None for those that it cannot take together. What it returns is
    kept from the second call with the same ones on.
    """
    kind = type(objectives[0])
    make = getattr(kind, "stack", None)
    if make is None or any(type(objective) is not kind for objective in objectives):
        return None
    key = tuple(map(id, objectives))
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key][1]
    stacked: Stacked | None = make(objectives)
    if key not in _seen:
        # random cohorts do not come again: what is kept of them is memory, and time
        _seen[key] = None
        if len(_seen) > _SEEN:
            del _seen[next(iter(_seen))]
        return stacked
    _kept[key] = tuple(objectives), stacked
    while sum(_size(kept) for _, kept in _kept.values()) > _KEPT:
        _kept.popitem(last=False)
    return stacked


# By the objectives' identities; they are kept too, so that none is another's.
_kept: OrderedDict[tuple[int, ...], tuple[tuple[Any, ...], Stacked | None]]
_kept = OrderedDict()
_seen: dict[tuple[int, ...], None] = {}


def _size(stacked: Stacked | None) -> int:
    # one that there is none of takes room as well
    return _KEPT // 256 + int(getattr(stacked, "entries", 0))


@lru_cache(maxsize=8)
def _classes_of(count: int, dtype: Any) -> tuple[Array, Array]:
    """The unit vector of each class, and their sum as a column; not to be changed."""
    return np.eye(count, dtype=dtype), np.ones((count, 1), dtype)


class StackedLinear:
    """Linear models of one loss, on dense data.

    The data are filled up with rows of zeros, which add nothing to a gradient Aᵀ s
    whatever their slopes s are. The models are of one class and shape.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        first = models[0]
        sizes = [model.num_examples for model in models]
        n, rows, columns = len(models), max(sizes), first.shape[0]
        self._models, self._shape, self._sizes = models, first.shape, sizes
        matrices = [model._design.matrix for model in models]
        labels = [model._labels for model in models]
        dtype, given = matrices[0].dtype, matrices[0].shape[1]
        if min(sizes) == rows:
            self._features = np.empty((n, rows, columns), dtype)
            flat = self._features.reshape(n * rows, columns)
            np.concatenate(matrices, out=flat[:, :given])
            flat[:, given:] = 1.0
            self._labels = np.concatenate(labels).reshape(n, rows)
        else:
            self._features = np.zeros((n, rows, columns), dtype)
            self._labels = np.zeros((n, rows), labels[0].dtype)
            for i, size in enumerate(sizes):
                self._features[i, :size, :given] = matrices[i]
                self._features[i, :size, given:] = 1.0
                self._labels[i, :size] = labels[i]
        self.entries = self._features.size
        self._classes: Any = None
        if isinstance(first._loss, CrossEntropy):
            self._classes, self._ones = _classes_of(first.shape[1], dtype)
            # e_y of each example
            self._own = self._classes.take(self._labels, axis=0)
        self._axes = (n, *[1] * len(first.shape))

        def spread(numbers: list[float]) -> Any:
            # of each model for its gradient; one for all is quicker
            if numbers.count(numbers[0]) == n:
                return dtype.type(numbers[0])
            return np.array(numbers).reshape(self._axes).astype(dtype)

        self._factors = spread([m.weight * m._factor for m in models])
        self._shrinks = any(model.l2 for model in models)
        self._shrinking = spread([m.weight * m.l2 for m in models])

    @classmethod
    def of(cls, models: Sequence[Any]) -> StackedLinear | None:
        """The stack, or None where it would not save time."""
        sizes, kind = [model.num_examples for model in models], models[0].stacks_as
        padded = len(models) * max(sizes)
        small = padded * models[0].shape[0] <= _LARGEST
        if kind is None or not small or padded > _MOST_FILLED * sum(sizes):
            return None
        return cls(models) if all(m.stacks_as == kind for m in models) else None

    def gradients(
        self, points: Array, rows: Sequence[IntArray | None] | None = None
    ) -> Array:
        """∇f_i(x_i) of each, as :meth:`Stacked.gradients`."""
        if points.shape[1:] != self._shape:
            raise ValueError(f"points have shape {points.shape[1:]}, not {self._shape}")
        if rows is None:
            given = self._features, self._labels, self._factors
            return self._gradients(*given, points, None)
        sizes = self._sizes
        batches = [
            np.arange(size) if chosen is None else chosen
            for chosen, size in zip(rows, sizes, strict=True)
        ]
        which = np.zeros((len(sizes), max(map(len, batches))), np.intp)
        for place, batch in zip(which, batches, strict=True):
            place[: len(batch)] = batch
        model = np.arange(len(sizes))[:, None]
        features = self._features[model, which]
        for own, batch in zip(features, batches, strict=True):
            # where a mini-batch has fewer examples than another
            own[len(batch) :] = 0.0
        # d_i / b_i makes a mini-batch's sum unbiased
        inverse = [size / len(b) for size, b in zip(sizes, batches, strict=True)]
        factors = self._factors * np.reshape(inverse, self._axes)
        labels = self._labels[model, which]
        return self._gradients(features, labels, factors, points, rows)

    def _softmax(self, scores: Array) -> bool:
        """Replace scores z by softmax(z), unless exp(z) is too large or small."""
        with np.errstate(over="ignore", divide="ignore"):
            np.exp(scores, out=scores)
            sums = scores @ self._ones
            flat = sums.reshape(-1)
            inverse = 1.0 / flat
            # NaN is not at most anything
            if not (flat.dot(flat) <= _CALM and inverse.dot(inverse) <= _CALM):
                return False
        scores /= sums
        return True

    def _slopes(self, features: Array, columns: Array, labels: Any, rows: Any) -> Array:
        """l′ of the scores a_kᵀx of all examples of all models."""
        scores = features @ columns
        if self._classes is not None:
            if scores.size and self._softmax(scores):
                # softmax(z) − e_y
                scores -= self._own if rows is None else self._classes[labels]
                return scores
            scores = features @ columns
        flat = scores.reshape(-1, *self._shape[1:])
        slopes: Array = self._models[0]._loss.slope(flat, labels.reshape(-1), flat)
        return slopes.reshape(scores.shape)

    def _gradients(
        self, features: Array, labels: Any, factors: Array, points: Array, rows: Any
    ) -> Array:
        vectors = len(self._shape) == 1
        columns = points[..., None] if vectors else points
        slopes = self._slopes(features, columns, labels, rows)
        # weight (factor Σ a_k l′(a_kᵀx; y_k) + l2 x)
        result: Array = features.transpose(0, 2, 1) @ slopes
        result = result.reshape(points.shape)
        result *= factors
        if self._shrinks:
            result += self._shrinking * self._models[0]._penalty_slope(points)
        return result.astype(points.dtype, copy=False)
