"""Figures 2, 3 and 4: participation, and the penalty λ_0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Item, Options, read_config
from reproduce.drawing import color, new_figure, save
from reproduce.sweep import Point, seeds_and_time, sweep

__all__ = ["ITEMS", "render_panels", "sweep_panels"]

HERE = Path(__file__).parent
NODES = 10
SHARES = (0.1, 0.25, 0.5, 1.0)
PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
METRICS = {"loss": "loss F(x̄)", "gap": "Frank-Wolfe gap", "accuracy": "test accuracy"}


def sweep_panels(
    options: Options, base: dict[str, Any], panels: dict[str, list[Point]]
) -> dict[str, Any]:
    """Run the points of all panels; ``panels`` of the result has them by name."""
    every = max(1, base["rounds"] // 50)
    if options.quick:
        base = base | {"rounds": 4, "classification.test-limit": 500}
        base["classification.train-limit"] = 500
        every = 2
    results = {
        name: sweep(
            options,
            base,
            points[::4] if options.quick else points,
            tuple(METRICS),
            seeds=min(options.seeds, 5),
            every=every,
        )
        for name, points in panels.items()
    }
    return {"panels": results, "rounds": base["rounds"]}


def render_panels(results: dict[str, Any], out: Path, name: str, title: str) -> str:
    """Draw loss, gap and accuracy over rounds, a row for every panel; and a table."""
    panels = results["panels"]
    figure, axes = new_figure(len(METRICS), len(panels))
    lines = [
        f"| case | {title} | loss | gap | accuracy, % | MB moved |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row_of_axes, (panel, swept) in zip(axes, panels.items(), strict=True):
        for one, (metric, label) in zip(row_of_axes, METRICS.items(), strict=True):
            for k, row in enumerate(swept["rows"]):
                if "curves" not in row:
                    continue
                curve = row["curves"][metric]
                rounds = row["curves"]["round"]
                shade = color(k, len(swept["rows"]))
                one.plot(rounds, curve["mean"], color=shade, label=row["label"])
                one.fill_between(
                    rounds,
                    curve["lowest"],
                    curve["highest"],
                    color=shade,
                    alpha=0.13,
                    linewidth=0,
                )
            if metric != "accuracy":
                one.set_yscale("log")
            one.set_xlabel("communication round")
            one.set_ylabel(label)
            one.set_title(panel, fontsize="medium")
            one.legend(title=title, fontsize="small")
        for row in swept["rows"]:
            if "curves" not in row:
                lines.append(f"| {panel} | {row['label']} | diverged | | | |")
                continue
            accuracy = 100 * np.array(row["accuracy"])
            lines.append(
                f"| {panel} | {row['label']} | {np.mean(row['loss']):.4f} "
                f"| {np.mean(row['gap']):.3g} "
                f"| {accuracy.mean():.2f} ± {accuracy.std():.2f} "
                f"| {np.mean(row['bytes']) / 1e6:.2f} |"
            )
    first = next(iter(panels.values()))
    names = ("machine", "minutes", "processor-minutes")
    facts = {name: results[name] for name in names if name in results}
    lines += [
        "",
        f"After {results['rounds']} rounds. "
        + seeds_and_time(first | facts | {"jobs": results["jobs"]}),
    ]
    return f"{save(figure, out, name)}\n\n" + "\n".join(lines)


def compute_figure_2(options: Options) -> dict[str, Any]:
    """All shares p with both λ_0."""
    points = {
        f"λ_0 = {penalty:g}": [
            Point(f"{p:g}", {"participation": p, "penalty": penalty}, NODES)
            for p in SHARES
        ]
        for penalty in (0.01, 0.001)
    }
    return sweep_panels(options, read_config(HERE / "figure-2.toml"), points)


def compute_figure_3(options: Options) -> dict[str, Any]:
    """All shares p with FedFW and FedFW+."""
    base = read_config(HERE / "figure-3.toml")
    rounds = base["rounds"]
    points = {
        name: [
            Point(
                f"{p:g}",
                {
                    "participation": p,
                    "variant": variant,
                    "step-size": (p * rounds + 1.0) ** (-2 / 3),
                },
                NODES,
            )
            for p in SHARES
        ]
        for name, variant in (("FedFW", "plain"), ("FedFW+", "augmented"))
    }
    return sweep_panels(options, base, points)


def _penalties(**settings: Any) -> list[Point]:
    return [
        Point(f"{value:g}", {"penalty": value} | settings, NODES) for value in PENALTIES
    ]


def compute_figure_4_convex(options: Options) -> dict[str, Any]:
    """All λ_0 on MNIST."""
    base = read_config(HERE / "figure-4.toml")
    base["classification.path"] = str(options.file("mnist"))
    panels = {
        "(a) MCLR, MNIST, p = 0.5, ℓ1": _penalties(domain="l1-ball"),
        "(b) MCLR, MNIST, p = 0.5, ℓ2": _penalties(domain="l2-ball"),
    }
    return sweep_panels(options, base, panels)


def compute_figure_4_nonconvex(options: Options) -> dict[str, Any]:
    """All λ_0 with the network."""
    base = read_config(HERE / "figure-3.toml")
    base |= {"schedule": "nonconvex", "participation": 1.0, "rounds": 300}
    panels = {
        "(c) DNN, synthetic, p = 1, ℓ1": _penalties(domain="l1-ball"),
        "(d) DNN, synthetic, p = 1, ℓ2": _penalties(domain="l2-ball"),
    }
    return sweep_panels(options, base, panels)


ITEMS = {
    "figure-2": Item(
        "participation p, logistic regression on synthetic data, ℓ1 ball",
        compute_figure_2,
        lambda results, out: render_panels(results, out, "figure-2", "p"),
    ),
    "figure-3": Item(
        "participation p, a network on synthetic data, ℓ2 ball; FedFW and FedFW+",
        compute_figure_3,
        lambda results, out: render_panels(results, out, "figure-3", "p"),
    ),
    "figure-4-convex": Item(
        "λ_0: loss, gap and accuracy, logistic regression on MNIST",
        compute_figure_4_convex,
        lambda results, out: render_panels(results, out, "figure-4-convex", "λ_0"),
    ),
    "figure-4-nonconvex": Item(
        "λ_0: loss, gap and accuracy, a network on synthetic data",
        compute_figure_4_nonconvex,
        lambda results, out: render_panels(results, out, "figure-4-nonconvex", "λ_0"),
    ),
}
