"""Projection-based federated learning on a manifold, from function values alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from fedtrellis.random import generator
from fedtrellis.server.answers import Answer
from fedtrellis.settings import setting
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.zeroth_order import combine

from .first_order_rfl import FirstOrderRFL

__all__ = ["UPLOADS", "ZerothOrderRFL"]

Upload = Literal["auto", "scalars", "dense"]
UPLOADS: tuple[Upload, ...] = get_args(Upload)


@dataclass(frozen=True)
class _Answer:
    """ẑ_i, and how many values were dropped."""

    point: FloatArray
    dropped: int


class ZerothOrderRFL(FirstOrderRFL):
    """Zeroth-order projection-based Riemannian federated learning.

    :class:`FirstOrderRFL` with an estimate of the Riemannian gradient from m + 1 values
    of f_i, at points on the manifold, in each of the τ local steps::

        G(z) = (p·r/m) Σ_{j=1..m} [F_i(P_M(z + μ u_j), ξ) − F_i(z, ξ)] / μ · u_j    (7)

    with u_j uniform on the unit sphere of R^{p×r}, one mini-batch ξ for all of a step's
    values. A value that is not finite is dropped, and counted.

    **What travels up.** The u_j derive from the run's seed, the client and the round,
    so the server can draw them as well. G is a combination of them, and
    ẑ_i = z − η Σ_t (G_t + c_i), so τ·m scalars are all that a client has to send.

    Source: Wang, Pan, He, Li, Jiang, "Federated Learning on Riemannian Manifolds: A
    Gradient-Free Projection-Based Approach", arXiv 2507.22855, algorithm 1. That
    scalars suffice is ours.

    Notes
    -----
    The matching client is ``ZerothOrderRFLClient(context, objective, manifold)``.
    Metrics of a round, beside ``step-norm``: ``evaluations``, the values that the
    clients computed, and ``dropped-values`` if there were any.

    Theory asks for a step size η that shrinks like 1/(p·r).

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import ZerothOrderRFLClient
    >>> from fedtrellis.manifolds import Sphere
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import ZerothOrderRFL
    >>> targets = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.5, 0.0])]
    >>> losses = [LeastSquares(np.eye(3), target) for target in targets]
    >>> def client_fn(context):
    ...     loss = losses[context.node_config["partition-id"]]
    ...     return ZerothOrderRFLClient(context, loss, Sphere((3,)))
    >>> grid = LocalGrid(client_app(client_fn), 2)
    >>> strategy = ZerothOrderRFL(Sphere((3,)), step_size=0.05)
    >>> start = ArrayRecord([np.array([0.0, 0.0, 1.0])])
    >>> result = strategy.start(grid, start, num_rounds=100)
    >>> result.arrays.to_numpy_ndarrays()[0].round(2) + 0.0
    array([0.98, 0.17, 0.  ])
    """

    name = "zeroth-order-rfl"
    about = "Riemannian federated learning from function values"
    values_only = True
    space = "manifold"

    samples: int = setting(50, "directions of a step", symbol="m", minimum=1)
    smoothing: float = setting(1e-4, "length of a difference", symbol="μ", above=0.0)
    upload: Upload = setting(
        "auto",
        "what the clients send; auto: scalars where they are fewer than ẑ's entries",
        choices=Upload,
    )
    shared_samples: bool = setting(
        True,
        "one mini-batch for all values of a step (m + 1 values), instead of one for "
        "each direction (2m), as in the paper",
        note="makes no difference without mini-batches",
    )

    @property
    def sends_scalars(self) -> bool:
        """Whether clients send scalars in the place of ẑ."""
        if self.upload == "auto":
            size = prod(self.broadcast.layout.point_shape)
            return self.local_steps * self.samples < size
        return self.upload == "scalars"

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What :class:`FirstOrderRFL` says; m, μ and the seed of the directions."""
        entries = super().instruction(server_round, client)
        entries |= {
            "samples": self.samples,
            "smoothing": self.smoothing,
            "seed": self.seed,
        }
        if self.sends_scalars:
            entries["scalars"] = True
        if not self.shared_samples:
            entries["shared-samples"] = False
        return entries

    def audience(self, server_round: int, client: str) -> None:
        """All of them are told the same."""

    def check(self, answer: Answer) -> _Answer:
        """ẑ_i, replayed from the scalars if that is what was sent."""
        dropped = answer.metrics.get("dropped", 0)
        if not isinstance(dropped, int) or dropped < 0:
            raise ValueError(f"the answer has dropped {dropped!r}")
        if not self.sends_scalars:
            return _Answer(self.take_point(answer), dropped)
        scalars = answer.numbers
        count = self.local_steps * self.samples
        if answer.arrays or scalars.shape != (count,):
            raise ValueError(
                f"the answer has {scalars.size} scalars and {len(answer.arrays)} "
                f"arrays, expected {count} and none"
            )
        point = self._replayed(scalars, answer.client, answer.server_round)
        self.check_proportion(point, self.broadcast.model)
        return _Answer(point, dropped)

    def _replayed(
        self, scalars: FloatArray, client: str, server_round: int
    ) -> FloatArray:
        rng = generator(self.seed, "directions", client, server_round)
        total = np.zeros(self._z.shape)
        for of_step in scalars.reshape(self.local_steps, self.samples):
            # G_t = (p·r/m) Σ_j s_tj u_tj, with the client's own directions
            total += combine(of_step, rng, self._z.shape)
        # ẑ = z − η Σ_t (G_t + c_i)
        total += self.local_steps * self._corrections[client]
        return self._z - self.step_size * total

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """As :class:`FirstOrderRFL` does; and count."""
        points = {name: answer.point for name, answer in answers.items()}
        metrics = super().aggregate(server_round, points)
        a_step = self.samples + 1 if self.shared_samples else 2 * self.samples
        metrics["evaluations"] = len(answers) * self.local_steps * a_step
        dropped = sum(answer.dropped for answer in answers.values())
        if dropped:
            metrics["dropped-values"] = dropped
        return metrics
