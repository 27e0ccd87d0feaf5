"""The client's half of FedProx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedtrellis.local_steps import gradient_at
from fedtrellis.wire.arrays import FloatArray, Layout

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

    def local_gradient(
        self, layout: Layout, x: FloatArray, config: dict[str, Any]
    ) -> Callable[[FloatArray], FloatArray]:
        """The gradient of h_i, f_i with the proximal term."""
        gradient = gradient_at(self.objective, layout, self.client_id, config)
        mu = config.get("proximal-weight", 0.0)
        # ∇h_i(x_i) = ∇f_i(x_i) + μ (x_i − x)
        return gradient.pulled(x, mu) if mu else gradient
