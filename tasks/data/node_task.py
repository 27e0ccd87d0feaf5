"""Tasks whose data may lie on the nodes, a file of its own on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from fedtrellis.objectives import Objective
from fedtrellis.settings import SettingsError, parse

from ..base import Task, in_dtype
from .any_file import DealtRows, dealt_rows
from .node_file import file_stamp, node_path, read_node_file
from .settings import FILE, NODES, DataSettings, Schema
from .table import NodeTable

__all__ = ["NodeDataTask"]


@dataclass(frozen=True)
class NodeDataTask(Task):
    """A task with a setting ``dataset``, which may be ``"nodes"``.

    Then every node reads its own file, the server has none, and what it has to know of
    the data is in the run config, :class:`DataSettings`. A file is taken as it is:
    settings that deal, limit or hold out examples must be as they are by default.

    F = (1/n) Σ f_i with f_i the mean loss over the node's examples; with
    ``data.examples`` = d it is n·d_i/d times that, so that every example of all nodes
    together counts the same, and F is that of the same data on one computer.

    Attributes
    ----------
    not_on_nodes : tuple of str
        Fields that have no meaning with nodes' own data.
    not_of_file : tuple of str
        Fields that have none with ``dataset = "file"``.
    """

    nodes: DataSettings = field(default=DataSettings(), kw_only=True)

    not_on_nodes: ClassVar[tuple[str, ...]] = ()
    not_of_file: ClassVar[tuple[str, ...]] = ()
    #: Whether samples may have weights.
    weighs: ClassVar[bool] = False

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], num_clients: int, seed: int, **more: Any
    ) -> Self:
        """As of every task; what nodes' files are like comes from keys ``data.``."""
        nodes = parse(DataSettings, config, "data.")
        return super().from_config(config, num_clients, seed, nodes=nodes, **more)

    @property
    def on_nodes(self) -> bool:
        """Whether every node has its own data."""
        return getattr(self, "dataset", "") == NODES

    @property
    def on_file(self) -> bool:
        """Whether the data is in a file of the user's, in any of the formats."""
        return getattr(self, "dataset", "") == FILE

    @property
    def of_file(self) -> tuple[str, ...]:
        """Which column of a csv file has the label, and which the weights."""
        columns = ("label_column", *["weight_column"] * self.weighs)
        return columns if self.on_file else ()

    @property
    def node_examples(self) -> int:
        """The setting ``data.examples``."""
        return self.nodes.examples

    def node_schema(self) -> Schema:
        """Return what a node's file must hold.

        Raises
        ------
        SettingsError
            The run config does not say enough, or contradicts itself.
        """
        raise NotImplementedError

    def _read_node_file(self, path: Path) -> NodeTable:
        return read_node_file(path, self.node_schema())

    def _build_node_objective(self, table: NodeTable, weight: float) -> Objective:
        """Make f_i: weight times the mean loss over a node's examples."""
        raise NotImplementedError

    def check_nodes(self) -> None:
        """Find out before anything starts whether the settings suit nodes' own data.

        Raises
        ------
        SettingsError
        """
        if self.nodes.weight_column and not self.weighs:
            raise SettingsError(
                f"data.weight-column = {self.nodes.weight_column!r} is not for task "
                f"{self.name!r}, whose examples all count alike; allowed: empty"
            )
        why = "every node's file is taken as it is"
        self._refuse(self.not_on_nodes, NODES, why)
        self.node_schema()

    def check_file(self) -> None:
        """Find out whether the settings suit a file of the user's.

        Raises
        ------
        SettingsError
        """
        if not getattr(self, "path", ""):
            raise SettingsError(
                f"{self.name}.path is empty; for {FILE!r} it must name the data's file"
            )
        self._refuse(self.not_of_file, FILE, "it is for the data that is built in")

    def dealt_file(self, path: str) -> DealtRows:
        """Return the rows of a regression's file, dealt evenly to the clients.

        Raises
        ------
        FileNotFoundError, DataFileError
            There is none, or it holds something else.
        """
        key, column = f"{self.name}.path", self.nodes.label_column
        return dealt_rows(key, path, column, self.seed, self.num_clients)

    def _refuse(self, names: tuple[str, ...], dataset: str, why: str) -> None:
        """Raise a SettingsError where one of some settings is not as by default."""
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            # what is switched off does no harm
            if entry.name in names and value not in (entry.default, 0):
                key = f"{self.name}.{entry.name.replace('_', '-')}"
                raise SettingsError(
                    f"{key} = {value!r} has no meaning with {self.name}.dataset = "
                    f"{dataset!r}: {why}; allowed: {entry.default!r}"
                )

    def node_table(self, path: Path) -> NodeTable:
        """Return a node's file, read and checked once per process.

        Raises
        ------
        DataFileError
            Its message names file, row and column, and shows nothing of what is there.
        """
        return _node_table(self, path, file_stamp(path))

    def node_objective(self, path: Path) -> Objective:
        """Return f_i of a node with its own file, made once per process.

        Raises
        ------
        DataFileError
            As of :meth:`node_table`.
        """
        objective: Objective = _node_objective(self, path, file_stamp(path))
        return objective

    def node_parts(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``objective``, made of the file that ``data`` names."""
        path = node_path(node_config)
        if "test-data" in node_config:
            raise SettingsError("node config: test-data is for hybrid tasks")
        return {"objective": self.node_objective(path)}

    def node_attributes(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``announcement`` and ``told_evaluation``.

        See :class:`fedtrellis.wire.client.MethodClient`.
        """
        return {
            "announcement": self.announcement(node_path(node_config)),
            "told_evaluation": self.told_evaluation,
        }

    def method_options(self) -> dict[str, Any]:
        """Return what a node's evaluation weighs: its examples, or 1 like any other's.

        Where every node counts the same, F is the plain mean of the nodes' losses.
        """
        equal = self.on_nodes and not self.nodes.examples
        return {"evaluation_weights": "equal"} if equal else {}

    def node_weight(self, examples: int) -> float:
        """Return n·d_i/d, or 1 where every node counts the same.

        Raises
        ------
        SettingsError
            The node alone has more examples than ``data.examples`` says.
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
        """Return what a node tells the server of its file before round 1.

        A digest of its columns' names and the number of examples.
        """
        table = self.node_table(path)
        told: dict[str, Any] = {"num-examples": int(table.features.shape[0])}
        if table.names:
            told["data-columns"] = table.columns_digest()
        return told

    def told_evaluation(
        self, loss: float, examples: int, metrics: dict[str, Any]
    ) -> tuple[float, dict[str, Any]]:
        """Return what a node's evaluation tells the server.

        The server's mean of the nodes' losses, weighted as
        :meth:`method_options` say, is F.

        Parameters
        ----------
        loss : float
            f_i.
        examples : int
            d_i.
        metrics : dict
            The objective's.
        """
        kept = {name: metrics[name] for name in self.node_metrics}
        total = self.nodes.examples
        if not total:
            return loss, kept
        # Σ (d_i/d) (d/(n·d_i)) f_i = (1/n) Σ f_i
        return loss * total / (self.num_clients * examples), kept

    def objective(self) -> Objective:  # noqa: D102
        self._need_central_data()
        return super().objective()

    def client_objective(self, client: int) -> Objective:  # noqa: D102
        self._need_central_data()
        return super().client_objective(client)

    def _need_central_data(self) -> None:
        if self.on_nodes:
            raise SettingsError(
                f"{self.name}.dataset = {NODES!r}: the data lies on the nodes, and "
                "there is none here to measure anything on"
            )


# A simulation has many nodes in one process, a deployed node's process has one.
@lru_cache(maxsize=1024)
def _node_table(task: NodeDataTask, path: Path, stamp: tuple[int, ...]) -> NodeTable:
    return task._read_node_file(path)


@lru_cache(maxsize=1024)
def _node_objective(task: NodeDataTask, path: Path, stamp: tuple[int, ...]) -> Any:
    table = task.node_table(path)
    weight = task.node_weight(table.features.shape[0])
    return in_dtype(task._build_node_objective(table, weight), task.dtype)
