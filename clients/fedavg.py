"""Clients that take gradient steps on their own loss, and send where they end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis.compressors import compressor
from fedtrellis.domains import Domain, WholeSpace
from fedtrellis.domains.base import check_domain
from fedtrellis.domains.product import towards
from fedtrellis.layer_steps import LayerOracle, moved, with_momentum
from fedtrellis.local_steps import (
    answer_lipschitz,
    check_steps,
    mini_batches,
    scheduled_steps,
    sizes_of,
    take_steps,
)
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.client import MethodClient, StatefulClient
from fedtrellis.wire.local_work import Gradient, Steps
from fedtrellis.wire.protocol import client_identity
from fedtrellis.wire.summing import ATTEMPT


class FedAvgGDClient(MethodClient):
    """Takes local gradient steps from x; see ``FedAvgGD``.

    ``LocalSGDClient``, ``FedAvgClient`` and ``FedOptClient`` are other names for it.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, and ``stochastic_gradient(x, rng, batch_size)`` and
        ``num_examples`` if mini-batches are asked for.

    Raises
    ------
    FloatingPointError
        By ``steps``, if they have carried x_i away from all proportion to x.

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

    sends_model = True

    def __init__(self, context: Context, objective: DifferentiableLoss) -> None:
        self.client_id = client_identity(context)
        self.objective = objective
        # seconds, against a local deadline; a grid may have virtual ones
        self.clock = getattr(context, "clock", time.monotonic)

    fit_lipschitz = answer_lipschitz

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The local model x_i after k_0 steps, or those that a deadline allows."""
        # x_i ← x_i − γ_k ∇f_i(x_i), k_0 times from x
        return scheduled_steps(self, x, config)


# the same steps, by the names of the other methods that ask for them
LocalSGDClient = FedAvgGDClient
FedAvgClient = FedAvgGDClient
FedOptClient = FedAvgGDClient


class FedProxClient(FedAvgGDClient):
    """Takes local steps that are pulled back to x; see ``FedProx``.

    Parameters and errors are those of :class:`FedAvgGDClient`.

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedProxClient
    >>> app = client_app(lambda context: FedProxClient(context, my_loss(context)))
    """

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The local model x_i after k_0 steps on h_i, f_i with the proximal term."""
        # ∇h_i(x_i) = ∇f_i(x_i) + μ (x_i − x)
        mu = config.get("proximal-weight", 0.0)
        return scheduled_steps(self, x, config, pull=mu)


class ProjectedFedAvgClient(FedAvgGDClient):
    """Takes local gradient steps from x̄; see ``ProjectedFedAvg``.

    Parameters and errors are those of :class:`FedAvgGDClient`; mini-batches need no
    ``num_examples``.

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import ProjectedFedAvgClient
    >>> app = client_app(
    ...     lambda context: ProjectedFedAvgClient(context, my_loss(context))
    ... )
    """

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The local model x_i after k steps from x̄, which ``x`` is."""
        batches = mini_batches(self.objective, self.client_id, config)
        # x_i ← x_i − γ ∇f_i(x_i), k times from x̄
        sizes = [config["local-step-size"]] * config["local-steps"]
        x_i = yield from take_steps(x, sizes, batches)
        check_steps(x_i, x, config, "local-step-size")
        return x_i


class StatefulDescent(StatefulClient):
    """Base of clients that keep state, beside a loss with gradients."""

    def __init__(self, context: Context, objective: DifferentiableLoss) -> None:
        super().__init__(context)
        self.objective = objective

    fit_lipschitz = answer_lipschitz

    def _sent(self, by: Any, arrays: list[Any], config: dict[str, Any]) -> list[Any]:
        """What a compressor packed; dense, where it is to be added up unseen."""
        if ATTEMPT not in config:
            return arrays
        return [self.layout.to_wire(by.unpack(arrays, self.layout))]


class ScaffoldClient(StatefulDescent):
    """Takes local steps with a control variate; see ``Scaffold``.

    Parameters and errors are those of :class:`FedAvgGDClient`.

    Notes
    -----
    State: control (c_i).

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import ScaffoldClient
    >>> app = client_app(lambda context: ScaffoldClient(context, my_loss(context)))
    """

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The local model x_i after k_0 steps."""
        layout = self.layout
        c_i = self.state.get("control", np.zeros_like(x))
        correction = _received(config["control"], layout) - c_i
        # x_i ← x_i − γ_k (∇f_i(x_i) + c − c_i), k_0 times from x
        x_i = yield from scheduled_steps(self, x, config, correction=correction)
        answer = layout.to_wire(x_i)
        # c_i ← (x − x_i) / Σ γ_k − (c − c_i), of the x_i that the server has
        total = sum(sizes_of(config))
        self.state["control"] = (x - layout.from_wire(answer)) / total - correction
        return [answer], 0, {}


class CompressedSGDClient(StatefulDescent):
    """Takes FedAvg's local steps, and sends the change; see ``CompressedSGD``.

    Parameters and errors are those of :class:`FedAvgGDClient`.

    Notes
    -----
    State: error (e_i), with top-k.

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import CompressedSGDClient
    >>> app = client_app(lambda context: CompressedSGDClient(context, my_loss(context)))
    """

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """C(e_i + x_i − x), with e_i = 0 but for top-k."""
        # x_i ← x_i − γ_k ∇f_i(x_i), k_0 times from x
        x_i = yield from scheduled_steps(self, x, config)
        change, kind = x_i - x, config["compressor"]
        seed, number = config["seed"], config["server-round"]
        rng = generator(seed, "levels", self.client_id, number)
        fraction, levels = config["kept-fraction"], config["levels"]
        by = compressor(kind, fraction, levels=levels, rng=rng)
        if kind != "top-k":
            return self._sent(by, by.pack(change, self.layout), config), 0, {}
        change = change + self.state.get("error", np.zeros_like(x))
        arrays = by.pack(change, self.layout)
        # e_i ← e_i + Δ_i − d_i, of what the server reads
        self.state["error"] = change - by.unpack(arrays, self.layout)
        return self._sent(by, arrays, config), 0, {}


