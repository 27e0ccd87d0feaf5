"""The function values of an objective, at a point and those around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from math import prod
from typing import Any

import numpy as np

from fedtrellis.objectives import Objective
from fedtrellis.wire.arrays import FloatArray, Layout

__all__ = ["Evaluator", "Values", "evaluator"]

#: Function values at x and the perturbed points y_1, …, y_m, which come stacked in this
#: order, shape (m + 1, *S). The result is of shape (m + 1,) where all have one ξ in
#: common; or of shape (2, m), the values F(x, ξ_j) above the values F(y_j, ξ_j).
Values = Callable[[FloatArray], FloatArray]


class Evaluator:
    """Function values, for all points in one call or for one part after the other.

    It is one of :data:`Values`; what makes it is :func:`evaluator`.

    Attributes
    ----------
    rows : int
        Examples that a value is made of: an objective may have as many numbers for
        each point.
    """

    def __init__(
        self,
        of_points: Callable[[FloatArray, np.random.Generator | None], FloatArray],
        rng: np.random.Generator | None,
        rows: int,
        shared: bool,
    ) -> None:
        self._of_points, self._rng, self._shared = of_points, rng, shared
        self.rows = rows

    def __call__(self, points: FloatArray) -> FloatArray:
        """The values at x and the points after it, with new mini-batches."""
        return self._of_points(points, self._rng)

    def parts(self, parts: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """The values of one call, part after part, each part beginning with x.

        All parts have one mini-batch if all points of a call have.
        """
        # what the first part draws, each of the others draws again
        start = deepcopy(self._rng) if self._shared else None
        for number, points in enumerate(parts):
            rng = deepcopy(start) if number and start is not None else self._rng
            yield self._of_points(points, rng)


def evaluator(
    objective: Any,
    layout: Layout,
    *,
    batch_size: int = 0,
    rng: np.random.Generator | None = None,
    shared: bool = True,
) -> Evaluator:
    r"""Return the function values of an objective in the form the estimators need.

    Parameters
    ----------
    objective : object
        With ``values(points, rng, batch_size=...)``, see
        :meth:`fedtrellis.objectives.Objective.values`; or only with ``value(x)``,
        which is called once for each point and knows the full data only.
    layout : Layout
        Of the model. For one of several arrays the points are flat vectors, and the
        objective is given the list of the layers: each (k, \*layer shape) in
        ``values`` and of the layer's shape in ``value``.
    batch_size : int
        Examples in a mini-batch, the ξ; 0: all, and no ξ.
    rng : numpy.random.Generator, optional
        Draws the mini-batches; needed with them.
    shared : bool
        Whether one ξ, drawn in each call, serves x and all perturbed points: m + 1
        function values in one call of ``objective.values``. False draws a ξ_j for each
        direction, as the paper writes it: 2m values, in m calls of two points each,
        which cannot be put together, so it costs far more than twice the time. Without
        mini-batches it makes no difference.

    Returns
    -------
    Evaluator

    Raises
    ------
    ValueError
        A ``batch_size`` below 0, without ``rng``, or above 0 for an objective that only
        has ``value``.

    Examples
    --------
    An objective that has ``value(x)`` alone is asked point by point:

    >>> import numpy as np
    >>> from fedtrellis.wire.arrays import Layout
    >>> from fedtrellis.zeroth_order import evaluator
    >>> class Square:
    ...     def value(self, x):
    ...         return float(x @ x)
    >>> values = evaluator(Square(), Layout(((2,),)))
    >>> values(np.array([[0.0, 0.0], [1.0, 2.0]]))
    array([0., 5.])
    """
    if batch_size < 0:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 0")
    only_value = not hasattr(objective, "values") or (
        # what is inherited from Objective is a loop over value(), for one array only
        getattr(type(objective), "values", None) is Objective.values
    )
    if only_value and batch_size:
        raise ValueError(
            f"batch_size is {batch_size}, but {type(objective).__name__} only has "
            "value(x), on all its data; it needs values(points, rng, batch_size=...), "
            "or batch_size = 0"
        )
    if batch_size and rng is None:
        raise ValueError(f"batch_size is {batch_size}; it needs a random generator")

    # differences of values need the digits of float64, whatever the model is of
    layout = Layout(layout.shapes)

    def loop(points: FloatArray, rng: np.random.Generator | None) -> FloatArray:
        return np.array(
            [objective.value(layout.objective_point(point)) for point in points],
            dtype=np.float64,
        )

    def full(points: FloatArray, rng: np.random.Generator | None) -> FloatArray:
        return np.asarray(objective.values(_stacked(layout, points)), dtype=np.float64)

    def sampled(points: FloatArray, rng: np.random.Generator | None) -> FloatArray:
        stacked = _stacked(layout, points)
        return np.asarray(
            objective.values(stacked, rng, batch_size=batch_size), dtype=np.float64
        )

    def pairs(points: FloatArray, rng: np.random.Generator | None) -> FloatArray:
        x = points[0]
        # F(x, ξ_j) and F(y_j, ξ_j)
        columns = [sampled(np.stack((x, y)), rng) for y in points[1:]]
        return np.stack(columns, axis=1)

    if only_value:
        return Evaluator(loop, None, 0, True)
    if not batch_size:
        rows = int(getattr(objective, "num_examples", 0))
        return Evaluator(full, None, rows, True)
    return Evaluator(sampled if shared else pairs, rng, batch_size, shared)


def _stacked(layout: Layout, points: FloatArray) -> FloatArray | list[FloatArray]:
    """Return what ``objective.values`` is given: one array, or the list of layers."""
    count = len(points)
    if len(layout.shapes) == 1:
        return points.reshape(count, *layout.shapes[0])
    sizes = [prod(shape) for shape in layout.shapes]
    parts = np.split(points.reshape(count, -1), np.cumsum(sizes)[:-1], axis=1)
    return [
        part.reshape(count, *shape)
        for part, shape in zip(parts, layout.shapes, strict=True)
    ]
