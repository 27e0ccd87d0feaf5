"""The contract of a task: what is learnt, from which data, over which set.

A task is a small frozen dataclass of settings, so that it can be hashed, compared and
sent around. Its data is loaded or generated :func:`once` per process; under Ray
anything else would be copied with every message.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.dual.regularized_loss import Optimum
from fedtrellis.encryption.releases import OwnRows
from fedtrellis.files import stamp
from fedtrellis.manifolds import Manifold
from fedtrellis.objectives import Objective
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, keys, parse, setting
from fedtrellis.tables import Column, Loss, Preparation, agree, columns_of, summarise
from fedtrellis.wire.flower_internals import log

from ..base import Array, Point, data_path, derived_seed, in_dtype, once, once_per_file
from .datasets import Examples
from .readers import (
    is_dense,
    node_path,
    read_columns,
    read_own_table,
    read_table,
    summary_of,
)
from .table import FILE, NODES, DataSettings, Schema, Table, is_number

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
    #: what made features of the columns of a file of the user's
    preparation: Preparation | None = None

    def share(self, client: int) -> tuple[Any, NDArray[Any]]:
        """Return a client's features and targets."""
        rows = slice(*self.starts[client : client + 2])
        return self.features[rows], self.targets[rows]


def starts_of(shares: Sequence[Sequence[Any] | Indices]) -> Indices:
    """Return where each client's rows start, and how many there are."""
    return np.cumsum([0, *map(len, shares)]).astype(np.intp)


def arrange(
    features: Any, targets: NDArray[Any], shares: list[Indices], *tests: Any
) -> Dealt:
    """Put training examples, dense or CSR, in the order of the clients' shares."""
    order = np.concatenate(shares)
    return Dealt(features[order], targets[order], starts_of(shares), *tests)


