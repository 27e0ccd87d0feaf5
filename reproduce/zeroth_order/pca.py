"""Theorem 4.1: principal components from gradients and from function values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Item, Options, read_config, repeat
from reproduce.drawing import new_figure, panel, save, spread, table

__all__ = ["ITEMS", "slopes"]

HERE = Path(__file__).parent
CLIENTS = 10
#: Theorem 4.1: both methods with one step size, so that only the estimate differs.
METHODS: dict[str, dict[str, Any]] = {
    "gradients": {"method": "first-order-rfl", "local-step-size": 0.005},
    "values": {"method": "zeroth-order-rfl", "local-step-size": 0.005, "samples": 50},
}


def compute(options: Options) -> dict[str, Any]:
    """Means of ‖G_η̃(P_M(x^k))‖² over the rounds so far, by seed."""
    base = read_config(HERE / "pca.toml") | {"evaluate-gap": True}
    if options.quick:
        base["rounds"] = 30
    seeds = options.numbers(5)
    cases = {name: base | settings for name, settings in METHODS.items()}
    means = {}
    for name, runs in repeat(options, cases, seeds, CLIENTS, curve=True).items():
        curves = [run["curve"]["gradient-map-norm"] for run in runs]
        # (1/K) Σ_k ‖G_η̃(P_M(x^k))‖², K from 1
        sums = np.cumsum(np.array(curves)[:, :-1] ** 2, axis=1)
        means[name] = (sums / np.arange(1, sums.shape[1] + 1)).tolist()
    return {"means": means, "seeds": len(seeds), "rounds": base["rounds"]}


def slopes(results: dict[str, Any], name: str, share: int = 3) -> list[float]:
    """Powers of K by which a mean falls over the last rounds, by seed.

    From round ``rounds // share`` to the last.
    """
    last = results["rounds"]
    since = last // share
    means = np.array(results["means"][name])
    fall = np.log(means[:, last - 1] / means[:, since - 1])
    return list(fall / np.log(last / since))


def render(results: dict[str, Any], out: Path) -> str:
    """The means over the rounds, beside 1/K; slopes and last values in a table."""
    figure, ((axes,),) = new_figure(1)
    rounds = results["rounds"]
    counts = list(range(1, rounds + 1))
    curves = {name: (counts, means) for name, means in results["means"].items()}
    up = r"$\frac{1}{K}\sum_k\|G(x^k)\|^2$"
    panel(axes, curves, "communication rounds K", up, reference=(-1.0, "1/K"))
    lines = [
        (
            name,
            *(spread(slopes(results, name, share), "{:.2f}") for share in (10, 3)),
            f"{np.mean([run[-1] for run in means]):.3g}",
        )
        for name, means in results["means"].items()
    ]
    head = (
        f"method | slope from K = {rounds // 10} to {rounds} | from {rounds // 3} to "
    )
    return (
        f"{save(figure, out, 'theorem')}\n\n"
        + table(f"{head}{rounds} | mean over {rounds} rounds", lines)
        + f"\n\n{results['seeds']} seeds; the lines are medians."
    )


ITEMS = {
    "theorem": Item(
        "rate of the squared gradient map: values beside gradients", compute, render
    )
}
