"""The task ``classification``: its data sets, its models and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import Classification
from tasks.classification import synthetic
from tasks.data.datasets import EMNIST_CLASSES
from tasks.data.task import data_of
from tests.harness import refused
from tests.tasks.data.files import idx, write_cifar


def classification(n: int = 4, seed: int = 0, **settings: Any) -> Classification:
    return Classification(num_clients=n, seed=seed, **settings)


def write_idx(folder: Path, prefix: str, count: int, classes: int = 10) -> np.ndarray:
    images = np.random.default_rng(count).integers(0, 256, (count, 28, 28))
    (folder / f"{prefix}images-idx3-ubyte").write_bytes(idx(images))
    labels = np.arange(count) % classes
    (folder / f"{prefix}labels-idx1-ubyte").write_bytes(idx(labels))
    # upright: rows and columns are swapped in the file
    return images.transpose(0, 2, 1).reshape(count, 784) / 255


def test_synthetic_data_is_that_of_pfedme() -> None:
    data = synthetic(30, 0, 0, iid=False)
    owners = data.owners
    assert owners is not None
    assert data.features.shape[1] == 60
    sizes = np.bincount(owners)
    # 75 % of 5·(0 … 1000 + 50)
    assert 187 <= sizes.min() < sizes.max() <= 3937
    share = len(data.labels) / (len(data.labels) + len(data.test_labels))
    assert share == pytest.approx(0.75, abs=0.01)
    # Σ_jj = j^−1.2 within a client
    large = data.features[owners == sizes.argmax()]
    j = np.arange(1, 61)
    assert np.log(large.var(axis=0)) == pytest.approx(-1.2 * np.log(j), abs=0.35)
    # clients differ in their features' means and in their labels
    means = [data.features[owners == i].mean() for i in range(30)]
    assert np.std(means) > 0.3
    for limit in (12, 100, 1000):
        more: Any = {"train_limit": limit, "test_limit": 10}
        few = data_of(classification(12, partition="natural", **more))
        assert limit - 12 <= len(few.targets) <= limit
        assert np.diff(few.starts).min() >= 1
        assert len(few.test_targets) == 10


@pytest.mark.parametrize("partition", ["iid", "natural"])
def test_validation_takes_training_examples(partition: str) -> None:
    def dealt(**settings: Any) -> Any:
        return data_of(classification(partition=partition, **settings))

    whole, part = dealt(), dealt(validation_fraction=0.2)
    count = len(whole.targets)
    assert len(part.test_targets) == round(0.2 * count)
    # all of them are training examples, each once; no test example is among them
    rows = np.concatenate([part.features, part.test_features])
    ordered = whole.features[np.lexsort(whole.features.T)]
    assert np.array_equal(rows[np.lexsort(rows.T)], ordered)
    assert np.diff(part.starts).min() > 0
    if partition == "natural":
        # a client's examples are its own, still
        own = {row.tobytes() for row in whole.share(1)[0]}
        assert {row.tobytes() for row in part.share(1)[0]} <= own
    other = dealt(validation_fraction=0.2, seed=1)
    assert not np.array_equal(other.test_features, part.test_features)


@pytest.mark.parametrize("split", EMNIST_CLASSES)
def test_emnist(tmp_path: Path, split: str) -> None:
    classes = EMNIST_CLASSES[split]
    upright = write_idx(tmp_path, f"emnist-{split}-train-", 70, classes)
    test = write_idx(tmp_path, f"emnist-{split}-test-", 20, classes)
    task = classification(1, dataset="emnist", split=split, path=str(tmp_path))
    task.check()
    assert task.shapes() == [(785, classes)]
    ours = data_of(task)
    rows = np.unique(ours.features, axis=0)
    np.testing.assert_array_equal(rows, np.unique(upright, axis=0))
    np.testing.assert_array_equal(ours.test_features, test)


def test_cifar10_with_a_part_missing(tmp_path: Path) -> None:
    write_cifar(tmp_path, train=60, test=20)
    settings: dict[str, Any] = {"dataset": "cifar10", "path": str(tmp_path)}
    whole = classification(**settings)
    whole.check()
    assert whole.num_examples() == 60
    assert whole.shapes() == [(3073, 10)]
    (tmp_path / "data_batch_3.bin").unlink()
    other = classification(seed=1, **settings)
    refused("data_batch_3", other.check, FileNotFoundError)
    part = classification(partial=True, **settings)
    part.check()
    assert part.num_examples() == 48
    (tmp_path / "test_batch.bin").unlink()
    last = classification(seed=1, partial=True, **settings)
    refused("test_batch", last.check, FileNotFoundError)


def test_shapes_of_networks() -> None:
    pytest.importorskip("torch")

    def shapes(model: str, dataset: str = "synthetic", **more: Any) -> Any:
        return classification(model=model, dataset=dataset, **more).shapes()

    assert shapes("dnn") == [(20, 60), (20,), (10, 20), (10,)]
    convolutions = [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,)]
    ends = [(128, 1024), (128,), (10, 128), (10,)]
    assert shapes("cnn", "mnist") == [*convolutions, *ends]
    assert shapes("cnn", "cifar10")[::4] == [(32, 3, 5, 5), (128, 1600)]
    assert shapes("cnn", "emnist", split="byclass")[-1] == (62,)
