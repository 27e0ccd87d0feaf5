"""Bytes of encoded Messages, by node and round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sim
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.wire.local_grid import LocalGrid
from reproduce.common import Item, Options, SkippedError, app_config, workers
from reproduce.drawing import measured, new_figure, save

__all__ = ["CASES", "ITEMS", "bytes_a_round"]


class _Count(Callback):
    """What has gone down and up after every round."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid
        self.so_far: list[tuple[int, int]] = []

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool:
        """Note it down."""
        self.so_far.append((self.grid.bytes_down, self.grid.bytes_up))
        return False


def bytes_a_round(
    config: Mapping[str, Any], nodes: int, rounds: int = 4
) -> dict[str, int]:
    """Run a few rounds on a grid that encodes every Message to bytes.

    Returns
    -------
    dict
        ``down`` and ``up``, bytes a node in the last of the rounds, when everything
        is running; ``parameters`` of the model.
    """
    whole = app_config({"variant": "plain", **config, "rounds": rounds})
    experiment = sim.app.experiment(whole, nodes)
    grid = experiment.grid(seed=0, encode=True)
    count = _Count(grid)
    layout = experiment.layout
    point = experiment.domain.project(layout.point(experiment.task.initial_point()))
    strategy = experiment.strategy(callbacks=[count])
    strategy.start(grid, experiment.initial_arrays(point), num_rounds=rounds)
    (down, up), (before_down, before_up) = count.so_far[-1], count.so_far[-2]
    return {
        "down": round((down - before_down) / nodes),
        "up": round((up - before_up) / nodes),
        "parameters": int(point.size),
    }


#: Tasks by name: settings, nodes, and the data below ``--data`` that they need.
CASES: dict[str, tuple[dict[str, Any], int, str]] = {
    "LASSO, ℓ1": ({"task": "lasso"}, 10, ""),
    "digits, ℓ1": ({"task": "digits"}, 10, ""),
    "digits, ℓ2": ({"task": "digits", "domain": "l2-ball"}, 10, ""),
    "digits, ℓ∞": ({"task": "digits", "domain": "linf-ball"}, 10, ""),
    "MovieLens-100k, nuclear norm": (
        {"task": "matrix-completion", "penalty": 1e-5},
        40,
        "ml-100k/u.data",
    ),
    "chr12a, Birkhoff": ({"task": "quadratic-assignment"}, 72, ""),
    **{
        f"{name}, {ball}": (
            {
                "task": "classification",
                "domain": domain,
                "classification.train-limit": 1000,
                "classification.test-limit": 100,
                "classification.partial": True,
                **settings,
            },
            nodes,
            data,
        )
        for name, settings, nodes, data in (
            ("MCLR synthetic", {}, 10, ""),
            ("DNN synthetic", {"classification.model": "dnn"}, 10, ""),
            ("MCLR MNIST", {"classification.dataset": "mnist"}, 10, "mnist"),
            (
                "CNN MNIST",
                {"classification.dataset": "mnist", "classification.model": "cnn"},
                10,
                "mnist",
            ),
            ("MCLR CIFAR-10", {"classification.dataset": "cifar10"}, 10, "cifar10"),
        )
        for ball, domain in (("ℓ1", "l1-ball"), ("ℓ2", "l2-ball"))
    },
    "MCLR EMNIST-62, ℓ2, 100 nodes": (
        {
            "task": "classification",
            "domain": "l2-ball",
            "classification.dataset": "emnist",
            "classification.split": "byclass",
            "classification.partial": True,
            "classification.train-limit": 2000,
            "classification.test-limit": 100,
        },
        100,
        "emnist",
    ),
}


def _measure(arguments: tuple[dict[str, Any], int]) -> dict[str, dict[str, int]]:
    config, nodes = arguments
    average = config | {"method": "projected-fedavg", "local-steps": 1}
    # the projection onto the l1 ball has zeros, which would not be sent
    if config["task"] not in ("matrix-completion", "quadratic-assignment"):
        average["domain"] = "l2-ball"
    return {
        "FedFW": bytes_a_round(config, nodes),
        "dense": bytes_a_round(average, nodes, 2),
    }


def compute(options: Options) -> dict[str, Any]:
    """All tasks whose data is there."""
    rows: list[dict[str, Any]] = []
    wanted = {}
    for name, (settings, nodes, data) in CASES.items():
        config = dict(settings)
        if options.quick and (data or nodes > 10):
            continue
        if data:
            try:
                path = str(options.file(data))
            except SkippedError as error:
                rows.append({"task": name, "missing": str(error)})
                continue
            key = "matrix-completion" if data.startswith("ml") else "classification"
            config[f"{key}.path"] = path
        wanted[name] = (config, nodes)
    with workers(options.jobs) as pool:
        found = pool.map(_measure, wanted.values())
        for (name, (_, nodes)), moved in zip(wanted.items(), found, strict=True):
            rows.append({"task": name, "nodes": nodes, **moved})
    order = list(CASES)
    rows.sort(key=lambda row: order.index(row["task"]))
    return {"rows": rows}


def render(results: dict[str, Any], out: Path) -> str:
    """Draw bars of both directions together, and the table."""
    rows = [row for row in results["rows"] if "dense" in row]
    figure, ((axes,),) = new_figure(1)
    figure.set_size_inches(8.0, 0.34 * len(rows) + 1.2)
    lines = [
        "| task | parameters | nodes | FedFW up | down | dense averaging up | down "
        "| dense / FedFW, up | both ways |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for k, row in enumerate(rows):
        ours, dense = row["FedFW"], row["dense"]
        totals = [one["up"] + one["down"] for one in (ours, dense)]
        for offset, total, name in (
            (-0.2, totals[0], "FedFW"),
            (0.2, totals[1], "dense"),
        ):
            axes.barh(
                k + offset,
                total,
                0.38,
                color="C0" if name == "FedFW" else "C1",
                label={"FedFW": "FedFW", "dense": "dense averaging"}[name]
                if k == 0
                else None,
            )
        lines.append(
            f"| {row['task']} | {ours['parameters']:,} | {row['nodes']} "
            f"| {ours['up']:,} | {ours['down']:,} | {dense['up']:,} "
            f"| {dense['down']:,} | {dense['up'] / ours['up']:.1f} "
            f"| {totals[1] / totals[0]:.1f} |"
        )
    axes.set_yticks(range(len(rows)), [row["task"] for row in rows], fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("bytes a node and round, up and down together")
    axes.legend(fontsize="small")
    lines += [
        f"| {row['task']} | skipped: {row['missing']} | | | | | | | |"
        for row in results["rows"]
        if "missing" in row
    ]
    lines += [
        "",
        "Full participation, a round in the middle of a run, Messages encoded as "
        f"Flower sends them. {measured(results)}",
    ]
    return f"{save(figure, out, 'bytes')}\n\n" + "\n".join(lines)


ITEMS = {
    "bytes": Item("bytes a node and round, against dense averaging", compute, render)
}
