"""The client's half of FedProx."""

from __future__ import annotations

from typing import Any

from fedtrellis.local_steps import scheduled_steps
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.local_work import Steps

from .fedavg_gd import FedAvgGDClient

__all__ = ["FedProxClient"]


class FedProxClient(FedAvgGDClient):
    """Takes local steps that are pulled back to x; see ``FedProx``.

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
    >>> from fedtrellis.clients import FedProxClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return FedProxClient(context, loss)
    >>> app = client_app(client_fn)
    """

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The local model x_i after k_0 steps on h_i, f_i with the proximal term.

        Raises
        ------
        FloatingPointError
            If the steps have carried x_i away from all proportion to x.
        """
        # ∇h_i(x_i) = ∇f_i(x_i) + μ (x_i − x)
        mu = config.get("proximal-weight", 0.0)
        return scheduled_steps(self, x, config, pull=mu)
