"""FedFW, FedFW+ and FedFW-sto: federated Frank-Wolfe."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import Atom, unpack_atoms
from fedtrellis.schedules import SCHEDULES, FrankWolfeSchedule
from fedtrellis.server.answers import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import given, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.broadcast import Step
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.replay import ReplayedIterate

__all__ = ["VARIANTS", "FedFW", "one_atom"]

VARIANTS = ("plain", "augmented", "stochastic")


def one_atom(answer: Answer, shape: tuple[int, ...]) -> Atom:
    """The single atom of an answer; ValueError if it is anything else."""
    atoms = unpack_atoms(answer.arrays, shape)
    if len(atoms) != 1:
        raise ValueError(f"the answer has {len(atoms)} atoms instead of 1")
    return atoms[0]


class FedFW(RoundStrategy):
    """Federated Frank-Wolfe: clients send extreme points, never gradients or models.

    Solves min over x in D of F(x) = (1/n) Σ_i f_i(x). Every client i keeps its own
    x_i, the server keeps x̄ = (1/n) Σ_i x_i. In round t, with S the clients whose
    answers were used::

        client   g_i = (1/n) ∇f_i(x_i) + λ_t (x_i − x̄)                       plain
                 y_i ← y_i + λ_0 (x_i − x̄);  g_i as above, plus y_i          augmented
                 d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω),
                 g_i = d_i + λ_t (x_i − x̄)                                   stochastic
                 s_i = argmin over s in D of ⟨g_i, s⟩
                 x_i ← (1 − η_t) x_i + η_t s_i
                 sends s_i, and nothing else that depends on its data
        server   x̄ ← x̄ + (η_t / n) Σ over S of (s_i − x_i)

    With everybody in S the server's step is x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i: n atoms,
    which is how x̄ travels back to the clients. The server knows every x_i without ever
    seeing one, because it can replay it from the s_i it used; so it can take the exact
    step when clients sit out or answers are lost, and give a client that lost its state
    x_i (and y_i) back. A gradient average d_i that is lost starts again with ρ = 1.

    Source: arXiv 2408.10090, algorithm 1 with its variants FedFW+ and FedFW-sto, §4.2
    (participation), §4.3 (clients with a larger D_i of their own).

    Notes
    -----
    The matching client is ``FedFWClient(context, objective, domain)``. No theory covers
    FedFW-sto with p < 1 or on non-convex losses.
    """

    name = "fedfw"
    about = "federated Frank-Wolfe: FedFW, FedFW+, FedFW-sto"
    space = "domain"
    bounded = True
    state_settings = ("variant",)

    domain: Domain = given(
        "D, in the shape of the model: an array's own shape if the model has one "
        "array, else the vector of all entries, layer after layer",
        kw_only=False,
    )
    penalty: float = setting(
        None, "weight of the consensus penalty", symbol="λ_0", auto=1e-3, minimum=0.0
    )
    variant: str = setting(
        "plain", "FedFW, FedFW+ (augmented) or FedFW-sto", choices=VARIANTS
    )
    schedule: str = setting(
        None,
        "of step size and penalty",
        note="see :class:`~fedtrellis.schedules.FrankWolfeSchedule`",
        auto="convex",
        choices=SCHEDULES,
    )
    step_size: float = setting(
        0.01, "of the constant schedule", symbol="η", above=0.0, maximum=1.0
    )
    averaging: float = setting(
        0.1,
        "weight of a new gradient in FedFW-sto's constant schedule",
        symbol="ρ",
        above=0.0,
        maximum=1.0,
    )
    dual_penalty: float = setting(
        None, "λ_0 of y_i in FedFW+; auto: that of penalty", minimum=0.0
    )
    batch_size: int = setting(64, "examples in a mini-batch of FedFW-sto", minimum=1)
    lmo_noise: float = setting(
        0.0,
        "standard deviation of Gaussian noise on g_i, added by the client before its "
        "oracle; 0: none",
        minimum=0.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual_penalty is None:
            self.dual_penalty = self.penalty
        # T and n are known when the run starts; this checks the rest now
        self._schedule = self._make_schedule(1, self.participation)
        self.needs_planned_rounds = self._schedule.depends_on_rounds

    def _make_schedule(self, rounds: int, participation: float) -> FrankWolfeSchedule:
        return FrankWolfeSchedule(
            self.schedule,
            self.penalty,
            participation,
            rounds,
            self.step_size,
            self.averaging,
        )

    def check_model(self, layout: Layout) -> None:
        """Check that the model has the shape of the domain's points."""
        self.domain.check_shape(layout.point_shape)

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start every client's mirror x_i, and its y_i, at the initial model."""
        self._schedule = self._make_schedule(
            self.planned_rounds, self.expected_participation
        )
        if not self.domain.contains(point):
            log(WARNING, "The initial model lies outside %r", self.domain)
        self._start = self.broadcast.model.copy()
        self._mirrors = {name: ReplayedIterate(self._start) for name in self.clients}
        self._duals: dict[str, FloatArray] = {}
        if self.variant == "augmented":
            self._duals = {name: np.zeros(point.shape) for name in self.clients}
        self._steps_taken = dict.fromkeys(self.clients, 0)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """η_t, λ_t and what else the variant needs."""
        entries: dict[str, Any] = {
            "step-size": self._schedule.step(server_round),
            "penalty": self._schedule.penalty_weight(server_round),
        }
        if self.variant != "plain":
            entries["variant"] = self.variant
        if self.variant == "augmented":
            entries["dual-penalty"] = self.dual_penalty
        if self.variant == "stochastic":
            entries["averaging"] = self._schedule.averaging_weight(server_round)
            entries["batch-size"] = self.batch_size
        if self.lmo_noise:
            entries["lmo-noise"] = self.lmo_noise
        if self.lmo_noise or self.variant == "stochastic":
            entries["seed"] = self.seed
        return entries

    def check(self, answer: Answer) -> Atom:
        """The atom s_i."""
        return one_atom(answer, self.broadcast.layout.point_shape)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Take the exact server step, and replay every used client's step."""
        n, eta = self.num_clients, self._schedule.step(server_round)
        x_bar = self.broadcast.model
        if self.variant == "augmented":
            for name in answers:
                # y_i ← y_i + λ_0 (x_i − x̄), at the x̄ that the client was sent
                y = self._duals[name]
                self._mirrors[name].add_to(y, self.dual_penalty)
                y -= self.dual_penalty * x_bar
        if len(answers) == n:
            # x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i
            self.broadcast.advance(Step(1.0 - eta, eta / n, tuple(answers.values())))
        else:
            # x̄ ← x̄ + (η_t / n) Σ over S of (s_i − x_i)
            x_bar = x_bar.copy()
            for name, atom in answers.items():
                atom.add_to(x_bar, eta / n)
                self._mirrors[name].add_to(x_bar, -eta / n)
            self.broadcast.replace(x_bar)
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
        state: dict[str, FloatArray] = {}
        if self._steps_taken[client]:
            state["x"] = self.client_iterate(client)
        elif self.broadcast.version == 0:
            state["x"] = self.broadcast.model  # x_i¹ = x̄¹: costs nothing to send
        else:
            state["x"] = self._start
        if self.variant == "augmented":
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
            name: {} for name in self.clients
        }
        for key, array in state.items():
            # a name may hold a slash, what follows "/x/" may not
            name, found, entry = key.rpartition("/x/")
            if found and name in mirrors:
                mirrors[name][entry] = array
        for name in self.clients:
            self._mirrors[name] = ReplayedIterate.from_state(self._start, mirrors[name])
            self._steps_taken[name] = int(state[f"{name}/steps"])
            if self.variant == "augmented":
                self._duals[name] = np.array(state[f"{name}/y"])
