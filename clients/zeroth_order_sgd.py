"""The client's half of zeroth-order SGD with scalars both ways."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.domains.atoms.packing import PooledSigns, StreamedSigns, signed
from fedtrellis.local_steps import answer_bound, batch_generator, sizes_of
from fedtrellis.objectives import Loss
from fedtrellis.privacy import LocalNoise
from fedtrellis.wire.arrays import FloatArray, Layers, Layout
from fedtrellis.wire.client import StatefulClient, evaluate_objective
from fedtrellis.wire.summing import ATTEMPT
from fedtrellis.zeroth_order import (
    START,
    evaluator,
    from_pool,
    mark_of,
    pool_choice,
    step_curvature,
)

Arrays = list[NDArray[Any]]
Fit = tuple[Arrays, int, dict[str, Any]]
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
        or at least ``value(x)``. With ``values_shifted``, as a
        :class:`~fedtrellis.objectives.torch_forward.TorchForward` has it, a large model
        is perturbed layer by layer in the forward pass, and not copied.

    Notes
    -----
    State: the model's start, with a pool of directions.

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import ZerothOrderSGDClient
    >>> app = client_app(
    ...     lambda context: ZerothOrderSGDClient(context, my_loss(context))
    ... )
    """

    def __init__(self, context: Context, objective: Loss) -> None:
        super().__init__(context)
        self.objective = objective

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Which model the objective begins at, so that nobody has to send it."""
        begin = getattr(self.objective, "initial_point", None)
        return {} if begin is None else {START: mark_of(begin())}

    def fit_lipschitz(self, parameters: Arrays, config: dict[str, Any]) -> Fit:
        """The curvature of f_i along a step."""
        x, layout = self._model(parameters, config)
        r = step_curvature(self, x, layout, config)
        return answer_bound(r, layout, config)

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> Fit:
        """The scalars of τ steps, or their signs.

        FloatingPointError: a function value is not finite.
        """
        x, layout = self._model(parameters, config)
        tau, m, seed = config["local-steps"], config["samples"], config["seed"]
        server_round = config["server-round"]
        if tau > 1:  # the steps between are the client's own
            x = x.copy()
        private = LocalNoise.asked_for(config)
        batches = batch_generator(self.client_id, config)
        u: StreamedSigns | PooledSigns = StreamedSigns(seed, server_round, x.size)
        if config["variant"] == "fedkseed":
            chosen = pool_choice(
                seed, self.client_id, server_round, tau * m, config["pool"]
            )
            u = PooledSigns(seed, chosen.tolist(), x.size)
        scalars_of_steps = []
        for k in range(tau):
            again = deepcopy(u)
            at = self._values(x, layout, u, batches, config)
            # an error would reveal something of the data, and zeros are sent instead
            if private is None and not np.isfinite(at).all():
                raise FloatingPointError(
                    "a function value is not finite: "
                    f"step-size = {config['step-size']} may be too long"
                )
            # s_kj = [f_i(x_i + μ u_kj; ξ) − f_i(x_i; ξ)] / μ
            s = (at[1:] - at[0]) / config["smoothing"]
            scalars_of_steps.append(s)
            if k < tau - 1:
                gamma = sizes_of(config)[k]
                for s_j in s.tolist():
                    # x_i ← x_i − (γ_k/m) Σ_j s_kj u_kj
                    signed(again.draw(), -gamma / m * s_j, x)
        scalars = np.concatenate(scalars_of_steps)
        if private is not None:
            scalars = private.hidden(scalars)
        signs = config["variant"] == "feedsign"
        if signs and ATTEMPT in config:
            scalars = np.where(scalars > 0.0, 1.0, -1.0)
        elif signs:
            return [np.packbits(scalars > 0.0)], 0, {}
        self.numbers = scalars
        return [], 0, {}

    def _model(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[FloatArray, Layout]:
        """Return x, which may have come as weights of a pool, and its layout."""
        if config.get("pool"):
            shapes, dtype = config["start-shapes"], config["start-dtype"]
            layout = Layout.from_list(*shapes, dtype=dtype)
            if START in self.state:
                start = self.state[START].reshape(layout.point_shape)
            else:
                own: Any = getattr(self.objective, "initial_point", list)()
                if mark_of(own) != config["start-mark"]:
                    raise ValueError("the client has not been sent the model's start")
                start = layout.point(own)
            return from_pool(start, parameters[0], config["seed"]), layout
        layout = Layout.of(parameters)
        if isinstance(parameters, Layers):  # which are views of it
            return parameters.whole, layout
        return layout.point(parameters), layout

    def _values(
        self,
        x: FloatArray,
        layout: Layout,
        u: StreamedSigns | PooledSigns,
        batches: np.random.Generator,
        config: dict[str, Any],
    ) -> FloatArray:
        """Return f_i at x and at the x + μ u_j, on one mini-batch, shape (m + 1,)."""
        m, mu, batch_size = (
            config[key] for key in ("samples", "smoothing", "batch-size")
        )
        drawn = (u.draw() for _ in range(m))
        together = max(1, _AT_ONCE // x.size)
        if together <= m and hasattr(self.objective, "values_shifted"):
            # μ u_j, made for one layer after the other
            shifts = (
                lambda first, block, bits=bits: signed(bits, mu, block, first)
                for bits in drawn
            )
            values: FloatArray = self.objective.values_shifted(
                layout.objective_point(x),
                chain([None], shifts),
                batches if batch_size else None,
                batch_size=batch_size or None,
            )
            return values

        rng = batches if batch_size else None
        values_of = evaluator(self.objective, layout, batch_size=batch_size, rng=rng)
        ask, found = values_of.repeated(), []
        # x and the x + μ u_j, as many as memory allows, in one buffer
        buffer = np.empty((min(together, m + 1), *x.shape), x.dtype)
        for start in range(0, m + 1, together):
            points = buffer[: m + 1 - start]
            points[...] = x
            for point in points[0 if start else 1 :]:
                signed(next(drawn), mu, point)
            found.append(ask(points))
        return np.concatenate(found)

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x) and the objective's metrics on this client's data."""
        x, layout = self._model(parameters, config)
        return evaluate_objective(self.objective, layout.layers(x))
