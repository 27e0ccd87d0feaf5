"""Workshop paper, figure 1c: matrix completion on MovieLens-100k."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import svds

from reproduce.common import Item, Options, Run, app_config, execute, read_config
from reproduce.drawing import new_figure, panel, save, table
from reproduce.rates import batched
from tasks import make_task

from .traffic import bytes_a_round

__all__ = ["ITEMS", "centralised"]

HERE = Path(__file__).parent
NODES = 40
#: λ_0 to choose from, for both methods, and the rounds of a run that helps to choose.
CANDIDATES: tuple[float, ...] = (1e-7, 3e-7, 1e-6, 3e-6)
TRIAL = {"matrix-completion.validation-fraction": 0.2, "rounds": 400}
#: Radii to choose from, by Frank-Wolfe on all the training ratings in one place.
RADII: tuple[float, ...] = (500.0, 1000.0, 2000.0, 4000.0)
METHODS: dict[str, dict[str, Any]] = {
    "FedFW": {},
    "FedFW+": {"variant": "augmented"},
}
#: The paper's: ratings as they are, its radius, and its λ_0 = 1e-5 of the sum of
#: squares over the 80 000 training ratings; F here is their mean. λ_t is then so small
#: that every node goes its own way, which a quarter of the rounds is enough to show.
PAPER_NAME = "FedFW, the paper's settings"
PAPER = {
    "matrix-completion.centred": False,
    "radius": 7000.0,
    "penalty": 1e-5 / 80_000,
}


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

    def runs(wanted: dict[Any, dict[str, Any]], point: bool) -> dict[Any, Any]:
        every = 0 if point else trial["rounds"]
        made = [
            Run(
                key, settings, NODES, curve=True, every=every, point=point, grid=batched
            )
            for key, settings in wanted.items()
        ]
        return execute(made, min(options.jobs, 2))

    by_radius = {r: centralised(config | trial | {"radius": r}, steps) for r in radii}
    config["radius"] = min(radii, key=lambda r: by_radius[r]["rmse"])
    tries = {
        (name, penalty): config | settings | trial | {"penalty": penalty}
        for name, settings in METHODS.items()
        for penalty in penalties
    }
    tried = runs(tries, point=False)
    by_penalty = {
        name: {p: tried[name, p]["rmse"] for p in penalties} for name in METHODS
    }
    configs = {
        name: config | s | {"penalty": min(penalties, key=by_penalty[name].__getitem__)}
        for name, s in METHODS.items()
    }
    paper = config | PAPER | {"rounds": min(500, config["rounds"])}
    found = runs({(k,): v for k, v in {**configs, PAPER_NAME: paper}.items()}, True)
    for name, own in {**configs, PAPER_NAME: paper}.items():
        run = found[name,]
        run |= {"penalty": own["penalty"], "radius": own["radius"]}
        run["nuclear-norm"] = float(np.linalg.norm(run.pop("point"), "nuc"))
    # a round of dense iterates through encoded Messages is seconds for every node
    senders, counted = (4, 2) if options.quick else (NODES, 4)
    moved = {k: bytes_a_round(each, senders, counted) for k, each in configs.items()}
    dense = config | {"method": "projected-fedavg", "local-steps": 1}
    return {
        "runs": {name: run for (name,), run in found.items()},
        # the same arrays travel, whatever is in them
        "moved": moved | {PAPER_NAME: moved["FedFW"]},
        "dense": bytes_a_round(dense, senders, 2),
        "rounds": config["rounds"],
        "paper-rounds": paper["rounds"],
        "by-radius": {radius: one["rmse"] for radius, one in by_radius.items()},
        "by-penalty": by_penalty,
        "optimum": centralised(config, 10 * steps),
    }


def render(results: dict[str, Any], out: Path) -> str:
    """Draw F − F* and RMSE over rounds and bytes."""
    figure, axes = new_figure(2, 2)
    optimum, dense, runs = results["optimum"], results["dense"], results["runs"]
    for column, label in enumerate(
        ("communication round", "gigabytes of messages, both ways")
    ):
        loss, rmse = {}, {}
        for name, run in runs.items():
            moved, curve = results["moved"][name], run["curve"]
            each = NODES * (moved["up"] + moved["down"]) / 1e9 if column else 1.0
            places = each * np.array(curve["round"][1:])
            for metric, part in (("rmse", "test"), ("rmse-train", "train")):
                rmse[f"{name}, {part}"] = (places, curve[metric][1:])
            if name != PAPER_NAME:  # that is another problem, with another optimum
                loss[name] = (places, np.array(curve["loss"][1:]) - optimum["bound"])
        panel(axes[0][column], loss, label, "F − F* (stars²)")
        panel(axes[1][column], rmse, label, "RMSE (stars)", legend=None)
        axes[1][column].axhline(1.0, color="grey", linewidth=0.8)
    axes[1][0].legend(fontsize="small")
    lines = [
        (
            *(name, f"{run['penalty']:.3g}", f"{run['radius']:,.0f}"),
            *(f"{run['curve'][k][-1]:.4f}" for k in ("rmse", "rmse-train", "loss")),
            *(f"{run['nuclear-norm']:,.0f}", f"{results['moved'][name]['up']:,}"),
            f"{results['moved'][name]['down']:,}",
        )
        for name, run in runs.items()
    ]
    head = "method | λ_0 | radius | RMSE test | RMSE train | F | ‖x̄‖_* | bytes up"
    some = next(iter(runs.values()))["curve"]
    return (
        f"{save(figure, out, 'workshop-movielens')}\n\n"
        f"{table(f'{head} | bytes down', lines)}\n\n"
        f"{results['rounds']} rounds ({results['paper-rounds']} with the paper's "
        "settings), one seed. A constant, the training ratings' mean, has test RMSE "
        f"{some['rmse'][0]:.4f}; centralised Frank-Wolfe "
        f"on the same ball {optimum['rmse']:.4f} with F = {optimum['loss']:.4f}, and "
        f"no point of the ball has F below F* = {optimum['bound']:.4f}. Dense "
        f"averaging moves {dense['up']:,} bytes up and {dense['down']:,} down."
    )


ITEMS = {
    "workshop-movielens": Item(
        "2022, figure 1c: matrix completion on MovieLens-100k", compute, render
    )
}
