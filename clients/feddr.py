"""The client's half of FedDR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.cohorts import (
    CohortGradient,
    Result,
    check_cohort,
    points_of,
    stack_states,
    to_results,
)
from fedtrellis.local_steps import check_steps, gradient_at
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.client import StatefulClient, evaluate_objective

__all__ = ["FedDRClient"]


class FedDRClient(StatefulClient):
    """One client of federated Douglas-Rachford splitting; see ``FedDR``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, and ``stochastic_gradient(x, rng, batch_size)`` if
        mini-batches are asked for.

    Notes
    -----
    State: x (x_i), y (y_i).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedDRClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return FedDRClient(context, loss)
    >>> app = client_app(client_fn)
    """

    def __init__(self, context: Context, objective: DifferentiableLoss) -> None:
        super().__init__(context)
        # it may have more: stacked losses, bounds, mini-batches
        self.objective: Any = objective

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The reflected point x̂_i.

        Raises
        ------
        FloatingPointError
            If the steps have carried it away from all proportion to x̄.
        """
        layout = Layout.of(parameters)
        x_bar = layout.point(parameters)
        gradient = gradient_at(self.objective, layout, self.client_id, config)
        gamma, eta = config["local-step-size"], config["proximal-step"]
        # y_i ← y_i + α (x̄ − x_i)
        x = self.state["x"]
        y = self.state["y"] + config["relaxation"] * (x_bar - x)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(config["local-steps"]):
                # x_i ← x_i − γ (∇f_i(x_i) + (x_i − y_i)/η)
                x = x - gamma * (gradient(x) + (x - y) / eta)
            # x̂_i = 2 x_i − y_i
            reflection = 2.0 * x - y
        check_steps(reflection, x_bar, config, "local-step-size")
        self.state["x"], self.state["y"] = x, y
        return [layout.to_wire(reflection)], 0, {}

    @classmethod
    def fit_many(
        cls,
        clients: Sequence[Self],
        parameters: Sequence[list[NDArray[Any]]],
        config: dict[str, Any],
    ) -> list[Result]:
        """The reflected points of many clients, whose steps are taken at once."""
        layout = Layout.of(parameters[0])
        x_bar = points_of(layout, parameters)
        gradients = CohortGradient(clients, layout, config)
        gamma, eta = config["local-step-size"], config["proximal-step"]
        # y_i ← y_i + α (x̄ − x_i)
        x = stack_states(clients, "x")
        y = stack_states(clients, "y") + config["relaxation"] * (x_bar - x)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(config["local-steps"]):
                # x_i ← x_i − γ (∇f_i(x_i) + (x_i − y_i)/η)
                x = x - gamma * (gradients(x) + (x - y) / eta)
            # x̂_i = 2 x_i − y_i
            reflections = 2.0 * x - y
        check_cohort(reflections, x_bar, config, "local-step-size")
        for client, x_i, y_i in zip(clients, x, y, strict=True):
            client.state["x"], client.state["y"] = x_i, y_i
        return to_results(layout, reflections)

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x̄) and the objective's metrics on this client's data."""
        return evaluate_objective(self.objective, parameters)
