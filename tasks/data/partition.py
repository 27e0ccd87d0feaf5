"""How labelled examples are dealt to clients.

Equal random shares need nothing but NumPy; shares by label come from the partitioners
of flwr-datasets, the extra ``data``, which see the labels only. Nothing here uses the
network.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.objectives import MultinomialLogistic
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from ..base import derived_seed
from .node_task import NodeDataTask

__all__ = ["LabelledData", "PartitionedTask", "arrange"]

Indices = NDArray[np.intp]


class LabelledData(NamedTuple):
    """Training examples in the order of the clients that hold them, and test data.

    Client i holds the rows ``starts[i]:starts[i + 1]``: its share is a view, and the
    data is in memory once however many clients a process serves. Arrays are read-only.
    """

    features: NDArray[Any]
    labels: Indices
    starts: Indices
    test_features: NDArray[Any]
    test_labels: Indices
    classes: int

    def share(self, client: int) -> tuple[NDArray[Any], Indices]:
        """Return a client's features and labels."""
        own = slice(self.starts[client], self.starts[client + 1])
        return self.features[own], self.labels[own]

    def weight(self, client: int) -> float:
        """Return n·d_i/d: f_i is so many times the mean loss of the client's share."""
        sizes = np.diff(self.starts)
        return float(len(sizes) * sizes[client] / len(self.labels))

    def objective(self) -> MultinomialLogistic:
        """Return F of logistic regression, the mean over all training examples."""
        return MultinomialLogistic(self.features, self.labels, self.classes)

    def client_objective(self, client: int) -> MultinomialLogistic:
        """Return f_i of logistic regression."""
        features, labels = self.share(client)
        weight = self.weight(client)
        return MultinomialLogistic(features, labels, self.classes, weight=weight)

    def test_objective(self) -> MultinomialLogistic:
        """Return the mean loss of logistic regression on the test examples."""
        return MultinomialLogistic(self.test_features, self.test_labels, self.classes)


def arrange(
    features: NDArray[Any],
    labels: NDArray[Any],
    shares: list[Indices],
    test_features: NDArray[Any],
    test_labels: NDArray[Any],
    classes: int,
    prepare: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray,
) -> LabelledData:
    """Put training examples in the order of their clients.

    Parameters
    ----------
    features : ndarray of shape (d, ...)
    labels : ndarray of int of shape (d,)
    shares : list of ndarray of int
        The examples of each client, each example in one share exactly.
    test_features, test_labels : ndarray
    classes : int
    prepare : callable, optional
        Makes what the model takes of the features. It comes last, so that what is
        put in order are the bytes of images and not eight times as many.
    """
    order = np.concatenate(shares)
    if not np.array_equal(np.sort(order), np.arange(len(labels))):
        raise ValueError("shares leave out an example or name one twice")
    starts = np.concatenate(([0], np.cumsum([len(share) for share in shares])))
    data = LabelledData(
        prepare(features[order]),
        labels[order].astype(np.intp),
        starts.astype(np.intp),
        prepare(test_features),
        test_labels.astype(np.intp),
        classes,
    )
    for array in data[:5]:
        array.setflags(write=False)
    return data


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

    def deal(self, labels: NDArray[Any]) -> list[Indices]:
        """Deal examples to the clients.

        Parameters
        ----------
        labels : ndarray of int of shape (d,)

        Returns
        -------
        list of ndarray of int
            The examples of each client: all of them, each once, no share empty.

        Raises
        ------
        SettingsError
            The labels do not suffice for so many clients, or flwr-datasets is needed
            and not installed.
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
        where = f"{self.name}.labels-per-client = {k} with {clients} clients"
        if k > len(present):
            raise SettingsError(f"{where}: there are only {len(present)} labels")
        if clients * k < len(present):
            raise SettingsError(
                f"{where}: they cannot hold all {len(present)} labels, so that "
                f"examples would be left out; take more labels or more clients"
            )
        # Labels in a random order, as ranks; part v gets the label of rank v modulo
        # their number, so parts ik … ik + k − 1 have k different ones.
        order = generator(self.seed, "label order").permutation(len(present))
        holders = np.bincount(np.arange(clients * k) % len(present))
        scarce = np.flatnonzero(counts[order] < holders)
        if len(scarce):
            label, count = present[order[scarce[0]]], counts[order[scarce[0]]]
            raise SettingsError(
                f"{where}: label {label} has {count} examples for "
                f"{holders[scarce[0]]} clients; take fewer labels or fewer clients"
            )
        ranks = np.argsort(order)[np.searchsorted(present, labels)]
        partitioner = self._flwr_partitioners().PathologicalPartitioner(
            num_partitions=clients * k,
            partition_by="label",
            num_classes_per_partition=1,
            class_assignment_mode="deterministic",
            seed=derived_seed(self.seed, "partition"),
        )
        parts = _load(partitioner, self._shuffled(len(ranks)), ranks)
        return [np.concatenate(parts[i * k : (i + 1) * k]) for i in range(clients)]

    def _deal_dirichlet(self, labels: NDArray[Any]) -> list[Indices]:
        partitioner = self._flwr_partitioners().DirichletPartitioner(
            num_partitions=self.num_clients,
            partition_by="label",
            alpha=self.alpha,
            min_partition_size=1,
            seed=derived_seed(self.seed, "partition"),
        )
        try:
            with warnings.catch_warnings():
                # It draws again where a share is empty, and warns each time.
                warnings.simplefilter("ignore")
                return _load(partitioner, self._shuffled(len(labels)), labels)
        except ValueError as error:
            raise SettingsError(
                f"{self.name}.alpha = {self.alpha:g} with {self.num_clients} clients "
                f"and {len(labels)} examples: every draw left a client without any; "
                "take a larger alpha or fewer clients"
            ) from error

    def _shuffled(self, count: int) -> Indices:
        return generator(self.seed, "shuffle").permutation(count)

    def _flwr_partitioners(self) -> Any:
        try:
            from flwr_datasets import partitioner
        except ImportError as error:
            raise SettingsError(
                f"{self.name}.partition = {self.partition!r} needs flwr-datasets: "
                'pip install "fedtrellis[data]"'
            ) from error
        return partitioner


def _load(partitioner: Any, order: Indices, labels: NDArray[Any]) -> list[Indices]:
    """Deal the examples, taken in an order, by a partitioner of flwr-datasets."""
    from datasets import Dataset

    # Only labels and indices go through it: pixels would be copied many times over.
    partitioner.dataset = Dataset.from_dict({"label": labels[order], "index": order})
    count = partitioner.num_partitions
    return [
        np.asarray(partitioner.load_partition(i)["index"][:], dtype=np.intp)
        for i in range(count)
    ]
