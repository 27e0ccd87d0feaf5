"""The client's half of zeroth-order SGD with scalars both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.domains.atoms.random_signs import sign_bits, signed
from fedtrellis.local_steps import step_size_at
from fedtrellis.objectives import Loss
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.client import StatefulClient, evaluate_objective
from fedtrellis.zeroth_order import evaluator

__all__ = ["ZerothOrderSGDClient"]

# Points whose entries together are no more than this are evaluated in one call.
_AT_ONCE = 2**21


class ZerothOrderSGDClient(StatefulClient):
    """Steps from function values along shared directions; see ``ZerothOrderSGD``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``values(points, rng, batch_size=...)`` for a batch of points at once,
        or at least ``value(x)``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import ZerothOrderSGDClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> loss = LeastSquares(np.eye(3), np.ones(3))
    >>> app = client_app(lambda context: ZerothOrderSGDClient(context, loss))
    """

    def __init__(self, context: Context, objective: Loss) -> None:
        super().__init__(context)
        # it may have more: stacked losses, bounds, mini-batches
        self.objective: Any = objective

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """The scalars of τ steps, or their signs.

        Raises
        ------
        FloatingPointError
            If a function value is not finite.
        """
        layout = Layout.of(parameters)
        x = layout.point(parameters).copy()
        tau, m = config["local-steps"], config["samples"]
        batch_size, server_round = config["batch-size"], config["server-round"]
        rng = generator(config["seed"], "mini-batch", self.client_id, server_round)
        values = evaluator(
            self.objective,
            layout,
            batch_size=batch_size,
            rng=rng if batch_size else None,
        )
        drawn = sign_bits(config["seed"], server_round, x.size, tau * m)
        told = []
        for k in range(tau):
            u = [next(drawn) for _ in range(m)]
            at = np.concatenate(
                list(values.parts(self._points(x, u, config["smoothing"])))
            )
            if not np.isfinite(at).all():
                raise FloatingPointError(
                    "a function value is not finite: "
                    f"step-size = {config['step-size']} may be too long"
                )
            # s_kj = [f_i(x_i + μ u_kj; ξ) − f_i(x_i; ξ)] / μ
            s = (at[1:] - at[0]) / config["smoothing"]
            if config["clip"] > 0.0:
                s = np.clip(s, -config["clip"], config["clip"])
            told.append(s)
            if k < tau - 1:
                step = (server_round - 1) * tau + k + 1
                gamma = step_size_at(config["step-schedule"], config["step-size"], step)
                for s_j, bits in zip(s.tolist(), u, strict=True):
                    # x_i ← x_i − (γ_k/m) Σ_j s_kj u_kj
                    signed(bits, -gamma / m * s_j, x)
        scalars = np.concatenate(told)
        if config["upload"] == "signs":
            return [np.packbits(scalars > 0.0)], 0, {}
        self.numbers = scalars
        return [], 0, {}

    def _points(
        self, x: FloatArray, u: list[NDArray[Any]], smoothing: float
    ) -> Iterator[FloatArray]:
        """Yield x and the x + μ u_j, as many together as memory allows."""
        together = max(1, _AT_ONCE // x.size)
        for start in range(0, len(u) + 1, together):
            numbers = range(start, min(start + together, len(u) + 1))
            points = np.repeat(x[None], len(numbers), axis=0)
            for point, number in zip(points, numbers, strict=True):
                if number:
                    signed(u[number - 1], smoothing, point)
            yield points

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x) and the objective's metrics on this client's data."""
        return evaluate_objective(self.objective, parameters)
