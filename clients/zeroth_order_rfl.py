"""The client's half of federated learning on a manifold, from function values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.manifolds import Manifold
from fedtrellis.objectives import Loss
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.zeroth_order import evaluator, projection_estimate

from .first_order_rfl import FirstOrderRFLClient

__all__ = ["ZerothOrderRFLClient"]


class ZerothOrderRFLClient(FirstOrderRFLClient):
    """Local steps from function values alone; see ``ZerothOrderRFL``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``values(points, rng, batch_size=...)`` for a batch of points at once,
        or at least ``value(x)``.
    manifold : Manifold
        M, the server's.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import ZerothOrderRFLClient
    >>> from fedtrellis.manifolds import Sphere
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return ZerothOrderRFLClient(context, loss, Sphere((3,)))
    >>> app = client_app(client_fn)
    """

    def __init__(self, context: Context, objective: Loss, manifold: Manifold) -> None:
        # of the gradient that the base class wants there are estimates
        values: Any = objective
        super().__init__(context, values, manifold)
        self._scalars: list[FloatArray] = []
        self._send_scalars = False
        self._dropped = 0

    def gradient_source(
        self, layout: Layout, config: dict[str, Any]
    ) -> Callable[[FloatArray], FloatArray]:
        """Estimator (7) at z, with new directions and a new mini-batch every time."""
        batch_size = config.get("batch-size", 0)
        values = evaluator(
            self.objective,
            layout,
            batch_size=batch_size,
            rng=self._rng("mini-batch", config) if batch_size else None,
            shared=config.get("shared-samples", True),
        )
        rng = self._rng("directions", config)
        self._scalars, self._dropped = [], 0
        self._send_scalars = config.get("scalars", False)

        def at(z: FloatArray) -> FloatArray:
            estimate = projection_estimate(
                values,
                self.manifold,
                z,
                rng,
                samples=config["samples"],
                smoothing=config["smoothing"],
            )
            self._scalars.append(estimate.scalars)
            self._dropped += estimate.dropped
            return estimate.gradient

        return at

    def pack(
        self, layout: Layout, z_hat: FloatArray
    ) -> tuple[list[NDArray[Any]], dict[str, Any]]:
        """The scalars of all τ estimates, which ẑ is made of, or ẑ itself.

        Beside them, how many values were not finite.
        """
        metrics = {"dropped": self._dropped} if self._dropped else {}
        if not self._send_scalars:
            return super().pack(layout, z_hat)[0], metrics
        self.numbers = np.concatenate(self._scalars)
        return [], metrics
