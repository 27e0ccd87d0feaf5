"""The client's half of FedAvg with compressed changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis.compressors import compressor
from fedtrellis.local_steps import scheduled_steps
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import StatefulClient
from fedtrellis.wire.local_work import Steps

__all__ = ["CompressedSGDClient"]


class CompressedSGDClient(StatefulClient):
    """Takes FedAvg's local steps, and sends the change; see ``CompressedSGD``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, and ``stochastic_gradient(x, rng, batch_size)`` and
        ``num_examples`` if mini-batches are asked for.

    Notes
    -----
    State: error (e_i), with top-k.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import CompressedSGDClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> loss = LeastSquares(np.eye(3), np.ones(3))
    >>> app = client_app(lambda context: CompressedSGDClient(context, loss))
    """

    def __init__(self, context: Context, objective: DifferentiableLoss) -> None:
        super().__init__(context)
        self.objective = objective

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """C(e_i + x_i − x), with e_i = 0 but for top-k.

        Raises
        ------
        FloatingPointError
            If the steps have carried x_i away from all proportion to x.
        """
        # x_i ← x_i − γ_k ∇f_i(x_i), k_0 times from x
        x_i = yield from scheduled_steps(self, x, config)
        change = x_i - x
        rng = generator(
            config["seed"], "levels", self.client_id, config["server-round"]
        )
        by = compressor(
            config["compressor"],
            config["kept-fraction"],
            levels=config["levels"],
            rng=rng,
        )
        if config["compressor"] != "top-k":
            return by.pack(change, self.layout), 0, {}
        change = change + self.state.get("error", np.zeros_like(x))
        arrays = by.pack(change, self.layout)
        # e_i ← e_i + Δ_i − d_i, of what the server reads
        self.state["error"] = change - by.unpack(arrays, self.layout)
        return arrays, 0, {}
