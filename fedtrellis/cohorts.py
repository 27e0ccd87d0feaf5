r"""The arithmetic of many clients at once, for a client class's ``fit_many``.

Points of a cohort are one array of shape (n, \*layout.point_shape), a client a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.local_steps import (
    LocalGradient,
    check_steps,
    draws_batches,
    gradient_at,
)
from fedtrellis.objectives.base import draw_batch
from fedtrellis.objectives.stacked import Stacked, stack
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.protocol import ANSWER_BOUND

__all__ = [
    "CohortGradient",
    "Gradients",
    "Result",
    "check_cohort",
    "cohort_steps",
    "one_by_one",
    "points_of",
    "stack_states",
    "to_results",
]

#: The gradients of a cohort at its points.
Gradients = Callable[[FloatArray], FloatArray]
Result = tuple[list[NDArray[Any]], int, dict[str, Any]]


def points_of(
    layout: Layout, parameters: Sequence[Sequence[NDArray[Any]]]
) -> FloatArray:
    """The model of each client of a cohort, a new array.

    Parameters
    ----------
    layout : Layout
        Of each of them.
    parameters : sequence of sequence of ndarray
        Each client's arrays, as ``fit_many`` is given them.
    """
    first = parameters[0]
    if all(arrays is first for arrays in parameters):
        return np.repeat(layout.point(first)[None], len(parameters), axis=0)
    return np.stack([layout.point(arrays) for arrays in parameters])


def stack_states(clients: Sequence[Any], name: str) -> FloatArray:
    """One entry of the state of each client of a cohort, a new array.

    Raises
    ------
    KeyError
        A client does not have it.
    """
    # of one shape and dtype; np.stack takes longer
    return np.array([client.state[name] for client in clients])


def to_results(layout: Layout, points: FloatArray) -> list[Result]:
    """What ``fit_many`` returns where each client's answer is one point."""
    if points.dtype == layout.wire_dtype:
        return [([point], 0, {}) for point in points]
    return [([layout.to_wire(point)], 0, {}) for point in points]


def one_by_one(each: Iterable[Callable[[FloatArray], FloatArray]]) -> Gradients:
    """The gradients of a cohort from those of its clients."""
    gradients = list(each)
    return lambda points: np.stack(
        [gradient(x) for gradient, x in zip(gradients, points, strict=True)]
    )


class CohortGradient:
    """The gradients of a cohort's f_i, full or on mini-batches.

    What :func:`fedtrellis.local_steps.gradient_at` is for one: the same mini-batches,
    and the same numbers to rounding. It takes one call for all where the objectives can
    be stacked (:func:`fedtrellis.objectives.stacked.stack`), else one for each.

    Parameters
    ----------
    clients : sequence of object
        With ``objective`` and ``client_id``.
    layout : Layout
        Of the model.
    config : mapping
        What the server sent.
    """

    def __init__(
        self, clients: Sequence[Any], layout: Layout, config: Mapping[str, Any]
    ) -> None:
        self.layout = layout
        self._clients, self._config = clients, config
        self._batches = draws_batches(config)
        self.stacked: Stacked | None = stack([c.objective for c in clients])

    @cached_property
    def each(self) -> list[LocalGradient]:
        """The gradient of each by itself."""
        return [
            gradient_at(client.objective, self.layout, client.client_id, self._config)
            for client in self._clients
        ]

    def _rows(self) -> list[NDArray[np.intp] | None] | None:
        """The next mini-batch of each client."""
        if not self._batches:
            return None
        return [
            None
            if gradient.rng is None
            else draw_batch(
                gradient.rng, gradient.objective.num_examples, gradient.batch_size
            )
            for gradient in self.each
        ]

    def _shaped(self, points: FloatArray) -> FloatArray:
        """Points as stacked objectives take them, in the shape of a model's array."""
        shapes = self.layout.shapes
        if len(shapes) > 1:
            return points
        return points.reshape(len(points), *shapes[0])

    def __call__(self, points: FloatArray) -> FloatArray:
        """The gradients at the points, of their shape; a new array."""
        if self.stacked is None:
            return one_by_one(self.each)(points)
        given = points.astype(self.layout.point_dtype, copy=False)
        gradients = self.stacked.gradients(self._shaped(given), self._rows())
        return gradients.reshape(points.shape)

    def steps(self, points: FloatArray, sizes: Sequence[float]) -> FloatArray | None:
        """Take local steps where the objectives do that themselves."""
        if self.stacked is None:
            if not all(hasattr(g.objective, "local_steps") for g in self.each):
                return None
            ends = []
            for gradient, x in zip(self.each, points, strict=True):
                end = gradient.steps(x, sizes)
                assert end is not None
                ends.append(end)
            return np.stack(ends)
        take = getattr(self.stacked, "local_steps", None)
        if take is None:
            return None
        rows = [self._rows() for _ in sizes]
        drawn = None if not rows or rows[0] is None else rows
        moved: FloatArray = take(self._shaped(points), sizes, drawn)
        return moved.reshape(points.shape)


