"""The papers' variants on the server: steps of the oracle, replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import Atom
from fedtrellis.schedules import FrankWolfeSchedule, automatic_penalty
from fedtrellis.server.answers import Answer
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.broadcast import Step
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.replay import ReplayedIterate

if TYPE_CHECKING:
    from .strategy import FedFW

__all__ = ["PaperAnswer", "PaperSteps"]

# Rounding of x̄ over its largest entry, in eight units of a float32's last place.
_DRIFT = 8.0 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class PaperAnswer:
    """What an answer comes to, once it is checked.

    Attributes
    ----------
    atoms : tuple of Atom
        s_i of each local step.
    norm : float
        ‖(1/n) ∇f_i(x¹)‖, where it was asked for.
    """

    atoms: tuple[Atom, ...]
    norm: float = 0.0


class PaperSteps:
    """FedFW, FedFW+ and FedFW-sto: the server's half of a run.

    Parameters
    ----------
    strategy : FedFW
        Whose settings, model and clients these are.
    schedule : FrankWolfeSchedule
        η_t, λ_t and ρ_t.

    Attributes
    ----------
    penalty : float or None
        λ_0; None until the clients' first answers settle it.
    """

    def __init__(self, strategy: FedFW, schedule: FrankWolfeSchedule) -> None:
        self._strategy = strategy
        self._schedule = schedule
        self._local_steps = strategy.local_steps or 1
        # x_i and y_i are replayed for the whole run, in float64 whatever x̄ is of
        self._start = strategy.broadcast.model.astype(np.float64)
        # what x̄ would be without rounding, where it is rounded
        narrow = strategy.broadcast.layout.dtype != "float64"
        self._mean = self._start.copy() if narrow else None
        self._mirrors = {
            name: ReplayedIterate(self._start) for name in strategy.clients
        }
        self._duals: dict[str, FloatArray] = {}
        if strategy.variant == "augmented":
            self._duals = {n: np.zeros(self._start.shape) for n in strategy.clients}
        # k_i, and their sum
        self._steps_taken, self._all_steps = dict.fromkeys(strategy.clients, 0), 0
        self.penalty: float | None = None
        self._settle(strategy.penalty)

    def _settle(self, penalty: float | None) -> None:
        self.penalty = penalty
        if penalty is not None:
            self._schedule = replace(self._schedule, penalty=penalty)

    @property
    def _dual_penalty(self) -> float:
        """λ_0 of y_i; 0 while it is not known."""
        given = self._strategy.dual_penalty
        return given if given is not None else self.penalty or 0.0

    # ---------------------------------------------------------------- what is sent

    def _clocks(
        self, server_round: int, client: str
    ) -> tuple[list[float], list[float]]:
        """Return t of η_t and t of λ_t for each local step of a client's answer.

        Until λ_0 is known there is one step, in which x_i = x̄ and λ does not matter.
        """
        steps = 1 if self.penalty is None else self._local_steps
        if not self._strategy.counts_own_steps:
            # τ = (t − 1) k + j
            first = (server_round - 1) * self._local_steps
            both = [float(first + j) for j in range(1, steps + 1)]
            return both, both
        # η_i = 2 / (k_i + 2), λ = λ_0 √(mean of all k_i + 2)
        own = self._steps_taken[client]
        mean = self._all_steps / len(self._steps_taken)
        return (
            [float(own + j) for j in range(1, steps + 1)],
            [mean + j for j in range(1, steps + 1)],
        )

    def _step_sizes(self, server_round: int, client: str) -> list[float]:
        own, _ = self._clocks(server_round, client)
        return [self._schedule.step(t) for t in own]

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """η_t, λ_t and what else the variant needs; a list where steps are several."""
        strategy, schedule = self._strategy, self._schedule
        own, together = self._clocks(server_round, client)
        step_sizes = [schedule.step(t) for t in own]
        entries: dict[str, Any] = {
            "step-size": _one_or_all(step_sizes),
            "penalty": _one_or_all([schedule.penalty_weight(t) for t in together]),
        }
        if self.penalty is None:
            entries["gradient-norm"] = True
        if strategy.variant != "plain":
            entries["variant"] = strategy.variant
        if strategy.variant == "augmented":
            entries["dual-penalty"] = self._dual_penalty
        if strategy.variant == "stochastic":
            weights = [schedule.averaging_weight(t) for t in own]
            entries["averaging"] = _one_or_all(weights)
            entries["batch-size"] = strategy.batch_size
        if strategy.lmo_noise:
            # σ √η_t, or σ
            decays = strategy.lmo_noise_decay
            deviations = [eta**0.5 if decays else 1.0 for eta in step_sizes]
            entries["lmo-noise"] = _one_or_all(
                [strategy.lmo_noise * one for one in deviations]
            )
        if strategy.lmo_noise or strategy.variant == "stochastic":
            entries["seed"] = strategy.seed
        return entries

    def audience(self, client: str) -> int:
        """k_i, where the schedule goes by it."""
        return self._steps_taken[client] if self._strategy.counts_own_steps else 0

    # ------------------------------------------------------------ what is received

    def check(self, answer: Answer) -> PaperAnswer:
        """The atoms s_i, one a local step, and what settles λ_0."""
        if self.penalty is not None:
            return PaperAnswer(self._strategy.take_atoms(answer, self._local_steps))
        if answer.numbers.shape != (1,) or not answer.numbers[0] >= 0.0:
            raise ValueError(
                "the answer has no norm of the client's gradient, which penalty = "
                "'auto' needs"
            )
        atoms = self._strategy.take_atoms(answer, 1)
        return PaperAnswer(atoms, float(answer.numbers[0]))

    def aggregate(
        self, server_round: int, answers: dict[str, PaperAnswer]
    ) -> dict[str, float]:
        """Take the exact server step, and replay every used client's steps."""
        n, broadcast = self._strategy.num_clients, self._strategy.broadcast
        known: dict[int, list[float]] = {}
        etas: dict[str, list[float]] = {}
        for name in answers:
            own = self.audience(name)
            if own not in known:
                known[own] = self._step_sizes(server_round, name)
            etas[name] = known[own]
        first = next(iter(etas.values()))
        alike = len(answers) == n and all(one == first for one in etas.values())
        sent = broadcast.model.astype(np.float64, copy=False)
        x_bar = None if alike else np.array(sent if self._mean is None else self._mean)
        for name, answer in answers.items():
            mirror = self._mirrors[name]
            if self._duals:
                # y_i ← y_i + λ_0 (x_i − x̄), at the x̄ that the client was sent
                y = self._duals[name]
                mirror.add_to(y, self._dual_penalty)
                y -= self._dual_penalty * sent
            for eta, atom in zip(etas[name], answer.atoms, strict=True):
                if x_bar is not None:
                    # x̄ ← x̄ + (1/n) Σ over S of η_i (s_i − x_i)
                    atom.add_to(x_bar, eta / n)
                    mirror.add_to(x_bar, -eta / n)
                # x_i ← (1 − η_i) x_i + η_i s_i
                mirror.step(1.0 - eta, eta, atom)
            self._steps_taken[name] += len(answer.atoms)
            self._all_steps += len(answer.atoms)
        if x_bar is not None:
            self._replace(x_bar)
        else:
            for j, eta in enumerate(first):
                # x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i
                atoms = tuple(answer.atoms[j] for answer in answers.values())
                self._advance(Step(1.0 - eta, eta / n, atoms))
        if self.penalty is None:
            self._settle_by([answer.norm for answer in answers.values()])
        return self._strategy.whether_outside()

    def _replace(self, x_bar: FloatArray) -> None:
        if self._mean is not None:
            self._mean = x_bar
        self._strategy.broadcast.replace(x_bar)

    def _advance(self, step: Step) -> None:
        broadcast = self._strategy.broadcast
        broadcast.advance(step)
        if self._mean is None:
            return
        step.apply(self._mean)
        # every step rounds x̄: once in a while it is sent whole, rounded only once
        drift = float(np.abs(broadcast.model - self._mean).max())
        if drift > _DRIFT * float(np.abs(self._mean).max()):
            self._replace(self._mean)

    def _settle_by(self, norms: Sequence[float]) -> None:
        """Settle λ_0 by what the first answers used say of their gradients."""
        # one client among several cannot choose it alone
        norm = float(np.median(norms))
        if norm > 0.0:  # else the next round says more
            diameter = self._strategy.domain.diameter(self._start.shape)
            augmented = self._strategy.variant == "augmented"
            name = self._schedule.name
            self._settle(automatic_penalty(norm, diameter, name, augmented))
            log(INFO, "penalty λ_0 = %g, by the clients' gradients", self.penalty)

    # ------------------------------------------------------------------- its state

    @property
    def model(self) -> FloatArray:
        """x̄, which is what the broadcast has."""
        return self._strategy.broadcast.model

    def converged(self) -> bool:
        """Never: Frank-Wolfe's steps shrink by a schedule, not by what is reached."""
        return False

    def client_iterate(self, client: str) -> FloatArray:
        """x_i as the server replays it, a new array."""
        return self._mirrors[client].dense()

    def client_state(self, client: str) -> dict[str, NDArray[Any]]:
        """x_i, and y_i in FedFW+."""
        broadcast = self._strategy.broadcast
        state: dict[str, FloatArray] = {}
        if self._steps_taken[client]:
            state["x"] = self.client_iterate(client)
        elif broadcast.version == 0:
            # x_i¹ = x̄¹: costs nothing to send
            state["x"] = broadcast.model
        else:
            state["x"] = self._start
        if self._strategy.variant == "augmented":
            state["y"] = self._duals[client]
        return state

    def state(self) -> dict[str, NDArray[Any]]:
        """λ_0, mirrors and duals, for a checkpoint."""
        arrays: dict[str, NDArray[Any]] = {
            "start": self._start,
            "penalty": np.array(np.nan if self.penalty is None else self.penalty),
        }
        for name, mirror in self._mirrors.items():
            for key, array in mirror.state().items():
                arrays[f"{name}/x/{key}"] = array
            arrays[f"{name}/steps"] = np.array(self._steps_taken[name])
        for name, y in self._duals.items():
            arrays[f"{name}/y"] = y
        if self._mean is not None:
            arrays["mean"] = self._mean
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self._load_penalty(state)
        self._start = np.array(state["start"])
        if self._mean is not None:
            self._mean = np.array(state["mean"])
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
        self._all_steps = sum(self._steps_taken.values())

    def _load_penalty(self, state: Mapping[str, NDArray[Any]]) -> None:
        """λ_0 as the run found it, unless the strategy's own setting says another."""
        if self._strategy.penalty is not None:
            return
        if "penalty" not in state:
            raise SettingsError(
                "the checkpoint is of a version whose λ_0 did not depend on the "
                "clients, and does not say it: set penalty"
            )
        saved = float(state["penalty"])
        self._settle(None if np.isnan(saved) else saved)


def _one_or_all(numbers: list[float]) -> float | list[float]:
    return numbers[0] if len(numbers) == 1 else numbers
