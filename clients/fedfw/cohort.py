"""The papers' variants on many clients at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.cohorts import CohortGradient, points_of, stack_states
from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import FLOAT64, Atom, PackedAtoms, SparseAtom
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.method_client import speaks_for

from .paper import each_of

if TYPE_CHECKING:
    from .client import FedFWClient

__all__ = ["take_steps_together"]


def take_steps_together(
    clients: Sequence[FedFWClient],
    parameters: Sequence[list[NDArray[Any]]],
    config: Mapping[str, Any],
) -> list[tuple[PackedAtoms, int, dict[str, Any]]]:
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
    shared = all(arrays is parameters[0] for arrays in parameters)
    x_bar = points_of(layout, parameters[:1] if shared else parameters)
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
        if j == 0 and config.get("gradient-norm", False):
            for client, g_i in zip(clients, g, strict=True):
                client.numbers = np.array([np.linalg.norm(g_i) / n])
        steps = _oracle(clients, g)
        if layout.point_dtype != FLOAT64:
            steps = [atom.of_dtype(layout.point_dtype) for atom in steps]
        _add_each(steps, x, eta)
        for own, atom in zip(atoms, steps, strict=True):
            own.append(atom)
    for i, client in enumerate(clients):
        client.state["x"] = x[i]
        if y is not None:
            client.state["y"] = y[i]
    return [(PackedAtoms(own), 0, {}) for own in atoms]


def _oracle(clients: Sequence[FedFWClient], g: FloatArray) -> Sequence[Atom]:
    """s_i = argmin over s in the client's set of ⟨g_i, s⟩."""
    domain = clients[0].domain
    kind = type(domain)
    # one set, whose oracle has nothing to keep and nothing of its own
    if (
        all(client.domain is domain or client.domain == domain for client in clients)
        and kind.lmo_from is Domain.lmo_from
        and speaks_for(kind, "lmo_many", "lmo")
    ):
        return domain.lmo_many(g)
    atoms = []
    for client, g_i in zip(clients, g, strict=True):
        state = client.state
        atom, start = client.domain.lmo_from(g_i, state.get("start"))
        if start is not None:
            state["start"] = start
        atoms.append(atom)
    return atoms


def _add_each(atoms: Sequence[Atom], x: FloatArray, weight: float) -> None:
    """x_i ← x_i + weight · s_i, in place."""
    single = [
        atom for atom in atoms if type(atom) is SparseAtom and atom.values.size == 1
    ]
    if len(single) < len(atoms):
        for atom, x_i in zip(atoms, x, strict=True):
            atom.add_to(x_i, weight)
        return
    indices = np.concatenate([atom.indices for atom in single])
    values = np.concatenate([atom.values for atom in single])
    rows = np.arange(len(single))
    x.reshape(len(x), -1)[rows, indices] += np.float64(weight) * values
