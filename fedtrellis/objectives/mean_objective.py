"""The mean of several objectives, for tasks where every client counts the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedtrellis.objectives.base import Objective
from fedtrellis.objectives.checks import Array, check_point
from fedtrellis.objectives.symmetric import Bound, symmetric_operator

__all__ = ["MeanObjective"]


class MeanObjective(Objective):
    """F(x) = (1/n) Σ_i f_i(x), whatever the numbers of the f_i's examples.

    Nothing is copied; a call costs one call of every f_i.

    Parameters
    ----------
    objectives : sequence of Objective
        f_1, …, f_n, at least one, all of one shape.

    Attributes
    ----------
    num_examples : int
        That of all f_i together.

    Raises
    ------
    ValueError
        There is no objective, or their shapes differ.

    Notes
    -----
    The objective of FedGiA, arXiv 2205.01438, equation (1): (1/m) Σ f_i with f_i the
    mean over a client's d_i examples.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._parts = tuple(objectives)
        if not self._parts:
            raise ValueError("objectives is empty; it must have at least one")
        shapes = {part.shape for part in self._parts}
        if len(shapes) > 1:
            raise ValueError(
                "objectives have the shapes "
                f"{', '.join(map(str, sorted(shapes)))}; they must have one"
            )
        self.shape = self._parts[0].shape
        self.num_examples = sum(part.num_examples for part in self._parts)
        self.quadratic = all(part.quadratic for part in self._parts)

    def value(self, x: Array) -> float:
        """Return F(x)."""
        return sum(part.value(x) for part in self._parts) / len(self._parts)

    def gradient(self, x: Array) -> Array:
        """Return ∇F(x), of the shape of x."""
        total = np.zeros(self.shape)
        for part in self._parts:
            total += part.gradient(x)
        total /= len(self._parts)
        return total

    def curvature(self, x: Array, direction: Array) -> float | None:
        """Return dᵀ∇²F(x)d; None where one of the f_i does not offer it."""
        total = 0.0
        for part in self._parts:
            curvature = part.curvature(x, direction)
            if curvature is None:
                return None
            total += curvature
        return total / len(self._parts)

    def values(
        self,
        points: Array,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return F at each of a batch of points; mini-batches are not implemented."""
        if batch_size is not None:
            return super().values(points, rng, batch_size=batch_size)
        points = check_point(points, self.shape, batch=True)
        total = np.zeros(len(points))
        for part in self._parts:
            total += part.values(points)
        total /= len(self._parts)
        return total

    def hessian_bound(self) -> Bound:
        """Return Θ = (1/n) Σ Θ_i, which majorises F.

        Returns
        -------
        ndarray of shape (p, p), or a LinearOperator where one of the Θ_i is one.

        Raises
        ------
        NotImplementedError
            One of the f_i has no bound.
        """
        dense: Any = 0.0
        operators: list[Any] = []
        for part in self._parts:
            bound = part.hessian_bound()
            if isinstance(bound, np.ndarray):
                # added up at once: n matrices are not in memory together
                dense = dense + bound
            else:
                operators.append(bound)
        if not operators:
            return np.asarray(dense / len(self._parts))

        def product(v: Array) -> Array:
            result = np.dot(dense, v)
            for operator in operators:
                result = result + operator @ v
            return np.asarray(result / len(self._parts))

        return symmetric_operator(operators[0].shape[0], product)

    @cached_property
    def _lipschitz(self) -> float:
        try:
            return super().lipschitz()
        except NotImplementedError:
            # Coarser: λ_max of a mean is at most the mean of the λ_max.
            return sum(part.lipschitz() for part in self._parts) / len(self._parts)

    def lipschitz(self) -> float:
        """Return λ_max(Θ), or the mean of the f_i's constants where Θ is not known."""
        return self._lipschitz

    def metrics(self, x: Array) -> dict[str, float]:
        """Return the means of the f_i's metrics, weighted by their examples.

        A fraction of examples, such as the accuracy, is then that of all of them.
        Measures that only some of the f_i have are left out.
        """
        parts = [part.metrics(x) for part in self._parts]
        shares = [part.num_examples / self.num_examples for part in self._parts]
        return {
            name: float(sum(w * m[name] for w, m in zip(shares, parts, strict=True)))
            for name in parts[0]
            if all(name in measures for measures in parts)
        }
