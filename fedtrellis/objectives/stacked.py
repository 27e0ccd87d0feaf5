"""Objectives of many clients as one: the gradient of each, at its own point."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fedtrellis.objectives.checks import Array, IntArray, is_sparse
from fedtrellis.objectives.losses import CrossEntropy

__all__ = ["Stacked", "StackedLinear", "stack"]

# Entries of the data that stacks hold beside the objectives' own: 64 MiB together, and
# no more than a quarter of it in one.
_KEPT, _LARGEST = 2**23, 2**21
# Scores z between ±this leave exp(z) and sums of it far from 0 and ∞, in float32 too.
_CALM = 40.0
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
        r"""∇f_i(x_i) of each, a new array.

        Parameters
        ----------
        points : ndarray of shape (n, \*shape)
        rows : sequence of (ndarray of int or None), optional
            Each one's mini-batch; None: all of its examples.
        """


def stack(objectives: Sequence[Any]) -> Stacked | None:
    """One object for many objectives, where their class offers it.

    Parameters
    ----------
    objectives : sequence
        Their class has ``stack(objectives)``, a static or class method that returns a
        :class:`Stacked`, or None for those that it cannot take together. What it
        returns is kept for the next call with the same ones.
    """
    kind = type(objectives[0])
    make = getattr(kind, "stack", None)
    if make is None or any(type(objective) is not kind for objective in objectives):
        return None
    return _kept.stack_of(objectives, make)


class _Kept:
    """The stacks of the last calls, up to so many entries of data together."""

    def __init__(self) -> None:
        # by their objectives' identities, which are kept too: none is another's
        self._stacks: OrderedDict[
            tuple[int, ...], tuple[tuple[Any, ...], Stacked | None]
        ] = OrderedDict()
        self._entries = 0

    def stack_of(
        self,
        objectives: Sequence[Any],
        make: Callable[[Sequence[Any]], Stacked | None],
    ) -> Stacked | None:
        key = tuple(map(id, objectives))
        if key in self._stacks:
            self._stacks.move_to_end(key)
            return self._stacks[key][1]
        stacked = make(objectives)
        self._stacks[key] = tuple(objectives), stacked
        self._entries += self._size(stacked)
        while self._entries > _KEPT:
            _, (_, oldest) = self._stacks.popitem(last=False)
            self._entries -= self._size(oldest)
        return stacked

    @staticmethod
    def _size(stacked: Stacked | None) -> int:
        # one that there is none of takes room as well
        return _KEPT // 256 + int(getattr(stacked, "entries", 0))


_kept = _Kept()


class StackedLinear:
    """Linear models of one loss, on dense data.

    The data are filled up with rows of zeros, which add nothing to a gradient Aᵀ s
    whatever their slopes s are.

    Parameters
    ----------
    models : sequence of LinearModel
        Of one class and shape.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        first = models[0]
        sizes = [model.num_examples for model in models]
        n, rows, columns = len(models), max(sizes), first.shape[0]
        self._models, self._shape, self._sizes = models, first.shape, sizes
        dtype = first._design.matrix.dtype
        # one row of zeros more, for mini-batches of unequal sizes
        self._features = np.zeros((n, rows + 1, columns), dtype)
        self._labels = np.zeros((n, rows + 1), first._labels.dtype)
        softmax = isinstance(first._pointwise, CrossEntropy)
        self._classes = np.eye(first.shape[1], dtype=dtype) if softmax else None
        # of all classes together, Σ_c
        self._ones = np.ones((first.shape[-1], 1), dtype)
        for i, (model, size) in enumerate(zip(models, sizes, strict=True)):
            stored = model._design.matrix
            self._features[i, :size, : stored.shape[1]] = stored
            if model._design.intercept:
                self._features[i, :size, -1] = 1.0
            self._labels[i, :size] = model._labels
        self.entries = self._features.size
        # without the row of zeros; the slices of a model's data stay contiguous
        self._all_features = self._features[:, :-1]
        self._all_labels = self._labels[:, :-1]
        # e_y of each example
        self._own: Any = None
        if self._classes is not None:
            self._own = self._classes[self._all_labels]
        axes = (n, *[1] * len(first.shape))
        weights = np.array([model.weight for model in models])
        factors = [model._factor for model in models]
        self._factors = (weights * factors).reshape(axes).astype(dtype)
        shrinking = weights * [model.l2 for model in models]
        self._shrinking = shrinking.reshape(axes).astype(dtype)
        self._shrinks = bool(shrinking.any())

    @classmethod
    def of(cls, models: Sequence[Any]) -> StackedLinear | None:
        """The stack, or None where it would not save time."""
        first = models[0]
        rows = max(model.num_examples for model in models)
        padded = len(models) * (rows + 1)
        fits = padded * first.shape[0] <= _LARGEST and all(
            model.shape == first.shape
            and model._pointwise == first._pointwise
            and model._design.intercept == first._design.intercept
            and not is_sparse(model._design.matrix)
            and model._design.matrix.dtype == first._design.matrix.dtype
            for model in models
        )
        filled = padded / sum(model.num_examples + 1 for model in models)
        return cls(models) if fits and filled <= _MOST_FILLED else None

    def gradients(
        self, points: Array, rows: Sequence[IntArray | None] | None = None
    ) -> Array:
        """∇f_i(x_i) of each, as :meth:`Stacked.gradients`."""
        if points.shape[1:] != self._shape:
            raise ValueError(f"points have shape {points.shape[1:]}, not {self._shape}")
        if rows is None:
            features, labels = self._all_features, self._all_labels
            return self._gradients(features, labels, self._factors, points, None)
        sizes = self._sizes
        batches = [
            np.arange(size) if chosen is None else chosen
            for chosen, size in zip(rows, sizes, strict=True)
        ]
        # the row of zeros, where a mini-batch has fewer examples than another
        which = np.full((len(sizes), max(map(len, batches))), -1)
        for place, batch in zip(which, batches, strict=True):
            place[: len(batch)] = batch
        model = np.arange(len(sizes))[:, None]
        # d_i / b_i makes a mini-batch's sum unbiased
        inverse = [size / len(b) for size, b in zip(sizes, batches, strict=True)]
        factors = self._factors * np.reshape(inverse, self._factors.shape)
        return self._gradients(
            self._features[model, which],
            self._labels[model, which],
            factors,
            points,
            rows,
        )

    def _slopes(self, scores: Array, labels: Any, rows: Any) -> Array:
        """l′ of all scores, in their memory where that saves time."""
        calm = scores.size and max(scores.max(), -scores.min()) <= _CALM
        if self._classes is not None and calm:
            # softmax(z) − e_y; nothing overflows, and no sum of exponentials is 0
            np.exp(scores, out=scores)
            scores /= scores @ self._ones
            scores -= self._own if rows is None else self._classes[labels]
            return scores
        flat = scores.reshape(-1, *self._shape[1:])
        slopes: Array = self._models[0]._pointwise.slope(flat, labels.reshape(-1), flat)
        return slopes.reshape(scores.shape)

    def _gradients(
        self, features: Array, labels: Any, factors: Array, points: Array, rows: Any
    ) -> Array:
        vectors = len(self._shape) == 1
        columns = points[..., None] if vectors else points
        # a_kᵀx of all examples of all models
        scores = features @ columns
        slopes = self._slopes(scores, labels, rows)
        # weight (factor Σ a_k l′(a_kᵀx; y_k) + l2 x)
        result: Array = features.transpose(0, 2, 1) @ slopes
        result = result.reshape(points.shape)
        result *= factors
        if self._shrinks:
            result += self._shrinking * self._models[0]._penalty_slope(points)
        return result.astype(points.dtype, copy=False)
