"""The client's half of FedFW, FedFW+ and FedFW-sto."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import pack_atoms
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.client import StatefulClient, evaluate_objective

__all__ = ["FedFWClient"]


class FedFWClient(StatefulClient):
    """One client of federated Frank-Wolfe; see ``FedFW`` for the algorithm.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, for the stochastic variant
        ``stochastic_gradient(x, rng, batch_size)``, and for evaluation ``value(x)`` and
        ``num_examples``. ``x`` is one ndarray, or the list of the model's arrays.
    domain : Domain
        D, or this client's own D_i ⊇ D (§4.3: a set with a cheaper oracle, or with
        smaller atoms). The intersection of all D_i must be D.

    Notes
    -----
    State: x (x_i), y (y_i, FedFW+), d (d_i, FedFW-sto).
    """

    def __init__(self, context: Context, objective: Any, domain: Domain) -> None:
        super().__init__(context)
        self.objective = objective
        self.domain = domain

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """One step from x_i; the answer is the atom s_i."""
        layout = Layout.of(parameters)
        x_bar = layout.point(parameters)
        x = self.state["x"]
        eta, penalty = config["step-size"], config["penalty"]
        variant = config.get("variant", "plain")

        # the oracle does not mind a positive factor, and n g_i takes one pass less
        # over a long vector than g_i
        if variant == "stochastic":
            factor, gradient = 1.0, self._averaged_gradient(x, layout, config)
        else:
            factor, gradient = float(config["num-clients"]), self._gradient(x, layout)
        # factor · g_i = factor · ((1/n) ∇f_i(x_i) + λ_t (x_i − x̄) [+ y_i])
        g = x - x_bar
        if variant == "augmented":
            # y_i ← y_i + λ_0 (x_i − x̄)
            y = self.state["y"] + config["dual-penalty"] * g
            self.state["y"] = y
        g *= factor * penalty
        g += gradient
        if variant == "augmented":
            g += factor * y
        if "lmo-noise" in config:
            rng = self._rng("oracle noise", config)
            g += factor * rng.normal(scale=config["lmo-noise"], size=g.shape)

        # s_i = argmin over s in D of ⟨g_i, s⟩
        atom = self.domain.lmo(g)
        # x_i ← (1 − η_t) x_i + η_t s_i
        x = (1.0 - eta) * x
        atom.add_to(x, eta)
        self.state["x"] = x
        return pack_atoms([atom]), 0, {}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x̄) and the objective's metrics on this client's data."""
        return evaluate_objective(self.objective, parameters)

    def _gradient(self, x: FloatArray, layout: Layout) -> FloatArray:
        return layout.objective_gradient(
            self.objective.gradient(layout.objective_point(x))
        )

    def _averaged_gradient(
        self, x: FloatArray, layout: Layout, config: dict[str, Any]
    ) -> FloatArray:
        gradient = layout.objective_gradient(
            self.objective.stochastic_gradient(
                layout.objective_point(x),
                self._rng("mini-batch", config),
                config["batch-size"],
            )
        )
        gradient /= config["num-clients"]
        if "d" in self.state:
            # d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω)
            rho = config["averaging"]
            gradient = (1.0 - rho) * self.state["d"] + rho * gradient
        # a client that takes part for the first time uses ρ = 1
        self.state["d"] = gradient
        return gradient

    def _rng(self, purpose: str, config: dict[str, Any]) -> np.random.Generator:
        return generator(
            config["seed"], purpose, self.client_id, config["server-round"]
        )
