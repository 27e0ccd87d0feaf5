"""Figures 3 to 6: one perturbation against a classifier that is a black box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
#: Made by ``python -m scripts.train_cifar_cnn --epochs 16`` of two training batches.
WEIGHTS = HERE / "cifar-cnn.onnx"
CLIENTS = 10
# Of the held-out images, the first so many are shown.
SHOWN = 6
# Random perturbations that the attack is compared with.
RANDOM = 20
GOAL = 0.4
#: What a quick run has instead of CIFAR-10: no file is needed.
DIGITS = {
    "rounds": 10,
    "step-size": 0.001,
    "batch-size": 0,
    "samples": 20,
    "smoothing": 1e-4,
    "attack.dataset": "digits",
    "attack.partial": False,
    "attack.target-label": 3,
    "attack.radius": 1.0,
}


def _base(options: Options) -> dict[str, Any]:
    base = read_config(HERE / "attack.toml")
    if options.quick:
        return base | DIGITS
    return base | {
        "attack.path": str(options.file("cifar10")),
        "attack.classifier-path": str(WEIGHTS),
    }


# ------------------------------------------------------------------------------ 3


def compute_figure_3(options: Options) -> dict[str, Any]:
    """One run; its perturbation on the first held-out images of the class."""
    config = _base(options)
    if not options.quick:
        config |= {"rounds": 4, "samples": 20, "step-size": 0.02}
    run = perform(Run((), config, CLIENTS, point=True, every=config["rounds"]))
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
        "images": np.round(images[:SHOWN], 4).tolist(),
        "predicted": labels[:SHOWN].tolist(),
        "counts": np.bincount(labels, minlength=10).tolist(),
        "length": float(np.sqrt((images**2).reshape(len(images), -1).sum(1)).mean()),
        "misclassified": run["misclassified"],
        "chance": float(np.mean(chance)),
        "rounds": config["rounds"],
        "evaluations": run["evaluations"],
    }


def _pixels(image: NDArray[Any]) -> NDArray[Any]:
    """Move the channels of a picture in colour to the last axis; grey to all three."""
    if image.ndim == 2:
        return np.repeat(image[:, :, None], 3, axis=2)
    return np.moveaxis(image, 0, -1)


def render_figure_3(results: dict[str, Any], out: Path) -> str:
    """Original, perturbation, perturbed, for each of the images."""
    images = np.array(results["images"])
    perturbation = np.array(results["perturbation"])
    figure, axes = new_figure(len(images), 3)
    figure.set_size_inches(1.55 * len(images), 5.0)
    largest = float(np.abs(perturbation).max())
    for column, (image, label) in enumerate(
        zip(images, results["predicted"], strict=True)
    ):
        shown = (
            image,
            0.5 + 0.5 * perturbation / largest,
            np.clip(image + perturbation, 0.0, 1.0),
        )
        for axis, picture in zip(axes[:, column], shown, strict=True):
            axis.imshow(_pixels(picture))
        axes[0, column].set_title(f"predicted {results['label']}", fontsize="medium")
        axes[2, column].set_title(f"predicted {label}", fontsize="medium")
    rows = ("original", f"perturbation × {0.5 / largest:.0f}", "perturbed")
    for row, name in zip(axes, rows, strict=True):
        for one in row:
            one.grid(False)
            one.set_xticks([])
            one.set_yticks([])
        row[0].set_ylabel(name)
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
    return sweep(
        options,
        _base(options),
        points,
        ("loss", "misclassified"),
        seeds=min(options.seeds, 5),
        goal=("misclassified", GOAL),
    )


def _render(results: dict[str, Any], out: Path, name: str, title: str) -> str:
    starts = [
        row["curves"]["misclassified"]["mean"][0]
        for row in results["rows"]
        if "curves" in row
    ]
    picture = sweep_picture(
        results,
        out,
        name,
        title=title,
        labels={
            "loss": "objective F(δ)",
            "misclassified": "held-out images misclassified (share)",
        },
        # every run starts with a random perturbation
        chance={"misclassified": float(np.mean(starts))},
    )
    lines = [
        f"| {title} | rounds until {GOAL:.0%} misclassified | values of each f_i until "
        "then | rounds | misclassified after them | F |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        if "curves" not in row:
            lines.append(f"| {row['label']} | diverged | | | | |")
            continue
        reached = [t for t in row["reached"] if t >= 0]
        all_of_them = len(reached) == len(row["reached"])
        rounds = row["curves"]["round"][-1]
        a_round = row["evaluations"][0] / row["nodes"] / rounds
        cells = ["not by all seeds", ""]
        if all_of_them:
            cells = [
                f"{np.mean(reached):.1f} ({min(reached)} to {max(reached)})",
                f"{a_round * np.mean(reached):,.0f}",
            ]
        lines.append(
            f"| {row['label']} | {' | '.join(cells)} | {rounds} "
            f"| {percent(row['misclassified'])} | {np.mean(row['loss']):.3f} |"
        )
    lines += ["", f"{seeds_and_time(results)} The lines are medians, dotted is chance."]
    return f"{picture}\n\n" + "\n".join(lines)


def compute_figure_4(options: Options) -> dict[str, Any]:
    """τ = 2, 5, 10, fewer rounds for the longer ones; n = 10, m = 5."""
    steps = {1: 10, 5: 10} if options.quick else {2: 18, 5: 8, 10: 5}
    points = [
        Point(str(tau), {"local-steps": tau, "rounds": rounds}, CLIENTS)
        for tau, rounds in steps.items()
    ]
    return _sweep(options, points)


def render_figure_4(results: dict[str, Any], out: Path) -> str:
    """A line for every τ."""
    return _render(results, out, "figure-4", "local steps τ")


def compute_figure_5(options: Options) -> dict[str, Any]:
    """N = 5, 10, 20, fewer rounds for the more; τ = 5, m = 5."""
    clients = {2: 10, 10: 10} if options.quick else {5: 12, 10: 8, 20: 6}
    points = [Point(str(n), {"rounds": rounds}, n) for n, rounds in clients.items()]
    return _sweep(options, points)


def render_figure_5(results: dict[str, Any], out: Path) -> str:
    """A line for every n."""
    return _render(results, out, "figure-5", "clients n")


def compute_figure_6(options: Options) -> dict[str, Any]:
    """M = 2 and 10 with a large step and with the others'; n = 10, τ = 5."""
    cases: tuple[tuple[int, float], ...] = (
        *((2, 0.02), (10, 0.02)),
        *((2, 0.005), (10, 0.005)),
    )
    if options.quick:
        cases = ((5, 0.1), (20, 0.1), (5, 0.001))
    points = [
        Point(f"{m}, η = {eta}", {"samples": m, "step-size": eta, "rounds": 4}, CLIENTS)
        for m, eta in cases
    ]
    return _sweep(options, points)


def render_figure_6(results: dict[str, Any], out: Path) -> str:
    """A line for every m and η."""
    return _render(results, out, "figure-6", "directions m")
