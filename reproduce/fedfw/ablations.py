"""Figures 2, 3 and 4: participation, and the penalty λ_0; appendix A."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord

from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import Box
from fedtrellis.objectives import LeastSquares
from reproduce.common import Item, Options, read_config, repeat
from reproduce.drawing import spread, table
from reproduce.sweep import Point, seeds_of, sweep, sweep_picture
from strategies import FedFW, NaiveFrankWolfe

__all__ = ["ITEMS"]

HERE = Path(__file__).parent
NODES = 10
SEEDS = 5
SHARES = (0.1, 0.25, 0.5, 1.0)
PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
METRICS = {"loss": "loss F(x̄)", "gap": "Frank-Wolfe gap", "accuracy": "test accuracy"}

Settings = dict[str, Any]


class Figure(NamedTuple):
    """A figure's run config and what it changes there; panels; what is varied."""

    summary: str
    config: str
    settings: Settings
    panels: dict[str, Settings]
    title: str
    points: dict[str, Settings]


_ROUNDS: int = read_config(HERE / "figure-3.toml")["rounds"]
_BALLS = {"ℓ1": {"domain": "l1-ball"}, "ℓ2": {"domain": "l2-ball"}}
_PENALTIES: dict[str, Settings] = {f"{v:g}": {"penalty": v} for v in PENALTIES}
#: Figure 4's, (a) and (b), beside figure 2's run config.
MNIST: Settings = {
    "rounds": 100,
    "classification.dataset": "mnist",
    "classification.path": "mnist",
    "classification.partition": "labels",
    "classification.train-limit": 10_000,
}
FIGURES = {
    "figure-2": Figure(
        "participation p, logistic regression on synthetic data, ℓ1 ball",
        "figure-2",
        {},
        {f"λ_0 = {value:g}": {"penalty": value} for value in (0.01, 0.001)},
        "p",
        {f"{p:g}": {"participation": p} for p in SHARES},
    ),
    "figure-3": Figure(
        "participation p, a network on synthetic data, ℓ2 ball; FedFW and FedFW+",
        "figure-3",
        {},
        {"FedFW": {"variant": "plain"}, "FedFW+": {"variant": "augmented"}},
        "p",
        {
            f"{p:g}": {"participation": p, "step-size": (p * _ROUNDS + 1.0) ** (-2 / 3)}
            for p in SHARES
        },
    ),
    "figure-4-convex": Figure(
        "λ_0: loss, gap and accuracy, logistic regression on MNIST",
        "figure-2",
        MNIST,
        {f"MCLR, MNIST, p = 0.5, {ball}": own for ball, own in _BALLS.items()},
        "λ_0",
        _PENALTIES,
    ),
    "figure-4-nonconvex": Figure(
        "λ_0: loss, gap and accuracy, a network on synthetic data",
        "figure-3",
        {"schedule": "nonconvex", "participation": 1.0, "rounds": 300},
        {f"DNN, synthetic, p = 1, {ball}": own for ball, own in _BALLS.items()},
        "λ_0",
        _PENALTIES,
    ),
}


def _base(options: Options, config: str, settings: Settings) -> Settings:
    base = read_config(HERE / f"{config}.toml") | settings
    if folder := base.get("classification.path"):
        base["classification.path"] = str(options.file(folder))
    return base


