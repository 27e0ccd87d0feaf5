"""The search over proposals, against clients that hold α, and local passes."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from clients.hyfdca.proposals import local_dual_passes
from fedtrellis.dual.bundle import DualBundle, Mixture
from fedtrellis.dual.penalty import maximise_over_simplices
from fedtrellis.objectives.losses import LOSSES, make_loss

Array = NDArray[np.float64]


def optimum_over_simplices(V: Array, b: Array, blocks: list[slice]) -> float:
    """Maximum of bᵀθ − ½‖Vᵀθ‖² over the simplices, by CVXPY."""
    cp = pytest.importorskip("cvxpy")
    theta = cp.Variable(len(b), nonneg=True)
    problem = cp.Problem(
        cp.Maximize(b @ theta - 0.5 * cp.sum_squares(V.T @ theta)),
        [cp.sum(theta[block]) == 1 for block in blocks],
    )
    problem.solve(
        solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
    )
    return float(problem.value)


def _rows(bundle: DualBundle) -> Array:
    return np.stack([v[0] for v in bundle._points])


class Clients:
    """What the clients of one unit hold: whole dual vectors under their ids."""

    def __init__(self, X: Array, y: Array) -> None:
        self.X, self.y, self.alpha_id = X, y, 0
        self.points = {0: np.zeros(len(y))}

    @property
    def alpha(self) -> Array:
        return self.points[self.alpha_id]

    def take(self, mixture: Mixture) -> None:
        """α ← Σ_j θ_j a_j, and forget what is not to be kept."""
        alpha = mixture.weights @ [self.points[i] for i in mixture.ids.tolist()]
        kept = {i: self.points[i] for i in mixture.keep.tolist()}
        self.points = {**kept, mixture.alpha_id: alpha}
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
        client = self.clients[unit]
        new = [client.y * self.rng.random(len(client.y)) for _ in range(count - 1)]
        new.append(self.loss.dual_point(client.X @ self.bundle.w, client.y))
        ids = self.bundle.new_ids(unit, count)
        client.points.update(zip(ids, new, strict=True))
        V = np.stack([self.v(client, a) for a in new])
        return V, np.array([self.b(client, a) for a in new])

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
            own = [client.points[int(i)] for i in bundle.ids[rows]]
            V, b = bundle.contribution(unit)
            assert np.abs(V - self.v(client, client.alpha)).max() < 1e-11
            known = zip([*bundle.b[0, rows], *b], [*own, client.alpha], strict=True)
            for value, a in known:
                assert value <= self.b(client, a) + 1e-12
                # of a mixture a lower bound is known
                assert self.loss.name != "hinge" or value > self.b(client, a) - 1e-12
            V = np.array([self.v(client, a) for a in own])
            assert np.abs(_rows(bundle)[rows] - V).max() < 1e-11
        w = sum(self.v(c, c.alpha) for c in self.clients)
        assert np.abs(bundle.w - w).max() < 1e-11
        assert bundle.dual_values().sum() <= self.dual() + 1e-12
        assert np.abs(bundle._gram[0] - _rows(bundle) @ _rows(bundle).T).max() < 1e-11


@pytest.mark.parametrize(
    ("memory", "loss"), [(3, "hinge"), (6, "logistic"), (30, "smoothed-hinge")]
)
def test_bundle_and_clients_agree_and_the_dual_never_falls(
    memory: int, loss: str
) -> None:
    world = World(memory, memory=memory, loss=loss)
    value = world.dual()
    for t in range(60):
        everybody = t % 3 == 0
        some = [u for u in range(3) if everybody or world.rng.random() < 0.5]
        for unit, client in enumerate(world.clients):
            world.bundle.set_alpha_value(unit, world.b(client, client.alpha))
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


def _objective(G: Array, b: Array, theta: Array) -> float:
    return float(b @ theta - 0.5 * theta @ G @ theta)


@pytest.mark.parametrize("rank", [1, 3, 40], ids=["line", "singular", "definite"])
@pytest.mark.parametrize("seed", range(3))
def test_the_maximum_is_cvxpys(seed: int, rank: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, rng.integers(1, 6))
    stops = np.cumsum(sizes)
    blocks = [slice(int(e - s), int(e)) for s, e in zip(sizes, stops, strict=True)]
    n = int(stops[-1])
    V = rng.standard_normal((n, rank)) * 10.0 ** rng.uniform(-1, 1)
    b = rng.standard_normal(n)
    if n > 2:
        V[n // 2], b[n // 2] = V[0], b[0]  # the same point twice
    G = V @ V.T
    # from the corners, and from anywhere inside
    corner = np.zeros(n)
    corner[[block.start for block in blocks]] = 1.0
    inside = rng.random(n)
    for block in blocks:
        inside[block] /= inside[block].sum()
    best = optimum_over_simplices(V, b, blocks)
    for start in (corner, inside):
        theta = start.copy()
        assert maximise_over_simplices(G, b, theta, blocks) is theta
        assert (theta >= 0.0).all()
        for block in blocks:
            assert theta[block].sum() == pytest.approx(1.0, abs=1e-12)
        found = _objective(G, b, theta)
        assert found >= _objective(G, b, start) - 1e-14 * (1.0 + abs(found))
        assert found == pytest.approx(best, abs=1e-8 * (1.0 + abs(best)))
        # again from there: nothing gets worse
        again = maximise_over_simplices(G, b, theta.copy(), blocks)
        assert _objective(G, b, again) >= found - 1e-14 * (1.0 + abs(found))


@pytest.mark.parametrize("sigma", [1.0, 4.0])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_local_passes_are_a_plain_loop_in_that_order(name: str, sigma: float) -> None:
    """Of features with zeros and an empty row."""
    loss, rng, scale = make_loss(name), np.random.default_rng(1), 0.4
    X = rng.standard_normal((30, 7)) * (rng.random((30, 7)) < 0.6)
    rows = rng.permutation(30)[:22]
    X[rows[3]] = 0.0
    y = np.where(rng.random(22) < 0.5, 1.0, -1.0)
    start = y * rng.random(22)
    if loss.labels == "real":
        y, start = rng.standard_normal((2, 22))
    if loss.labels == "counts":
        y = rng.poisson(2.0, 22).astype(np.float64)
        start = y - rng.exponential(2.0, 22)
    S, before = X[rows], start.copy()
    z = S @ rng.standard_normal(7)

    def found(X: Any, passes: int) -> Array:
        q = (S**2).sum(axis=1)
        given = (loss, X, rows, start, z, y, q, scale)
        order = np.random.default_rng(9)
        return local_dual_passes(*given, aggregation=sigma, passes=passes, rng=order)

    order, alpha = np.random.default_rng(9), start.copy()
    for _ in range(3):
        for i in order.permutation(22):
            # the gradient of the quadratic term, from all coordinates' changes anew
            score = z[i] + sigma / scale * S[i] @ (S.T @ (alpha - start))
            alpha[i] += loss.coordinate_step(
                alpha[[i]], np.array([score]), sigma * S[i] @ S[i], y[[i]], scale
            )[0]
    assert np.abs(found(X, 3) - alpha).max() < 1e-12
    assert np.abs(alpha - start).max() > 0.1
    assert np.abs(found(sparse.csr_array(X), 3) - alpha).max() < 1e-12
    assert np.array_equal(found(X, 0), before)
    assert np.array_equal(start, before)  # it works on a copy
