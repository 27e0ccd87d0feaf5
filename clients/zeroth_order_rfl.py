"""The client's half of federated learning on a manifold, from function values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.manifolds import Manifold
from fedtrellis.objectives import Loss
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.local_work import MiniBatches, Steps
from fedtrellis.zeroth_order import Estimate, evaluator, projection_estimate

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

    def gradient_source(self, config: dict[str, Any]) -> Callable[[FloatArray], Steps]:
        """Estimator (7) at z, with new directions and a new mini-batch every time."""
        size = config.get("batch-size", 0)
        batches = MiniBatches(self._rng("mini-batch", config), size) if size else None
        rng = self._rng("directions", config)
        self._scalars, self._dropped = [], 0
        self._send_scalars = config.get("scalars", False)

        def at(z: FloatArray) -> Steps:
            estimate = yield _Estimate(z, self.manifold, rng, batches, config)
            self._scalars.append(estimate.scalars)
            self._dropped += estimate.dropped
            return estimate.gradient

        return at

    def pack(self, z_hat: FloatArray) -> tuple[list[NDArray[Any]], dict[str, Any]]:
        """The scalars of all τ estimates, which ẑ is made of, or ẑ itself.

        Beside them, how many values were not finite.
        """
        metrics = {"dropped": self._dropped} if self._dropped else {}
        if not self._send_scalars:
            return super().pack(z_hat)[0], metrics
        self.numbers = np.concatenate(self._scalars)
        return [], metrics


@dataclass(slots=True, eq=False)
class _Estimate:
    """Ask for F at a point and the m around it, of which estimator (7) is made."""

    point: FloatArray
    manifold: Manifold
    rng: np.random.Generator  # of the directions
    batches: MiniBatches | None
    config: Mapping[str, Any]

    def answer(self, objective: Any, layout: Layout) -> Estimate:
        values = evaluator(
            objective,
            layout,
            batch_size=0 if self.batches is None else self.batches.size,
            rng=None if self.batches is None else self.batches.rng,
            shared=self.config.get("shared-samples", True),
        )
        return projection_estimate(
            values,
            self.manifold,
            self.point,
            self.rng,
            samples=self.config["samples"],
            smoothing=self.config["smoothing"],
        )
