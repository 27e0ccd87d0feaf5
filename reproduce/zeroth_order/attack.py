"""Figures 3 to 6: one perturbation against a classifier that is a black box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Options, Run, app_config, perform, read_config
from reproduce.drawing import measured, new_figure, percent, save
from reproduce.sweep import Point, seeds_and_time, sweep, sweep_picture
from tasks import Attack, make_task

__all__ = [
    "compute_figure_3",
    "compute_figure_4",
    "compute_figure_5",
    "compute_figure_6",
    "render_figure_3",
    "render_figure_4",
    "render_figure_5",
    "render_figure_6",
]

HERE = Path(__file__).parent
CLIENTS = 10
# Of the held-out images, the first so many are shown.
SHOWN = 6
# Random perturbations that the attack is compared with.
RANDOM = 100
GOAL = 0.9


def _base(options: Options) -> dict[str, Any]:
    base = read_config(HERE / "attack.toml")
    return base | {"rounds": 10} if options.quick else base


# ------------------------------------------------------------------------------ 3


def compute_figure_3(options: Options) -> dict[str, Any]:
    """One run; its perturbation on the first held-out images of the class."""
    config = _base(options)
    run = perform(Run((), config, CLIENTS, point=True))
    perturbation = np.array(run["point"])
    task = make_task("attack", app_config(config), CLIENTS, 0)
    assert isinstance(task, Attack)
    images = task.images(held_out=True)
    perturbed = images + perturbation
    labels = task.classifier_under_attack().logits(perturbed).argmax(axis=1)
    rng = np.random.default_rng(0)
    manifold = task.manifold()
    chance = [
        task.metrics([manifold.random_point(rng)])["misclassified"]
        for _ in range(RANDOM)
    ]
    return {
        "label": task.label(),
        "radius": task.epsilon(),
        "perturbation": perturbation.tolist(),
        "images": images[:SHOWN].tolist(),
        "predicted": labels[:SHOWN].tolist(),
        "counts": np.bincount(labels, minlength=10).tolist(),
        "length": float(np.sqrt((images**2).sum(axis=(1, 2))).mean()),
        "misclassified": run["misclassified"],
        "chance": float(np.mean(chance)),
        "rounds": config["rounds"],
        "evaluations": run["evaluations"],
    }


def render_figure_3(results: dict[str, Any], out: Path) -> str:
    """Original, perturbation, perturbed, for each of the images."""
    images = np.array(results["images"])
    perturbation = np.array(results["perturbation"])
    figure, axes = new_figure(len(images), 3)
    figure.set_size_inches(1.55 * len(images), 5.0)
    largest = float(np.abs(perturbation).max())
    gray, signed = None, None
    for column, (image, label) in enumerate(
        zip(images, results["predicted"], strict=True)
    ):
        gray = axes[0, column].imshow(image, cmap="gray", vmin=0, vmax=1)
        signed = axes[1, column].imshow(
            perturbation, cmap="RdBu_r", vmin=-largest, vmax=largest
        )
        axes[2, column].imshow(image + perturbation, cmap="gray", vmin=0, vmax=1)
        axes[0, column].set_title(f"predicted {results['label']}", fontsize="medium")
        axes[2, column].set_title(f"predicted {label}", fontsize="medium")
    for row, name in zip(axes, ("original", "perturbation", "perturbed"), strict=True):
        for one in row:
            one.grid(False)
            one.set_xticks([])
            one.set_yticks([])
        row[0].set_ylabel(name)
    figure.colorbar(gray, ax=axes[0].tolist(), label="pixel", shrink=0.9)
    figure.colorbar(signed, ax=axes[1].tolist(), label="change", shrink=0.9)
    figure.colorbar(gray, ax=axes[2].tolist(), label="pixel", shrink=0.9)
    counts = results["counts"]
    taken = ", ".join(
        f"{label} ({counts[label]})"
        for label in np.argsort(counts)[::-1]
        if counts[label]
    )
    return (
        f"{save(figure, out, 'figure-3')}\n\n"
        f"The first {len(images)} held-out images of label {results['label']}, one "
        f"perturbation of length {results['radius']:g} for all (the images' own length "
        f"is {results['length']:.1f} on average), after {results['rounds']} rounds and "
        f"{results['evaluations']:,} values of the clients' functions. Of all "
        f"{sum(counts)} held-out images {percent([results['misclassified']])} are "
        f"misclassified, by random perturbations of this length "
        f"{percent([results['chance']])} (mean of {RANDOM}). Labels predicted for the "
        f"perturbed images: {taken}. {measured(results)}"
    )


# ------------------------------------------------------------------------- 4 to 6


def _sweep(options: Options, points: list[Point]) -> dict[str, Any]:
    base = _base(options)
    seeds = min(options.seeds, 5)
    results = sweep(
        options,
        base,
        points,
        ("loss", "misclassified"),
        seeds=seeds,
        goal=("misclassified", GOAL),
    )
    return results | {"rounds": base["rounds"]}


def _render(results: dict[str, Any], out: Path, name: str, title: str) -> str:
    picture = sweep_picture(
        results,
        out,
        name,
        title=title,
        labels={
            "loss": "objective F(δ)",
            "misclassified": "held-out images misclassified (share)",
        },
    )
    lines = [
        f"| {title} | rounds until {GOAL:.0%} misclassified | values of each f_i until "
        f"then | misclassified after {results['rounds']} rounds | F after them |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        if "curves" not in row:
            lines.append(f"| {row['label']} | diverged | | | |")
            continue
        reached = [t for t in row["reached"] if t >= 0]
        all_of_them = len(reached) == len(row["reached"])
        a_round = row["evaluations"][0] / row["nodes"] / results["rounds"]
        cells = ["not by all seeds", ""]
        if all_of_them:
            cells = [
                f"{np.mean(reached):.1f} ({min(reached)} to {max(reached)})",
                f"{a_round * np.mean(reached):,.0f}",
            ]
        lines.append(
            f"| {row['label']} | {' | '.join(cells)} "
            f"| {percent(row['misclassified'])} | {np.mean(row['loss']):.3f} |"
        )
    lines += ["", seeds_and_time(results)]
    return f"{picture}\n\n" + "\n".join(lines)


def compute_figure_4(options: Options) -> dict[str, Any]:
    """τ = 1, 2, 5, 10, 20; n = 10, m = 20."""
    steps = (1, 5) if options.quick else (1, 2, 5, 10, 20)
    return _sweep(options, [Point(str(t), {"local-steps": t}, CLIENTS) for t in steps])


def render_figure_4(results: dict[str, Any], out: Path) -> str:
    """A line for every τ."""
    return _render(results, out, "figure-4", "local steps τ")


def compute_figure_5(options: Options) -> dict[str, Any]:
    """N = 2, 5, 10, 20, 40; τ = 5, m = 20."""
    clients = (2, 10) if options.quick else (2, 5, 10, 20, 40)
    return _sweep(options, [Point(str(n), {}, n) for n in clients])


def render_figure_5(results: dict[str, Any], out: Path) -> str:
    """A line for every n."""
    return _render(results, out, "figure-5", "clients n")


def compute_figure_6(options: Options) -> dict[str, Any]:
    """M = 2, 5, 20, 100 with the paper's step and a hundredfold; n = 10, τ = 5."""
    samples = (5, 20) if options.quick else (2, 5, 20, 100)
    points = [
        Point(f"{m}, η = {eta}", {"samples": m, "local-step-size": eta}, CLIENTS)
        for eta in (0.1, 0.001)
        for m in samples
    ]
    return _sweep(options, points)


def render_figure_6(results: dict[str, Any], out: Path) -> str:
    """A line for every m and η."""
    return _render(results, out, "figure-6", "directions m")
