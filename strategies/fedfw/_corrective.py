"""Corrective steps on the server: it replays every x_i and y_i, and sends z."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective import Form, Iterate
from fedtrellis.corrective.penalty import Balance
from fedtrellis.domains.atoms import rounding
from fedtrellis.server.answers import Answer
from fedtrellis.wire.arrays import FloatArray, join_arrays, split_arrays

from .settings import FedFWSettings

# Corrective steps of a round unless the user sets them.
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

    ``model`` is x̄ = (1/n) Σ x_i, where the broadcast has z; ``penalty`` is ρ, None
    until the clients' first answers settle where it starts.
    """

    def __init__(self, strategy: FedFWSettings) -> None:
        self._strategy = strategy
        self._steps = strategy.local_steps or _STEPS
        # x_i in D from the first round on: steps start there
        point, domain = strategy.broadcast.model, strategy.domain
        layout = strategy.broadcast.layout
        inside = domain.contains(point, rounding(layout.point_dtype))
        start = layout.rounded(point if inside else domain.project(point))
        self._start = start
        self._start_is_model = inside
        self.model: FloatArray = self._start
        self._iterates = {n: self._form(n).start_at(start) for n in strategy.clients}
        # x_i as it stands, and y_i
        self._points = dict.fromkeys(strategy.clients, self._start)
        self._duals = {n: np.zeros(self._start.shape) for n in strategy.clients}
        self._certificates: dict[str, tuple[float, float]] = {}
        targets = [iterate.balance for iterate in self._iterates.values()]
        convex = strategy.schedule != "nonconvex"
        self._robust = strategy.aggregator.robust
        self._balance = Balance(strategy.penalty, convex, max(targets), self._robust)
        self.primal_residual = self.dual_residual = np.inf
        self.gap, self._scale = np.inf, 0.0
        # answers in a row after which both residuals were small
        self._calm = 0

    @property
    def penalty(self) -> float | None:
        return self._balance.penalty

    def _form(self, client: str) -> Form:
        strategy = self._strategy
        dtype = strategy.broadcast.layout.point_dtype
        return Form(strategy._domain_of(client), strategy.correction, dtype)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """ρ, unless there is none yet, k, and whether the certificate is wanted."""
        strategy = self._strategy
        entries: dict[str, Any] = {
            "variant": strategy.variant,
            "local-steps": self._steps,
        }
        if self.penalty is not None:
            entries["penalty"] = self.penalty
        if strategy.certificate:
            entries["certificate"] = True
        if strategy.correction != "projected":
            entries["correction"] = strategy.correction
        return entries

    def audience(self, client: str) -> None:
        return None

    def check(self, answer: Answer) -> _Corrected:
        """The client's next iterate, in its own set; ValueError if it is none."""
        strategy = self._strategy
        iterate = self._iterates[answer.client].changed(
            answer.arrays, strategy._domain_of(answer.client), self._steps
        )
        numbers, first = answer.numbers.tolist(), self.penalty is None
        expected = first + 2 * strategy.certificate
        if len(numbers) != expected:
            raise ValueError(
                f"the answer has {len(numbers)} scalars instead of {expected}"
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
        rho, strategy = self.penalty, self._strategy
        broadcast, z = strategy.broadcast, strategy.broadcast.model
        for name, corrected in answers.items():
            self._iterates[name] = corrected.iterate
            x = self._points[name] = corrected.iterate.dense()
            # y_i ← y_i + ρ (x_i − z), at the z and ρ that the client was sent
            if rho is not None:
                self._duals[name] = self._duals[name] + rho * (x - z)
            if corrected.certificate is not None:
                self._certificates[name] = corrected.certificate
        # x̄ = (1/n) Σ x_i, over everybody
        points, duals = list(self._points.values()), list(self._duals.values())
        self.model = np.mean(points, axis=0)
        # z ← (1/n) Σ (x_i + y_i / ρ);  without a ρ all y_i are 0
        following = self.model
        if self._robust:
            # whoever stays away from z counts no more here than there
            self.model = strategy.domain.project(strategy.average(points, z))
            wanted = points if rho is None else points + np.divide(duals, rho)
            following = strategy.average(wanted, z)
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
        calm = still <= strategy.tolerance * size
        self._calm = self._calm + len(answers) if calm else 0
        if strategy.certificate:
            metrics |= self._certify()
        return metrics | strategy._whether_outside()

    def _certify(self) -> dict[str, float]:
        """A lower bound of F*, for convex f_i, once everybody has answered.

        F* ≥ Σ φ_i − Σ γ_i + Σ ⟨y_i, x_i⟩ − max over v in D of ⟨Σ y_i, v⟩, with
        φ_i = f_i(x_i) / n and γ_i the Frank-Wolfe gap of f_i/n + ⟨y_i, ·⟩ at x_i.
        """
        clients, duals = self._strategy.clients, self._duals
        if len(self._certificates) < len(clients):
            return {}
        losses = sum(self._certificates[name][0] for name in clients)
        gaps = sum(self._certificates[name][1] for name in clients)
        products = sum(float(np.vdot(duals[n], self._points[n])) for n in clients)
        total = np.sum([duals[name] for name in clients], axis=0)
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

    def _client_iterate(self, client: str) -> FloatArray:
        return self._points[client].copy()

    def client_state(self, client: str) -> dict[str, NDArray[Any]]:
        """The iterate, packed, and y_i."""
        broadcast, x = self._strategy.broadcast, self._packed(client)
        if x is None and broadcast.version == 0 and self._start_is_model:
            x = broadcast.model  # costs nothing to send
        return {"x": self._start if x is None else x, "y": self._duals[client]}

    def _packed(self, client: str) -> NDArray[Any] | None:
        """The iterate; None before its first step."""
        if self._points[client] is self._start:
            return None
        return join_arrays(self._iterates[client].arrays())

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
            packed = self._packed(name)
            if packed is not None:
                arrays[f"{name}/x"] = packed
            arrays[f"{name}/y"] = self._duals[name]
            if name in self._certificates:
                arrays[f"{name}/certificate"] = np.array(self._certificates[name])
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        strategy = self._strategy
        self._start, self.model = np.array(state["start"]), np.array(state["model"])
        self._scale, self._calm = float(state["scale"]), int(state["calm"])
        self._balance.load_state(state, strategy.clients)
        for name in strategy.clients:
            self._duals[name] = np.array(state[f"{name}/y"])
            form, self._points[name] = self._form(name), self._start
            self._iterates[name] = form.start_at(self._start)
            if f"{name}/x" in state:
                packed = split_arrays(np.asarray(state[f"{name}/x"]))
                iterate = form.unpack(packed, self._start.shape)
                self._iterates[name], self._points[name] = iterate, iterate.dense()
            if f"{name}/certificate" in state:
                loss, gap = state[f"{name}/certificate"].tolist()
                self._certificates[name] = loss, gap
