"""What the servers of the Riemannian methods learn of a client: attacks on real runs.

The server follows the protocol and keeps what it sees. ``docs/riemannian.md`` says in
words what these show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clients import FirstOrderRFLClient, ZerothOrderRFLClient
from fedtrellis.manifolds import Sphere
from fedtrellis.objectives.matrices import PrincipalComponents
from fedtrellis.random import generator
from fedtrellis.server.conversation import Answer
from fedtrellis.zeroth_order import directions
from strategies import FirstOrderRFL, ZerothOrderRFL
from tests.harness import Array, grid_of, play

N, P, SEED = 4, 40, 3
SPHERE = Sphere((P, 1))


_RNG = np.random.default_rng(0)
LOSSES = [
    PrincipalComponents(_RNG.standard_normal((60, P)) * np.linspace(2.0, 0.3, P), 1)
    for _ in range(N)
]
START = SPHERE.random_point(_RNG)


def error(found: Array, loss: Any, z: Array) -> float:
    truth = SPHERE.project_tangent(z, loss.gradient(z))
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


class CuriousFirst(FirstOrderRFL):
    """Follows the protocol, and keeps P_M(x^k) and the mean of each client's G."""

    def setup(self, point: Array, layout: Any) -> None:
        super().setup(point, layout)
        self.seen: list[tuple[Array, dict[str, Array]]] = []

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        scale = self._settled("step_size") * self.local_steps
        # ẑ_i = z − η τ (mean of G + c_i)
        means = {
            name: (self._z - point) / scale - self._corrections[name]
            for name, point in answers.items()
        }
        self.seen.append((self._z, means))
        return super().aggregate(server_round, answers)


@pytest.mark.parametrize(("tau", "tolerance"), [(1, 1e-10), (5, 0.2)])
def test_first_order_answers_are_gradients(tau: int, tolerance: float) -> None:
    """With τ = 1 exactly grad f_i, else the mean of τ of them along the way."""
    strategy = CuriousFirst(SPHERE, local_steps=tau, step_size=0.01)
    play(strategy, grid_of(FirstOrderRFLClient, LOSSES, SPHERE), START, 3)
    for z, means in strategy.seen:
        for name, loss in zip(strategy.clients, LOSSES, strict=True):
            assert error(means[name], loss, z) < tolerance


class CuriousZeroth(ZerothOrderRFL):
    """Follows the protocol, and keeps P_M(x^k) and everybody's scalars."""

    def setup(self, point: Array, layout: Any) -> None:
        super().setup(point, layout)
        self.seen: list[tuple[str, Array, Array]] = []

    def check(self, answer: Answer) -> Any:
        assert self.sends_scalars
        self.seen.append((answer.client, self._z, answer.numbers))
        return super().check(answer)


@pytest.mark.parametrize(
    ("samples", "rounds", "at_least", "at_most"),
    [
        (5, 4, 0.3, 0.9),  # 20 scalars for 40 entries
        (39, 1, 0.0, 1e-3),  # with the tangent space as many as entries: one round
        (20, 4, 0.0, 0.02),  # 80, at points that are near each other
    ],
)
def test_zeroth_order_scalars_are_equations(
    samples: int, rounds: int, at_least: float, at_most: float
) -> None:
    """As many as the gradient has entries give it; fewer give their share.

    The attack: s_j = ⟨grad f_i, u_j⟩ for known u_j, and ⟨grad f_i, z⟩ = 0.
    """
    how: Any = {"samples": samples, "smoothing": 1e-6, "local_steps": 1}
    strategy = CuriousZeroth(SPHERE, step_size=1e-3, seed=SEED, **how)
    play(strategy, grid_of(ZerothOrderRFLClient, LOSSES, SPHERE), START, rounds)
    errors = []
    for name, loss in zip(strategy.clients, LOSSES, strict=True):
        mine = [said for said in strategy.seen if said[0] == name]
        z = mine[-1][1]
        drawn = [
            directions(generator(SEED, "directions", name, t), samples, z.shape)
            for t in range(1, rounds + 1)
        ]
        rows = np.vstack([*drawn, z[None]])[..., 0]
        right = np.concatenate([*(said[2] for said in mine), np.zeros(1)])
        found = np.asarray(np.linalg.lstsq(rows, right)[0])
        errors.append(error(found[:, None], loss, z))
    assert at_least <= min(errors)
    assert max(errors) <= at_most
