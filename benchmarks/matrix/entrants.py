"""Methods that fedtrellis has not, as packages of their authors would add them.

FedDyn is that of ``examples/own-method``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis import (
    Answer,
    Gradient,
    MethodClient,
    RoundStrategy,
    StatefulClient,
    given,
    setting,
)
from fedtrellis.app import Plugin
from fedtrellis.domains import Domain

__all__ = ["plugin", "steps_drawn"]


class ReplayedStrategy(RoundStrategy):
    """Base of strategies that replay one vector of each client, 0 at first."""

    needs = "each"

    def setup(self, point: Any, layout: Any) -> None:
        """All vectors are 0."""
        self.vectors = {client: np.zeros_like(point) for client in self.clients}

    def state(self) -> dict[str, Any]:
        """Every client's vector, for a checkpoint."""
        return dict(self.vectors)

    def load_state(self, state: Any) -> None:
        """Inverse of ``state``."""
        self.vectors = dict(state)


class ReplayedClient(StatefulClient):
    """Base of the clients of these."""

    def __init__(self, context: Context, objective: Any) -> None:
        super().__init__(context)
        self.objective = objective


def steps_drawn(seed: int, probability: float, server_round: int) -> int:
    """How many local steps a round of ProxSkip takes."""
    rng = np.random.default_rng([seed, server_round])
    return int(rng.geometric(probability))


