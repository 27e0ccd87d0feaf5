"""The client's half of FedAvg with full local gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.cohorts import (
    CohortGradient,
    Gradients,
    Result,
    cohort_steps,
    one_by_one,
    points_of,
    to_results,
)
from fedtrellis.local_steps import (
    ScheduledSteps,
    check_steps,
    gradient_at,
    take_steps,
)
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.client import MethodClient, evaluate_objective, speaks_for
from fedtrellis.wire.protocol import client_identity

__all__ = ["FedAvgGDClient"]


class FedAvgGDClient(MethodClient):
    """Takes local gradient steps from x; see ``FedAvgGD``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, and ``stochastic_gradient(x, rng, batch_size)`` and
        ``num_examples`` if mini-batches are asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedAvgGDClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return FedAvgGDClient(context, loss)
    >>> app = client_app(client_fn)
    """

    def __init__(self, context: Context, objective: DifferentiableLoss) -> None:
        self.client_id = client_identity(context)
        # it may have more: stacked losses, bounds, mini-batches
        self.objective: Any = objective

    def local_gradient(
        self, layout: Layout, x: FloatArray, config: dict[str, Any]
    ) -> Callable[[FloatArray], FloatArray]:
        """The gradient that the local steps go along, as a function of x_i.

        Parameters
        ----------
        layout : Layout
            Of the model.
        x : ndarray of shape ``layout.point_shape``
            The server's model; not to be changed.
        config : dict
            What the server sent.
        """
        return gradient_at(self.objective, layout, self.client_id, config)

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The local model x_i after k_0 steps.

        Raises
        ------
        FloatingPointError
            If the steps have carried x_i away from all proportion to x.
        """
        layout = Layout.of(parameters)
        x = layout.point(parameters)
        sizes = ScheduledSteps.of(config).sizes(config["server-round"])
        gradient = self.local_gradient(layout, x, config)
        # x_i ← x_i − γ_k ∇f_i(x_i), k_0 times from x
        x_i = take_steps(gradient, x, sizes, lambda x_i: check_steps(x_i, x, config))
        return [layout.to_wire(x_i)], 0, {}

    @classmethod
    def fit_many(
        cls,
        clients: Sequence[Self],
        parameters: Sequence[list[NDArray[Any]]],
        config: dict[str, Any],
    ) -> list[Result]:
        """The local models of many clients, after k_0 steps of all at once.

        Raises
        ------
        FloatingPointError
            If the steps have carried one of them away.
        """
        layout = Layout.of(parameters[0])
        x = points_of(layout, parameters)
        gradient = cls.local_gradients(clients, layout, x, config)
        sizes = ScheduledSteps.of(config).sizes(config["server-round"])
        # x_i ← x_i − γ_k ∇f_i(x_i), k_0 times from x, for all i
        points = cohort_steps(gradient, x, sizes, config, "step-size", each=True)
        return to_results(layout, points)

    @classmethod
    def local_gradients(
        cls,
        clients: Sequence[Self],
        layout: Layout,
        x: FloatArray,
        config: dict[str, Any],
    ) -> Gradients:
        r"""What :meth:`local_gradient` is, of many clients at once.

        Parameters
        ----------
        clients : sequence of FedAvgGDClient
            Of this class.
        layout, config
            As there.
        x : ndarray of shape (n, \*layout.point_shape)
            The model as each of them has it; not to be changed.
        """
        if speaks_for(cls, "local_gradients", "local_gradient"):
            return CohortGradient(clients, layout, config)
        return one_by_one(
            client.local_gradient(layout, x_i, config)
            for client, x_i in zip(clients, x, strict=True)
        )

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x) and the objective's metrics on this client's data."""
        return evaluate_objective(self.objective, parameters)
