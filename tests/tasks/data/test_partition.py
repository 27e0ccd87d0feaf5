"""How labelled examples are dealt to clients."""

from itertools import chain
from typing import Any

import numpy as np
import pytest

from fedtrellis.random import generator
from tasks import Digits
from tasks.base import derived_seed
from tests.harness import refused

LABELS = np.random.default_rng(0).integers(0, 10, 1000)
SHARED: dict[str, dict[str, Any]] = {
    "labels": {"labels_per_client": 3},
    "dirichlet": {"alpha": 0.3},
    "iid": {},
}


def deal(n: int, partition: str, seed: int = 0, **settings: Any) -> list[Any]:
    settings = SHARED.get(partition, {}) | settings
    made = Digits(num_clients=n, seed=seed, partition=partition, **settings)
    return list(made.deal(LABELS))


@pytest.mark.filterwarnings("ignore:The specified min_partition_size")
@pytest.mark.parametrize("n", [7, 20])
@pytest.mark.parametrize("partition", SHARED)
def test_shares_are_those_of_flwr_datasets(partition: str, n: int) -> None:
    """Dirichlet(0.05) leaves one of 20 clients empty thrice, and is drawn again."""
    alpha = 0.3 if n == 7 else 0.05
    theirs = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")
    purpose = "partition" if partition == "iid" else "shuffle"
    order, parts = generator(0, purpose).permutation(len(LABELS)), n
    labels: Any = LABELS
    seed = derived_seed(0, "partition")
    options: dict[str, Any] = {"partition_by": "label", "seed": seed}
    if partition == "iid":
        made = theirs.IidPartitioner(num_partitions=n)
    elif partition == "labels":
        parts = 3 * n
        ranks = np.argsort(generator(0, "label order").permutation(10))
        labels = ranks[LABELS]
        made = theirs.PathologicalPartitioner(
            num_partitions=parts,
            num_classes_per_partition=1,
            class_assignment_mode="deterministic",
            **options,
        )
    else:
        made = theirs.DirichletPartitioner(
            num_partitions=n, alpha=alpha, min_partition_size=1, **options
        )
    made.dataset = datasets.Dataset.from_dict({"label": labels[order], "index": order})
    found = [made.load_partition(i)["index"][:] for i in range(parts)]
    k = parts // n
    expected = [[*chain(*found[i : i + k])] for i in range(0, parts, k)]
    more = {"alpha": alpha} if partition == "dirichlet" else {}
    shares = deal(n, partition, 0, **more)
    assert [share.tolist() for share in shares] == expected


@pytest.mark.parametrize(("n", "k"), [(10, 1), (10, 3), (4, 3), (25, 2), (3, 10)])
def test_every_client_holds_k_labels(n: int, k: int) -> None:
    shares = deal(n, "labels", labels_per_client=k)
    assert [len(np.unique(LABELS[share])) for share in shares] == [k] * n
    # each label's examples are dealt evenly to those who hold it
    for label in range(10):
        held = [int((LABELS[share] == label).sum()) for share in shares]
        positive = [count for count in held if count]
        assert max(positive) - min(positive) <= 1


def test_shares_that_cannot_be() -> None:
    for n, partition, settings, message in (
        (10, "labels", {"labels_per_client": 11}, "only 10 labels"),
        (3, "labels", {"labels_per_client": 3}, "all 10 labels"),
        (900, "labels", {"labels_per_client": 3}, "for 270 clients"),
        (900, "dirichlet", {"alpha": 0.01}, "a larger alpha"),
        (1001, "iid", {}, "1001 clients are too many"),
    ):
        refused(message, lambda: deal(n, partition, **settings))  # noqa: B023
