"""How labelled examples are dealt to clients.

Equal random shares need nothing but NumPy; shares by label come from the partitioners
of flwr-datasets, the extra ``data``, which see the labels only. Nothing here uses the
network.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from ..base import derived_seed
from .datasets import Examples
from .task import Dealt, Indices, NodeDataTask, arrange


def limit_setting(part: str) -> int:
    """Return the setting of the most examples of a part, training or test."""
    text = f"the most {part} examples, drawn by the seed; 0 for all"
    return setting(0, text, minimum=0)  # type: ignore[no-any-return]


def validation_setting() -> float:
    """Return the setting of the share of training examples to choose settings on."""
    return setting(  # type: ignore[no-any-return]
        0.0,
        "share of the training examples that takes the place of the test data, "
        "to choose settings on; 0: none",
        minimum=0.0,
        maximum=0.9,
    )


@dataclass(frozen=True)
class PartitionedTask(NodeDataTask):
    """A task whose labelled examples are dealt to the clients by a setting.

    - ``iid``: shuffled, then equal consecutive shares, which is the
      ``IidPartitioner`` of flwr-datasets on shuffled data;
    - ``labels``: every client holds ``labels-per-client`` labels, client i the labels
      ik, ik + 1, …, ik + k − 1 (modulo their number) of a random order, and each
      label's examples are dealt evenly to those who hold it
      (``PathologicalPartitioner`` with one label a part, k parts a client);
    - ``dirichlet``: each label's shares are drawn from Dirichlet(α)
      (``DirichletPartitioner``).
    """

    partition: str = setting(
        "iid",
        "how examples are dealt to clients",
        choices=("iid", "labels", "dirichlet"),
    )
    labels_per_client: int = setting(
        3, "labels a client holds, with partition = 'labels'", minimum=1
    )
    alpha: float = setting(
        0.5, "concentration α, with partition = 'dirichlet'", above=0.0
    )

    label_kind: ClassVar[Any] = "class"
    node_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def deal_examples(
        self, examples: Examples, prepare: Callable[[Any], Any] = np.asarray
    ) -> Dealt:
        """Deal labelled examples to the clients.

        ``prepare`` makes what the model takes of the features. It comes last, so that
        what is put in order are the bytes of images and not eight times as many.
        """
        dealt = arrange(
            examples.features,
            examples.labels.astype(np.intp),
            self.shares(examples),
            test_targets=examples.test_labels.astype(np.intp),
        )
        features, tests = prepare(dealt.features), prepare(examples.test_features)
        return dealt._replace(features=features, test_features=tests)

    def shares(self, examples: Examples) -> list[Indices]:
        """Return the examples of each client; here :meth:`deal`, by their labels."""
        return self.deal(examples.labels)

    def deal(self, labels: NDArray[Any]) -> list[Indices]:
        """Deal all examples to the clients, each once and no share empty.

        By their labels, int of shape (d,). A SettingsError: the labels do not suffice
        for so many clients, or flwr-datasets is needed and not installed.
        """
        self.check_clients(len(labels), "examples")
        if self.partition == "iid":
            rng = generator(self.seed, "partition")
            return np.array_split(rng.permutation(len(labels)), self.num_clients)
        if self.partition == "labels":
            return self._deal_labels(labels)
        return self._deal_dirichlet(labels)

    def _deal_labels(self, labels: NDArray[Any]) -> list[Indices]:
        present, counts = np.unique(labels, return_counts=True)
        clients, k = self.num_clients, self.labels_per_client

        def refused(why: str) -> SettingsError:
            return self.refused("labels_per_client", f"with {clients} clients: {why}")

        if k > len(present):
            raise refused(f"there are only {len(present)} labels")
        if clients * k < len(present):
            raise refused(
                f"they cannot hold all {len(present)} labels, so that examples would "
                "be left out; take more labels or more clients"
            )
        # Labels in a random order, as ranks; part v gets the label of rank v modulo
        # their number, so parts ik … ik + k − 1 have k different ones.
        order = generator(self.seed, "label order").permutation(len(present))
        holders = np.bincount(np.arange(clients * k) % len(present))
        scarce = np.flatnonzero(counts[order] < holders)
        if len(scarce):
            label, count = present[order[scarce[0]]], counts[order[scarce[0]]]
            raise refused(
                f"label {label} has {count} examples for {holders[scarce[0]]} clients; "
                "take fewer labels or fewer clients"
            )
        ranks = np.argsort(order)[np.searchsorted(present, labels)]
        parts = self._partitioned(
            "PathologicalPartitioner",
            ranks,
            num_partitions=clients * k,
            num_classes_per_partition=1,
            class_assignment_mode="deterministic",
        )
        return [np.concatenate(parts[i * k : (i + 1) * k]) for i in range(clients)]

    def _deal_dirichlet(self, labels: NDArray[Any]) -> list[Indices]:
        clients = self.num_clients
        more = {"alpha": self.alpha, "min_partition_size": 1}
        try:
            with warnings.catch_warnings():
                # It draws again where a share is empty, and warns each time.
                warnings.simplefilter("ignore")
                return self._partitioned(
                    "DirichletPartitioner", labels, num_partitions=clients, **more
                )
        except SettingsError:
            raise
        except ValueError as error:
            given = f"with {clients} clients and {len(labels)} examples"
            why = "every draw left a client without any; take a larger alpha or fewer"
            raise self.refused("alpha", f"{given}: {why} clients") from error

    def _partitioned(
        self, kind: str, labels: NDArray[Any], **settings: Any
    ) -> list[Indices]:
        """Deal shuffled examples by a partitioner of flwr-datasets."""
        try:
            from datasets import Dataset
            from flwr_datasets import partitioner
        except ImportError as error:
            why = 'needs flwr-datasets: pip install "fedtrellis[data]"'
            raise self.refused("partition", why) from error
        order = generator(self.seed, "shuffle").permutation(len(labels))
        seed = derived_seed(self.seed, "partition")
        made = getattr(partitioner, kind)(partition_by="label", seed=seed, **settings)
        # labels and indices alone: pixels would be copied many times over
        made.dataset = Dataset.from_dict({"label": labels[order], "index": order})
        return [
            np.asarray(made.load_partition(i)["index"][:], dtype=np.intp)
            for i in range(settings["num_partitions"])
        ]
