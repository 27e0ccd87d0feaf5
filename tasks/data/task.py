"""The contract of a task: what is learnt, from which data, over which set.

A task is a small frozen dataclass of settings, so that it can be hashed, compared and
sent around. Its data is loaded or generated :func:`once` per process; under Ray
anything else would be copied with every message. Equal random shares of labelled
examples need nothing but NumPy; shares by label come from the partitioners of
flwr-datasets, the extra ``data``, which see the labels only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.dual.regularized_loss import Optimum
from fedtrellis.encryption.releases import OwnRows
from fedtrellis.manifolds import Manifold
from fedtrellis.objectives import Objective
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, keys, need, parse, setting

from ..base import Array, Depending, Point, derived_seed, in_dtype, once, once_per_file
from .datasets import Examples
from .readers import node_path, read_table
from .table import FILE, NODES, DataSettings, Schema, Table

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


@dataclass(frozen=True)
class Task:
    """What a run learns.

    **Every example counts once**: F is the loss over all training data, the mean or
    the sum as the task says, and the f_i carry the weights that make
    F = (1/n) Σ f_i exact, whatever the sizes of the clients' shares.

    A task says what it loads (:meth:`_load`, one data set dealt to the clients) and
    what is learnt from rows (:meth:`_loss`, a weight times their mean loss); one that
    has no examples makes F and the f_i itself, and says how many there are to deal.

    - A named data set is loaded and dealt to the clients.
    - ``"file"``, where a task has it, is one file of the user's, in any format.
    - ``"nodes"``: every node reads its own file, the server has none, and what it has
      to know of the data is in the run config, :class:`DataSettings`. A file is taken
      as it is: settings that deal, limit or hold out examples must be as they are by
      default. With ``data.examples`` = d the weight is n·d_i/d, so that every example
      of all nodes together counts the same, and F is that of the same data on one
      computer; else it is 1.

    A point is a list of float64 arrays of :meth:`shapes`; of one array, it may be bare.
    """

    #: n, given by the run
    num_clients: int
    #: the run's: same seed, same data, same initial model
    seed: int
    #: the run's: what the clients compute in; F is evaluated in float64
    dtype: str = field(default="float64", kw_only=True)
    #: whether the clients of the run's method ask for values of their f_i and for no
    #: gradients: an f_i may then be one that has none and takes less memory
    values_only: bool = field(default=False, kw_only=True)
    #: what a run config says of data that lies on the nodes
    nodes: DataSettings = field(default=DataSettings(), kw_only=True)

    #: what run configurations call the task; its settings' keys start with it
    name: ClassVar[str]
    #: one line for listings
    summary: ClassVar[str]
    #: what suits F where it is not the method's own default: by the method's name, then
    #: by the name of the strategy's field; FedFW's ``penalty`` is λ_0 for about ten
    #: clients, a :class:`Depending` depends on how the task is set
    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    #: whether F is known to be convex
    convex: ClassVar[bool] = True
    #: whether F has a minimum without a constraint
    bounded_below: ClassVar[bool] = True
    #: whether clients hold some of the samples and some of the features, so that none
    #: has a loss of its own; for the methods that work on such data
    split_data: ClassVar[bool] = False
    #: groups of settings that several tasks have, by what their keys begin with
    shared: ClassVar[Mapping[str, type[Any]]] = {"data": DataSettings}
    #: those of an objective's metrics whose mean over nodes' own data means something
    node_metrics: ClassVar[tuple[str, ...]] = ()
    #: fields that have no meaning with nodes' own data
    not_on_nodes: ClassVar[tuple[str, ...]] = (
        *("path", "partition", "labels_per_client", "alpha", "partial"),
        *("train_limit", "test_limit", "test_fraction", "validation_fraction"),
    )
    #: fields that have none with ``dataset = "file"``
    not_of_file: ClassVar[tuple[str, ...]] = ()
    #: whether samples may have weights
    weighs: ClassVar[bool] = False
    #: what a node's label column holds
    label_kind: ClassVar[Literal["class", "number", "none"]] = "number"
    #: the classes' labels by default, for a task that has a fixed number of them
    node_labels: ClassVar[tuple[str, ...]] = ()
    #: those of :meth:`method_options` without which a method solves another problem
    required_options: ClassVar[tuple[str, ...]] = ()

    @property
    def _dataset(self) -> str:
        """The data set, where there is a choice."""
        return getattr(self, "dataset", "")

    @property
    def on_nodes(self) -> bool:
        """Whether every node has its own data, and the server none."""
        return self._dataset == NODES

    @property
    def on_file(self) -> bool:
        """Whether the data is in a file of the user's, in any of the formats."""
        return self._dataset == FILE

    @property
    def of_file(self) -> tuple[str, ...]:
        """The fields of :class:`DataSettings` that describe a file of the user's."""
        columns = ("label_column", *["weight_column"] * self.weighs)
        return columns if self.on_file else ()

    @property
    def node_examples(self) -> int:
        """How many examples all nodes have together; 0: nobody knows."""
        return self.nodes.examples

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], num_clients: int, seed: int, **more: Any
    ) -> Self:
        """Make the task from a flat run config, whose keys start with its name.

        ``more`` are fields that are no settings. A SettingsError: a setting that is not
        allowed, or one of nodes' own data although the task brings its own.
        """
        nodes = parse(DataSettings, config, "data.")
        more |= {"num_clients": num_clients, "seed": seed, "nodes": nodes}
        task = parse(cls, config, f"{cls.name}.", **more)
        if not task.on_nodes:
            for key, field in keys(DataSettings, "data.").items():
                value = getattr(nodes, field.name)
                if value != field.default and field.name not in task.of_file:
                    raise SettingsError(
                        f"{key} = {value!r} is for data that lies on the nodes, and "
                        f"{cls.name}.dataset is not {NODES!r}"
                    )
        return task

    def check(self) -> None:
        """Find out, before anything starts, whether the task can be run as set.

        A SettingsError: a setting that is not allowed, more clients than examples, an
        extra that is not installed, a malformed data file; a FileNotFoundError: a data
        file that is missing. Either is one line with the setting's key.
        """
        self.check_settings()
        if self.on_nodes:
            self.check_nodes()
            return
        self.check_path()
        if self.on_file:
            self._refuse(self.not_of_file, "it is for the data that is built in")
        # Nothing can be made or dealt for no client, so this comes before the data.
        self.check_clients(max(self.num_clients, 1), "examples")
        self.check_clients(self.num_examples(), "examples")

    def check_settings(self) -> None:
        """Raise a SettingsError unless the settings suit each other."""

    def check_nodes(self) -> None:
        """Raise a SettingsError unless the settings suit nodes' own data."""
        if self.nodes.weight_column and not self.weighs:
            raise SettingsError(
                f"data.weight-column = {self.nodes.weight_column!r} is not for task "
                f"{self.name!r}, whose examples all count alike; allowed: empty"
            )
        self._refuse(self.not_on_nodes, "every node's file is taken as it is")
        self.node_schema()

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        """Raise a SettingsError where one of some settings is not as by default."""
        given = f"has no meaning with {self.name}.dataset = {self._dataset!r}: {why}"
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            # what is switched off does no harm
            if entry.name in names and value not in (entry.default, 0):
                allowed = f"allowed: {entry.default!r}"
                raise self.refused(entry.name, f"{given}; {allowed}")

    def check_clients(self, available: int, what: str) -> None:
        """Raise a SettingsError unless there is something for every client."""
        if self.num_clients < 1:
            raise SettingsError(f"{self.num_clients} clients; at least 1 is needed")
        if self.num_clients > available:
            raise SettingsError(
                f"{self.num_clients} clients are too many for task {self.name!r}: it "
                f"has {available} {what}, and every client needs at least one"
            )

    def check_path(self) -> None:
        """Raise a SettingsError unless there is a path where the data set needs one."""
        field, dataset = self.__dataclass_fields__.get("path"), self._dataset
        only = (field.metadata["only"] if field else None) or {}
        if dataset in only.get("dataset", ()) and not getattr(self, "path", ""):
            raise SettingsError(
                f"{self.name}.path is empty; for {dataset!r} it must name the data's "
                "file or folder"
            )

    # -- what a task supplies

    def num_examples(self) -> int:
        """Return d, the number of training examples of all clients together."""
        return self.nodes.examples if self.on_nodes else len(data_of(self).targets)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the model's arrays."""
        raise self._missing("shapes", "[(rows, columns), ...]")

    def domains(self) -> dict[str, float]:
        """Return the domains that fit, by name, with the radius they have by default.

        The first is the default; the radius is 0.0 for a set that has none.
        """
        raise self._missing("domains", "{'l2-ball': 10.0, ...}")

    def _load(self) -> Dealt:
        """Load or generate the data set, dealt to the clients."""
        raise self._missing("_load", "the examples as a Dealt")

    def _loss(self, features: Any, targets: Any, weight: float) -> Any:
        """Make ``weight`` times the mean loss of some rows."""
        raise self._missing("_loss", "an Objective, weight times the rows' mean loss")

    def _missing(self, method: str, what: str) -> NotImplementedError:
        who = type(self).__name__
        return NotImplementedError(f"{who} must have {method}(), which returns {what}")

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

    def _build_objective(self) -> Any:
        """Make F, over all training data at once."""
        data = data_of(self)
        return self._loss(data.features, data.targets, 1.0)

    def _build_client_objective(self, client: int) -> Any:
        """Make f_i, its weight included."""
        self.check_settings()
        self.check_clients(self.num_examples(), "examples")
        share = data_of(self).share(client)
        return self._client_loss(*share, self._client_weight(client))

    def initial_point(self) -> list[Array]:
        """Return where to start; the run projects it into the domain.

        Zeros, or a uniform draw from the manifold where the task has one.
        """
        if (manifold := self.manifold()) is not None:
            return [manifold.random_point(generator(self.seed, "initial point"))]
        return [np.zeros(shape) for shape in self.shapes()]

    @once(2)
    def test_objective(self) -> Any:
        """Return the mean loss on the test examples, made once per process."""
        data = data_of(self)
        return self._loss(data.test_features, data.test_targets, 1.0)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return measures of quality at x: the loss's own, on the test examples.

        Nothing where the task loads no examples.
        """
        if type(self)._load is Task._load:
            return {}
        found: dict[str, float] = self.test_objective().metrics(self.argument(x))
        return found

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return the minimum of F over a domain where it is known, else None."""
        return None

    def certified_optimum(self) -> Optimum | None:
        """Return the minimum with its certificate, None without a solver for it.

        For tasks that bring a central solver; it may take long.
        """
        return None

    def manifold(self) -> Manifold | None:
        """Return the manifold that the model lives on; None: the task has none.

        Its points are shaped as one array stands for the model
        (:class:`fedtrellis.wire.arrays.Layout`), and :meth:`initial_point` is one of
        them.
        """
        return None

    def suggestions(self, method: str, given: Collection[str] = ()) -> dict[str, Any]:
        """Return what suits the task, as it is set, for a method's settings.

        By the method's name in run configurations; values by the names of the
        strategy's fields, and none for those in ``given``, which the user sets.
        A SettingsError: one depends on what nobody has set.
        """
        values = {
            name: value.find(self, given) if isinstance(value, Depending) else value
            for name, value in self.suggested.get(method, {}).items()
            if name not in given
        }
        return {name: value for name, value in values.items() if value is not None}

    def method_options(self) -> dict[str, Any]:
        """Return what a strategy has to know of the task, by its fields' names.

        Here what a node's evaluation weighs: its examples, or 1 like any other's where
        every node counts the same, as F is then the plain mean of the nodes' losses.
        """
        equal = self.on_nodes and not self.nodes.examples
        return {"evaluation_weights": "equal"} if equal else {}

    def option_key(self, name: str) -> str:
        """Return the run-config key of a field, or of one of :meth:`method_options`."""
        return f"{self.name}.{name.replace('_', '-')}"

    def refused(self, name: str, why: str) -> SettingsError:
        """Return the error that a field's value is refused with; ``why`` follows it."""
        return SettingsError(f"{self.option_key(name)} = {getattr(self, name)!r} {why}")

    def client_parts(self, client: int) -> dict[str, Any]:
        """Return what client i in [0, n) is made of, by its constructor's arguments.

        Here ``objective``, which is f_i; :class:`tasks.hybrid.HybridTask` has the
        features and labels instead. An IndexError: there is no such client.
        """
        return {"objective": self._client_part(client)}

    # All clients of a large simulation: with fewer places than clients, who are asked
    # in turn, every message would make its objective anew.
    @once(16_384)
    def _client_part(self, client: int) -> Objective:
        return in_dtype(self.client_objective(client), self.dtype)

    # -- where nodes have data of their own

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

    # A simulation has many nodes in one process, a deployed node's process has one.
    @once_per_file(1024)
    def node_table(self, path: Path) -> Table:
        """Return a node's file, read and checked once per process.

        A DataFileError names file, row and column, and shows nothing of what is there.
        """
        return self._read_node_file(path)

    @once_per_file(1024)
    def node_objective(self, path: Path) -> Objective:
        """Return f_i of a node with its own file, made once per process.

        A DataFileError as of :meth:`node_table`.
        """
        table = self.node_table(path)
        features, targets = self._node_inputs(table.features), table.targets
        if self.label_kind == "class":
            targets = targets.astype(np.intp)
        weight = self.node_weight(features.shape[0])
        return in_dtype(self._client_loss(features, targets, weight), self.dtype)

    def node_parts(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the client of a node with its own data is made of.

        As :meth:`client_parts`; ``data`` of the node config names the node's file.
        A SettingsError: the node config does not go with the task; a FileNotFoundError
        or DataFileError: the file is missing or does not hold what it should.
        """
        path = node_path(node_config)
        if "test-data" in node_config:
            raise SettingsError("node config: test-data is for hybrid tasks")
        return {"objective": self.node_objective(path)}

    def node_attributes(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what such a client gets beside its parts, by attributes' names.

        See :class:`fedtrellis.wire.client.MethodClient`.
        """
        return {
            "announcement": self.announcement(node_path(node_config)),
            "weigh_evaluation": self.weigh_evaluation,
            "rows": self.node_rows(node_path(node_config)),
        }

    @once_per_file(1024)
    def node_rows(self, path: Path) -> OwnRows:
        """Return the rows of a node's file, for its memory of releases."""
        table = self.node_table(path)
        parts = table.features, table.targets, table.weights
        return OwnRows(table.names or (str(table.features.shape[1]),), parts)

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
        """Return the number of a node's examples and a digest of its columns' names."""
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

    # -- what follows from it

    # More tasks than one are alive in a process only in tests and sweeps.
    @once(4)
    def objective(self) -> Objective:
        """Return F as one objective over all training data, made once per process."""
        self._need_central_data()
        return self._build_objective()  # type: ignore[no-any-return]

    @once(16_384)
    def client_objective(self, client: int) -> Objective:
        """Return f_i of i in [0, n), made once per process; else an IndexError."""
        self._need_central_data()
        made: Objective = self._build_client_objective(self._existing(client))
        return made

    def _need_central_data(self) -> None:
        if self.on_nodes:
            raise SettingsError(
                f"{self.name}.dataset = {NODES!r}: the data lies on the nodes, and "
                "there is none here to measure anything on"
            )

    def _existing(self, client: int) -> int:
        """Return a client's number, if there is such a client."""
        if not 0 <= client < self.num_clients:
            raise IndexError(
                f"client {client} of task {self.name!r} does not exist: "
                f"there are {self.num_clients}, counted from 0"
            )
        return int(client)

    def value(self, x: Point) -> float:
        """Return F(x) = (1/n) Σ f_i(x)."""
        return self.objective().value(self.argument(x))

    def gradient(self, x: Point) -> Any:
        """Return ∇F(x) = (1/n) Σ ∇f_i(x), in the form of x: an array or a list."""
        result = self.objective().gradient(self.argument(x))
        bare = not isinstance(x, np.ndarray) and not isinstance(result, list)
        return [result] if bare else result

    def argument(self, x: Point) -> Any:
        """Return a point as the task's objectives take it.

        A ValueError: a list with another number of arrays than the model has.
        """
        if isinstance(x, np.ndarray):
            return x
        shapes = self.shapes()
        if len(x) != len(shapes):
            raise ValueError(f"x has {len(x)} arrays; the model has {len(shapes)}")
        return x[0] if len(shapes) == 1 else list(x)


# More tasks than one are alive in a process only in tests and sweeps.
@once(2)
def data_of(task: Task) -> Dealt:
    """Return a task's data set, loaded or generated once per process."""
    data = task._load()
    for array in data:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return data


class Nonconvex(Task):
    """A task whose F is not convex, and what suits Frank-Wolfe there."""

    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {
            "fedfw": {"schedule": "nonconvex"},
            "naive-frank-wolfe": {"schedule": "nonconvex"},
        }
    )
    convex = False


# -- labelled examples, which are dealt by a setting


@dataclass(frozen=True)
class PartitionedTask(Task):
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