class ProxSkip(ReplayedStrategy):
    """ProxSkip of a consensus problem, Scaffnew: few of its steps are averaged.

    For min over x of (1/n) Σ f_i(x), without a constraint. In round t::

        server   draws the number k of steps until a coin of probability p falls
        client   x_i = x;  k times:  x_i ← x_i − γ (∇f_i(x_i) − h_i)
        server   x ← (1/|S|) Σ over S of x_i, S those who answered
        both     h_i ← h_i + (p/γ) (x − x_i) for the i in S           h_i = 0 at first

    A client that took part in the last round knows from the model what its h_i is; the
    others are sent theirs.

    Source: Mishchenko, Malinovsky, Stich, Richtárik, "ProxSkip: Yes! Local Gradient
    Steps Provably Lead to Communication Acceleration! Finally!", ICML 2022, arXiv
    2202.09357, algorithm 2; there all clients answer.
    """

    name = "proxskip"
    about = "ProxSkip (Scaffnew)"

    step_size: float = setting(0.1, "of a local step", symbol="γ", above=0.0)
    probability: float = setting(
        0.2, "of a round's end after a step", symbol="p", above=0.0, maximum=1.0
    )

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """γ, p and k."""
        sent: dict[str, Any] = {"step": self.step_size, "probability": self.probability}
        sent["steps"] = steps_drawn(self.seed, self.probability, server_round)
        if client not in self.used:
            sent["h"] = self.vectors[client].tobytes()
        return sent

    def check(self, answer: Answer) -> Any:
        """x_i."""
        return self.take_point(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the local models, and replay the h_i of those who answered."""
        x = self.average(list(answers.values()), self.broadcast.model)
        for client, x_i in answers.items():
            # h_i ← h_i + (p/γ) (x − x_i)
            shift = self.probability / self.step_size * (x - x_i)
            self.vectors[client] = self.vectors[client] + shift
        self.broadcast.replace(x)
        return {}

    def client_state(self, client: str) -> dict[str, Any]:
        """h_i, and a point that changes nothing of it."""
        return {"h": self.vectors[client], "end": self.broadcast.model}


class ProxSkipClient(ReplayedClient):
    """The client's half of ``ProxSkip``."""

    def steps(self, x: Any, config: dict[str, Any]) -> Any:
        """x_i, which stays in ``self.state`` beside h_i."""
        gamma = config["step"]
        # h_i ← h_i + (p/γ) (x − x_i), of the last round
        h = self.state["h"] + config["probability"] / gamma * (x - self.state["end"])
        if "h" in config:
            h = np.frombuffer(config["h"]).reshape(x.shape)
        x_i = x
        for _ in range(config["steps"]):
            gradient = yield Gradient(x_i)
            x_i = x_i - gamma * (gradient - h)
        self.state["h"], self.state["end"] = h, x_i
        return x_i


class FedDualAvg(RoundStrategy):
    """Federated dual averaging: the clients' gradients add up in the dual space.

    For min over x in D of (1/n) Σ f_i(x), with P the projection onto D. In round t::

        client   z_i = z;  k times:  z_i ← z_i − γ ∇f_i(P(z_i))
        server   z ← z + η (1/|S|) Σ over S of (z_i − z);  x = P(z)

    A mean of points in D is less sparse, or of higher rank, than they are; P of a mean
    of dual points is not. Beside the model z goes down, and z_i alone goes up.

    Source: Yuan, Zaheer, Reddi, "Federated Composite Optimization", ICML 2021, arXiv
    2011.08474, algorithm 3, with h = ½‖·‖² and D's indicator for ψ, so that the mirror
    map is P for every step; γ is η_c and η is η_s there. Without a constraint it is
    FedAvg.
    """

    name = "feddualavg"
    about = "FedDualAvg, dual averaging over a set"
    space = "domain"
    needs = "sum"
    stateful = False
    keep_model = False

    domain: Domain = given("D", kw_only=False)
    step_size: float = setting(0.1, "of a local step", symbol="γ", above=0.0)
    server_step_size: float = setting(1.0, "of the server", symbol="η", above=0.0)
    local_steps: int = setting(5, "of a client in a round", symbol="k", minimum=1)

    def setup(self, point: Any, layout: Any) -> None:
        """The dual point z starts where the model does, in D."""
        self.z = np.array(point)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """γ, k and z."""
        sent = {"step": self.step_size, "steps": self.local_steps}
        return {**sent, "z": self.z.tobytes()}

    def check(self, answer: Answer) -> Any:
        """z_i."""
        return self.take_point(answer, self.z)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Step along the dual points' mean."""
        # z ← z + η (1/|S|) Σ over S of (z_i − z);  x = P(z)
        mean = self.average(list(answers.values()), self.z)
        self.z = self.z + self.server_step_size * (mean - self.z)
        self.broadcast.replace(self.domain.project(self.z))
        return {}

    def state(self) -> dict[str, Any]:
        """The dual point z, for a checkpoint."""
        return {"z": self.z}

    def load_state(self, state: Any) -> None:
        """Inverse of ``state``."""
        self.z = state["z"]


class FedDualAvgClient(MethodClient):
    """The client's half of ``FedDualAvg``."""

    def __init__(self, context: Context, objective: Any, domain: Domain) -> None:
        self.objective = objective
        self.domain = domain

    def steps(self, x: Any, config: dict[str, Any]) -> Any:
        """z_i."""
        z_i = np.frombuffer(config["z"]).reshape(x.shape)
        for _ in range(config["steps"]):
            # z_i ← z_i − γ ∇f_i(P(z_i))
            gradient = yield Gradient(self.domain.project(z_i))
            z_i = z_i - config["step"] * gradient
        return z_i


class EF21(ReplayedStrategy):
    """EF21: the clients send the largest entries of what their gradients change by.

    For min over x of (1/n) Σ f_i(x), without a constraint. In round t::

        client   sends c_i = C(∇f_i(x) − g_i)       C keeps the k largest entries
        both     g_i ← g_i + c_i                    g_i = 0 at first
        server   x ← x − γ (1/n) Σ over all clients of g_i

    Source: Richtárik, Sokolov, Fatkhullin, "EF21: A New, Simpler, Theoretically Better,
    and Practically Faster Error Feedback", NeurIPS 2021, arXiv 2106.05203, algorithm 2,
    with top-k.
    """

    name = "ef21"
    about = "EF21, error feedback of gradients"

    step_size: float = setting(0.1, "of a round", symbol="γ", above=0.0)
    kept_fraction: float = setting(
        0.05, "part of the entries that are sent", above=0.0, maximum=1.0
    )

    @property
    def kept(self) -> int:
        """The number k of entries that are sent."""
        return int(np.ceil(self.kept_fraction * self.broadcast.model.size))

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The number k of entries."""
        return {"kept": self.kept}

    def check(self, answer: Answer) -> Any:
        """c_i, dense."""
        x, kept = self.broadcast.model, self.kept
        expected: list[Any] = [((kept,), np.int32), ((kept,), np.float64)]
        if [(a.shape, a.dtype) for a in answer.arrays] != expected:
            raise ValueError(f"the answer is not {kept} int32 and as many float64")
        places, values = answer.arrays
        if not np.isfinite(values).all():
            raise ValueError("the answer is not finite")
        if places.min() < 0 or places.max() >= x.size:
            raise ValueError(f"the answer has entries beyond the model's {x.size}")
        c_i = np.zeros(x.size)
        c_i[places] = values
        return c_i.reshape(x.shape)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Replay the g_i of those who answered, and step along the mean of all."""
        for client, c_i in answers.items():
            # g_i ← g_i + c_i
            self.vectors[client] = self.vectors[client] + c_i
        # x ← x − γ (1/n) Σ g_i
        g = np.mean(list(self.vectors.values()), axis=0)
        self.broadcast.replace(self.broadcast.model - self.step_size * g)
        return {"estimate": float(np.linalg.norm(g))}

    def client_state(self, client: str) -> dict[str, Any]:
        """g_i."""
        return {"g": self.vectors[client]}


class EF21Client(ReplayedClient):
    """The client's half of ``EF21``."""

    def steps(self, x: Any, config: dict[str, Any]) -> Any:
        """Places and values of c_i."""
        gradient = yield Gradient(x)
        g_i = np.array(self.state["g"])
        change = (gradient - g_i).ravel()
        # C keeps the k largest entries
        places = np.argsort(-np.abs(change), kind="stable")[: config["kept"]]
        g_i.flat[places] += change[places]
        self.state["g"] = g_i
        return [places.astype(np.int32), change[places]], 0, {}


sys.path.append(str(Path(__file__).parents[2] / "examples" / "own-method"))
feddyn: Any = import_module("majoritysign.feddyn")
plugin = Plugin(
    methods=[
        (feddyn.FedDyn, feddyn.FedDynClient),
        (ProxSkip, ProxSkipClient),
        (FedDualAvg, FedDualAvgClient),
        (EF21, EF21Client),
    ]
)
