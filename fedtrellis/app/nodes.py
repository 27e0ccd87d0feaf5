"""What concerns the nodes of a run: their number, their data, what they predict."""

from __future__ import annotations

import csv
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis.server.callbacks import Callback
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.options import RunOptions
from fedtrellis.settings import SettingsError
from fedtrellis.wire.flower_internals import log


def number_of_clients(context: Context, on_nodes: bool) -> int:
    """N as a node knows it; SettingsError if its config lacks what the run needs."""
    node = context.node_config
    if on_nodes:
        if "client-id" not in node and "partition-id" not in node:
            raise SettingsError(
                "node config: client-id is missing; with data of its own a node needs "
                "a name that stays the same over restarts: "
                '--node-config \'client-id="NAME" data="/absolute/path"\''
            )
        # n is that of the run config: a node does not know how many are connected
        return int(context.run_config.get("min-nodes", RunOptions.min_nodes))
    if "data" in node:
        _warn("node config: data is not used, as this run brings its own")
    for key in ("partition-id", "num-partitions"):
        if not isinstance(node.get(key), int):
            raise SettingsError(
                f"node config: {key} = {node.get(key)!r} must be a whole number; start "
                'the node with --node-config "partition-id=0 num-partitions=2"'
            )
    return int(node["num-partitions"])


@lru_cache(maxsize=1)  # once a process
def _warn(text: str) -> None:
    log(WARNING, text)


def write_predictions(path: str, found: Any) -> None:
    """Write what a node predicts to the file that its config names.

    A line for each new sample: its id, its score, the class or value predicted, its
    probability and the calibrated one; scores and probabilities of several classes
    have a column each. Fields of what is not known are empty.
    """
    columns: dict[str, Any] = {}
    for name, values in (
        ("score", found.scores),
        ("predicted", found.predicted),
        ("probability", found.probabilities),
        ("calibrated", found.calibrated),
    ):
        values = np.full_like(found.scores, np.nan) if values is None else values
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}-{c}": each for c, each in enumerate(values.T)}
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["id", *columns])
        for sample, *row in zip(found.sample_ids, *columns.values(), strict=True):
            fields = ("" if np.isnan(x) else f"{x:.17g}" for x in row)
            lines.writerow([sample, *fields])


class CheckNodes(Callback):
    """Stop a run before round 1 if the nodes' data does not go together.

    Parameters
    ----------
    min_nodes : int
        How many nodes have to be usable, if they have data of their own.
    examples : int, optional
        Of all of them together; 0: that does not matter; None: they have parts of the
        task's data, and have to hold all of it between them.
    """

    def __init__(self, min_nodes: int = 1, examples: int | None = None) -> None:
        self.min_nodes, self.examples = min_nodes, examples

    def on_meeting(self, strategy: LoopStrategy) -> None:
        """Compare the properties that the nodes gave of their data."""
        n, least = strategy.num_clients, f"min-nodes = {self.min_nodes}"
        known = {name: strategy._client_properties(name) for name in strategy.clients}
        reasons = [f"{who}: {why}" for who, why in strategy.refused]
        if self.examples is None:
            strategy.conversation.registry.refuse = lambda properties: (
                "the data is dealt among the clients of the start"
            )
            for name, properties in known.items():
                parts = properties.get("num-partitions")
                if parts != n:
                    why = f"num-partitions must be {n} on every node"
                    raise SettingsError(
                        f"client {name} has one of {parts} parts of the data, but {n} "
                        f"clients can be used; {'; '.join([why, *reasons])}"
                    )
            return
        if n < self.min_nodes:
            why = "; ".join(reasons)
            raise SettingsError(f"{least}, and {n} nodes can be used: {why}")
        # files in LIBSVM's or MNIST's formats have no names to compare
        named = {n: p["data-columns"] for n, p in known.items() if "data-columns" in p}
        first = next(iter(named), "")
        for name, digest in named.items():
            if digest != named[first]:
                raise SettingsError(
                    f"the files of clients {first} and {name} have other feature "
                    "columns, or in another order; with data.feature-names every node "
                    "puts them in one order"
                )
        if self.examples and n != self.min_nodes:
            raise SettingsError(
                f"{least}, and {n} nodes are connected: with data.examples a node's "
                "weight depends on their number, and min-nodes must be it"
            )
        total = sum(int(p.get("num-examples", 0)) for p in known.values())
        if self.examples and total != self.examples:
            raise SettingsError(
                f"data.examples = {self.examples}, and the nodes have {total} examples"
            )
