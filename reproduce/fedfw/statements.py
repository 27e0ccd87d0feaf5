"""Sentences of the papers that no table or picture of theirs gives a number for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import Box
from fedtrellis.objectives import LeastSquares
from reproduce.common import Item, Options, Run, execute, read_config
from reproduce.drawing import measured
from strategies import FedFW, NaiveFrankWolfe

__all__ = ["ITEMS"]

HERE = Path(__file__).parent
NODES = 10
SEEDS = 5


# ---------------------------------------------------------------------------- early gap

PENALTIES = (1e-1, 1e-3, 1e-5)
FIRST = 10
#: The convex panels: there a schedule does not know how many rounds a run will have.
PANELS = {"MCLR, MNIST, ℓ1": "l1-ball", "MCLR, MNIST, ℓ2": "l2-ball"}


def compute_early(options: Options) -> dict[str, Any]:
    """Frank-Wolfe gaps of the first ten rounds, by λ_0."""
    seeds = 2 if options.quick else min(SEEDS, options.seeds)
    base = read_config(HERE / "figure-4.toml") | {
        "classification.path": str(options.file("mnist")),
        "classification.train-limit": 500 if options.quick else 5000,
        "classification.test-limit": 500,
        "rounds": FIRST,
        "evaluate-gap": True,
    }
    panels = {}
    for panel, ball in PANELS.items():
        config = base | {"domain": ball}
        runs = [
            Run(
                (penalty, seed),
                config | {"penalty": penalty, "seed": seed},
                NODES,
                curve=True,
            )
            for penalty in PENALTIES
            for seed in range(seeds)
        ]
        results = execute(runs, options.jobs)
        panels[panel] = {
            f"{penalty:g}": [
                float(np.mean(results[penalty, seed]["curve"]["gap"][1:]))
                for seed in range(seeds)
            ]
            for penalty in PENALTIES
        }
    return {"panels": panels, "rounds": FIRST, "seeds": seeds}


def render_early(results: dict[str, Any], out: Path) -> str:
    """Write the table."""
    lines = [
        "| case | " + " | ".join(f"λ_0 = {value:g}" for value in PENALTIES) + " |",
        "| --- " * (1 + len(PENALTIES)) + "|",
    ]
    for panel, gaps in results["panels"].items():
        cells = [
            f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            for values in gaps.values()
        ]
        lines.append(f"| {panel} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Mean gap of rounds 1 to {results['rounds']}, mean and extremes of "
        f"{results['seeds']} seeds. {measured(results)}",
    ]
    return "\n".join(lines)


# --------------------------------------------------------------------------- appendix A


def compute_appendix_a(options: Options) -> dict[str, Any]:
    """(x − 3)²/2 and (x + 1)²/2 on [−1, 1] from 0: averaged steps and FedFW."""
    rounds = 50 if options.quick else 2000
    losses = [LeastSquares(np.eye(1), np.array([target])) for target in (3.0, -1.0)]
    box = Box(-np.ones(1), np.ones(1))
    found: dict[str, Any] = {"rounds": rounds, "seeds": 0}
    for name, strategy, client in (
        ("naive", NaiveFrankWolfe(box), NaiveFrankWolfeClient),
        ("FedFW", FedFW(box, variant="plain", penalty=1.0), FedFWClient),
    ):
        grid = LocalGrid(client_app(partial(_node, client, losses, box)), 2)
        result = strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds=rounds)
        (x,) = result.arrays.to_numpy_ndarrays()
        found[name] = abs(float(x[0]) - 1.0)
    return found


def _node(client: Any, losses: list[Any], box: Box, context: Any) -> Any:
    return client(context, losses[context.node_config["partition-id"]], box)


def render_appendix_a(results: dict[str, Any], out: Path) -> str:
    """Write how far both end from x* = 1."""
    return (
        f"After {results['rounds']} rounds averaged Frank-Wolfe steps are "
        f"{results['naive']:.3g} away from x* = 1, FedFW is {results['FedFW']:.2g} "
        f"away. "
        f"{measured(results)}"
    )


ITEMS = {
    "early-gap": Item(
        "figure 4's claim: the gap of the first rounds by λ_0",
        compute_early,
        render_early,
    ),
    "appendix-a": Item(
        "appendix A: averaged Frank-Wolfe steps do not arrive",
        compute_appendix_a,
        render_appendix_a,
    ),
}
