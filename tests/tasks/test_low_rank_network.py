"""The task ``low-rank-network``: its model, its data and what it refuses."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.manifolds import Euclidean, FixedRank, Product, Stiefel
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import Layout
from tasks import Digits, LowRankNetwork
from tasks.data.task import data_of


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
def test_the_clients_mean_is_f(kind: dict[str, Any]) -> None:
    made = task(7, l2=0.02, **kind)
    x = made.initial_point()
    clients = [made.client_objective(i) for i in range(7)]
    point = made.argument(x)
    mean = np.mean([f.value(point) for f in clients])
    assert mean == pytest.approx(made.value(x), rel=1e-12)
    gradients = [f.gradient(point) for f in clients]
    for k, whole in enumerate(made.gradient(x)):
        part = np.mean([gradient[k] for gradient in gradients], axis=0)
        np.testing.assert_allclose(part, whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS, ids=["factored", "matrix", "full"])
def test_the_start_lies_on_the_manifold(kind: dict[str, Any]) -> None:
    made = task(**kind)
    x = made.initial_point()
    point = Layout(tuple(made.shapes())).point(x)
    assert made.manifold().shape == point.shape
    assert made.manifold().contains(point, 1e-12)
    assert made.hidden_rank(x) == (32 if made.full_rank else 8)
    assert made.hidden_rank(point) == made.hidden_rank(x)
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
    assert made.hidden_rank(x) == (32 if made.full_rank else 8)


def test_limits_take_some_of_the_images() -> None:
    made = task(train_limit=100, test_limit=40)
    assert made.num_examples() == 100
    accuracy = made.metrics(made.initial_point())["accuracy"]
    assert accuracy * 40 == pytest.approx(round(accuracy * 40), abs=1e-9)
    x = made.initial_point()
    assert made.value(x) != task(seed=0).value(x)


def test_validation_takes_training_images_in_the_place_of_test_images() -> None:
    whole, part = (data_of(task(validation_fraction=share)) for share in (0.0, 0.2))
    held_out = round(0.2 * len(whole.targets))
    assert len(part.test_targets) == held_out
    rows = np.concatenate([part.features, part.test_features])
    # all of them are training images, each once
    assert np.array_equal(
        rows[np.lexsort(rows.T)], whole.features[np.lexsort(whole.features.T)]
    )


def refused(kind: type[Exception], match: str, made: LowRankNetwork) -> None:
    with pytest.raises(kind, match=match) as caught:
        made.check()
    assert "\n" not in str(caught.value)


def test_settings_that_are_refused(tmp_path: Path) -> None:
    refused(SettingsError, "rank = 33 is too high: .* 64 x 32", task(rank=33))
    refused(SettingsError, "64 x 100, so at most 64", task(rank=65, hidden=100))
    task(rank=33, full_rank=True).check()
    refused(SettingsError, "low-rank-network.path is empty", task(dataset="mnist"))
    missing = task(dataset="mnist", path=str(tmp_path / "none"))
    refused(FileNotFoundError, r"low-rank-network\.path", missing)
    empty = task(dataset="mnist", path=str(tmp_path))
    refused(FileNotFoundError, r"low-rank-network\.path.*training images", empty)


def test_mnist_is_read_from_a_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for prefix, count in (("train-", 60), ("t10k-", 20)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        head = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28)
        (tmp_path / f"{prefix}images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = np.arange(count, dtype=np.uint8) % 10
        head = struct.pack(">4BI", 0, 0, 8, 1, count)
        (tmp_path / f"{prefix}labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    made = task(dataset="mnist", path=str(tmp_path), rank=5)
    made.check()
    assert made.num_examples() == 60
    assert made.shapes()[0] == (784, 5)
    x = made.initial_point()
    assert np.isfinite(made.value(x))
    features = made.objective()._features  # type: ignore[attr-defined]
    assert features.max() == 1.0
    (tmp_path / "t10k-images-idx3-ubyte").unlink()
    refused(
        FileNotFoundError,
        r"low-rank-network\.path.*test images",
        task(dataset="mnist", path=str(tmp_path), rank=6),
    )


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
