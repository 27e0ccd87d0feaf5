"""The client's half of FedAvg with full local gradients."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from fedtrellis.local_steps import scheduled_steps
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import MethodClient
from fedtrellis.wire.local_work import Steps
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
        self.objective = objective

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The local model x_i after k_0 steps.

        Raises
        ------
        FloatingPointError
            If the steps have carried x_i away from all proportion to x.
        """
        # x_i ← x_i − γ_k ∇f_i(x_i), k_0 times from x
        return scheduled_steps(self, x, config)
