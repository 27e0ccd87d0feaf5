"""The task ``low-rank-network``: its model, its data and what it refuses."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.manifolds import Euclidean, FixedRank, Product, Stiefel
from fedtrellis.wire.arrays import Layout
from tasks import Digits, LowRankNetwork


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


def test_factors_are_less_to_send() -> None:
    def size(**settings: Any) -> int:
        made = task(dataset="mnist", hidden=100, rank=5, **settings)
        return Layout(tuple(made.shapes())).size

    assert size() < size(factored=False) / 10


@pytest.mark.parametrize("kind", KINDS, ids=["factored", "matrix", "full"])
def test_the_start_lies_on_the_manifold(kind: dict[str, Any]) -> None:
    made = task(**kind)
    x = made.initial_point()
    point = Layout(tuple(made.shapes())).point(x)
    assert made.manifold().shape == point.shape
    assert made.manifold().contains(point, 1e-12)
    for again, array in zip(made.initial_point(), x, strict=True):
        np.testing.assert_array_equal(again, array)


def test_both_ways_to_keep_the_matrix_start_alike() -> None:
    one, other = task(), task(factored=False)
    values = [made.value(made.initial_point()) for made in (one, other)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert abs(values[0] - np.log(10)) < 0.5


def test_the_images_are_those_of_the_task_digits() -> None:
    made, digits = task(), Digits(num_clients=5, seed=0)
    assert made.num_examples() == digits.num_examples() == 1437
    # a network without a hidden signal is a constant; so is a model of zeros
    x = [np.zeros(shape) for shape in made.shapes()]
    assert made.value(x) == pytest.approx(np.log(10), rel=1e-12)
    share = made.client_objective(2)._features  # type: ignore[attr-defined]
    theirs = digits.client_objective(2)._design.matrix  # type: ignore[attr-defined]
    np.testing.assert_array_equal(share, theirs)


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


def test_the_real_mnist() -> None:
    folder = Path(os.environ.get("FEDTRELLIS_DATA", "")) / "mnist"
    file = "train-images-idx3-ubyte"
    if not any((folder / f"{file}{gz}").is_file() for gz in ("", ".gz")):
        pytest.skip(f"FEDTRELLIS_DATA names no folder with mnist/{file}")
    made = task(
        dataset="mnist", path=str(folder), rank=10, train_limit=3000, test_limit=1000
    )
    made.check()
    manifold, objective = made.manifold(), made.objective()
    x = Layout(tuple(made.shapes())).point(made.initial_point())
    for _ in range(150):
        step = -0.2 * manifold.project_tangent(x, objective.gradient(x))
        x = manifold.retract(x, step)
    assert made.metrics(x)["accuracy"] > 0.8
