"""Figure 2: estimators (7) and (6) in zeroth-order Riemannian gradient descent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import expm

from fedtrellis.manifolds import Manifold
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.zeroth_order import Values, directions, evaluator
from reproduce.common import Item, Options
from reproduce.drawing import new_figure, panel, save, table
from tasks import make_task

__all__ = ["ITEMS"]

# r, m and the number of examples of figure 2; μ and the step size are common.
DATA: dict[str, dict[str, Any]] = {
    "Iris": {"dataset": "iris", "components": 2, "samples": 0, "m": 100},
    "Digits": {"dataset": "digits", "components": 4, "samples": 200, "m": 50},
}
SMOOTHING = 1e-4
STEP = 0.1
ITERATIONS = 1000
# Evaluated at these iterations, enough for a picture.
POINTS = 60

Step = Callable[[FloatArray, np.random.Generator], FloatArray]
Map = Callable[[FloatArray, FloatArray], FloatArray]


def exponential(x: FloatArray, v: FloatArray) -> FloatArray:
    """Exp_x(v) of x with orthonormal columns, for one tangent v or a batch.

    Exp_x(v) = [x v] exp([A −vᵀv; I A]) [I; 0] exp(−A) with A = xᵀv: Edelman, Arias,
    Smith, SIAM J. Matrix Anal. Appl. 1998, equation (2.42).
    """
    r = x.shape[-1]
    a, vv = x.T @ v, v.swapaxes(-1, -2) @ v
    eye = np.broadcast_to(np.eye(r), a.shape)
    generator = np.concatenate(
        [np.concatenate([a, -vv], -1), np.concatenate([eye, a], -1)], -2
    )
    flow = expm(generator)[..., :r] @ expm(-a)
    y: FloatArray = x @ flow[..., :r, :] + v @ flow[..., r:, :]
    return y


def variants(values: Values, manifold: Manifold, samples: int) -> dict[str, Step]:
    """One step of gradient descent, by each estimator and its own map onto M.

    Written alike, without what the library checks: only the formulas differ.
    """

    def tangent(x: FloatArray, rng: np.random.Generator) -> FloatArray:
        normal = rng.standard_normal((samples, *x.shape))
        return manifold.project_tangent(x, normal)

    def sphere(x: FloatArray, rng: np.random.Generator) -> FloatArray:
        return directions(rng, samples, x.shape)

    def projection(x: FloatArray, v: FloatArray) -> FloatArray:
        return manifold.project(x + v)

    def by(draw: Step, move: Map, scale: int = 1) -> Step:
        def step(x: FloatArray, rng: np.random.Generator) -> FloatArray:
            u = draw(x, rng)
            f = values(np.concatenate((x[None], move(x, SMOOTHING * u))))
            # (7): G = (n/m) Σ_j [F(P_M(x + μ u_j)) − F(x)]/μ · u_j, ‖u_j‖ = 1
            # (6): G = (1/m) Σ_j [F(Retr_x(μ u_j)) − F(x)]/μ · u_j, u_j in T_x M
            weights = (f[1:] - f[0]) * (scale / (samples * SMOOTHING))
            # x ← P_M(x − η G) or Retr_x(−η G)
            return move(x, -STEP * np.tensordot(weights, u, 1))

        return step

    return {
        "(7), projection": by(sphere, projection, prod(manifold.shape)),
        "(6), polar": by(tangent, manifold.retract),
        "(6), exponential": by(tangent, exponential),
    }


def descend(
    settings: Mapping[str, Any], seed: int, iterations: int
) -> dict[str, dict[str, list[float]]]:
    """All variants from one start, an iteration of each in turn."""
    config = {
        f"kernel-pca.{key}": settings[key]
        for key in ("dataset", "components", "samples")
    }
    task = make_task("kernel-pca", config, 1, seed)
    manifold = task.manifold()
    assert manifold is not None
    values = evaluator(task.objective(), Layout(tuple(task.shapes())))
    (start,) = task.initial_point()
    steps = variants(values, manifold, settings["m"])
    points = dict.fromkeys(steps, start)
    # each variant draws the same normal numbers
    rngs = {name: generator(seed, "figure 2") for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    shown = {0, *np.geomspace(1, iterations, POINTS).astype(int).tolist()}
    curves: dict[str, dict[str, list[float]]] = {
        name: {"iteration": [], "gap": [], "seconds": []} for name in steps
    }
    names = list(steps)
    for k in range(iterations + 1):
        if k:
            # in turn, so that whatever else the machine does is met by all
            for name in names[k % 3 :] + names[: k % 3]:
                began = time.perf_counter()
                points[name] = steps[name](points[name], rngs[name])
                seconds[name].append(time.perf_counter() - began)
        if k in shown:
            for name in names:
                curve = curves[name]
                curve["iteration"].append(k)
                curve["seconds"].append(sum(seconds[name]))
                curve["gap"].append(task.metrics(points[name])["optimality-gap"])
    for name in names:
        curves[name]["milliseconds"] = [1e3 * float(np.median(seconds[name]))]
    return curves


def compute_figure_2(options: Options) -> dict[str, Any]:
    """Iris and digits, in this process alone; at most five seeds."""
    seeds = options.numbers(5)
    iterations = 100 if options.quick else ITERATIONS
    data: dict[str, Any] = {}
    for name, settings in DATA.items():
        runs = [descend(settings, seed, iterations) for seed in seeds]
        data[name] = {
            variant: {
                "iteration": runs[0][variant]["iteration"],
                **{
                    what: np.median(
                        [run[variant][what] for run in runs], axis=0
                    ).tolist()
                    for what in ("gap", "seconds")
                },
                "seeds": [run[variant]["gap"] for run in runs],
                "last-gaps": [run[variant]["gap"][-1] for run in runs],
                "milliseconds": [run[variant]["milliseconds"][0] for run in runs],
            }
            for variant in runs[0]
        }
    return {"data": data, "seeds": len(seeds), "iterations": iterations}


def render_figure_2(results: dict[str, Any], out: Path) -> str:
    """Gap against seconds and against iterations, and the times in a table."""
    data, lines = results["data"], []
    figure, axes = new_figure(2, len(data))
    for line, (name, curves) in zip(axes, data.items(), strict=True):
        for one, what, across in (
            (line[0], "seconds", "run time, seconds"),
            (line[1], "iteration", "iteration"),
        ):
            drawn = {k: (curve[what], curve["gap"]) for k, curve in curves.items()}
            how: dict[str, Any] = {"title": name, "log": "y", "legend": "estimator"}
            panel(one, drawn, across, "gap f(x) − f*", lowest=1e-16, **how)
        base = np.array(next(iter(curves.values()))["milliseconds"])
        for variant, curve in curves.items():
            times = np.array(curve["milliseconds"])
            low, middle, high = np.percentile(times / base, (0, 50, 100))
            lines.append(
                (
                    *(name, variant, f"{np.median(times):.3f}"),
                    f"{middle:.2f} ({low:.2f} to {high:.2f})",
                    f"{np.median(curve['last-gaps']):.1e}",
                )
            )
    head = "data | estimator | ms an iteration | times (7)'s | gap after "
    head += f"{results['iterations']} iterations"
    return (
        f"{save(figure, out, 'figure-2')}\n\n"
        f"{table(head, lines)}\n\n"
        f"Medians of {results['seeds']} seeds, extremes in brackets; an iteration's "
        "time is the median of a run. One process."
    )


ITEMS = {
    "figure-2": Item(
        "kernel PCA in one place: estimator (7) against (6), by seconds",
        compute_figure_2,
        render_figure_2,
    )
}
