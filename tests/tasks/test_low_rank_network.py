"""The task ``low-rank-network``: its model, its data and what it refuses."""

from typing import Any

import pytest

from fedtrellis.manifolds import Euclidean, FixedRank, Product, Stiefel
from fedtrellis.wire.arrays import Layout
from tasks import LowRankNetwork


def task(n: int = 5, seed: int = 0, **settings: Any) -> LowRankNetwork:
    return LowRankNetwork(num_clients=n, seed=seed, **settings)


KINDS: list[dict[str, Any]] = [{}, {"factored": False}, {"full_rank": True}]


def test_the_arrays_of_each_kind() -> None:
    free = [(32,), (32, 10), (10,)]
    spaces = [Euclidean(shape) for shape in free]
    assert task().shapes() == [(64, 8), (8,), (32, 8), *free]
    assert task().manifold() == Product(
        [Stiefel((64, 8)), Euclidean((8,)), Stiefel((32, 8)), *spaces]
    )
    assert task(factored=False).shapes() == [(64, 32), *free]
    assert task(factored=False).manifold() == Product([FixedRank((64, 32), 8), *spaces])
    task(rank=33, full_rank=True).check()
    # nothing to factor
    for factored in (True, False):
        full = task(full_rank=True, factored=factored)
        assert full.shapes() == [(64, 32), *free]
        assert full.manifold() == Product([Euclidean((64, 32)), *spaces])


@pytest.mark.parametrize("kind", KINDS, ids=["factored", "matrix", "full"])
def test_projected_gradient_learns_on_the_manifold(kind: dict[str, Any]) -> None:
    made = task(**kind)
    manifold, objective = made.manifold(), made.objective()
    x = Layout(tuple(made.shapes())).point(made.initial_point())
    before = made.metrics(x)["accuracy"]
    for _ in range(150):
        step = -0.2 * manifold.project_tangent(x, objective.gradient(x))
        x = manifold.retract(x, step)
    assert before < 0.3
    assert made.metrics(x)["accuracy"] > 0.88
    assert manifold.contains(x, 1e-10)
