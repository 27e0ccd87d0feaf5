"""What methods ask of a loss, for those who write one and for their editors.

A loss need not be a subclass of anything: it has the methods that its method calls.
Those of :mod:`fedtrellis.objectives` have all of them.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["DifferentiableLoss", "Loss"]


@runtime_checkable
class Loss(Protocol):
    """A function of which values can be asked for.

    ``num_examples``, where it has one, counts for weights and metrics.

    Examples
    --------
    >>> from fedtrellis.objectives import Loss
    >>> class Device:
    ...     def value(self, x):
    ...         return float(x.sum())
    >>> isinstance(Device(), Loss)
    True
    """

    def value(self, x: Any, /) -> float:
        """Return f(x); x is one ndarray, or a list of them for a model of several."""


@runtime_checkable
class DifferentiableLoss(Protocol):
    """A function of which gradients can be asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.objectives import DifferentiableLoss, LeastSquares
    >>> isinstance(LeastSquares(np.eye(2), np.ones(2)), DifferentiableLoss)
    True
    """

    def gradient(self, x: Any, /) -> Any:
        """Return ∇f(x), shaped as x."""
