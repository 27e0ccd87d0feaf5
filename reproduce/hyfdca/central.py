"""Theorems 4.5, 4.8 and 4.11: the paper's step against a central solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import sim
from reproduce.common import LEDGER, Options, app_config, read_config, workers
from reproduce.drawing import band, measured, new_figure, save, style_of
from reproduce.rates import late_slope
from tasks import HybridTask

from .one_place import Available, load, paper_step
from .steps import presence

__all__ = ["SETTINGS", "compute_central", "cyclic", "render_central"]

HERE = Path(__file__).parent
SEEDS = 5
ITERATIONS = 2000
SAMPLES = 400
#: H/N_k: less than all, or there is nothing random in the hybrid setting.
PART = 0.5


@dataclass(frozen=True)
class Setting:
    """What a theorem assumes.

    Attributes
    ----------
    theorem : str
    samples, features : int
        Groups; client s·features + q holds one of each.
    weight : float or None
        c_k; None: N_k/N.
    gamma : callable
        γ_t.
    available : callable
        From the number of clients and a seed to who is there.
    """

    theorem: str
    samples: int
    features: int
    weight: float | None
    gamma: Callable[[int], float]
    available: Callable[[int, int], Available | None]


def cyclic(nodes: int, parts: int = 2) -> Available:
    """The clients in ``parts`` sets of one size, one set after the other."""
    size = nodes // parts

    def here(t: int) -> set[int]:
        first = (t - 1) % parts * size
        return set(range(first, first + size))

    return here


def one(t: int) -> float:
    """γ_t = 1."""
    return 1.0


def shrinking(t: int) -> float:
    """γ_t = 1/t."""
    return 1.0 / t


SETTINGS = {
    "hybrid, 4 × 4, all there": Setting(
        "4.5", 4, 4, None, one, lambda nodes, seed: None
    ),
    "horizontal, 8 clients, half there": Setting(
        "4.8", 8, 1, 1.0, one, lambda nodes, seed: presence(nodes, 0.5, seed)
    ),
    "vertical, 4 clients, half in turn": Setting(
        "4.11", 1, 4, 1.0, shrinking, lambda nodes, seed: cyclic(nodes)
    ),
}


def _config(setting: Setting, seed: int, samples: int) -> dict[str, Any]:
    """A run config; its own rounds and steps do not count, as it runs in one place."""
    return read_config(HERE / "hyfdca.toml") | {
        # the theorems take ‖x_i‖ ≤ 1
        "hybrid-svm.row-scaling": "unit",
        "hybrid-svm.test-fraction": 0.0,
        "hybrid-svm.train-limit": samples,
        "hybrid-svm.sample-groups": setting.samples,
        "hybrid-svm.feature-groups": setting.features,
        "seed": seed,
    }


def _row(job: tuple[str, int, int, int]) -> dict[str, Any]:
    """One seed of one setting."""
    name, seed, iterations, samples = job
    setting = SETTINGS[name]
    nodes = setting.samples * setting.features
    config = _config(setting, seed, samples)
    table = load(config, nodes)
    task = sim.app.experiment(app_config(config), nodes).task
    assert isinstance(task, HybridTask)
    best = np.asarray(task.optimum().w)
    states = paper_step(
        table,
        "theoretical",
        max(1, int(PART * len(table.y) / setting.samples)),
        seed,
        setting.available(nodes, seed),
        setting.weight,
        setting.gamma,
    )
    wanted = sorted(
        {*np.unique(np.geomspace(1, iterations, 60).astype(int)), iterations}
    )
    loss, distance = [], []
    for t, state in enumerate(islice(states, iterations + 1)):
        if t in wanted:
            loss.append(table.primal(state.w, state.z) / table.optimum - 1.0)
            distance.append(
                float(np.linalg.norm(state.w - best) / np.linalg.norm(best))
            )
    return {
        "iteration": [int(t) for t in wanted],
        "loss": loss,
        "distance": distance,
        "exponent": late_slope([int(t) for t in wanted], loss),
    }


def compute_central(options: Options) -> dict[str, Any]:
    """All settings on digits, five seeds."""
    iterations, samples, seeds = ITERATIONS, SAMPLES, options.numbers(SEEDS)
    if options.quick:
        iterations, samples = 60, 80
    jobs = [(n, seed, iterations, samples) for n in SETTINGS for seed in seeds]
    LEDGER.note(_config(SETTINGS[n], seed, samples) for n, seed, _, samples in jobs)
    with workers(options.jobs) as pool:
        found = list(pool.map(_row, jobs))
    rows = []
    for k, name in enumerate(SETTINGS):
        mine = found[k * len(seeds) : (k + 1) * len(seeds)]
        rows.append(
            {
                "setting": name,
                "theorem": SETTINGS[name].theorem,
                "iteration": mine[0]["iteration"],
                "loss": [run["loss"] for run in mine],
                "distance": [run["distance"] for run in mine],
                "exponents": [run["exponent"] for run in mine],
            }
        )
    return {
        "rows": rows,
        "iterations": iterations,
        "samples": samples,
        "seeds": len(seeds),
    }


def render_central(results: dict[str, Any], out: Path) -> str:
    """Relative loss and distance over iterations, medians and bands."""
    figure, (axes,) = new_figure(2)
    lines = [
        "| theorem | setting | (P − P*)/P* at the end | ‖w − w*‖/‖w*‖ at the end "
        "| exponent of the loss, by seed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for axis, what, label in zip(
        axes,
        ("loss", "distance"),
        ("relative loss $(P - P^*)/P^*$", r"$\|w - w^*\| / \|w^*\|$"),
        strict=True,
    ):
        for k, row in enumerate(results["rows"]):
            band(axis, row["iteration"], row[what], row["setting"], **style_of(k))
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("iteration $t$")
        axis.set_ylabel(label)
    axes[0].legend(fontsize="small")
    for row in results["rows"]:
        ends = [
            f"{float(np.median([own[-1] for own in row[what]])):.2g}"
            for what in ("loss", "distance")
        ]
        powers = ", ".join(f"{value:.2f}" for value in row["exponents"])
        lines.append(
            f"| {row['theorem']} | {row['setting']} | {ends[0]} | {ends[1]} "
            f"| {powers} |"
        )
    return (
        f"{save(figure, out, 'central')}\n\n"
        + "\n".join(lines)
        + f"\n\n{results['samples']} digits, {results['iterations']:,} iterations; "
        f"medians of {results['seeds']} seeds, extremes in the picture. The exponent "
        f"is that of the last decade. {measured(results)}"
    )
