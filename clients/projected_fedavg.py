"""The client's half of FedAvg with projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.cohorts import (
    CohortGradient,
    Result,
    cohort_steps,
    points_of,
    to_results,
)
from fedtrellis.local_steps import check_steps, gradient_at, take_steps
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.client import MethodClient, evaluate_objective
from fedtrellis.wire.protocol import client_identity

__all__ = ["ProjectedFedAvgClient"]


class ProjectedFedAvgClient(MethodClient):
    """Takes local gradient steps from x̄; see ``ProjectedFedAvg``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, and ``stochastic_gradient(x, rng, batch_size)`` if
        mini-batches are asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import ProjectedFedAvgClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return ProjectedFedAvgClient(context, loss)
    >>> app = client_app(client_fn)
    """

    def __init__(self, context: Context, objective: DifferentiableLoss) -> None:
        self.client_id = client_identity(context)
        # it may have more: stacked losses, bounds, mini-batches
        self.objective: Any = objective

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The local model x_i after k steps.

        Raises
        ------
        FloatingPointError
            If the steps have carried x_i away from all proportion to x̄.
        """
        layout = Layout.of(parameters)
        x_bar = layout.point(parameters)
        gradient = gradient_at(self.objective, layout, self.client_id, config)
        # x_i ← x_i − γ ∇f_i(x_i), k times from x̄
        sizes = [config["local-step-size"]] * config["local-steps"]
        x = take_steps(gradient, x_bar, sizes)
        check_steps(x, x_bar, config, "local-step-size")
        return [layout.to_wire(x)], 0, {}

    @classmethod
    def fit_many(
        cls,
        clients: Sequence[Self],
        parameters: Sequence[list[NDArray[Any]]],
        config: dict[str, Any],
    ) -> list[Result]:
        """The local models of many clients, after k steps of all at once."""
        layout = Layout.of(parameters[0])
        x_bar = points_of(layout, parameters)
        gradients = CohortGradient(clients, layout, config)
        sizes = [config["local-step-size"]] * config["local-steps"]
        # x_i ← x_i − γ ∇f_i(x_i), k times from x̄, for all i
        x = cohort_steps(gradients, x_bar, sizes, config, "local-step-size", each=False)
        return to_results(layout, x)

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x̄) and the objective's metrics on this client's data."""
        return evaluate_objective(self.objective, parameters)
