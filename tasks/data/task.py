"""Tasks that learn from a data set: how settings become data, and data losses.

A task says what it reads (:meth:`NodeDataTask._load`, one data set dealt to the
clients) and what is learnt from rows (:meth:`NodeDataTask._loss`); with
``dataset = "nodes"`` the rows are those of each node's own file instead. Equal random
shares of labelled examples need nothing but NumPy; shares by label come from the
partitioners of flwr-datasets, the extra ``data``, which see the labels only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.extras import need
from fedtrellis.objectives import Objective
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from ..base import Array, Point, Task, derived_seed, in_dtype, once
from .datasets import Examples
from .readers import file_stamp, node_path, read_table
from .settings import FILE, NODES
from .table import Schema, Table

Indices = NDArray[np.intp]


class Dealt(NamedTuple):
    """Training examples in the order of the clients that hold them, and test data.

    Client i holds the rows ``starts[i]:starts[i + 1]``: its share is a view of dense
    features (a copy of CSR ones, as SciPy keeps no views), and the data is in memory
    once however many clients a process serves. Arrays are read-only.
    """

    features: Any
    targets: NDArray[Any]
    starts: Indices
    test_features: Any = None
    test_targets: Any = None

    def share(self, client: int) -> tuple[Any, NDArray[Any]]:
        """Return a client's features and targets."""
        rows = slice(*self.starts[client : client + 2])
        return self.features[rows], self.targets[rows]

    def weight(self, client: int) -> float:
        """Return n·d_i/d: f_i is so many times the mean loss of the client's share."""
        sizes = np.diff(self.starts)
        return float(len(sizes) * sizes[client] / len(self.targets))


def starts_of(shares: Sequence[Sequence[Any] | Indices]) -> Indices:
    """Return where each client's rows start, and how many there are."""
    return np.cumsum([0, *map(len, shares)]).astype(np.intp)


def arrange(
    features: Any, targets: NDArray[Any], shares: list[Indices], *tests: Any
) -> Dealt:
    """Put training examples, dense or CSR, in the order of the clients' shares.

    Each example is in one share exactly; ``tests`` are test features and targets.
    """
    order = np.concatenate(shares)
    if not np.array_equal(np.sort(order), np.arange(len(targets))):
        raise ValueError("shares leave out an example or name one twice")
    return Dealt(features[order], targets[order], starts_of(shares), *tests)


def dense(features: Any) -> Array:
    """Return features as an ndarray."""
    return features if isinstance(features, np.ndarray) else features.toarray()


