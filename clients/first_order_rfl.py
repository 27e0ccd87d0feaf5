"""The client's half of federated learning on a manifold, from gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.cohorts import (
    CohortGradient,
    Gradients,
    Result,
    one_by_one,
    points_of,
)
from fedtrellis.local_steps import gradient_at
from fedtrellis.manifolds import Manifold
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.client import StatefulClient, evaluate_objective, speaks_for
from fedtrellis.zeroth_order import riemannian_gradient

__all__ = ["FirstOrderRFLClient"]


class FirstOrderRFLClient(StatefulClient):
    """Local steps on a manifold with a correction term; see ``FirstOrderRFL``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, and ``stochastic_gradient(x, rng, batch_size)`` if
        mini-batches are asked for.
    manifold : Manifold
        M, the server's.

    Notes
    -----
    State: z (P_M(x^k)) and g (the mean of the round's τ gradients), from which c_i
    follows once x^{k+1} is known; or c (c_i itself), where the server sent it; all of
    it float64, as the manifold computes.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FirstOrderRFLClient
    >>> from fedtrellis.manifolds import Sphere
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return FirstOrderRFLClient(context, loss, Sphere((3,)))
    >>> app = client_app(client_fn)
    """

    def __init__(
        self, context: Context, objective: DifferentiableLoss, manifold: Manifold
    ) -> None:
        super().__init__(context)
        # it may have more: stacked losses, bounds, mini-batches
        self.objective: Any = objective
        self.manifold = manifold

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """τ steps from P_M(x); the answer is ẑ, which lies off the manifold."""
        layout = Layout.of(parameters)
        x = layout.point(parameters)
        eta, tau = config["step-size"], config["local-steps"]
        c = self._correction(x, config)
        estimate = self.gradient_source(layout, config)
        start = z = self.manifold.project(x)
        z_hat = z.copy()
        g = np.zeros(x.shape)
        for step in range(tau):
            G = estimate(z)
            g += G / tau
            # ẑ ← ẑ − η (G + c_i)
            z_hat -= eta * (G + c)
            if step < tau - 1:
                # z ← P_M(ẑ)
                z = self.manifold.project(z_hat)
        return self._answer(layout, config, start, z_hat, g, c)

    def _answer(
        self,
        layout: Layout,
        config: dict[str, Any],
        start: FloatArray,
        z_hat: FloatArray,
        g: FloatArray,
        c: FloatArray,
    ) -> Result:
        """What ``fit`` returns, and the state that it leaves."""
        arrays, metrics = self.pack(layout, z_hat)
        if arrays and layout.dtype != "float64":
            # of the ẑ that the server has: else the mean of the c_i would leave 0
            steps = config["step-size"] * config["local-steps"]
            g = (start - layout.from_wire(arrays[0])) / steps - c
        self.state = {"z": start, "g": g} if config.get("correction", True) else {}
        return arrays, 0, metrics

    @classmethod
    def fit_many(
        cls,
        clients: Sequence[Self],
        parameters: Sequence[list[NDArray[Any]]],
        config: dict[str, Any],
    ) -> list[Result]:
        """The ẑ of many clients, whose steps are taken at once."""
        layout = Layout.of(parameters[0])
        x = points_of(layout, parameters)
        eta, tau = config["step-size"], config["local-steps"]
        both = list(zip(clients, x, strict=True))
        c = np.stack([client._correction(x_i, config) for client, x_i in both])
        estimates = cls.gradient_sources(clients, layout, config)
        start = z = _projected(clients, x)
        z_hat = z.copy()
        g = np.zeros(x.shape)
        for step in range(tau):
            G = estimates(z)
            g += G / tau
            # ẑ ← ẑ − η (G + c_i), for all i
            z_hat -= eta * (G + c)
            if step < tau - 1:
                # z ← P_M(ẑ)
                z = _projected(clients, z_hat)
        return [
            client._answer(layout, config, start[i], z_hat[i], g[i], c[i])
            for i, client in enumerate(clients)
        ]

    def _correction(self, x: FloatArray, config: dict[str, Any]) -> FloatArray:
        """c_i, zero at first."""
        if "z" in self.state:
            # c_i ← (P_M(x^k) − x^{k+1}) / (η_g η τ) − mean of the round's G
            total = config["server-step-size"] * config["step-size"]
            total *= config["local-steps"]
            c: FloatArray = (self.state["z"] - x) / total - self.state["g"]
            return c
        return self.state.get("c", np.zeros(x.shape))

    def gradient_source(
        self, layout: Layout, config: dict[str, Any]
    ) -> Callable[[FloatArray], FloatArray]:
        """Grad f_i(z), the tangent part of the gradient, as a function of z."""
        gradient = gradient_at(self.objective, layout, self.client_id, config)
        return lambda z: riemannian_gradient(self.manifold, z, gradient(z))

    @classmethod
    def gradient_sources(
        cls, clients: Sequence[Self], layout: Layout, config: dict[str, Any]
    ) -> Gradients:
        """What :meth:`gradient_source` is, of many clients at once."""
        if not speaks_for(cls, "gradient_sources", "gradient_source"):
            return one_by_one(
                client.gradient_source(layout, config) for client in clients
            )
        gradients = CohortGradient(clients, layout, config)
        return lambda points: np.stack(
            [
                riemannian_gradient(client.manifold, z, gradient)
                for client, z, gradient in zip(
                    clients, points, gradients(points), strict=True
                )
            ]
        )

    def pack(
        self, layout: Layout, z_hat: FloatArray
    ) -> tuple[list[NDArray[Any]], dict[str, Any]]:
        """What is sent: arrays and metrics."""
        return [layout.to_wire(z_hat)], {}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i at P_M(x), and the objective's metrics on this client's data."""
        layout = Layout.of(parameters)
        z = self.manifold.project(layout.point(parameters))
        return evaluate_objective(self.objective, layout.layers(z))

    def _rng(self, purpose: str, config: dict[str, Any]) -> np.random.Generator:
        return generator(
            config["seed"], purpose, self.client_id, config["server-round"]
        )


def _projected(
    clients: Sequence[FirstOrderRFLClient], points: FloatArray
) -> FloatArray:
    """P_M of each client's point."""
    return np.stack(
        [client.manifold.project(x) for client, x in zip(clients, points, strict=True)]
    )
