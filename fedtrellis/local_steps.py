"""Gradients for methods that take several local steps a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedtrellis.arrays import FloatArray, Layout
from fedtrellis.random import generator

__all__ = ["gradient_at"]


def gradient_at(
    objective: Any, layout: Layout, client_id: str, config: Mapping[str, Any]
) -> Callable[[FloatArray], FloatArray]:
    """The gradient of f_i as a function of a point, full or on mini-batches.

    Parameters
    ----------
    objective : object
        With ``gradient(x)``, or ``stochastic_gradient(x, rng, batch_size)`` where
        ``config["batch-size"]`` is above 0.
    layout : Layout
        Of the model.
    client_id : str
        The batches' random numbers derive from it, the run's seed and the round.
    config : mapping
        What the server sent.
    """
    batch_size = config["batch-size"]
    if not batch_size:

        def full(x: FloatArray) -> FloatArray:
            gradient = objective.gradient(layout.objective_point(x))
            return layout.objective_gradient(gradient)

        return full

    rng = generator(config["seed"], "mini-batch", client_id, config["server-round"])

    def stochastic(x: FloatArray) -> FloatArray:
        point = layout.objective_point(x)
        gradient = objective.stochastic_gradient(point, rng, batch_size)
        return layout.objective_gradient(gradient)

    return stochastic
