"""The papers' variants on the server: steps of the oracle, replayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import Atom
from fedtrellis.schedules import FrankWolfeSchedule, automatic_penalty
from fedtrellis.server.answers import Answer
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.broadcast import Step
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.replay import ReplayedIterate

from .settings import FedFWSettings

# Rounding of x̄ over its largest entry, in eight units of a float32's last place.
_DRIFT = 8.0 * float(np.finfo(np.float32).eps)

# Of an answer: s_i of each local step, and ‖(1/n) ∇f_i(x¹)‖ where it was asked for.
_Answer = tuple[tuple[Atom, ...], float]


class PaperSteps:
    """FedFW, FedFW+ and FedFW-sto: the server's half of a run.

    ``penalty`` is λ_0; None until the clients' first answers settle it.
    """

    def __init__(self, strategy: FedFWSettings) -> None:
        self._strategy = strategy
        self._local_steps = strategy.local_steps or 1
        self._schedule = FrankWolfeSchedule(
            strategy.schedule,
            # 0 until it is known
            strategy.penalty or 0.0,
            # who counts steps needs no p
            1.0 if strategy._counts_own_steps else strategy._expected_participation,
            strategy.planned_rounds * self._local_steps,
            strategy.step_size,
            strategy.averaging,
        )
        self.penalty: float | None = strategy.penalty
        # x_i and y_i are replayed for the whole run, in float64 whatever x̄ is of
        self._start = strategy.broadcast.model.astype(np.float64)
        # what x̄ would be without rounding, where it is rounded
        narrow = strategy.broadcast.layout.dtype != "float64"
        self._mean = self._start.copy() if narrow else None
        self._mirrors = {n: ReplayedIterate(self._start) for n in strategy.clients}
        self._duals: dict[str, FloatArray] = {}
        if strategy.variant == "augmented":
            self._duals = {n: np.zeros(self._start.shape) for n in strategy.clients}
        # k_i, and their sum
        self._steps_taken, self._all_steps = dict.fromkeys(strategy.clients, 0), 0

    def _settle(self, penalty: float | None) -> None:
        self.penalty = penalty
        self._schedule = replace(self._schedule, penalty=penalty or 0.0)

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
        count = range(1, 1 + (1 if self.penalty is None else self._local_steps))
        if not self._strategy._counts_own_steps:
            # τ = (t − 1) k + j
            first = (server_round - 1) * self._local_steps
            both = [float(first + j) for j in count]
            return both, both
        # η_i = 2 / (k_i + 2), λ = λ_0 √(mean of all k_i + 2)
        own = self._steps_taken[client]
        mean = self._all_steps / len(self._steps_taken)
        return [float(own + j) for j in count], [mean + j for j in count]

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
            decays, sigma = strategy.lmo_noise_decay, strategy.lmo_noise
            noise = [sigma * (eta**0.5 if decays else 1.0) for eta in step_sizes]
            entries["lmo-noise"] = _one_or_all(noise)
        if strategy.lmo_noise or strategy.variant == "stochastic":
            entries["seed"] = strategy.seed
        return entries

    def audience(self, client: str) -> int:
        """k_i, where the schedule goes by it."""
        return self._steps_taken[client] if self._strategy._counts_own_steps else 0

    # ------------------------------------------------------------ what is received

    def check(self, answer: Answer) -> _Answer:
        if self.penalty is not None:
            return self._strategy._take_atoms(answer, self._local_steps), 0.0
        if answer.numbers.shape != (1,) or not answer.numbers[0] >= 0.0:
            raise ValueError(
                "the answer has no norm of the client's gradient, which penalty = "
                "'auto' needs"
            )
        return self._strategy._take_atoms(answer, 1), float(answer.numbers[0])

    def aggregate(
        self, server_round: int, answers: dict[str, _Answer]
    ) -> dict[str, float]:
        """Take the exact server step, and replay every used client's steps."""
        n, broadcast = self._strategy.num_clients, self._strategy.broadcast
        known: dict[int, list[float]] = {}
        etas: dict[str, list[float]] = {}
        for name in answers:
            own = self.audience(name)
            if own not in known:
                clock, _ = self._clocks(server_round, name)
                known[own] = [self._schedule.step(t) for t in clock]
            etas[name] = known[own]
        first = next(iter(etas.values()))
        alike = len(answers) == n and all(one == first for one in etas.values())
        sent = broadcast.model.astype(np.float64, copy=False)
        x_bar = None if alike else np.array(sent if self._mean is None else self._mean)
        for name, (atoms, _) in answers.items():
            mirror = self._mirrors[name]
            if self._duals:
                # y_i ← y_i + λ_0 (x_i − x̄), at the x̄ that the client was sent
                y = self._duals[name]
                mirror.add_to(y, self._dual_penalty)
                y -= self._dual_penalty * sent
            for eta, atom in zip(etas[name], atoms, strict=True):
                if x_bar is not None:
                    # x̄ ← x̄ + (1/n) Σ over S of η_i (s_i − x_i)
                    atom.add_to(x_bar, eta / n)
                    mirror.add_to(x_bar, -eta / n)
                # x_i ← (1 − η_i) x_i + η_i s_i
                mirror.step(1.0 - eta, eta, atom)
            self._steps_taken[name] += len(atoms)
            self._all_steps += len(atoms)
        if x_bar is not None:
            self._replace(x_bar)
        else:
            for j, eta in enumerate(first):
                # x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i
                each = tuple(atoms[j] for atoms, _ in answers.values())
                self._advance(Step(1.0 - eta, eta / n, each))
        if self.penalty is None:
            self._settle_by([norm for _, norm in answers.values()])
        return self._strategy._whether_outside()

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
        """Settle λ_0 by the norms of the first gradients used."""
        # one client among several cannot choose it alone
        norm = float(np.median(norms))
        if norm > 0.0:  # else it waits for the next round
            diameter = self._strategy.domain.diameter(self._start.shape)
            augmented = self._strategy.variant == "augmented"
            name = self._schedule.name
            self._settle(automatic_penalty(norm, diameter, name, augmented))
            log(INFO, "penalty λ_0 = %g, by the clients' gradients", self.penalty)

    # ------------------------------------------------------------------- its state

    @property
    def model(self) -> FloatArray:
        return self._strategy.broadcast.model

    def converged(self) -> bool:
        """Never: Frank-Wolfe's steps shrink by a schedule, not by what is reached."""
        return False

    def _client_iterate(self, client: str) -> FloatArray:
        return self._mirrors[client].dense()

    def client_state(self, client: str) -> dict[str, NDArray[Any]]:
        broadcast = self._strategy.broadcast
        x = self._start
        if self._steps_taken[client]:
            x = self._client_iterate(client)
        elif broadcast.version == 0:
            # x_i¹ = x̄¹: costs nothing to send
            x = broadcast.model
        return {"x": x, "y": self._duals[client]} if self._duals else {"x": x}

    def state(self) -> dict[str, NDArray[Any]]:
        """λ_0, mirrors and duals."""
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
        if self._strategy.penalty is None:  # else it may be another
            saved = float(state["penalty"])
            self._settle(None if np.isnan(saved) else saved)
        self._start = np.array(state["start"])
        if self._mean is not None:
            self._mean = np.array(state["mean"])
        mirrors: dict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
        for key, array in state.items():
            # a name may hold a slash, what follows "/x/" may not
            name, found, entry = key.rpartition("/x/")
            if found:
                mirrors[name][entry] = array
        for name in self._mirrors:
            self._mirrors[name] = ReplayedIterate.from_state(self._start, mirrors[name])
            self._steps_taken[name] = int(state[f"{name}/steps"])
        self._duals = {name: np.array(state[f"{name}/y"]) for name in self._duals}
        self._all_steps = sum(self._steps_taken.values())


def _one_or_all(numbers: list[float]) -> float | list[float]:
    return numbers[0] if len(numbers) == 1 else numbers