@dataclass(frozen=True)
class NodeDataTask(Task):
    """A task that learns from examples, with a setting ``dataset``.

    F = (1/n) Σ f_i with f_i a weight times the mean loss over the client's examples.

    - A named data set is loaded and dealt to the clients.
    - ``"file"``, where a task has it, is one file of the user's, in any format.
    - ``"nodes"``: every node reads its own file, the server has none, and what it has
      to know of the data is in the run config, :class:`DataSettings`. A file is taken
      as it is: settings that deal, limit or hold out examples must be as they are by
      default. With ``data.examples`` = d the weight is n·d_i/d, so that every example
      of all nodes together counts the same, and F is that of the same data on one
      computer; else it is 1.

    Attributes
    ----------
    not_on_nodes : tuple of str
        Fields that have no meaning with nodes' own data.
    not_of_file : tuple of str
        Fields that have none with ``dataset = "file"``.
    weighs : bool
        Whether samples may have weights.
    label_kind : {"number", "class", "none"}
        What a node's label column holds.
    node_labels : tuple of str
        The classes' labels by default, for a task that has a fixed number of them.
    """

    not_on_nodes: ClassVar[tuple[str, ...]] = (
        *("path", "partition", "labels_per_client", "alpha", "partial"),
        *("train_limit", "test_limit", "test_fraction", "validation_fraction"),
    )
    not_of_file: ClassVar[tuple[str, ...]] = ()
    weighs: ClassVar[bool] = False
    label_kind: ClassVar[Literal["class", "number", "none"]] = "number"
    node_labels: ClassVar[tuple[str, ...]] = ()

    # -- which data

    @property
    def on_nodes(self) -> bool:  # type: ignore[override]  # noqa: D102
        return getattr(self, "dataset", "") == NODES

    @property
    def on_file(self) -> bool:
        """Whether the data is in a file of the user's, in any of the formats."""
        return getattr(self, "dataset", "") == FILE

    @property
    def of_file(self) -> tuple[str, ...]:  # type: ignore[override]
        """Which column of a csv file has the label, and which the weights."""
        columns = ("label_column", *["weight_column"] * self.weighs)
        return columns if self.on_file else ()

    @property
    def node_examples(self) -> int:  # type: ignore[override]
        """The setting ``data.examples``."""
        return self.nodes.examples

    def check(self) -> None:
        """As of every task: first what needs no data, then that there is enough."""
        self.check_settings()
        if self.on_nodes:
            self.check_nodes()
            return
        self.check_path()
        if self.on_file:
            why = "it is for the data that is built in"
            self._refuse(self.not_of_file, FILE, why)
        # Nothing can be made or dealt for no client, so this comes before the data.
        self.check_clients(max(self.num_clients, 1), "examples")
        super().check()

    def check_settings(self) -> None:
        """Raise a SettingsError unless the settings suit each other."""

    def check_nodes(self) -> None:
        """Raise a SettingsError unless the settings suit nodes' own data."""
        if self.nodes.weight_column and not self.weighs:
            raise SettingsError(
                f"data.weight-column = {self.nodes.weight_column!r} is not for task "
                f"{self.name!r}, whose examples all count alike; allowed: empty"
            )
        why = "every node's file is taken as it is"
        self._refuse(self.not_on_nodes, NODES, why)
        self.node_schema()

    def _refuse(self, names: tuple[str, ...], dataset: str, why: str) -> None:
        """Raise a SettingsError where one of some settings is not as by default."""
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            # what is switched off does no harm
            if entry.name in names and value not in (entry.default, 0):
                raise self.refused(
                    entry.name,
                    f"has no meaning with {self.name}.dataset = {dataset!r}: {why}; "
                    f"allowed: {entry.default!r}",
                )

    def num_examples(self) -> int:  # noqa: D102
        return self.nodes.examples if self.on_nodes else len(data_of(self).targets)

    # -- what a task supplies: the data set, and the loss of some of its rows

    def _load(self) -> Dealt:
        """Load or generate the data set, dealt to the clients."""
        raise NotImplementedError

    def _loss(self, features: Any, targets: Any, weight: float) -> Any:
        """Make ``weight`` times the mean loss of some rows."""
        raise NotImplementedError

    def _client_loss(self, features: Any, targets: Any, weight: float) -> Any:
        """Make the like of a client, which may need less of it."""
        return self._loss(features, targets, weight)

    def _client_weight(self, client: int) -> float:
        """Return n·d_i/d, with which every example counts the same, or 1."""
        clients = getattr(self, "weighting", "") == "clients"
        return 1.0 if clients else data_of(self).weight(client)

    def _node_inputs(self, features: Any) -> Any:
        """Return a node's features as the loss takes them."""
        return features

    # -- what follows from it

    def _build_objective(self) -> Any:
        data = data_of(self)
        return self._loss(data.features, data.targets, 1.0)

    def _build_client_objective(self, client: int) -> Any:
        self.check_settings()
        self.check_clients(self.num_examples(), "examples")
        share = data_of(self).share(client)
        return self._client_loss(*share, self._client_weight(client))

    @once(2)
    def test_objective(self) -> Any:
        """Return the mean loss on the test examples, made once per process."""
        data = data_of(self)
        return self._loss(data.test_features, data.test_targets, 1.0)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return the loss's own measures, as ``accuracy``, on the test examples."""
        found: dict[str, float] = self.test_objective().metrics(self.argument(x))
        return found

    # -- nodes' own files

    def node_schema(self) -> Schema:
        """Return what a node's file must hold.

        A SettingsError: the run config leaves something open, or contradicts itself.
        """
        classes = self.label_kind == "class"
        return Schema(
            self.nodes.num_features(),
            self.nodes.names(),
            self.label_kind,
            self.nodes.class_labels(self.node_labels) if classes else (),
            self.nodes.label_column,
        )

    def _read_node_file(self, path: Path) -> Table:
        return read_table(path, self.node_schema())

    def node_table(self, path: Path) -> Table:
        """Return a node's file, read and checked once per process.

        A DataFileError names file, row and column, and shows nothing of what is there.
        """
        return self._node_table(path, file_stamp(path))

    # A simulation has many nodes in one process, a deployed node's process has one.
    @once(1024)
    def _node_table(self, path: Path, stamp: tuple[int, ...]) -> Table:
        return self._read_node_file(path)

    def node_objective(self, path: Path) -> Objective:
        """Return f_i of a node with its own file, made once per process.

        A DataFileError as of :meth:`node_table`.
        """
        return self._node_objective(path, file_stamp(path))

    @once(1024)
    def _node_objective(self, path: Path, stamp: tuple[int, ...]) -> Objective:
        table = self.node_table(path)
        features, targets = self._node_inputs(table.features), table.targets
        if self.label_kind == "class":
            targets = targets.astype(np.intp)
        weight = self.node_weight(features.shape[0])
        return in_dtype(self._client_loss(features, targets, weight), self.dtype)

    def node_parts(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``objective``, made of the file that ``data`` names."""
        path = node_path(node_config)
        if "test-data" in node_config:
            raise SettingsError("node config: test-data is for hybrid tasks")
        return {"objective": self.node_objective(path)}

    def node_attributes(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``announcement`` and ``weigh_evaluation``.

        See :class:`fedtrellis.wire.client.MethodClient`.
        """
        return {
            "announcement": self.announcement(node_path(node_config)),
            "weigh_evaluation": self.weigh_evaluation,
        }

    def method_options(self) -> dict[str, Any]:
        """Return what a node's evaluation weighs: its examples, or 1 like any other's.

        Where every node counts the same, F is the plain mean of the nodes' losses.
        """
        equal = self.on_nodes and not self.nodes.examples
        return {"evaluation_weights": "equal"} if equal else {}

    def node_weight(self, examples: int) -> float:
        """Return n·d_i/d, or 1 where every node counts the same.

        A SettingsError: the node alone has more examples than ``data.examples``.
        """
        total = self.nodes.examples
        if not total:
            return 1.0
        if examples > total:
            raise SettingsError(
                f"data.examples = {total}, and one node alone has {examples} examples"
            )
        return self.num_clients * examples / total

    def announcement(self, path: Path) -> dict[str, Any]:
        """Return what a node sends of its file before round 1.

        A digest of its columns' names and the number of examples.
        """
        table = self.node_table(path)
        entries: dict[str, Any] = {"num-examples": int(table.features.shape[0])}
        if table.names:
            digest = hashlib.sha256("\n".join(table.names).encode()).hexdigest()
            entries["data-columns"] = digest[:32]
        return entries

    def weigh_evaluation(
        self, loss: float, examples: int, metrics: dict[str, Any]
    ) -> tuple[float, dict[str, Any]]:
        """Return what a node's evaluation sends to the server.

        Of ``loss`` f_i, ``examples`` d_i and the objective's ``metrics``. The server's
        mean of the nodes' losses, weighted as by :meth:`method_options`, is F.
        """
        kept = {name: metrics[name] for name in self.node_metrics}
        total = self.nodes.examples
        if not total:
            return loss, kept
        # Σ (d_i/d) (d/(n·d_i)) f_i = (1/n) Σ f_i
        return loss * total / (self.num_clients * examples), kept


# More tasks than one are alive in a process only in tests and sweeps.
@once(2)
def data_of(task: NodeDataTask) -> Dealt:
    """Return a task's data set, loaded or generated once per process."""
    data = task._load()
    for array in data:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return data


# -- labelled examples, which are dealt by a setting


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

    def domains(self) -> dict[str, float]:
        """Return the balls of the experiments of FedFW."""
        return {"l2-ball": 10.0, "l1-ball": 10.0, "linf-ball": 1.0}

    def deal_examples(
        self,
        examples: Examples,
        prepare: Callable[[Any], Any] = np.asarray,
        shares: list[Indices] | None = None,
    ) -> Dealt:
        """Deal labelled examples to the clients, by their labels or as ``shares`` says.

        ``prepare`` makes what the model takes of the features. It comes last, so that
        what is put in order are the bytes of images and not eight times as many.
        """
        labels, tests = (
            part.astype(np.intp) for part in (examples.labels, examples.test_labels)
        )
        shares = self.deal(examples.labels) if shares is None else shares
        dealt = arrange(examples.features, labels, shares)
        features, test = prepare(dealt.features), prepare(examples.test_features)
        return Dealt(features, dealt.targets, dealt.starts, test, tests)

    def deal(self, labels: NDArray[Any]) -> list[Indices]:
        """Deal all examples to the clients, each once and no share empty.

        By their labels, int of shape (d,). A SettingsError: the labels do not suffice
        for so many clients, or flwr-datasets is needed and not installed.
        """
        self.check_clients(len(labels), "examples")
        if self.partition == "iid":
            rng = generator(self.seed, "partition")
            return np.array_split(rng.permutation(len(labels)), self.num_clients)
        key = f"{self.name}.partition = {self.partition!r}"
        need("flwr_datasets", key, "data")
        deal = {"labels": self._deal_labels, "dirichlet": self._deal_dirichlet}
        return deal[self.partition](labels)

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
        more = {"num_partitions": self.num_clients, "min_partition_size": 1}
        try:
            with warnings.catch_warnings():
                # It draws again where a share is empty, and warns each time.
                warnings.simplefilter("ignore")
                kind = "DirichletPartitioner"
                return self._partitioned(kind, labels, alpha=self.alpha, **more)
        except ValueError as error:
            given = f"with {self.num_clients} clients and {len(labels)} examples"
            why = "every draw left a client without any; take a larger alpha or fewer"
            raise self.refused("alpha", f"{given}: {why} clients") from error

    def _partitioned(
        self, kind: str, labels: NDArray[Any], **settings: Any
    ) -> list[Indices]:
        """Deal shuffled examples by a partitioner of flwr-datasets."""
        from datasets import Dataset
        from flwr_datasets import partitioner

        order = generator(self.seed, "shuffle").permutation(len(labels))
        seed = derived_seed(self.seed, "partition")
        made = getattr(partitioner, kind)(partition_by="label", seed=seed, **settings)
        # labels and indices alone: pixels would be copied many times over
        made.dataset = Dataset.from_dict({"label": labels[order], "index": order})
        return [
            np.asarray(made.load_partition(i)["index"][:], dtype=np.intp)
            for i in range(settings["num_partitions"])
        ]
