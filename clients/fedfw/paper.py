"""The papers' variants on a client: steps of the oracle from x_i."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import Atom
from fedtrellis.privacy import LocalNoise
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout

if TYPE_CHECKING:
    from .client import FedFWClient

__all__ = ["each_of", "take_steps"]


def take_steps(
    client: FedFWClient, parameters: list[NDArray[Any]], config: Mapping[str, Any]
) -> list[Atom]:
    """Take the steps that a request asks for, all with the x̄ that it brings.

    Parameters
    ----------
    client : FedFWClient
        Its ``state`` is afterwards as the steps leave it. Where the request asks for
        it, its ``numbers`` are ‖g_i‖ of the first step, noise included.
    parameters : list of ndarray
        x̄.
    config : mapping
        The request's. What changes from step to step is a number where there is one
        step, and else a list.

    Returns
    -------
    list of Atom
        s_i of each step.
    """
    layout, state = Layout.of(parameters), client.state
    # x_i and y_i in float64, as the server replays them: it does so for the whole run
    x_bar, x = layout.point(parameters), state["x"].astype(np.float64, copy=False)
    variant, n = config.get("variant", "plain"), float(config["num-clients"])
    gradient_of = _Gradients(client, layout, config)
    penalties = each_of(config, "penalty")
    noise = each_of(config, "lmo-noise") if "lmo-noise" in config else []
    noise_rng = _generator(client, "oracle noise", config) if noise else None
    private = LocalNoise.asked_for(config)

    atoms: list[Atom] = []
    for j, eta in enumerate(each_of(config, "step-size")):
        # the oracle does not mind a positive factor, and n g_i takes one pass less
        # over a long vector than g_i
        factor = 1.0 if variant == "stochastic" else n
        # factor · g_i = factor · ((1/n) ∇f_i(x_i) + λ_t (x_i − x̄) [+ y_i])
        g = x - x_bar
        if variant == "augmented" and j == 0:
            # y_i ← y_i + λ_0 (x_i − x̄), while x̄ is the mean of the x_i: with an older
            # one Σ y_i would not stay 0, and the limit would be another
            y = state["y"] + config["dual-penalty"] * g
            state["y"] = y
        g *= factor * penalties[j]
        own = gradient_of(x, j)
        if private is None:
            g += own
        if variant == "augmented":
            g += factor * y
        if noise_rng is not None:
            g += factor * noise_rng.normal(scale=noise[j], size=g.shape)
        if j == 0 and config.get("gradient-norm", False):
            client.numbers = np.array([np.linalg.norm(g) / factor])

        drawn = None
        if private is not None:
            # what g_i has besides ∇f_i follows from the atoms that were sent
            g, drawn = private.answer(client.domain, g, own)
        # s_i = argmin over s in D of ⟨g_i, s⟩, from where the last one was found
        atom, start = drawn, state.get("start")
        if atom is None:
            atom, start = client.domain.lmo_from(g, start)
        atom = atom.of_dtype(layout.point_dtype)
        if start is not None:
            state["start"] = start
        # x_i ← (1 − η_t) x_i + η_t s_i
        x = (1.0 - eta) * x
        atom.add_to(x, eta)
        atoms.append(atom)
    state["x"] = x
    return atoms


class _Gradients:
    """∇f_i(x_i), or for the stochastic variant d_i, of a round's steps."""

    def __init__(
        self, client: FedFWClient, layout: Layout, config: Mapping[str, Any]
    ) -> None:
        self.client, self.layout, self.config = client, layout, config
        self.stochastic = config.get("variant") == "stochastic"
        if self.stochastic:
            self.rng = _generator(client, "mini-batch", config)
            self.weights = each_of(config, "averaging")

    def __call__(self, x: FloatArray, j: int) -> FloatArray:
        layout, objective = self.layout, self.client.objective
        at = layout.objective_point(x)
        if not self.stochastic:
            return layout.objective_gradient(objective.gradient(at))
        gradient = layout.objective_gradient(
            objective.stochastic_gradient(at, self.rng, self.config["batch-size"])
        )
        gradient /= self.config["num-clients"]
        state = self.client.state
        if "d" in state:
            # d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω)
            rho = self.weights[j]
            gradient = (1.0 - rho) * state["d"] + rho * gradient
        # a client that takes part for the first time uses ρ = 1
        state["d"] = gradient
        return gradient


def each_of(config: Mapping[str, Any], key: str) -> list[float]:
    """What a request says for each step, where it says one number for one step."""
    value = config[key]
    return list(value) if isinstance(value, list) else [value]


def _generator(
    client: FedFWClient, purpose: str, config: Mapping[str, Any]
) -> np.random.Generator:
    return generator(config["seed"], purpose, client.client_id, config["server-round"])
