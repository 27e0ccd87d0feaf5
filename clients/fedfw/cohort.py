"""The papers' variants on many clients at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.cohorts import CohortGradient, Result, points_of, stack_states
from fedtrellis.domains.atoms import Atom, pack_atoms
from fedtrellis.wire.arrays import Layout

from .paper import each_of

if TYPE_CHECKING:
    from .client import FedFWClient

__all__ = ["take_steps_together"]


def take_steps_together(
    clients: Sequence[FedFWClient],
    parameters: Sequence[list[NDArray[Any]]],
    config: Mapping[str, Any],
) -> list[Result]:
    """What :func:`~.paper.take_steps` does, without noise and with full gradients.

    Parameters
    ----------
    clients : sequence of FedFWClient
        Their states and numbers are afterwards as the steps leave them.
    parameters : sequence of list of ndarray
        x̄, as each of them has it.
    config : mapping
        The request's.
    """
    layout = Layout.of(parameters[0])
    x_bar = points_of(layout, parameters)
    # in float64, whatever x̄ is of, as :func:`~.paper.take_steps` has it
    x = stack_states(clients, "x").astype(np.float64, copy=False)
    n, augmented = float(config["num-clients"]), config.get("variant") == "augmented"
    y = stack_states(clients, "y") if augmented else None
    gradients = CohortGradient(clients, layout, {})
    penalties = each_of(config, "penalty")
    atoms: list[list[Atom]] = [[] for _ in clients]
    for j, eta in enumerate(each_of(config, "step-size")):
        # n g_i = n ((1/n) ∇f_i(x_i) + λ_t (x_i − x̄) [+ y_i])
        g = x - x_bar
        if y is not None and j == 0:
            # y_i ← y_i + λ_0 (x_i − x̄)
            y = y + config["dual-penalty"] * g
        g *= n * penalties[j]
        g += gradients(x)
        if y is not None:
            g += n * y
        # x_i ← (1 − η_t) x_i + η_t s_i, s_i = argmin over s in D of ⟨g_i, s⟩
        x = (1.0 - eta) * x
        for i, client in enumerate(clients):
            if j == 0 and config.get("gradient-norm", False):
                client.numbers = np.array([np.linalg.norm(g[i]) / n])
            state = client.state
            atom, start = client.domain.lmo_from(g[i], state.get("start"))
            atom = atom.of_dtype(layout.point_dtype)
            if start is not None:
                state["start"] = start
            atom.add_to(x[i], eta)
            atoms[i].append(atom)
    for i, client in enumerate(clients):
        client.state["x"] = x[i]
        if y is not None:
            client.state["y"] = y[i]
    return [(pack_atoms(steps), 0, {}) for steps in atoms]
