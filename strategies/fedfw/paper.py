"""The papers' variants on the server: one step of the oracle an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import Atom, unpack_atoms
from fedtrellis.schedules import FrankWolfeSchedule
from fedtrellis.server.answers import Answer
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.broadcast import Step
from fedtrellis.wire.replay import ReplayedIterate

if TYPE_CHECKING:
    from .strategy import FedFW

__all__ = ["PaperSteps", "one_atom"]


def one_atom(answer: Answer, shape: tuple[int, ...]) -> Atom:
    """The single atom of an answer; ValueError if it is anything else."""
    atoms = unpack_atoms(answer.arrays, shape)
    if len(atoms) != 1:
        raise ValueError(f"the answer has {len(atoms)} atoms instead of 1")
    return atoms[0]


class PaperSteps:
    """FedFW, FedFW+ and FedFW-sto: the server's half of a run.

    Parameters
    ----------
    strategy : FedFW
        Whose settings, model and clients these are.
    schedule : FrankWolfeSchedule
        η_t, λ_t and ρ_t.
    """

    def __init__(self, strategy: FedFW, schedule: FrankWolfeSchedule) -> None:
        self._strategy = strategy
        self._schedule = schedule
        self._start = strategy.broadcast.model.copy()
        self._mirrors = {
            name: ReplayedIterate(self._start) for name in strategy.clients
        }
        self._duals: dict[str, FloatArray] = {}
        if strategy.variant == "augmented":
            self._duals = {n: np.zeros(self._start.shape) for n in strategy.clients}
        self._steps_taken = dict.fromkeys(strategy.clients, 0)

    def instruction(self, server_round: int) -> dict[str, Any]:
        """η_t, λ_t and what else the variant needs."""
        entries: dict[str, Any] = {
            "step-size": self._schedule.step(server_round),
            "penalty": self._schedule.penalty_weight(server_round),
        }
        if self._strategy.variant != "plain":
            entries["variant"] = self._strategy.variant
        if self._strategy.variant == "augmented":
            entries["dual-penalty"] = self._strategy.dual_penalty
        if self._strategy.variant == "stochastic":
            entries["averaging"] = self._schedule.averaging_weight(server_round)
            entries["batch-size"] = self._strategy.batch_size
        if self._strategy.lmo_noise:
            entries["lmo-noise"] = self._strategy.lmo_noise
        if self._strategy.lmo_noise or self._strategy.variant == "stochastic":
            entries["seed"] = self._strategy.seed
        return entries

    def check(self, answer: Answer) -> Atom:
        """The atom s_i."""
        return one_atom(answer, self._strategy.broadcast.layout.point_shape)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Take the exact server step, and replay every used client's step."""
        n, eta = self._strategy.num_clients, self._schedule.step(server_round)
        broadcast = self._strategy.broadcast
        x_bar = broadcast.model
        if self._strategy.variant == "augmented":
            for name in answers:
                # y_i ← y_i + λ_0 (x_i − x̄), at the x̄ that the client was sent
                y = self._duals[name]
                self._mirrors[name].add_to(y, self._strategy.dual_penalty)
                y -= self._strategy.dual_penalty * x_bar
        if len(answers) == n:
            # x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i
            broadcast.advance(Step(1.0 - eta, eta / n, tuple(answers.values())))
        else:
            # x̄ ← x̄ + (η_t / n) Σ over S of (s_i − x_i)
            x_bar = x_bar.copy()
            for name, atom in answers.items():
                atom.add_to(x_bar, eta / n)
                self._mirrors[name].add_to(x_bar, -eta / n)
            broadcast.replace(x_bar)
        for name, atom in answers.items():
            # x_i ← (1 − η_t) x_i + η_t s_i
            self._mirrors[name].step(1.0 - eta, eta, atom)
            self._steps_taken[name] += 1
        return {}

    def client_iterate(self, client: str) -> FloatArray:
        """x_i as the server replays it, a new array."""
        return self._mirrors[client].dense()

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """x_i, and y_i in FedFW+."""
        broadcast = self._strategy.broadcast
        state: dict[str, FloatArray] = {}
        if self._steps_taken[client]:
            state["x"] = self.client_iterate(client)
        elif broadcast.version == 0:
            state["x"] = (
                self._strategy.broadcast.model
            )  # x_i¹ = x̄¹: costs nothing to send
        else:
            state["x"] = self._start
        if self._strategy.variant == "augmented":
            state["y"] = self._duals[client]
        return state

    def state(self) -> dict[str, NDArray[Any]]:
        """Mirrors and duals, for a checkpoint."""
        arrays: dict[str, NDArray[Any]] = {"start": self._start}
        for name, mirror in self._mirrors.items():
            for key, array in mirror.state().items():
                arrays[f"{name}/x/{key}"] = array
            arrays[f"{name}/steps"] = np.array(self._steps_taken[name])
        for name, y in self._duals.items():
            arrays[f"{name}/y"] = y
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self._start = np.array(state["start"])
        mirrors: dict[str, dict[str, NDArray[Any]]] = {
            name: {} for name in self._strategy.clients
        }
        for key, array in state.items():
            # a name may hold a slash, what follows "/x/" may not
            name, found, entry = key.rpartition("/x/")
            if found and name in mirrors:
                mirrors[name][entry] = array
        for name in self._strategy.clients:
            self._mirrors[name] = ReplayedIterate.from_state(self._start, mirrors[name])
            self._steps_taken[name] = int(state[f"{name}/steps"])
            if self._strategy.variant == "augmented":
                self._duals[name] = np.array(state[f"{name}/y"])
