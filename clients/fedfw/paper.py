"""The papers' variants on a client: steps of the oracle from x_i."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import Atom
from fedtrellis.privacy import LocalNoise
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.client import StatefulClient, speaks_for
from fedtrellis.wire.local_work import Gradient, MiniBatches, Request

__all__ = ["oracle_steps"]


def oracle_steps(
    client: StatefulClient, x_bar: FloatArray, domain: Domain, config: Mapping[str, Any]
) -> Generator[Request, Any, list[Atom]]:
    """Take the steps that a request asks for, all with the x̄ that it brings.

    Parameters
    ----------
    client : StatefulClient
        With ``objective``. Its ``state`` is afterwards as the steps leave it. Where the
        request asks for it, its ``numbers`` are ‖g_i‖ of the first step, noise
        included.
    x_bar : ndarray of shape ``client.layout.point_shape``
        x̄.
    domain : Domain
        D, or this client's own.
    config : mapping
        The request's. What changes from step to step is a number where there is one
        step, and else a list.

    Returns
    -------
    list of Atom
        s_i of each step.
    """
    state, dtype = client.state, client.layout.point_dtype
    # x_i and y_i in float64, as the server replays them: it does so for the whole run
    x = state["x"].astype(np.float64, copy=False)
    variant, n = config.get("variant", "plain"), float(config["num-clients"])
    stochastic, batches = variant == "stochastic", None
    if stochastic:
        rng = _generator(client, "mini-batch", config)
        batches = MiniBatches(rng, config["batch-size"])
    penalties = each_of(config, "penalty")
    noise = each_of(config, "lmo-noise") if "lmo-noise" in config else []
    noise_rng = _generator(client, "oracle noise", config) if noise else None
    private = LocalNoise.asked_for(config)

    atoms: list[Atom] = []
    for j, eta in enumerate(each_of(config, "step-size")):
        # the oracle does not mind a positive factor, and n g_i takes one pass less
        # over a long vector than g_i
        factor = 1.0 if stochastic else n
        # factor · g_i = factor · ((1/n) ∇f_i(x_i) + λ_t (x_i − x̄) [+ y_i])
        g = x - x_bar
        if variant == "augmented" and j == 0:
            # y_i ← y_i + λ_0 (x_i − x̄), while x̄ is the mean of the x_i: with an older
            # one Σ y_i would not stay 0, and the limit would be another
            y = state["y"] + config["dual-penalty"] * g
            state["y"] = y
        g *= factor * penalties[j]
        own = yield Gradient(x, batches)
        if stochastic:
            own = state["d"] = _averaged(own / n, state.get("d"), config, j)
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
            g, drawn = private.answer(domain, g, own)
        # s_i = argmin over s in D of ⟨g_i, s⟩, from where the last one was found
        atom, start = drawn, state.get("start")
        if atom is None:
            atom, start = yield _Minimiser(domain, g, start)
        atom = atom.of_dtype(dtype)
        if start is not None:
            state["start"] = start
        # x_i ← (1 − η_t) x_i + η_t s_i
        x = (1.0 - eta) * x
        atom.add_to(x, eta)
        atoms.append(atom)
    state["x"] = x
    return atoms


@dataclass(slots=True, eq=False)
class _Minimiser:
    """Ask for argmin over s in D of ⟨g, s⟩, as ``Domain.lmo_from`` answers."""

    domain: Domain
    gradient: FloatArray
    start: FloatArray | None

    def answer(self, objective: Any, layout: Layout) -> tuple[Atom, FloatArray | None]:
        return self.domain.lmo_from(self.gradient, self.start)

    @staticmethod
    def answer_many(
        asked: Sequence[_Minimiser], peers: Any
    ) -> list[tuple[Atom, None]] | None:
        """Of one set, whose oracle has nothing to keep and nothing of its own."""
        domain = asked[0].domain
        kind = type(domain)
        if (
            any(one.domain is not domain and one.domain != domain for one in asked)
            or kind.lmo_from is not Domain.lmo_from
            or not speaks_for(kind, "lmo_many", "lmo")
        ):
            return None
        gradients = np.array([one.gradient for one in asked])
        return [(atom, None) for atom in domain.lmo_many(gradients)]


def _averaged(
    gradient: FloatArray, d: FloatArray | None, config: Mapping[str, Any], j: int
) -> FloatArray:
    """d_i of the stochastic variant after step j, given (1/n) ∇f_i(x_i, ω)."""
    if d is None:
        # a client that takes part for the first time uses ρ = 1
        return gradient
    # d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω)
    rho = each_of(config, "averaging")[j]
    return (1.0 - rho) * d + rho * gradient


def each_of(config: Mapping[str, Any], key: str) -> list[float]:
    """What a request says for each step, where it says one number for one step."""
    value = config[key]
    return list(value) if isinstance(value, list) else [value]


def _generator(
    client: StatefulClient, purpose: str, config: Mapping[str, Any]
) -> np.random.Generator:
    return generator(config["seed"], purpose, client.client_id, config["server-round"])
