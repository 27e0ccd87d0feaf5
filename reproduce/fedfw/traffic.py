"""Bytes of encoded Messages, by node and round."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import sim
from fedtrellis.app import Experiment
from fedtrellis.wire.local_grid import LocalGrid
from reproduce.common import (
    Item,
    Options,
    Run,
    SkippedError,
    app_config,
    perform,
    workers,
)
from reproduce.drawing import PALETTE, new_figure, save, table

__all__ = ["CASES", "ITEMS", "bytes_a_round"]


def _encoded(experiment: Experiment) -> LocalGrid:
    return experiment.grid(encode=True)


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
    settings = {"variant": "plain", **config, "rounds": rounds}
    run = perform(Run((), settings, nodes, curve=True, grid=_encoded))
    both, up = (
        (run["curve"][what][-1] - run["curve"][what][-2]) / nodes
        for what in ("bytes", "bytes-up")
    )
    task = sim.app.experiment(app_config(settings), nodes).task
    parameters = sum(prod(shape) for shape in task.shapes())
    return {"down": round(both - up), "up": round(up), "parameters": parameters}


#: Tasks by name: settings, nodes, and the data below ``--data`` that they need.
CASES: dict[str, tuple[dict[str, Any], int, str]] = {
    "LASSO, ℓ1": ({"task": "lasso"}, 10, ""),
    "digits, ℓ1": ({"task": "digits"}, 10, ""),
    "digits, ℓ2": ({"task": "digits", "domain": "l2-ball"}, 10, ""),
    "digits, ℓ∞": ({"task": "digits", "domain": "linf-ball"}, 10, ""),
    "completion, nuclear norm": ({"task": "matrix-completion"}, 10, ""),
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
    wanted = {}
    for name, (settings, nodes, data) in CASES.items():
        if options.quick and (data or nodes > 10):
            continue
        config = dict(settings)
        try:
            if data:
                config[f"{config['task']}.path"] = str(options.file(data))
            wanted[name] = (config, nodes)
        except SkippedError as error:
            options.without(name, error)
    with workers(options.jobs) as pool:
        found = zip(wanted, pool.map(_measure, wanted.values()), strict=True)
        rows = [{"task": k, "nodes": CASES[k][1], **moved} for k, moved in found]
    return {"rows": rows}


def render(results: dict[str, Any], out: Path) -> str:
    """Draw bars of both directions together, and the table."""
    rows = results["rows"]
    figure, ((axes,),) = new_figure(1)
    figure.set_size_inches(8.0, 0.34 * len(rows) + 1.2)
    lines: list[tuple[Any, ...]] = []
    for k, row in enumerate(rows):
        ours, dense = row["FedFW"], row["dense"]
        totals = [one["up"] + one["down"] for one in (ours, dense)]
        for n, label in enumerate(("FedFW", "dense averaging")):
            own = {"color": PALETTE[n], "label": None if k else label}
            axes.barh(k + 0.4 * n - 0.2, totals[n], 0.38, **own)
        moved = (ours["up"], ours["down"], dense["up"], dense["down"])
        shares = (f"{dense['up'] / ours['up']:.1f}", f"{totals[1] / totals[0]:.1f}")
        cells = (f"{ours['parameters']:,}", row["nodes"], *(f"{v:,}" for v in moved))
        lines.append((row["task"], *cells, *shares))
    axes.set_yticks(range(len(rows)), [row["task"] for row in rows], fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("bytes a node and round, up and down together")
    axes.legend(fontsize="small")
    head = "task | parameters | nodes | FedFW up | down | dense averaging up | down"
    return (
        f"{save(figure, out, 'bytes')}\n\n"
        f"{table(f'{head} | dense / FedFW, up | both ways', lines)}\n\n"
        "Full participation, a round in the middle of a run, Messages encoded as "
        "Flower sends them."
    )


ITEMS = {
    "bytes": Item("bytes a node and round, against dense averaging", compute, render)
}
