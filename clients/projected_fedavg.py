"""The client's half of FedAvg with projection."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from fedtrellis.local_steps import check_steps, mini_batches, take_steps
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import MethodClient
from fedtrellis.wire.local_work import Steps
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
        self.objective = objective

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The local model x_i after k steps from x̄, which ``x`` is.

        Raises
        ------
        FloatingPointError
            If the steps have carried x_i away from all proportion to x̄.
        """
        batches = mini_batches(self.objective, self.client_id, config)
        # x_i ← x_i − γ ∇f_i(x_i), k times from x̄
        sizes = [config["local-step-size"]] * config["local-steps"]
        x_i = yield from take_steps(x, sizes, batches)
        check_steps(x_i, x, config, "local-step-size")
        return x_i
