"""Workshop paper, figure 1c: matrix completion on MovieLens-100k."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import svds

from reproduce.common import Item, Options, app_config, read_config, repeat
from reproduce.drawing import new_figure, panel, save, table
from reproduce.rates import batched
from tasks import make_task

__all__ = ["ITEMS", "centralised"]

HERE = Path(__file__).parent
NODES = 40
#: λ_0 to choose from, for both methods, and the rounds of a run that helps to choose.
CANDIDATES: tuple[float, ...] = (1e-7, 3e-7, 1e-6, 3e-6)
TRIAL = {"matrix-completion.validation-fraction": 0.2, "rounds": 400}
#: Radii to choose from, by Frank-Wolfe on all the training ratings in one place.
RADII: tuple[float, ...] = (500.0, 1000.0, 2000.0, 4000.0)
METHODS: dict[str, dict[str, Any]] = {"FedFW": {}, "FedFW+": {"variant": "augmented"}}
#: The paper's: ratings as they are, its radius, and its λ_0 = 1e-5 of the sum of
#: squares over the 80 000 training ratings; F here is their mean. λ_t is then so small
#: that every node goes its own way, which a quarter of the rounds is enough to show.
PAPER_NAME = "FedFW, the paper's settings"
PAPER = {"matrix-completion.centred": False, "radius": 7000.0, "penalty": 1e-5 / 80_000}


def centralised(config: dict[str, Any], rounds: int) -> dict[str, float]:
    """Frank-Wolfe with line search on all training ratings in one place.

    Returns
    -------
    dict
        ``loss``, F at the end; ``bound``, the largest F − gap on the way, below which
        no point of the ball goes; ``rmse`` on the test or validation ratings.
    """
    task = make_task("matrix-completion", app_config(config), 1, 0)
    (shape,) = task.shapes()
    x, bound = np.zeros(shape), 0.0
    start = np.random.default_rng(0).standard_normal(min(shape))
    for _ in range(rounds):
        gradient = scipy.sparse.csr_matrix(task.gradient(x))
        left, _, right = svds(gradient, k=1, tol=1e-3, v0=start)
        start = left[:, 0] if shape[0] <= shape[1] else right[0]
        step = -config["radius"] * np.outer(left[:, 0], right[0]) - x
        slope = float(gradient.multiply(step).sum())
        value = task.value(x)
        bound = max(bound, value + slope)
        # F is quadratic: F(x + η step) = F(x) + η slope + η² second
        second = task.value(x + step) - value - slope
        x += min(1.0, -slope / (2.0 * second)) * step
    return {"loss": task.value(x), "bound": bound, "rmse": task.metrics(x)["rmse"]}


def compute(options: Options) -> dict[str, Any]:
    """Choose radius and λ_0 on validation ratings, then run."""
    config = read_config(HERE / "movielens.toml")
    config["matrix-completion.path"] = str(options.file("ml-100k/u.data"))
    penalties, radii, steps = CANDIDATES, RADII, 100
    trial: dict[str, Any] = dict(TRIAL)
    if options.quick:
        config["rounds"] = trial["rounds"] = 3
        penalties, radii, steps = penalties[:1], radii[1:2], 3

    # the iterates of all nodes are a gigabyte and more
    few = replace(options, jobs=min(options.jobs, 2))
    by_radius = {r: centralised(config | trial | {"radius": r}, steps) for r in radii}
    config["radius"] = min(radii, key=lambda r: by_radius[r]["rmse"])
    tries = {
        (name, penalty): config | settings | trial | {"penalty": penalty}
        for name, settings in METHODS.items()
        for penalty in penalties
    }
    how: dict[str, Any] = {"every": trial["rounds"], "grid": batched}
    tried = repeat(few, tries, [0], NODES, **how)
    by_penalty = {
        name: {p: tried[name, p][0]["rmse"] for p in penalties} for name in METHODS
    }
    configs = {
        name: config | s | {"penalty": min(penalties, key=by_penalty[name].__getitem__)}
        for name, s in METHODS.items()
    }
    configs[PAPER_NAME] = config | PAPER | {"rounds": min(500, config["rounds"])}
    how = {"every": 0, "curve": True, "point": True, "grid": batched}
    runs = {}
    for name, (run,) in repeat(few, configs, [0], NODES, **how).items():
        runs[name] = run | {key: configs[name][key] for key in ("penalty", "radius")}
        runs[name]["nuclear-norm"] = float(np.linalg.norm(run["point"], "nuc"))
        del runs[name]["point"]
    return {
        "runs": runs,
        "rounds": config["rounds"],
        "paper-rounds": configs[PAPER_NAME]["rounds"],
        "by-radius": {radius: one["rmse"] for radius, one in by_radius.items()},
        "by-penalty": by_penalty,
        "optimum": centralised(config, 10 * steps),
    }


def render(results: dict[str, Any], out: Path) -> str:
    """Draw F − F* and RMSE over rounds."""
    figure, (axes,) = new_figure(2)
    optimum, runs = results["optimum"], results["runs"]
    loss, rmse = {}, {}
    for name, run in runs.items():
        curve = run["curve"]
        for metric, part in (("rmse", "test"), ("rmse-train", "train")):
            rmse[f"{name}, {part}"] = (curve["round"][1:], curve[metric][1:])
        if name != PAPER_NAME:  # that is another problem, with another optimum
            above = np.array(curve["loss"][1:]) - optimum["bound"]
            loss[name] = (curve["round"][1:], above)
    panel(axes[0], loss, "communication round", "F − F* (stars²)")
    panel(axes[1], rmse, "communication round", "RMSE (stars)")
    axes[1].axhline(1.0, color="grey", linewidth=0.8)
    lines = [
        (
            *(name, f"{run['penalty']:.3g}", f"{run['radius']:,.0f}"),
            *(f"{run['curve'][k][-1]:.4f}" for k in ("rmse", "rmse-train", "loss")),
            f"{run['nuclear-norm']:,.0f}",
        )
        for name, run in runs.items()
    ]
    head = "method | λ_0 | radius | RMSE test | RMSE train | F | ‖x̄‖_*"
    constant = next(iter(runs.values()))["curve"]["rmse"][0]
    return (
        f"{save(figure, out, 'workshop-movielens')}\n\n{table(head, lines)}\n\n"
        f"{results['rounds']} rounds ({results['paper-rounds']} with the paper's "
        "settings), one seed. A constant, the training ratings' mean, has test RMSE "
        f"{constant:.4f}; centralised Frank-Wolfe "
        f"on the same ball {optimum['rmse']:.4f} with F = {optimum['loss']:.4f}, and "
        f"no point of the ball has F below F* = {optimum['bound']:.4f}."
    )


ITEMS = {
    "workshop-movielens": Item(
        "2022, figure 1c: matrix completion on MovieLens-100k", compute, render
    )
}
