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
from fedtrellis.random import generator
from fedtrellis.server.conversation import Answer
from fedtrellis.zeroth_order import directions
from strategies import FirstOrderRFL, ZerothOrderRFL
from tests.harness import Array, grid_of, play

N, P, SEED = 4, 40, 3
SPHERE = Sphere((P,))


class Component:
    """f(x) = −½ xᵀAx, whose minimum on the sphere is A's first eigenvector."""

    num_examples = 1

    def __init__(self, matrix: Array) -> None:
        self.matrix = matrix

    def value(self, x: Array) -> float:
        return -0.5 * float(x @ self.matrix @ x)

    def gradient(self, x: Array) -> Array:
        return -self.matrix @ x

    def riemannian(self, x: Array) -> Array:
        gradient = self.gradient(x)
        return gradient - (x @ gradient) * x


def _component(rng: np.random.Generator) -> Component:
    rows = rng.standard_normal((60, P)) * np.linspace(2.0, 0.3, P)
    return Component(rows.T @ rows / 60)


_RNG = np.random.default_rng(0)
LOSSES = [_component(_RNG) for _ in range(N)]
START = SPHERE.project(_RNG.standard_normal(P))


def error(found: Array, truth: Array) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


class CuriousFirst(FirstOrderRFL):
    """Follows the protocol, and keeps P_M(x^k) and the mean of each client's G."""

    def setup(self, point: Array, layout: Any) -> None:
        super().setup(point, layout)
        self.seen: list[tuple[Array, dict[str, Array]]] = []

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        scale = self.step_size * self.local_steps
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
            assert error(means[name], loss.riemannian(z)) < tolerance


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
        (5, 1, 0.7, 1.0),  # 5 scalars for 40 entries
        (5, 4, 0.3, 0.9),  # 20
        (39, 1, 0.0, 1e-3),  # with the tangent space as many as entries: one round
        (20, 4, 0.0, 0.02),  # 80, at points that are near each other
        (10, 6, 0.0, 0.04),  # 60
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
            directions(generator(SEED, "directions", name, t), samples, (P,))
            for t in range(1, rounds + 1)
        ]
        rows, right = np.vstack([*drawn, z[None]]), [said[2] for said in mine]
        found = np.linalg.lstsq(rows, np.concatenate([*right, np.zeros(1)]))[0]
        errors.append(error(found, loss.riemannian(z)))
    assert at_least <= min(errors)
    assert max(errors) <= at_most
