"""The client's half of FedDR."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from fedtrellis.local_steps import check_steps, mini_batches
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import StatefulClient
from fedtrellis.wire.local_work import Gradient, Steps

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
        self.objective = objective

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The reflected point x̂_i, of x̄, which ``x`` is.

        Raises
        ------
        FloatingPointError
            If the steps have carried it away from all proportion to x̄.
        """
        x_bar, batches = x, mini_batches(self.objective, self.client_id, config)
        gamma, eta = config["local-step-size"], config["proximal-step"]
        # y_i ← y_i + α (x̄ − x_i)
        x_i = self.state["x"]
        y_i = self.state["y"] + config["relaxation"] * (x_bar - x_i)
        for _ in range(config["local-steps"]):
            # x_i ← x_i − γ (∇f_i(x_i) + (x_i − y_i)/η)
            g = yield Gradient(x_i, batches)
            x_i = x_i - gamma * (g + (x_i - y_i) / eta)
        # x̂_i = 2 x_i − y_i
        reflection = 2.0 * x_i - y_i
        check_steps(reflection, x_bar, config, "local-step-size")
        self.state["x"], self.state["y"] = x_i, y_i
        return reflection
