"""Both halves of a method whose clients keep state."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis import Answer, Gradient, RoundStrategy, StatefulClient, setting


class FedDyn(RoundStrategy):
    """FedDyn: local steps, corrected by what a client's steps came to before.

    For min over x of (1/n) Σ f_i(x), without a constraint. In round t::

        client   x_i = x;  k times:  x_i ← x_i − γ (∇f_i(x_i) − g_i + α (x_i − x))
                 g_i ← g_i − α (x_i − x)                       g_i = 0 at first
        server   x ← (1/|S|) Σ over S of x_i − (1/(α n)) Σ g_i, S those who answered

    The server replays every g_i, so it can give a client that lost it g_i back.

    Source: Acar et al., ICLR 2021, arXiv 2111.04263, algorithm 1, with k gradient steps
    for the clients' problem; its h is −(1/n) Σ g_i.
    """

    name = "feddyn"
    about = "FedDyn, dynamic regularisation"
    needs = "each"

    alpha: float = setting(1.0, "weight of ‖x_i − x‖²/2", symbol="α", above=0.0)
    step_size: float = setting(0.1, "of a local step", symbol="γ", above=0.0)
    local_steps: int = setting(10, "of a client in a round", symbol="k", minimum=1)

    def setup(self, point: Any, layout: Any) -> None:
        """All g_i are 0."""
        self.g = {client: np.zeros_like(point) for client in self.clients}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """α, γ and k."""
        return {"alpha": self.alpha, "step": self.step_size, "steps": self.local_steps}

    def check(self, answer: Answer) -> Any:
        """x_i."""
        return self.take_point(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the local models, and replay the g_i of those who answered."""
        x = self.broadcast.model
        mean = self.average(list(answers.values()), x)
        for client, x_i in answers.items():
            self.g[client] = self.g[client] - self.alpha * (x_i - x)
        g = np.mean(list(self.g.values()), axis=0)
        self.broadcast.replace(mean - g / self.alpha)
        return {"correction": float(np.linalg.norm(g))}

    def client_state(self, client: str) -> dict[str, Any]:
        """g_i."""
        return {"g": self.g[client]}

    def state(self) -> dict[str, Any]:
        """Every g_i, for a checkpoint."""
        return dict(self.g)

    def load_state(self, state: Any) -> None:
        """Inverse of ``state``."""
        self.g = dict(state)


class FedDynClient(StatefulClient):
    """The client's half of ``FedDyn``."""

    def __init__(self, context: Context, objective: Any) -> None:
        super().__init__(context)
        self.objective = objective

    def steps(self, x: Any, config: dict[str, Any]) -> Any:
        """x_i; what is left in ``self.state`` counts if the server uses it."""
        alpha, g_i, x_i = config["alpha"], self.state["g"], x
        for _ in range(config["steps"]):
            gradient = yield Gradient(x_i)
            x_i = x_i - config["step"] * (gradient - g_i + alpha * (x_i - x))
        self.state["g"] = g_i - alpha * (x_i - x)
        return x_i
