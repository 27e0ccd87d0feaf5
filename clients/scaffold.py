"""The client's half of SCAFFOLD."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis.local_steps import scheduled_steps, sizes_of
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import StatefulClient
from fedtrellis.wire.local_work import Steps

__all__ = ["ScaffoldClient"]


class ScaffoldClient(StatefulClient):
    """Takes local steps with a control variate; see ``Scaffold``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, and ``stochastic_gradient(x, rng, batch_size)`` and
        ``num_examples`` if mini-batches are asked for.

    Notes
    -----
    State: control (c_i).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import ScaffoldClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> loss = LeastSquares(np.eye(3), np.ones(3))
    >>> app = client_app(lambda context: ScaffoldClient(context, loss))
    """

    def __init__(self, context: Context, objective: DifferentiableLoss) -> None:
        super().__init__(context)
        self.objective = objective

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The local model x_i after k_0 steps.

        Raises
        ------
        FloatingPointError
            If the steps have carried x_i away from all proportion to x.
        """
        layout = self.layout
        told = np.frombuffer(config["control"], layout.wire_dtype).reshape(x.shape)
        c_i = self.state.get("control", np.zeros_like(x))
        correction = layout.from_wire(told) - c_i
        # x_i ← x_i − γ_k (∇f_i(x_i) + c − c_i), k_0 times from x
        x_i = yield from scheduled_steps(self, x, config, correction=correction)
        answer = layout.to_wire(x_i)
        # c_i ← (x − x_i) / Σ γ_k − (c − c_i), of the x_i that the server has
        total = sum(sizes_of(config))
        self.state["control"] = (x - layout.from_wire(answer)) / total - correction
        return [answer], 0, {}
