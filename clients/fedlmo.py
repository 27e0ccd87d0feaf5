"""The client's half of local LMO steps on networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtrellis.compressors import compressor
from fedtrellis.layer_steps import LayerOracle, moved, with_momentum
from fedtrellis.local_steps import check_steps, mini_batches
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.local_work import Gradient, Result, Steps

from .fedavg import StatefulDescent

__all__ = ["FedLMOClient"]


class FedLMOClient(StatefulDescent):
    """Takes LMO steps layer by layer, or answers with a gradient; see ``FedLMO``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, and ``stochastic_gradient(x, rng, batch_size)`` if
        mini-batches are asked for.

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

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """x_i after k local steps, with h_i or m_i; h_i; or C(D_i − v_i).

        Raises
        ------
        FloatingPointError
            If the steps have carried x_i away from all proportion to x, or a gradient
            is not finite.
        """
        layout, steps = self.layout, config["local-steps"]
        batches = mini_batches(self.objective, self.client_id, config)
        h = np.zeros_like(x)
        if config["variant"] in ("server", "ef21"):
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
            return self._compressed(d, config)
        oracle = LayerOracle(
            tuple(config["layers"].split(",")),
            config["scaling"],
            config["orthogonalization"],
            config["newton-schulz-steps"],
        )
        gamma, radius = config["step-size"], config["radius"]
        corrected, averaged = (
            config["variant"] == v for v in ("corrected", "averaged")
        )
        correction: FloatArray | float = 0.0
        if corrected:
            # c − c_i
            c = _received(config["control"], layout)
            correction = c - self.state.get("control", np.zeros_like(x))
        elif averaged:
            m = _received(config["mean-momentum"], layout)
        x_i = x.copy()
        for _ in range(steps):
            g = yield Gradient(x_i, batches)
            h += g / steps
            g = g + correction
            m, d = with_momentum(m, g, mu, nesterov)
            s = layout.point(oracle(layout.layers(d)))
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

    def _compressed(self, d: FloatArray, config: dict[str, Any]) -> Result:
        """C(D_i − v_i), and v_i as the server will have it."""
        by = compressor(
            config["compressor"], config["kept-fraction"], rank=config["rank"]
        )
        v = self.state.get("estimate", np.zeros_like(d))
        arrays = by.pack(d - v, self.layout)
        # v_i ← v_i + C(D_i − v_i), from what is sent, to the last bit
        self.state["estimate"] = v + by.unpack(arrays, self.layout)
        return arrays, 0, {}


def _received(numbers: bytes, layout: Layout) -> FloatArray:
    """A vector of the model's shape that the server sent beside the model."""
    return layout.from_wire(
        np.frombuffer(numbers, layout.wire_dtype).reshape(layout.point_shape)
    )
