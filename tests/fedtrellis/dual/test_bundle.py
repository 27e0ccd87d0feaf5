"""The search over proposals, against clients that hold α."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.dual.bundle import DualBundle, Mixture
from fedtrellis.objectives.losses import make_loss
from tests.fedtrellis.dual.programmes import optimum_over_simplices

Array = NDArray[np.float64]


def _rows(bundle: DualBundle) -> Array:
    """V of every point."""
    return np.stack([v[0] for v in bundle._points])


@dataclass
class Clients:
    """What the clients of one unit hold: whole dual vectors under their ids."""

    X: Array
    y: Array
    points: dict[int, Array] = field(default_factory=dict)
    alpha_id: int = 0

    def __post_init__(self) -> None:
        self.points = {0: np.zeros(len(self.y))}

    @property
    def alpha(self) -> Array:
        return self.points[self.alpha_id]

    def take(self, mixture: Mixture) -> None:
        """α ← Σ_j θ_j a_j, and forget what is not to be kept."""
        ids = mixture.ids.tolist()
        alpha = sum(
            theta * self.points[i]
            for i, theta in zip(ids, mixture.weights, strict=True)
        )
        kept = {i: self.points[i] for i in mixture.keep.tolist()}
        self.points = {**kept, mixture.alpha_id: np.asarray(alpha)}
        self.alpha_id = mixture.alpha_id


class World:
    """Units of a problem; everything that the bundle says is computed anew from α."""

    def __init__(
        self, seed: int, units: int = 3, memory: int = 6, loss: str = "hinge"
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.n, self.p, self.regularization = 12 * units, 5, 0.05
        self.loss = make_loss(loss)
        X = self.rng.standard_normal((self.n, self.p))
        y = np.where(self.rng.random(self.n) < 0.5, 1.0, -1.0)
        self.clients = [
            Clients(a, b)
            for a, b in zip(np.split(X, units), np.split(y, units), strict=True)
        ]
        self.bundle = DualBundle(self.p, units, self.regularization, memory)
        self.memory = memory

    def v(self, client: Clients, alpha: Array) -> Array:
        found: Array = alpha @ client.X / (self.regularization * self.n)
        return found

    def b(self, client: Clients, alpha: Array) -> float:
        return -float(self.loss.conjugate(alpha, client.y).sum()) / self.n

    def dual(self) -> float:
        """D(α), exactly."""
        w = np.sum([self.v(c, c.alpha) for c in self.clients], axis=0)
        linear = sum(self.b(c, c.alpha) for c in self.clients)
        return linear - 0.5 * self.regularization * float(w @ w)

    def propose(self, unit: int, count: int) -> tuple[Array, Array]:
        """Random ones, and the cutting plane at w."""
        client = self.clients[unit]
        new = [client.y * self.rng.random(len(client.y)) for _ in range(count - 1)]
        new.append(self.loss.dual_point(client.X @ self.bundle.w, client.y))
        ids = self.bundle.new_ids(unit, count)
        client.points.update(zip(ids, new, strict=True))
        V = np.stack([self.v(client, a) for a in new])
        return V, np.array([self.b(client, a) for a in new])

    def exact(self) -> None:
        for unit, client in enumerate(self.clients):
            self.bundle.set_alpha_value(unit, self.b(client, client.alpha))

    def search(self, units: list[int], count: int) -> None:
        proposals = {unit: self.propose(unit, count) for unit in units}
        for unit, mixture in self.bundle.search(units, proposals).items():
            assert (mixture.weights > 0.0).all()
            assert mixture.weights.sum() == pytest.approx(1.0, abs=1e-12)
            assert len(mixture.keep) <= max(self.memory - 1 - count, 0)
            self.clients[unit].take(mixture)

    def check(self) -> None:
        """V, b and D of the bundle are those of the clients' points."""
        bundle = self.bundle
        for unit, client in enumerate(self.clients):
            assert bundle.alpha_id(unit) == client.alpha_id
            rows = np.flatnonzero(bundle.unit == unit)
            assert set(bundle.ids[rows].tolist()) == set(client.points)
            for row in rows:
                a = client.points[int(bundle.ids[row])]
                assert np.abs(bundle._points[row][0] - self.v(client, a)).max() < 1e-11
                exact = self.b(client, a)
                if self.loss.name == "hinge":
                    assert bundle.b[0, row] == pytest.approx(exact, abs=1e-12)
                else:  # of a mixture a lower bound is known
                    assert bundle.b[0, row] <= exact + 1e-12
            v, b = bundle.contribution(unit)
            assert np.abs(v - self.v(client, client.alpha)).max() < 1e-11
            assert b <= self.b(client, client.alpha) + 1e-12
        w = sum(self.v(c, c.alpha) for c in self.clients)
        assert np.abs(bundle.w - w).max() < 1e-11
        assert bundle.dual_values().sum() <= self.dual() + 1e-12
        assert np.abs(bundle._gram[0] - _rows(bundle) @ _rows(bundle).T).max() < 1e-11


@pytest.mark.parametrize("loss", ["hinge", "logistic", "smoothed-hinge"])
@pytest.mark.parametrize("memory", [3, 6, 30])
def test_bundle_and_clients_agree_and_the_dual_never_falls(
    memory: int, loss: str
) -> None:
    world = World(memory, memory=memory, loss=loss)
    value = world.dual()
    for t in range(60):
        everybody = t % 3 == 0
        some = [u for u in range(3) if everybody or world.rng.random() < 0.5]
        world.exact()
        if some:
            world.search(some, count=1 + t % 2)
        if t % 11 == 10:
            world.bundle.only_alpha(0)
            client = world.clients[0]
            client.points = {client.alpha_id: client.alpha}
        world.check()
        assert world.dual() >= value - 1e-13
        value = world.dual()
    assert value > 0.1


def test_each_search_is_the_best_over_all_that_is_remembered() -> None:
    world = World(1, memory=8)
    for t in range(12):
        units = [0, 1, 2] if t % 2 else [t % 3]
        proposals = {unit: world.propose(unit, 2) for unit in units}
        bundle = world.bundle
        points: list[Array] = []
        values: list[float] = []
        blocks, rest = [], np.zeros(world.p)
        for u in range(3):
            rows = np.flatnonzero(bundle.unit == u)
            if u not in units:
                rest = rest + bundle.contribution(u)[0][0]
                continue
            start = len(values)
            points += [*_rows(bundle)[rows], *proposals[u][0]]
            values += [*bundle.b[0, rows], *proposals[u][1]]
            blocks.append(slice(start, len(values)))
        V, root = np.array(points), np.sqrt(world.regularization)
        b = np.array(values) - world.regularization * V @ rest
        best = optimum_over_simplices(root * V, b, blocks)
        still = sum(
            float(bundle.contribution(u)[1][0]) for u in range(3) if u not in units
        )
        best += still - 0.5 * world.regularization * float(rest @ rest)
        for unit, mixture in bundle.search(units, proposals).items():
            world.clients[unit].take(mixture)
        assert bundle.dual_values().sum() == pytest.approx(best, abs=1e-9)
        world.check()


def test_another_alpha_in_the_place_of_one_that_was_lost() -> None:
    world = World(2)
    for _ in range(6):
        world.search([0, 1, 2], 1)
    client = world.clients[1]
    old = client.y * world.rng.random(len(client.y))
    world.bundle.only_alpha(1, world.v(client, old), world.b(client, old))
    client.points = {client.alpha_id: old}
    world.check()
    value = world.dual()
    world.search([0, 1, 2], 1)
    world.check()
    assert world.dual() >= value