class FedDRClient(StatefulDescent):
    """One client of federated Douglas-Rachford splitting; see ``FedDR``.

    Parameters and errors are those of :class:`FedAvgGDClient`; mini-batches need no
    ``num_examples``.

    Notes
    -----
    State: x (x_i), y (y_i).

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedDRClient
    >>> app = client_app(lambda context: FedDRClient(context, my_loss(context)))
    """

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The reflected point x̂_i, of x̄, which ``x`` is."""
        x_bar, batches = x, mini_batches(self.objective, self.client_id, config)
        gamma, eta = config["local-step-size"], config["proximal-step"]
        # y_i ← y_i + α (x̄ − x_i)
        x_i = self.state["x"]
        y_i = self.state["y"] + config["relaxation"] * (x_bar - x_i)
        for _ in range(config["local-steps"]):
            # x_i ← x_i − γ (∇f_i(x_i) + (x_i − y_i)/η)
            g = yield Gradient(x_i, batches)
            x_i = x_i - gamma * (g + (x_i - y_i) / eta)
        # x̂_i = 2 x_i − y_i
        reflection = 2.0 * x_i - y_i
        check_steps(reflection, x_bar, config, "local-step-size")
        self.state["x"], self.state["y"] = x_i, y_i
        return reflection


class FedLMOClient(StatefulDescent):
    """Takes LMO steps layer by layer, or answers with a gradient; see ``FedLMO``.

    Parameters are those of :class:`FedAvgGDClient`, and the strategy's ``domain`` if it
    has one; mini-batches need no ``num_examples``.

    Notes
    -----
    State: momentum (m_i), but for the variant averaged; with control variates control
    (c_i), with error feedback estimate (v_i).

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedLMOClient
    >>> app = client_app(lambda context: FedLMOClient(context, my_loss(context)))
    """

    def __init__(
        self,
        context: Context,
        objective: DifferentiableLoss,
        domain: Domain | None = None,
    ) -> None:
        super().__init__(context, objective)
        self.domain = WholeSpace() if domain is None else domain
        check_domain(self.domain)

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """x_i after k local steps, with h_i or m_i; h_i; or C(D_i − v_i).

        FloatingPointError: the steps have carried x_i away from all proportion to x, or
        a gradient is not finite.
        """
        layout, steps = self.layout, config["local-steps"]
        batches = mini_batches(self.objective, self.client_id, config)
        h = np.zeros_like(x)
        if config["variant"] in ("server", "ef21"):
            steps = steps if batches else 1  # which would all be alike
            for _ in range(steps):
                # h_i = (1/k) Σ ∇f_i(x; ξ_j)
                g = yield Gradient(x, batches)
                h += g / steps
        if config["variant"] == "server":
            return h
        m = self.state.get("momentum", np.zeros_like(x))
        mu, nesterov = config["momentum"], config["nesterov"]
        if config["variant"] == "ef21":
            self.state["momentum"], d = with_momentum(m, h, mu, nesterov)
            kind, fraction = config["compressor"], config["kept-fraction"]
            by = compressor(kind, fraction, rank=config["rank"])
            v = self.state.get("estimate", np.zeros_like(d))
            arrays = by.pack(d - v, layout)
            # v_i ← v_i + C(D_i − v_i), from what is sent, to the last bit
            self.state["estimate"] = v + by.unpack(arrays, layout)
            return self._sent(by, arrays, config), 0, {}
        oracle = LayerOracle(
            tuple(config["layers"].split(",")),
            config["scaling"],
            config["orthogonalization"],
        )
        gamma, radius = config["step-size"], config["radius"]
        kinds = "corrected", "averaged"
        corrected, averaged = (config["variant"] == kind for kind in kinds)
        correction: FloatArray | float = 0.0
        if corrected:
            # c − c_i
            c_i = self.state.get("control", np.zeros_like(x))
            correction = _received(config["control"], layout) - c_i
        elif averaged:
            m = _received(config["mean-momentum"], layout)
        x_i = x.copy()
        for _ in range(steps):
            g = yield Gradient(x_i, batches)
            h += g / steps
            g = g + correction
            m, d = with_momentum(m, g, mu, nesterov)
            s = layout.point(oracle(layout.layers(d)))
            s = towards(self.domain, d, x_i, s)
            x_i = moved(x_i, s, gamma, radius)
            check_steps(x_i, x, config)
        answer = [layout.to_wire(x_i)]
        if averaged:
            return [*answer, layout.to_wire(m)], 0, {}
        self.state["momentum"] = m
        if corrected:
            # of the h_i that the server has
            sent = layout.to_wire(h)
            self.state["control"] = layout.from_wire(sent)
            answer.append(sent)
        return answer, 0, {}


def _received(numbers: bytes, layout: Layout) -> FloatArray:
    """A vector of the model's shape that the server sent beside the model."""
    return layout.from_wire(
        np.frombuffer(numbers, layout.point_dtype).reshape(layout.point_shape)
    )
