"""How labelled examples are dealt to clients."""

from typing import Any

import numpy as np
import pytest

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError
from tasks import Digits

LABELS = np.random.default_rng(0).integers(0, 10, 1000)
SHARED: dict[str, dict[str, Any]] = {
    "labels": {"labels_per_client": 3},
    "dirichlet": {"alpha": 0.3},
    "iid": {},
}


def task(n: int, partition: str, seed: int = 0, **settings: Any) -> Digits:
    return Digits(num_clients=n, seed=seed, partition=partition, **settings)


@pytest.mark.parametrize("n", [4, 10, 37])
@pytest.mark.parametrize("partition", SHARED)
def test_every_example_is_dealt_once(partition: str, n: int) -> None:
    pytest.importorskip("flwr_datasets")
    shares = task(n, partition, **SHARED[partition]).deal(LABELS)
    assert len(shares) == n
    assert min(map(len, shares)) >= 1
    np.testing.assert_array_equal(
        np.sort(np.concatenate(shares)), np.arange(len(LABELS))
    )


@pytest.mark.parametrize("partition", SHARED)
def test_the_seed_decides_the_shares(partition: str) -> None:
    pytest.importorskip("flwr_datasets")

    def shares(seed: int) -> list[list[int]]:
        dealt = task(7, partition, seed, **SHARED[partition]).deal(LABELS)
        return [share.tolist() for share in dealt]

    assert shares(1) == shares(1)
    assert shares(1) != shares(2)


def test_iid_shares_are_equal_and_those_of_flwr_datasets() -> None:
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")
    shares = task(7, "iid").deal(LABELS)
    assert {len(share) for share in shares} == {142, 143}
    theirs = partitioners.IidPartitioner(num_partitions=7)
    order = generator(0, "partition").permutation(len(LABELS))
    theirs.dataset = datasets.Dataset.from_dict({"index": order})
    for i, share in enumerate(shares):
        assert share.tolist() == theirs.load_partition(i)["index"][:]


@pytest.mark.parametrize(("n", "k"), [(10, 1), (10, 3), (4, 3), (25, 2), (3, 10)])
def test_every_client_holds_k_labels(n: int, k: int) -> None:
    pytest.importorskip("flwr_datasets")
    shares = task(n, "labels", labels_per_client=k).deal(LABELS)
    assert [len(np.unique(LABELS[share])) for share in shares] == [k] * n
    # each label's examples are dealt evenly to those who hold it
    for label in range(10):
        held = [int((LABELS[share] == label).sum()) for share in shares]
        positive = [count for count in held if count]
        assert max(positive) - min(positive) <= 1


def test_alpha_decides_how_uneven_dirichlet_is() -> None:
    pytest.importorskip("flwr_datasets")

    def spread(alpha: float) -> float:
        shares = task(8, "dirichlet", alpha=alpha).deal(LABELS)
        counts = np.array([np.bincount(LABELS[s], minlength=10) for s in shares])
        return float((counts / counts.sum(axis=0)).std())

    assert spread(100.0) < 0.03
    assert spread(0.2) > 0.1


@pytest.mark.parametrize(
    ("n", "settings", "message"),
    [
        (10, {"partition": "labels", "labels_per_client": 11}, "only 10 labels"),
        (3, {"partition": "labels", "labels_per_client": 3}, "all 10 labels"),
        (900, {"partition": "labels", "labels_per_client": 3}, "for 270 clients"),
        (900, {"partition": "dirichlet", "alpha": 0.01}, "a larger alpha"),
        (1001, {"partition": "iid"}, "1001 clients are too many"),
    ],
)
def test_shares_that_cannot_be(n: int, settings: Any, message: str) -> None:
    pytest.importorskip("flwr_datasets")
    with pytest.raises(SettingsError, match=message) as caught:
        task(n, **settings).deal(LABELS)
    assert "\n" not in str(caught.value)
