"""The client's half of federated learning on a manifold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.local_steps import (
    answer_bound,
    lipschitz_at,
    mini_batches,
    slope_at,
)
from fedtrellis.manifolds import Manifold
from fedtrellis.objectives import Loss
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.client import StatefulClient, evaluate_objective
from fedtrellis.wire.local_work import Gradient, Steps
from fedtrellis.zeroth_order import (
    Estimate,
    evaluator,
    projection_estimate,
    step_curvature,
)


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
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FirstOrderRFLClient
    >>> from fedtrellis.manifolds import Sphere
    >>> def client_fn(context):
    ...     return FirstOrderRFLClient(context, my_loss(context), Sphere((3,)))
    >>> app = client_app(client_fn)
    """

    def __init__(self, context: Context, objective: Loss, manifold: Manifold) -> None:
        super().__init__(context)
        self.objective = objective
        self.manifold = manifold

    def fit_lipschitz(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """r_i, at least the curvature of f_i along M at P_M(x)."""
        layout, f = Layout.of(parameters), self.objective
        x = layout.point(parameters)
        z = self.manifold.project(x)

        def gradient(point: FloatArray) -> FloatArray:
            # P_{T_z M}(grad f(P_M(point))), whose derivative at z is Hess f(z)
            y = self.manifold.project(point)
            tangent = self.manifold.project_tangent(y, slope_at(f, layout, y))
            return self.manifold.project_tangent(z, tangent)

        at = z.astype(x.dtype)
        return answer_bound(
            lipschitz_at(f, layout, at, config, gradient), layout, config
        )

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """τ steps from P_M(x); the answer is ẑ, which lies off the manifold."""
        layout, eta, tau = self.layout, config["step-size"], config["local-steps"]
        c = self._correction(x, config)
        self.begin(config)
        start = z = self.manifold.project(x)
        z_hat = z.copy()
        g = np.zeros(x.shape)
        for step in range(tau):
            G = yield from self.estimate(z, config)
            g += G / tau
            # ẑ ← ẑ − η (G + c_i)
            z_hat -= eta * (G + c)
            if step < tau - 1:
                # z ← P_M(ẑ)
                z = self.manifold.project(z_hat)
        arrays, metrics = self.pack(z_hat)
        if arrays and layout.dtype != "float64":
            # of the ẑ that the server has: else the mean of the c_i would leave 0
            g = (start - layout.from_wire(arrays[0])) / (eta * tau) - c
        self.state = {"z": start, "g": g} if config.get("correction", True) else {}
        return arrays, 0, metrics

    def _correction(self, x: FloatArray, config: dict[str, Any]) -> FloatArray:
        """c_i, zero at first."""
        if "z" in self.state:
            # c_i ← (P_M(x^k) − x^{k+1}) / (η_g η τ) − mean of the round's G
            total = config["server-step-size"] * config["step-size"]
            total *= config["local-steps"]
            c: FloatArray = (self.state["z"] - x) / total - self.state["g"]
            return c
        return self.state.get("c", np.zeros(x.shape))

    def begin(self, config: dict[str, Any]) -> None:
        """Prepare what a round's estimates share: its mini-batches."""
        self.batches = mini_batches(self.objective, self.client_id, config)

    def estimate(self, z: FloatArray, config: dict[str, Any]) -> Steps:
        """Grad f_i(z), the tangent part of the gradient; a part of the steps."""
        gradient = yield Gradient(z, self.batches)
        # grad f(x) = P_{T_x M}(∇f(x))
        return self.manifold.project_tangent(z, gradient)

    def pack(self, z_hat: FloatArray) -> tuple[list[NDArray[Any]], dict[str, Any]]:
        """What is sent: arrays and metrics."""
        return [self.layout.to_wire(z_hat)], {}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i at P_M(x), and the objective's metrics on this client's data."""
        layout = Layout.of(parameters)
        z = self.manifold.project(layout.point(parameters))
        return evaluate_objective(self.objective, layout.layers(z))


class ZerothOrderRFLClient(FirstOrderRFLClient):
    """Local steps from function values alone; see ``ZerothOrderRFL``.

    Parameters are those of :class:`FirstOrderRFLClient`, but that the objective has
    ``values(points, rng, batch_size=...)`` for a batch of points at once, or at least
    ``value(x)``.

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import ZerothOrderRFLClient
    >>> from fedtrellis.manifolds import Sphere
    >>> def client_fn(context):
    ...     return ZerothOrderRFLClient(context, my_loss(context), Sphere((3,)))
    >>> app = client_app(client_fn)
    """

    def fit_lipschitz(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The curvature of f_i along a step, at P_M(x)."""
        layout = Layout.of(parameters)
        x, project = layout.point(parameters), self.manifold.project
        r = step_curvature(self, x, layout, config, project)
        return answer_bound(r, layout, config)

    def begin(self, config: dict[str, Any]) -> None:
        """Prepare mini-batches and directions."""
        super().begin(config)
        self.rng = generator(
            config["seed"], "directions", self.client_id, config["server-round"]
        )
        self._scalars: list[FloatArray] = []
        self._send_scalars, self._dropped = config.get("scalars", False), 0

    def estimate(self, z: FloatArray, config: dict[str, Any]) -> Steps:
        """Estimator (7) at z, with new directions and a new mini-batch every time."""
        found = yield _Estimate(z, self, config)
        self._scalars.append(found.scalars)
        self._dropped += found.dropped
        return found.gradient

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
    client: ZerothOrderRFLClient
    config: Mapping[str, Any]

    def answer(self, objective: Any, layout: Layout) -> Estimate:
        client, config, batches = self.client, self.config, self.client.batches
        values = evaluator(
            objective,
            layout,
            batch_size=batches.size if batches else 0,
            rng=batches.rng if batches else None,
            shared=config.get("shared-samples", True),
        )
        m, mu, rng = config["samples"], config["smoothing"], client.rng
        return projection_estimate(
            values, client.manifold, self.point, rng, samples=m, smoothing=mu
        )
