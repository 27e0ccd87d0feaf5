"""Federated principal components: what gradients and function values arrive at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Item, Options, Run, execute, read_config
from reproduce.drawing import new_figure, panel, save, spread, table

__all__ = ["ITEMS", "slopes"]

HERE = Path(__file__).parent
CLIENTS = 10
NO_CORRECTION = {"correction": False}
FEDAVG = NO_CORRECTION | {"server-step-size": 1.0}
GRADIENTS = {"method": "first-order-rfl", "local-step-size": 0.02}
VALUES = {"method": "zeroth-order-rfl", "samples": 50, "local-step-size": 0.02}
SMALL = {"local-step-size": 0.005}
SEEDS = {"theorem": 5, "federated-pca": 2}

#: Theorem 4.1: both methods with one step size, so that only the estimate differs.
RATES: dict[str, dict[str, Any]] = {
    "gradients": GRADIENTS | SMALL,
    "values": VALUES | SMALL,
}
#: The lines of the picture, by panels and the settings that make them.
PANELS: dict[str, dict[str, dict[str, Any]]] = {
    "corrected": {
        "gradients, η = 0.02": GRADIENTS,
        "values, η = 0.02": VALUES,
        "values, η = 0.005": VALUES | SMALL,
        "values, η = 0.005, m = 200": VALUES | SMALL | {"samples": 200},
    },
    "not corrected": {
        "no c_i, gradients, η = 0.02": GRADIENTS | NO_CORRECTION,
        "FedAvg, gradients, η = 0.02": GRADIENTS | FEDAVG,
        "FedAvg, values, η = 0.02": VALUES | FEDAVG,
    },
}


def _curves(options: Options, name: str) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Every method's runs, one a seed; and how many of what there are."""
    methods = (
        RATES if name == "theorem" else PANELS["corrected"] | PANELS["not corrected"]
    )
    base = read_config(HERE / "pca.toml") | {"evaluate-gap": name == "theorem"}
    if options.quick:
        base["rounds"] = 30
    seeds = min(options.seeds, SEEDS[name])
    runs = [
        Run((method, seed), base | settings | {"seed": seed}, CLIENTS, curve=True)
        for method, settings in methods.items()
        for seed in range(seeds)
    ]
    results = execute(runs, options.jobs)
    found = {method: [results[method, s] for s in range(seeds)] for method in methods}
    return found, {"seeds": seeds, "rounds": base["rounds"]}


def compute_pca(options: Options) -> dict[str, Any]:
    """Every line's gaps."""
    found, facts = _curves(options, "federated-pca")
    rows = [
        {
            "name": name,
            "round": runs[0]["curve"]["round"],
            "gap": np.mean([r["curve"]["optimality-gap"] for r in runs], 0).tolist(),
            "last": [run["curve"]["optimality-gap"][-1] for run in runs],
            "bytes-up": runs[0]["bytes-up"] / facts["rounds"] / CLIENTS,
        }
        for name, runs in found.items()
    ]
    return {"rows": rows, **facts}


def _shown(gap: float) -> str:
    """Write a gap; what is left at 1e-16, of either sign, is rounding."""
    return f"{gap:.2g}" if gap >= 1e-15 else "< 1e-15"


def render_pca(results: dict[str, Any], out: Path) -> str:
    """Gap over rounds, and in a table after a third of them and after all."""
    figure, (axes,) = new_figure(2)
    third, rows = results["rounds"] // 3, {row["name"]: row for row in results["rows"]}
    for one, (title, methods) in zip(axes, PANELS.items(), strict=True):
        curves = {k: (rows[k]["round"], rows[k]["gap"]) for k in methods}
        how: dict[str, Any] = {"title": title, "log": "y", "lowest": 1e-16}
        panel(one, curves, "communication round", "$F(x) - F^*$", **how)
    lines = [
        (
            *(row["name"], _shown(row["gap"][row["round"].index(third)])),
            *(_shown(float(np.mean(row["last"]))), ", ".join(map(_shown, row["last"]))),
            f"{row['bytes-up']:,.0f}",
        )
        for row in results["rows"]
    ]
    head = (
        f"method | gap after {third} rounds | gap after {results['rounds']} | by seed"
    )
    return (
        f"{save(figure, out, 'federated-pca')}\n\n"
        f"{table(f'{head} | bytes up, a client and round', lines)}\n\n"
        f"Means of {results['seeds']} seeds (initial point and directions)."
    )


def compute_theorem(options: Options) -> dict[str, Any]:
    """Means of ‖G_η̃(P_M(x^k))‖² over the rounds so far, by seed."""
    found, facts = _curves(options, "theorem")
    means = {}
    for name, runs in found.items():
        # (1/K) Σ_k ‖G_η̃(P_M(x^k))‖², K from 1
        norms = np.array([run["curve"]["gradient-map-norm"] for run in runs])[:, :-1]
        sums = np.cumsum(norms**2, axis=1)
        means[name] = (sums / np.arange(1, sums.shape[1] + 1)).tolist()
    return {"means": means, **facts}


def slopes(results: dict[str, Any], name: str, share: int = 3) -> list[float]:
    """Powers of K by which a mean falls over the last rounds, by seed.

    From round ``rounds // share`` to the last.
    """
    last = results["rounds"]
    since = last // share
    means = np.array(results["means"][name])
    fall = np.log(means[:, last - 1] / means[:, since - 1])
    return list(fall / np.log(last / since))


def render_theorem(results: dict[str, Any], out: Path) -> str:
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
        "rate of the squared gradient map: values beside gradients",
        compute_theorem,
        render_theorem,
    ),
    "federated-pca": Item(
        "principal components of data dealt by label; not in the paper",
        compute_pca,
        render_pca,
    ),
}