def compute(options: Options, name: str) -> dict[str, Any]:
    """All panels' points."""
    figure = FIGURES[name]
    base = _base(options, figure.config, figure.settings)
    every, points = max(1, base["rounds"] // 50), list(figure.points.items())
    if options.quick:
        few = {"classification.train-limit": 500, "classification.test-limit": 500}
        base, every, points = base | few | {"rounds": 4}, 2, points[::4]
    panels = {
        title: sweep(
            options,
            base | own,
            [Point(label, settings, NODES) for label, settings in points],
            tuple(METRICS),
            seeds=options.numbers(SEEDS),
            every=every,
        )
        for title, own in figure.panels.items()
    }
    return {"panels": panels, "rounds": base["rounds"]}


def render(results: dict[str, Any], out: Path, name: str) -> str:
    """Draw loss, gap and accuracy over rounds, a row for every panel; and a table."""
    panels, title = results["panels"], FIGURES[name].title
    picture = sweep_picture(
        {panel: swept["rows"] for panel, swept in panels.items()},
        out,
        name,
        METRICS,
        title=title,
        logarithmic=("loss", "gap"),
        chance={"accuracy": 0.1},
    )
    lines: list[tuple[str, ...]] = []
    for panel, swept in panels.items():
        for row in swept["rows"]:
            if "curves" not in row:
                lines.append((panel, row["label"], "diverged", "", "", ""))
                continue
            accuracy = 100 * np.array(row["accuracy"])
            lines.append(
                (
                    *(panel, row["label"], f"{np.mean(row['loss']):.4f}"),
                    f"{np.mean(row['gap']):.3g}",
                    f"{accuracy.mean():.2f} ± {accuracy.std():.2f}",
                    f"{np.mean(row['bytes']) / 1e6:.2f}",
                )
            )
    return (
        f"{picture}\n\n"
        + table(f"case | {title} | loss | gap | accuracy, % | MB moved", lines)
        + f"\n\nAfter {results['rounds']} rounds. "
        + seeds_of(next(iter(panels.values())))
    )


# ---------------------------------------------------------------------------- early gap

FIRST = 10


def compute_early(options: Options) -> dict[str, Any]:
    """Frank-Wolfe gaps of the first ten rounds, by λ_0, on the convex panels."""
    seeds = options.numbers(SEEDS)
    base = _base(options, "figure-2", MNIST) | {
        "classification.train-limit": 500 if options.quick else 5000,
        "classification.test-limit": 500,
        "rounds": FIRST,
        "evaluate-gap": True,
    }
    cases = {
        (f"MCLR, MNIST, {ball}", f"{penalty:g}"): base | own | {"penalty": penalty}
        for ball, own in _BALLS.items()
        for penalty in PENALTIES[::2]
    }
    panels: dict[str, dict[str, list[float]]] = {}
    found = repeat(options, cases, seeds, NODES, curve=True)
    for (panel, penalty), runs in found.items():
        gaps = [float(np.mean(run["curve"]["gap"][1:])) for run in runs]
        panels.setdefault(panel, {})[penalty] = gaps
    return {"panels": panels, "rounds": FIRST, "seeds": len(seeds)}


def render_early(results: dict[str, Any], out: Path) -> str:
    """Write the table."""
    lines = [
        (panel, *(spread(values, "{:.3g}") for values in gaps.values()))
        for panel, gaps in results["panels"].items()
    ]
    heads = [f"λ_0 = {value:g}" for value in PENALTIES[::2]]
    return table(" | ".join(["case", *heads]), lines) + (
        f"\n\nMean gap of rounds 1 to {results['rounds']}, mean and extremes of "
        f"{results['seeds']} seeds."
    )


# --------------------------------------------------------------------------- appendix A


def compute_appendix_a(options: Options) -> dict[str, Any]:
    """(x − 3)²/2 and (x + 1)²/2 on [−1, 1] from 0: averaged steps and FedFW."""
    rounds = 50 if options.quick else 2000
    losses = [LeastSquares(np.eye(1), np.array([target])) for target in (3.0, -1.0)]
    box = Box(-np.ones(1), np.ones(1))

    def node(client: Any, context: Any) -> Any:
        return client(context, losses[context.node_config["partition-id"]], box)

    found: dict[str, Any] = {"rounds": rounds, "seeds": 0}
    for name, strategy, client in (
        ("naive", NaiveFrankWolfe(box), NaiveFrankWolfeClient),
        ("FedFW", FedFW(box, variant="plain", penalty=1.0), FedFWClient),
    ):
        grid = LocalGrid(client_app(partial(node, client)), 2)
        result = strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds=rounds)
        (x,) = result.arrays.to_numpy_ndarrays()
        found[name] = abs(float(x[0]) - 1.0)
    return found


def render_appendix_a(results: dict[str, Any], out: Path) -> str:
    """Write how far both end from x* = 1."""
    return (
        f"After {results['rounds']} rounds averaged Frank-Wolfe steps are "
        f"{results['naive']:.3g} away from x* = 1, FedFW is {results['FedFW']:.2g} "
        "away."
    )


ITEMS = {
    **{
        name: Item(
            figure.summary, partial(compute, name=name), partial(render, name=name)
        )
        for name, figure in FIGURES.items()
    },
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