@dataclass(frozen=True)
class Task(ABC):
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
    #: whether the run's method keeps the model in a bounded set
    in_set: bool = field(default=False, kw_only=True)
    #: what a run config says of data that lies on the nodes
    nodes: DataSettings = field(default=DataSettings(), kw_only=True)
    #: of its files: with others in their places it is another task
    stamp: tuple[int, ...] = field(default=(), init=False)

    #: what run configurations call the task; its settings' keys start with it
    name: ClassVar[str]
    #: one line for listings
    summary: ClassVar[str]
    #: what suits F where it is not the method's own default: by the method's name, then
    #: by the name of the strategy's field; FedFW's ``penalty`` is λ_0 for about ten
    #: clients
    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: the rounds of a run that no tolerance ends
    rounds: ClassVar[int] = 50
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
    #: whether files of the user's are prepared, see :mod:`fedtrellis.tables`
    prepares: ClassVar[bool] = False
    #: whether F is a sum over rows, so that a node counts by its rows in any case
    sums_rows: ClassVar[bool] = False
    #: what a node's label column holds
    label_kind: ClassVar[Literal["class", "number", "none"]] = "number"
    #: the classes' labels by default, for a task that has a fixed number of them
    node_labels: ClassVar[tuple[str, ...]] = ()
    #: those of :meth:`method_options` without which a method solves another problem
    required_options: ClassVar[tuple[str, ...]] = ()

    # what some tasks have as settings
    dataset = path = weighting = ""

    def __post_init__(self) -> None:
        paths = [f.name for f in dataclasses.fields(self) if f.name.endswith("path")]
        object.__setattr__(self, "stamp", stamp(*(getattr(self, p) for p in paths)))

    @property
    def on_nodes(self) -> bool:
        """Whether every node has its own data, and the server none."""
        return self.dataset == NODES

    @property
    def on_file(self) -> bool:
        """Whether the data is in a file of the user's, in any of the formats."""
        return self.dataset == FILE

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], num_clients: int, seed: int, **more: Any
    ) -> Self:
        """Make the task from a flat run config, whose keys start with its name.

        ``more`` are fields that are no settings. A SettingsError: one is not allowed.
        """
        nodes = parse(DataSettings, config, "data.")
        more |= {"num_clients": num_clients, "seed": seed, "nodes": nodes}
        task = parse(cls, config, f"{cls.name}.", **more)
        # columns are looked for in a file of the user's, too
        columns = ("label_column", *["weight_column"] * cls.weighs)
        prepared = ("prepare", "least", "bad_rows", "drop", "categories")
        columns += prepared * cls.prepares
        known = columns if task.on_file else ()
        # whose columns somebody prepares
        theirs = cls.prepares and not cls.split_data and nodes.prepare
        made = (task.on_nodes and theirs) or task.prepared
        for key, entry in keys(DataSettings, "data.").items():
            value = getattr(nodes, entry.name)
            meant = entry.name in known
            idle = cls.split_data and entry.name in prepared[1:]
            meant |= task.on_nodes and not idle
            meant &= made or entry.name not in ("least", "bad_rows", "categories")
            if not meant and value != entry.default:
                why = f"does not apply to {cls.name!r} as set"
                raise SettingsError(f"{key} = {value!r} {why}")
        return task

    def check(self) -> None:
        """Find out, before anything starts, whether the task can be run as set.

        A SettingsError, in one line: a setting that is not allowed, more clients than
        examples, an extra that is missing, a malformed file; or a FileNotFoundError.
        """
        self.check_settings()
        if self.on_nodes:
            self.check_nodes()
            return
        if self.on_file:
            self._refuse(self.not_of_file, "it is for the data that is built in")
        # Nothing can be made or dealt for no client, so this comes before the data.
        self.check_clients(max(self.num_clients, 1))
        self.check_clients(self.num_examples())

    def check_settings(self) -> None:  # noqa: B027
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
        given = f"has no meaning with {self.name}.dataset = {self.dataset!r}: {why}"
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            # what is switched off does no harm
            if entry.name in names and value not in (entry.default, 0):
                raise self.refused(entry.name, f"{given}; allowed: {entry.default!r}")

    def check_clients(self, available: int) -> None:
        """Raise a SettingsError unless there is something for every client."""
        if self.num_clients < 1:
            raise SettingsError(f"{self.num_clients} clients; at least 1 is needed")
        if self.num_clients > available:
            given = f"{self.num_clients} clients are too many for task {self.name!r}"
            raise SettingsError(f"{given}, which has {available} examples")

    # -- what a task supplies

    def num_examples(self) -> int:
        """Return d, the number of training examples of all clients together."""
        return self.nodes.examples if self.on_nodes else len(data_of(self).targets)

    @abstractmethod
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the model's arrays."""

    @abstractmethod
    def domains(self) -> dict[str, float]:
        """Return the domains that fit, by name, with the radius they have by default.

        The first is the default; the radius is 0.0 for a set that has none.
        """

    def _load(self) -> Dealt:
        """Load or generate the data set, dealt to the clients."""
        raise NotImplementedError(f"task {self.name!r} has no examples to load")

    @property
    def prepared(self) -> bool:
        """Whether a file of the user's is prepared: one of a dense format."""
        dense = self.prepares and self.on_file and is_dense(self.path)
        return dense and self.nodes.prepare

    def preparation(self) -> Preparation | None:
        """Return what became of the columns of the user's tables, if anything did."""
        if self.on_nodes:
            return self.nodes.preparation()
        return data_of(self).preparation if self.prepared else None

    def _own_table(self, target: Literal["class", "number"]) -> Table:
        """Read the user's file; classes are counted from 0, whatever their labels."""
        nodes, path = self.nodes, data_path(f"{self.name}.path", self.path)
        own = nodes.label_column, False, nodes.weight_column
        schema = Schema(0, (), target, (), *own, **nodes.kinds())
        prepared = (nodes.least, nodes.bad_rows) if self.prepared else None
        found: Table = read_own_table((schema, prepared), path)
        return found

    def _preparation_of(
        self, table: Table, features: Array, targets: Array, starts: Indices
    ) -> Preparation:
        """Return what becomes of the columns of a file, by its training rows."""
        weights = len(targets) * self._row_weights(starts)
        found = summarise(features, targets, weights, len(table.labels))
        made = self._prepared_by(table.columns, [found], table.labels)
        assert made is not None
        return made

    def _prepared_by(
        self,
        columns: Sequence[Column],
        found: Sequence[Mapping[str, Any]],
        classes: tuple[str | float, ...],
    ) -> Preparation | None:
        """Return what becomes of columns, by what their owners say of rows."""
        column, scaling = self.nodes.label_column, self._table_scaling()
        return Preparation.of_owners(
            columns, found, scaling, target=column, classes=classes
        )

    def _row_weights(self, starts: Indices) -> Array:
        """Return what each row's loss counts in F; their sum is 1."""
        sizes = np.diff(starts)
        each = 1.0 / sizes if self.weighting == "clients" else np.ones(len(sizes))
        weights = np.repeat(each, sizes)
        return np.asarray(weights / weights.sum())

    def model_set(self, domain: Domain) -> Domain:
        """Return where the model lives, whose coefficients are in a bounded set."""
        return domain

    def _loss(self, features: Any, targets: Any, weight: float) -> Any:
        """Make ``weight`` times the mean loss of some rows."""
        raise NotImplementedError(f"task {self.name!r} has no loss of rows")

    def _client_loss(self, features: Any, targets: Any, weight: float) -> Any:
        """Make the like of a client, which may need less of it."""
        return self._loss(features, targets, weight)

    def _weight(self, examples: int, total: int) -> float:
        """Return n·d_i/d, with which every example counts the same; d = 0: 1."""
        return self.num_clients * examples / total if total else 1.0

    def _prepared(self, features: Any) -> Any:
        """Return features, such as a node's, as the loss takes them."""
        return features

    def _build_objective(self) -> Any:
        """Make F, over all training data at once."""
        data = data_of(self)
        return self._loss(data.features, data.targets, 1.0)

    def _build_client_objective(self, client: int) -> Any:
        """Make f_i, its weight included."""
        data = data_of(self)
        features, targets = data.share(client)
        total = 0 if self.weighting == "clients" else len(data.targets)
        return self._client_loss(features, targets, self._weight(len(targets), total))

    def initial_point(self) -> list[Array]:
        """Return where to start: zeros, or a uniform draw from the manifold."""
        if (manifold := self.manifold()) is not None:
            return [manifold.random_point(generator(self.seed, "initial point"))]
        return [np.zeros(shape) for shape in self.shapes()]

    @once(2)
    def test_objective(self) -> Any:
        """Return the mean loss on the test examples, made once per process."""
        data = data_of(self)
        return self._loss(data.test_features, data.test_targets, 1.0)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return measures of quality at x: the loss's own, on any test examples."""
        if type(self)._load is Task._load:
            return {}
        found: dict[str, float] = self.test_objective().metrics(self.argument(x))
        return found

    def baseline(self) -> dict[str, float]:
        """Return loss and accuracy of the best constant model, by metrics' names.

        Nothing where the data is not the user's own.
        """
        return {}

    #: what a linear model of a prepared table minimises
    table_loss: ClassVar[Loss] = "squared"

    def meaning(self) -> dict[str, Any]:
        """Return what a record holds of the model, see :mod:`fedtrellis.tables`."""
        found = self.preparation()
        loss: Loss = self.table_loss
        if found is not None and len(found.classes) > 2:
            loss = "softmax"
        constant = float(self.has_intercept())
        return found.meaning(loss, constant) if found else {}

    def has_intercept(self) -> bool:
        """Whether the model's last row is the intercept."""
        return False

    def network(self) -> tuple[Any, Any] | None:
        """Return the model's torch.nn.Module and two examples for it, if it is one."""
        return None

    def parts(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return what a model's arrays, by their names, are outside of this package."""
        return {**arrays}

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return the minimum of F over a domain where it is known, else None."""
        return None

    def certified_optimum(self) -> Optimum | None:
        """Return the minimum with its certificate, by a solver of the task's own."""
        return None

    def manifold(self) -> Manifold | None:
        """Return the manifold that the model lives on; None: the task has none.

        :meth:`initial_point` is one of its points, which are shaped as the one array
        that stands for the model (:class:`fedtrellis.wire.arrays.Layout`).
        """
        return None

    def suggestions(self, method: str) -> Mapping[str, Any]:
        """Return what suits the task, as it is set, for a method's settings.

        By the names of the strategy's fields.
        """
        # a task that says what suits one that is not convex may be convex as it is set
        idle = self.convex and self.suggested is Nonconvex.suggested
        return {} if idle else self.suggested.get(method, {})

    def method_options(self) -> dict[str, Any]:
        """Return what a strategy has to know of the task, by its fields' names."""
        # a dealt f_i has n·d_i/d in it, and nodes' is weighed by weigh_evaluation
        by_examples = self.on_nodes and self.nodes.examples
        return {} if by_examples else {"evaluation_weights": "equal"}

    def option_key(self, name: str) -> str:
        """Return the run-config key of a field, or of one of :meth:`method_options`."""
        return f"{self.name}.{name.replace('_', '-')}"

    def refused(self, name: str, why: str) -> SettingsError:
        """Return the error that a field's value is refused with; ``why`` follows it."""
        return SettingsError(f"{self.option_key(name)} = {getattr(self, name)!r} {why}")

    def client_parts(self, client: int) -> dict[str, Any]:
        """Return what client i in [0, n) is made of, by its constructor's arguments."""
        return {"objective": in_dtype(self.client_objective(client), self.dtype)}

    # -- where nodes have data of their own

    def node_schema(self) -> Schema:
        """Return what a node's file must hold; a SettingsError: that is left open."""
        features = self.nodes.num_features()
        return dataclasses.replace(self._table_schema(), features=features)

    def _table_schema(self) -> Schema:
        """Return what a node's table must hold, before it is prepared."""
        classes = self.label_kind == "class"
        return Schema(
            self.nodes.features,
            self.nodes.names(),
            self.label_kind,
            self.nodes.class_labels(self.node_labels) if classes else (),
            self.nodes.label_column,
            **self.nodes.kinds(),
        )

    def table_summary(
        self, node_config: Mapping[str, Any], asked: str
    ) -> dict[str, Any] | None:
        """Return what a node says of its table, for :meth:`agree_on_tables`.

        Of every column, with texts in those whose names are ``asked`` for as JSON; or
        of the columns that are, the moments. None: the file's format has no columns.
        A node counts by its rows, or as much as any other, as in F.
        """
        schema, bad_rows = self._table_schema(), self.nodes.bad_rows
        path = node_path(node_config)
        if not is_dense(path):
            return None
        wanted = json.loads(asked or '{"texts": []}')
        if isinstance(wanted, dict):
            columns = summary_of(
                schema, self.nodes.least, bad_rows, path, wanted["texts"]
            )
            return {"columns": columns}
        own = read_columns(schema, bad_rows, path, columns_of(wanted))
        rows, least = len(own.targets), self.nodes.least
        alike = not (self.nodes.examples or self.sums_rows)
        weights = np.full(rows, 1.0 / rows if alike else 1.0)
        return summarise(own.features, own.targets, weights, len(schema.labels), least)

    def agree_on_tables(self, ask: Callable[[str], list[dict[str, Any]]]) -> str:
        """Return how nodes' tables are prepared, as JSON; ``ask`` asks all of them."""
        schema = self._table_schema()
        summaries = [found["columns"] for found in ask("")]
        if not summaries:
            return ""
        columns, lines = agree(summaries, self.nodes.least)
        # what every node has, some of them in numbers and others in texts
        numbers = {c.name for c in columns if c.kind != "category"}
        texts = {n for s in summaries for n in s if "values" in s[n]} - numbers
        texts.intersection_update(*summaries)
        if any("values" not in s[n] for s in summaries for n in texts):
            again = ask(json.dumps({"texts": sorted(texts)}))
            if not again:
                return ""
            columns, lines = agree([s["columns"] for s in again], self.nodes.least)
        for line in lines:
            log(INFO, "%s", line)
        found = ask(json.dumps([dataclasses.asdict(column) for column in columns]))
        if not columns or not found:
            return ""
        classes = tuple(float(x) if is_number(x) else x for x in schema.labels)
        made = self._prepared_by(columns, found, classes)
        return json.dumps(dataclasses.asdict(made)) if made else ""

    def _table_scaling(self) -> str:
        """Return the scaling that nodes agree on."""
        return "standard"

    # A simulation has many nodes in one process, a deployed node's process has one.
    @once_per_file(1024)
    def node_table(self, path: Path) -> Table:
        """Return a node's file, read, checked and prepared once per process."""
        made = self.nodes.preparation()
        if made is None:
            return read_table(path, self.node_schema())
        schema, bad_rows = self._table_schema(), self.nodes.bad_rows
        own = read_columns(schema, bad_rows, path, made.columns)
        features = made.scaled(own.features)
        features.setflags(write=False)
        return Table(features, own.targets - made.offset, made.names())

    @once_per_file(1024)
    def node_objective(self, path: Path) -> Objective:
        """Return f_i of a node with its own file, made once per process."""
        table = self.node_table(path)
        features, targets = self._prepared(table.features), table.targets
        if self.label_kind == "class":
            targets = targets.astype(np.intp)
        weight = self._weight(features.shape[0], self.nodes.examples)
        return in_dtype(self._client_loss(features, targets, weight), self.dtype)

    def node_parts(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the like of the file that ``data`` of the node config names."""
        path = node_path(node_config)
        if "test-data" in node_config:
            raise SettingsError("node config: test-data is for hybrid tasks")
        return {"objective": self.node_objective(path)}

    def node_attributes(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of such a client, a MethodClient, beside its parts."""
        found: dict[str, Any] = self._node_attributes(node_path(node_config))
        return found

    @once_per_file(1024)
    def _node_attributes(self, path: Path) -> dict[str, Any]:
        table = self.node_table(path)
        examples, width = table.features.shape
        announcement: dict[str, Any] = {"num-examples": int(examples)}
        if table.names:
            digest = hashlib.sha256("\n".join(table.names).encode()).hexdigest()
            announcement["data-columns"] = digest[:32]
        parts = table.features, self._targets_of_file(table), table.weights
        return {
            "announcement": announcement,
            "weigh_evaluation": self.weigh_evaluation,
            "rows": OwnRows(table.names or (str(width),), parts),
        }

    def _targets_of_file(self, table: Table) -> Any:
        """Targets as the file has them, in whatever order the run lists the labels."""
        if table.targets is None or self.label_kind != "class":
            return table.targets
        labels = self.node_schema().labels
        values = [float(t) if is_number(t) else sorted(labels).index(t) for t in labels]
        targets, known = table.targets.copy(), ~np.isnan(table.targets)
        targets[known] = np.array(values)[targets[known].astype(np.intp)]
        return targets

    def weigh_evaluation(
        self, loss: float, examples: int, metrics: dict[str, Any]
    ) -> tuple[float, dict[str, Any]]:
        """Return what a node sends of f_i and its metrics; the nodes' mean is F."""
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

    # All clients of a large simulation: with fewer places than clients, who are asked
    # in turn, every message would make its objective anew.
    @once(16_384)
    def client_objective(self, client: int) -> Objective:
        """Return f_i of i in [0, n), made once per process; else an IndexError."""
        self._need_central_data()
        made: Objective = self._build_client_objective(self._existing(client))
        return made

    def _need_central_data(self) -> None:
        if self.on_nodes:
            why = "the data lies on the nodes, and none is here to measure"
            raise SettingsError(f"{self.name}.dataset = {NODES!r}: {why}")

    def _existing(self, client: int) -> int:
        """Return a client's number, if there is such a client."""
        if not 0 <= client < self.num_clients:
            raise IndexError(f"client {client}: there are {self.num_clients}, from 0")
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
        """Return a point as the objectives take it; a ValueError: not as the model."""
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

    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedfw": {"schedule": "nonconvex"},
        "naive-frank-wolfe": {"schedule": "nonconvex"},
    }
    convex = False


@dataclass(frozen=True)
class PartitionedTask(Task):
    """A task whose labelled examples are dealt to the clients by a setting.

    The shares are those of flwr-datasets' partitioners on shuffled data:

    - ``iid``: shuffled, then equal consecutive shares (``IidPartitioner``);
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
        3,
        "labels a client holds, with partition = 'labels'",
        minimum=1,
        only={"partition": ("labels",)},
    )
    alpha: float = setting(
        0.5,
        "concentration α, with partition = 'dirichlet'",
        above=0.0,
        only={"partition": ("dirichlet",)},
    )

    label_kind: ClassVar[Any] = "class"
    node_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def domains(self) -> dict[str, float]:
        """Return the balls of the experiments of FedFW."""
        return {"l2-ball": 10.0, "l1-ball": 10.0, "linf-ball": 1.0}

    def deal_examples(self, examples: Examples) -> Dealt:
        """Deal labelled examples to the clients."""
        labels, owners = examples.labels.astype(np.intp), examples.owners
        shares = [np.flatnonzero(owners == i) for i in range(self.num_clients)]
        if self.partition != "natural":
            shares = self.deal(labels)
        dealt = arrange(examples.features, labels, shares)
        # last, so that bytes of images are put in order and not eight times as many
        features, test = map(self._prepared, (dealt.features, examples.test_features))
        tests = examples.test_labels.astype(np.intp)
        return Dealt(features, dealt.targets, dealt.starts, test, tests)

    def deal(self, labels: NDArray[Any]) -> list[Indices]:
        """Deal examples of these labels, each once and no share empty."""
        self.check_clients(len(labels))
        if self.partition == "iid":
            rng = generator(self.seed, "partition")
            return np.array_split(rng.permutation(len(labels)), self.num_clients)
        order = generator(self.seed, "shuffle").permutation(len(labels))
        rng = np.random.default_rng(derived_seed(self.seed, "partition"))
        by_labels = self.partition == "labels"
        make = self._label_parts if by_labels else self._dirichlet_parts
        parts = make(labels[order], rng)
        for part in parts:
            rng.shuffle(part)
        k = len(parts) // self.num_clients
        starts = range(0, len(parts), k)
        return [order[np.concatenate(parts[i : i + k])] for i in starts]

    def _dirichlet_parts(
        self, labels: NDArray[Any], rng: np.random.Generator
    ) -> list[Indices]:
        """A part for each client; drawn again, at most ten times, if one is empty."""
        for _ in range(11):
            parts: list[list[Indices]] = [[] for _ in range(self.num_clients)]
            for label in np.unique(labels):
                rows = np.flatnonzero(labels == label)
                ends = np.cumsum(rng.dirichlet(np.full(self.num_clients, self.alpha)))
                cuts = (ends * len(rows)).astype(int)[:-1]
                for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                    part.append(piece)
            found = [np.concatenate(part) for part in parts]
            if min(map(len, found)) > 0:
                return found
        why = "leaves a client without any; take a larger alpha or fewer clients"
        raise self.refused("alpha", why)

    def _label_parts(
        self, labels: NDArray[Any], rng: np.random.Generator
    ) -> list[Indices]:
        """K parts for each client, of one label each."""
        present, counts = np.unique(labels, return_counts=True)
        clients, k, count = self.num_clients, self.labels_per_client, len(present)
        # Labels in a random order, as ranks; part v gets the label of rank v modulo
        # their number, so parts ik … ik + k − 1 have k different ones.
        order = generator(self.seed, "label order").permutation(count)
        holders = np.bincount(np.arange(clients * k) % count, minlength=count)
        scarce = np.flatnonzero(counts[order] < holders)
        why = ""
        if k > count:
            why = f"there are only {count} labels"
        elif clients * k < count:
            why = f"they cannot hold all {count} labels; take more labels or clients"
        elif len(scarce):
            label, holding = order[scarce[0]], holders[scarce[0]]
            why = f"label {present[label]} has too few examples for {holding} clients"
        if why:
            raise self.refused("labels_per_client", f"with {clients} clients: {why}")
        ranks = np.argsort(order)[np.searchsorted(present, labels)]
        split = [
            np.array_split(np.flatnonzero(ranks == rank), holders[rank])
            for rank in range(count)
        ]
        return [split[v % count][v // count] for v in range(clients * k)]
