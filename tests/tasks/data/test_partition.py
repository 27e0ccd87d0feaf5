"""How labelled examples are dealt to clients."""

import socket
import sys
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


def test_the_labels_together_depend_on_the_seed() -> None:
    pytest.importorskip("flwr_datasets")
    held = [
        frozenset(LABELS[task(5, "labels", seed, labels_per_client=2).deal(LABELS)[0]])
        for seed in range(6)
    ]
    assert len(set(held)) > 1


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


def test_without_flwr_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "flwr_datasets"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    assert len(task(3, "iid").deal(LABELS)) == 3
    for partition in ("labels", "dirichlet"):
        with pytest.raises(SettingsError, match=r"digits.partition") as caught:
            # a seed of its own: no other test has had this data dealt yet
            task(5, partition, seed=424242).check()
        assert 'pip install "fedtrellis[data]"' in str(caught.value)
        assert "\n" not in str(caught.value)


def test_nothing_reaches_for_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr_datasets")

    def refuse(*args: Any) -> None:
        raise AssertionError(f"the network was asked for: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for partition in SHARED:
        task(6, partition).deal(LABELS)
