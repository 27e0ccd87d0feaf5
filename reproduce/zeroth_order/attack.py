"""Figures 3 to 6: one perturbation against a classifier that is a black box."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.common import Item, Options, Run, app_config, perform, read_config
from reproduce.drawing import new_figure, percent, save, table
from reproduce.sweep import Point, seeds_of, sweep, sweep_picture
from tasks import Attack, make_task

__all__ = ["ITEMS"]

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
    grey = 0.5 + 0.5 * perturbation / largest
    for column, image in enumerate(images):
        shown = (image, grey, np.clip(image + perturbation, 0.0, 1.0))
        for axis, picture in zip(axes[:, column], shown, strict=True):
            axis.imshow(_pixels(picture))
            axis.grid(False)
            axis.set_xticks([])
            axis.set_yticks([])
        for row, label in ((0, results["label"]), (2, results["predicted"][column])):
            axes[row, column].set_title(f"predicted {label}", fontsize="medium")
    names = ("original", f"perturbation × {0.5 / largest:.0f}", "perturbed")
    for axis, name in zip(axes[:, 0], names, strict=True):
        axis.set_ylabel(name)
    return (
        f"{save(figure, out, 'figure-3')}\n\n"
        f"The first {len(images)} held-out images of label {results['label']}, one "
        f"perturbation of length {results['radius']:g} for all (the images' own length "
        f"is {results['length']:.1f} on average), after {results['rounds']} rounds and "
        f"{results['evaluations']:,} values of the clients' functions. Of all "
        f"held-out images {percent([results['misclassified']])} are misclassified, "
        f"by {RANDOM} random ones of this length {percent([results['chance']])}."
    )


# ------------------------------------------------------------------------- 4 to 6

#: By figure what is varied, and its points, fewer rounds for the faster.
FIGURES: dict[str, tuple[str, list[Point]]] = {
    "figure-4": (
        "local steps τ",
        [
            Point(str(tau), {"local-steps": tau, "rounds": rounds}, CLIENTS)
            for tau, rounds in ((2, 18), (5, 8), (10, 5))
        ],
    ),
    "figure-5": (
        "clients n",
        [
            Point(str(n), {"rounds": rounds}, n)
            for n, rounds in ((5, 12), (10, 8), (20, 6))
        ],
    ),
    "figure-6": (
        "directions m",
        [
            Point(f"{m}, η = {eta}", {"samples": m, "step-size": eta, "rounds": 4}, 10)
            for eta in (0.02, 0.005)
            for m in (2, 10)
        ],
    ),
}


def compute(options: Options, name: str) -> dict[str, Any]:
    """All points."""
    return sweep(
        options,
        _base(options),
        FIGURES[name][1][: 2 if options.quick else None],
        ("loss", "misclassified"),
        seeds=options.numbers(5),
        goal=("misclassified", GOAL),
    )


def render(results: dict[str, Any], out: Path, name: str) -> str:
    """Objective and misclassified images over rounds, a line for every point."""
    title = FIGURES[name][0]
    rows = [row for row in results["rows"] if "curves" in row]
    starts = [row["curves"]["misclassified"]["mean"][0] for row in rows]
    picture = sweep_picture(
        {"": rows},
        out,
        name,
        {
            "loss": "objective F(δ)",
            "misclassified": "held-out images misclassified (share)",
        },
        title=title,
        # every run starts with a random perturbation
        chance={"misclassified": float(np.mean(starts))},
    )
    lines: list[tuple[Any, ...]] = []
    for row in rows:
        reached, rounds = row["reached"], row["curves"]["round"][-1]
        until = "not by all seeds"
        if min(reached) >= 0:
            until = f"{np.mean(reached):.1f} ({min(reached)} to {max(reached)})"
        ends = (rounds, percent(row["misclassified"]), f"{np.mean(row['loss']):.3f}")
        lines.append((row["label"], until, *ends))
    head = f"{title} | rounds until {GOAL:.0%} misclassified"
    return (
        f"{picture}\n\n"
        + table(f"{head} | rounds | misclassified after them | F", lines)
        + f"\n\n{seeds_of(results)} Dotted is chance."
    )


ITEMS = {
    "figure-3": Item(
        "attacked images, before and after", compute_figure_3, render_figure_3
    ),
    **{
        name: Item(
            f"attack: by the {what}",
            partial(compute, name=name),
            partial(render, name=name),
        )
        for name, (what, _) in FIGURES.items()
    },
}
