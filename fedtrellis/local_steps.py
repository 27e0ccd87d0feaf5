"""Gradients for methods that take several local steps a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from fedtrellis.arrays import FloatArray, Layout
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError

__all__ = ["LocalSteps", "gradient_at"]


@dataclass(frozen=True)
class LocalSteps:
    """How a client takes gradient steps of its own within a round.

    Parameters
    ----------
    count : int
        k, at least 1.
    size : float
        γ > 0.
    batch_size : int
        Examples in a mini-batch; 0: all.
    """

    count: int
    size: float
    batch_size: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingsError(f"local_steps = {self.count} must be at least 1")
        if not 0.0 < self.size < inf:
            raise SettingsError(f"local_step_size = {self.size} must be greater than 0")
        if self.batch_size < 0:
            raise SettingsError(f"batch_size = {self.batch_size} must be at least 0")

    def instruction(self, seed: int) -> dict[str, Any]:
        """What a client needs to be told, for :func:`gradient_at` too."""
        return {
            "local-steps": self.count,
            "local-step-size": self.size,
            "batch-size": self.batch_size,
            "seed": seed,
        }


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
