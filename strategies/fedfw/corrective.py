"""Corrective steps on the server: it replays every x_i and y_i, and sends z."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective import Form, Iterate
from fedtrellis.corrective.penalty import Balance
from fedtrellis.domains.atoms import rounding
from fedtrellis.server.answers import Answer
from fedtrellis.wire.arrays import FloatArray, join_arrays, split_arrays

if TYPE_CHECKING:
    from .strategy import FedFW

__all__ = ["CorrectiveSteps"]

# Corrective steps of a round where the user says nothing.
_STEPS = 20
# Answers a client, on average, for which residuals have to stay small.
_CALM_ANSWERS = 2


@dataclass
class _Corrected:
    """What an answer comes to, once it is checked."""

    iterate: Iterate
    certificate: tuple[float, float] | None  # φ_i and γ_i
    curvature: float | None  # of f_i / n on the client's way, in the first round


class CorrectiveSteps:
    """Corrective FedFW: the server's half of a run.

    Parameters
    ----------
    strategy : FedFW
        Whose settings, model and clients these are.

    Attributes
    ----------
    model : ndarray
        x̄ = (1/n) Σ x_i, where the broadcast has z.
    """

    @property
    def penalty(self) -> float | None:
        """ρ; None until the clients' first answers settle where it starts."""
        return self._balance.penalty

    def __init__(self, strategy: FedFW) -> None:
        self._strategy = strategy
        self._steps = strategy.local_steps or _STEPS
        # x_i in D from the first round on: steps start there
        point, domain = strategy.broadcast.model, strategy.domain
        layout = strategy.broadcast.layout
        inside = domain.contains(point, rounding(layout.point_dtype))
        start = point if inside else domain.project(point)
        self._start = layout.rounded(start)
        self._start_is_model = inside
        self.model: FloatArray = self._start
        self._iterates = {
            name: self._form(name).start_at(self._start) for name in strategy.clients
        }
        # x_i as it stands, and y_i
        self._points = dict.fromkeys(strategy.clients, self._start)
        self._duals = {n: np.zeros(self._start.shape) for n in strategy.clients}
        self._certificates: dict[str, tuple[float, float]] = {}
        targets = [iterate.balance for iterate in self._iterates.values()]
        convex = strategy.schedule != "nonconvex"
        self._balance = Balance(
            strategy.penalty, convex, max(targets), strategy.aggregator.robust
        )
        self.primal_residual = self.dual_residual = np.inf
        self.gap, self._scale = np.inf, 0.0
        # answers in a row after which both residuals were small
        self._calm = 0

    def _form(self, client: str) -> Form:
        strategy = self._strategy
        dtype = strategy.broadcast.layout.point_dtype
        return Form(strategy.domain_of(client), strategy.correction, dtype)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """ρ, unless there is none yet, k, and whether the certificate is wanted."""
        entries: dict[str, Any] = {
            "variant": self._strategy.variant,
            "local-steps": self._steps,
        }
        if self._balance.penalty is not None:
            entries["penalty"] = self._balance.penalty
        if self._strategy.certificate:
            entries["certificate"] = True
        if self._strategy.correction != "projected":
            entries["correction"] = self._strategy.correction
        return entries

    def audience(self, client: str) -> None:
        """All of them are told the same."""

    def check(self, answer: Answer) -> _Corrected:
        """The client's next iterate, in its own set; ValueError if it is none."""
        strategy = self._strategy
        iterate = self._iterates[answer.client].changed(
            answer.arrays, strategy.domain_of(answer.client), self._steps
        )
        numbers = answer.numbers.tolist()
        first = self._balance.penalty is None
        if len(numbers) != first + 2 * strategy.certificate:
            raise ValueError(
                f"the answer has {len(numbers)} scalars instead of "
                f"{first + 2 * strategy.certificate}"
            )
        if first and numbers[0] < 0.0:
            raise ValueError(f"the curvature is {numbers[0]:g}, below 0")
        return _Corrected(
            iterate,
            # a gap is never below 0, but by rounding or as a lie
            (numbers[-2], max(numbers[-1], 0.0)) if strategy.certificate else None,
            numbers[0] if first else None,
        )

    def aggregate(
        self, server_round: int, answers: dict[str, _Corrected]
    ) -> dict[str, float]:
        """Replay x_i and y_i of those who answered; the next z and ρ."""
        rho = self._balance.penalty
        broadcast = self._strategy.broadcast
        z = broadcast.model
        for name, corrected in answers.items():
            self._iterates[name] = corrected.iterate
            x = self._points[name] = corrected.iterate.dense()
            # y_i ← y_i + ρ (x_i − z), at the z and ρ that the client was sent
            if rho is not None:
                self._duals[name] = self._duals[name] + rho * (x - z)
            if corrected.certificate is not None:
                self._certificates[name] = corrected.certificate
        clients = self._strategy.clients
        points = [self._points[name] for name in clients]
        # x̄ = (1/n) Σ x_i, over everybody
        self.model = np.mean(points, axis=0)
        duals = [self._duals[name] for name in clients]
        # z ← (1/n) Σ (x_i + y_i / ρ);  without a ρ all y_i are 0
        following = self.model
        if self._strategy.aggregator.robust:
            average = self._strategy.average
            # whoever stays away from z counts no more here than there
            self.model = self._strategy.domain.project(average(points, z))
            wanted = points if rho is None else points + np.divide(duals, rho)
            following = average(wanted, z)
        elif rho is not None:
            following = self.model + np.mean(duals, axis=0) / rho
        broadcast.revise(following)
        self.primal_residual = float(
            np.sqrt(np.mean([np.vdot(x - self.model, x - self.model) for x in points]))
        )
        self.dual_residual = float(np.linalg.norm(following - z))
        if rho is None:
            curvatures = [answer.curvature or 0.0 for answer in answers.values()]
            self._balance.begin(curvatures, duals, broadcast.model)
        else:
            self._balance.observe(len(answers), duals, broadcast.model)
        metrics = {
            "penalty": rho or 0.0,
            "primal-residual": self.primal_residual,
            "dual-residual": self.dual_residual,
        }
        size = max(float(np.linalg.norm(x)) for x in points)
        still = max(self.primal_residual, self.dual_residual)
        calm = still <= self._strategy.tolerance * size
        self._calm = self._calm + len(answers) if calm else 0
        if self._strategy.certificate:
            metrics |= self._certify()
        return metrics | self._strategy.whether_outside()

    def _certify(self) -> dict[str, float]:
        """A lower bound of F*, for convex f_i, once everybody has answered.

        F* ≥ Σ φ_i − Σ γ_i + Σ ⟨y_i, x_i⟩ − max over v in D of ⟨Σ y_i, v⟩, with
        φ_i = f_i(x_i) / n and γ_i the Frank-Wolfe gap of f_i/n + ⟨y_i, ·⟩ at x_i.
        """
        clients = self._strategy.clients
        if len(self._certificates) < len(clients):
            return {}
        losses = sum(self._certificates[name][0] for name in clients)
        gaps = sum(self._certificates[name][1] for name in clients)
        products = sum(
            float(np.vdot(self._duals[name], self._points[name])) for name in clients
        )
        total = np.sum([self._duals[name] for name in clients], axis=0)
        # max over v in D of ⟨Σ y_i, v⟩ is at what the oracle returns for −Σ y_i
        most = self._strategy.domain.lmo(-total).dot(total)
        self.gap = gaps - products + most
        self._scale = max(self._scale, abs(losses))
        return {"lower-bound": losses - self.gap, "certificate": self.gap}

    def converged(self) -> bool:
        """Whether both residuals, and the certificate if it is on, are small enough.

        For two answers a client, on average: z hardly moves where few answer, and the
        x_i can be close together on their way.
        """
        tolerance, n = self._strategy.tolerance, self._strategy.num_clients
        if not tolerance or self._calm < _CALM_ANSWERS * n:
            return False
        return not self._strategy.certificate or self.gap <= tolerance * self._scale

    def client_iterate(self, client: str) -> FloatArray:
        """x_i as the server replays it, a new array."""
        return self._points[client].copy()

    def client_state(self, client: str) -> dict[str, NDArray[Any]]:
        """The iterate, packed, and y_i."""
        broadcast = self._strategy.broadcast
        x: NDArray[Any]
        if self._points[client] is not self._start:
            x = join_arrays(self._iterates[client].arrays())
        elif broadcast.version == 0 and self._start_is_model:
            x = broadcast.model  # costs nothing to send
        else:
            x = self._start
        return {"x": x, "y": self._duals[client]}

    def state(self) -> dict[str, NDArray[Any]]:
        """Iterates, duals and what ρ depends on, for a checkpoint."""
        arrays: dict[str, NDArray[Any]] = {
            "start": self._start,
            "model": self.model,
            "scale": np.array(self._scale),
            "calm": np.array(self._calm),
            **self._balance.state(self._strategy.clients),
        }
        for name in self._strategy.clients:
            if self._points[name] is not self._start:
                arrays[f"{name}/x"] = join_arrays(self._iterates[name].arrays())
            arrays[f"{name}/y"] = self._duals[name]
            if name in self._certificates:
                arrays[f"{name}/certificate"] = np.array(self._certificates[name])
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self._start, self.model = np.array(state["start"]), np.array(state["model"])
        self._scale, self._calm = float(state["scale"]), int(state["calm"])
        self._balance.load_state(state, self._strategy.clients)
        for name in self._strategy.clients:
            self._duals[name] = np.array(state[f"{name}/y"])
            self._iterates[name] = self._form(name).start_at(self._start)
            self._points[name] = self._start
            if f"{name}/x" in state:
                packed = split_arrays(np.asarray(state[f"{name}/x"]))
                iterate = self._form(name).unpack(packed, self._start.shape)
                self._iterates[name], self._points[name] = iterate, iterate.dense()
            if f"{name}/certificate" in state:
                loss, gap = state[f"{name}/certificate"].tolist()
                self._certificates[name] = loss, gap
