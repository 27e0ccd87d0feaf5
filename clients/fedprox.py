"""The client's half of FedProx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    """

    def local_gradient(
        self, layout: Layout, x: FloatArray, config: dict[str, Any]
    ) -> Callable[[FloatArray], FloatArray]:
        """The gradient of h_i, f_i with the proximal term."""
        gradient = super().local_gradient(layout, x, config)
        mu = config.get("proximal-weight", 0.0)
        if not mu:
            return gradient
        # ∇h_i(x_i) = ∇f_i(x_i) + μ (x_i − x)
        return lambda x_i: gradient(x_i) + mu * (x_i - x)