def cohort_steps(
    gradients: Gradients,
    x: FloatArray,
    sizes: Sequence[float],
    config: Mapping[str, Any],
    key: str,
    *,
    each: bool,
) -> FloatArray:
    """x_i ← x_i − γ_k ∇f_i(x_i) for all clients, from x, and return the last.

    Parameters
    ----------
    gradients : callable
        Where it is a :class:`CohortGradient` of objectives that take the steps
        themselves, they do.
    x : ndarray of shape (n, ...)
        Not changed.
    sizes : sequence of float
        γ_1, γ_2, …
    config, key
        As :func:`fedtrellis.local_steps.check_steps` takes them.
    each : bool
        Whether that is checked on the way, and not only of the last points.

    Raises
    ------
    FloatingPointError
        The steps of a client have diverged.
    """
    bound = _bound(config)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(gradients, CohortGradient):
            moved = gradients.steps(x, sizes)
            if moved is not None:
                check_cohort(moved, x, config, key)
                return moved
        points, farthest = x.copy(order="C"), None
        flat = points.reshape(-1)  # of the same memory
        for gamma in sizes:
            step = gradients(points)
            step *= gamma
            points -= step
            # Σ ‖x_i‖² ≤ b² leaves none beyond b
            if each and not float(flat.dot(flat)) <= bound**2:
                # what is not a number stays none
                squares = _squares(points)
                farthest = (
                    squares if farthest is None else np.maximum(farthest, squares)
                )
        if each and farthest is None:
            return points
    check_cohort(points, x, config, key, farthest)
    return points


def _bound(config: Mapping[str, Any]) -> float:
    """‖x_i‖ beyond which x_i is no answer, if ‖x‖ ≤ 1."""
    return float(config.get("answer-bound", ANSWER_BOUND))


def _squares(points: FloatArray) -> FloatArray:
    """‖x_i‖² of each."""
    flat = points.reshape(len(points), -1)
    result: FloatArray = np.einsum("ij,ij->i", flat, flat)
    return result


def check_cohort(
    points: FloatArray,
    starts: FloatArray,
    config: Mapping[str, Any],
    key: str,
    farthest: FloatArray | None = None,
) -> None:
    """:func:`fedtrellis.local_steps.check_steps` for each client of a cohort.

    Parameters
    ----------
    points, starts : ndarray of shape (n, ...)
        Where the steps are, and where they began.
    config, key
        As there.
    farthest : ndarray of shape (n,), optional
        The largest ‖x_i‖² that there has been, if not that of the points.

    Raises
    ------
    FloatingPointError
        A client's steps have diverged.
    """
    bound = _bound(config)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = _squares(points) if farthest is None else farthest
        # ‖x_i‖ ≤ b · max(1, ‖x‖);  NaN is no less either
        near = squares <= bound**2 * np.maximum(1.0, _squares(starts))
    for i in np.flatnonzero(~near):
        check_steps(points[i], starts[i], config, key)
        # it was there on the way
        raise FloatingPointError("the local steps of a cohort diverged")
