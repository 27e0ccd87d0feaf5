"""The client's half: it votes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis import MethodClient
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.client import evaluate_objective


class MajoritySignClient(MethodClient):
    """Sends the signs of its gradient; see ``MajoritySign``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``.
    """

    def __init__(self, context: Context, objective: Any) -> None:
        self.objective = objective

    def fit(
        self, parameters: list[Any], config: dict[str, Any]
    ) -> tuple[list[Any], int, dict[str, Any]]:
        """The signs, int8, in the shape of the model's one array."""
        layout = Layout.of(parameters)
        x = layout.objective_point(layout.point(parameters))
        gradient = layout.objective_gradient(self.objective.gradient(x))
        return [np.sign(gradient).astype(np.int8)], 0, {}

    def evaluate(
        self, parameters: list[Any], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x) on this client's data."""
        return evaluate_objective(self.objective, parameters)
