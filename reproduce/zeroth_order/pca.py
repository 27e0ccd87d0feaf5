"""Federated principal components: what gradients and function values arrive at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Options, Run, execute, read_config
from reproduce.drawing import band, measured, new_figure, save, style_of

__all__ = ["compute_pca", "compute_theorem", "render_pca", "render_theorem"]

HERE = Path(__file__).parent
CLIENTS = 10
NO_CORRECTION = {"correction": False}
FEDAVG = NO_CORRECTION | {"server-step-size": 1.0}
GRADIENTS = {"method": "first-order-rfl"}
VALUES = {"method": "zeroth-order-rfl", "samples": 50}

#: The lines of the picture, by the settings that make them.
RUNS: dict[str, dict[str, Any]] = {
    "gradients, η = 0.02": GRADIENTS | {"local-step-size": 0.02},
    "values, η = 0.02": VALUES | {"local-step-size": 0.02},
    "values, η = 0.005": VALUES | {"local-step-size": 0.005},
    "values, η = 0.005, m = 200": VALUES | {"local-step-size": 0.005, "samples": 200},
    "no c_i, gradients, η = 0.02": GRADIENTS
    | NO_CORRECTION
    | {"local-step-size": 0.02},
    "FedAvg, gradients, η = 0.02": GRADIENTS | FEDAVG | {"local-step-size": 0.02},
    "FedAvg, values, η = 0.02": VALUES | FEDAVG | {"local-step-size": 0.02},
}


# Theorem 4.1: both methods with one step size, so that only the estimate differs.
RATES: dict[str, dict[str, Any]] = {
    "gradients": GRADIENTS | {"local-step-size": 0.005},
    "values": VALUES | {"local-step-size": 0.005},
}


def shown(gap: float) -> str:
    """Write a gap; what is left at 1e-16, of either sign, is rounding."""
    return f"{gap:.2g}" if gap >= 1e-15 else "< 1e-15"


def compute_pca(options: Options) -> dict[str, Any]:
    """Every line's run, at most two seeds each."""
    base = read_config(HERE / "pca.toml")
    if options.quick:
        base["rounds"] = 15
    seeds = min(options.seeds, 2)
    runs = [
        Run((name, seed), base | settings | {"seed": seed}, CLIENTS, curve=True)
        for name, settings in RUNS.items()
        for seed in range(seeds)
    ]
    results = execute(runs, options.jobs)
    rows = []
    for name in RUNS:
        found = [results[name, seed] for seed in range(seeds)]
        gaps = np.array([run["curve"]["optimality-gap"] for run in found])
        rows.append(
            {
                "name": name,
                "round": found[0]["curve"]["round"],
                "gap": np.mean(gaps, axis=0).tolist(),
                "last": gaps[:, -1].tolist(),
                "bytes-up": found[0]["bytes-up"] / base["rounds"] / CLIENTS,
            }
        )
    return {"rows": rows, "seeds": seeds, "rounds": base["rounds"]}


def render_pca(results: dict[str, Any], out: Path) -> str:
    """Gap over rounds, and in a table after a third of them and after all."""
    figure, (panels,) = new_figure(2)
    places = [0, 0]
    rounds = results["rounds"]
    lines = [
        f"| method | gap after {rounds // 3} rounds | gap after {rounds} | by seed "
        "| bytes up, a client and round |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        without = row["name"].startswith(("FedAvg", "no c_i"))
        axes = panels[int(without)]
        style = style_of(places[without])
        places[without] += 1
        # rounding leaves gaps of either sign at 1e-16
        axes.plot(
            row["round"],
            np.maximum(row["gap"], 1e-16),
            label=row["name"].replace("c_i", "$c_i$"),
            **style,
        )
        last = row["last"]
        third = row["gap"][row["round"].index(rounds // 3)]
        lines.append(
            f"| {row['name']} | {shown(third)} "
            f"| {shown(float(np.mean(last)))} "
            f"| {', '.join(shown(gap) for gap in last)} | {row['bytes-up']:,.0f} |"
        )
    for axes, title in zip(panels, ("corrected", "not corrected"), strict=True):
        axes.set_title(title)
        axes.set_yscale("log")
        axes.set_ylim(1e-16, 3.0)
        axes.set_xlabel("communication round")
        axes.set_ylabel("$F(x) - F^*$")
        axes.legend(fontsize="small")
    lines += [
        "",
        f"Means of {results['seeds']} seeds (initial point and directions). "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'federated-pca')}\n\n" + "\n".join(lines)


def compute_theorem(options: Options) -> dict[str, Any]:
    """Means of ‖G_η̃(P_M(x^k))‖² over the rounds so far, by seed; at most five."""
    base = read_config(HERE / "pca.toml") | {"evaluate-gap": True}
    if options.quick:
        base["rounds"] = 30
    seeds = min(options.seeds, 5)
    runs = [
        Run((name, seed), base | settings | {"seed": seed}, CLIENTS, curve=True)
        for name, settings in RATES.items()
        for seed in range(seeds)
    ]
    results = execute(runs, options.jobs)
    means = {}
    for name in RATES:
        norms = np.array(
            [results[name, seed]["curve"]["gradient-map-norm"] for seed in range(seeds)]
        )
        # (1/K) Σ_k ‖G_η̃(P_M(x^k))‖², K from 1
        squares = norms[:, :-1] ** 2
        counts = np.arange(1, squares.shape[1] + 1)
        means[name] = (np.cumsum(squares, axis=1) / counts).tolist()
    return {"means": means, "seeds": seeds, "rounds": base["rounds"]}


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
    lines = [
        f"| method | slope from K = {rounds // 10} to {rounds} "
        f"| from {rounds // 3} to {rounds} | mean over {rounds} rounds |",
        "| --- | --- | --- | --- |",
    ]
    last = 0.0
    for k, (name, means) in enumerate(results["means"].items()):
        band(axes, counts, means, name, **style_of(k))
        last = float(np.median(means, axis=0)[-1])
        cells = []
        for share in (10, 3):
            found = slopes(results, name, share)
            cells.append(f"{np.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        lines.append(
            f"| {name} | {' | '.join(cells)} "
            f"| {np.mean([run[-1] for run in means]):.3g} |"
        )
    since = counts[rounds // 10 :]
    axes.plot(since, [last * rounds / k for k in since], ":", color="gray", label="1/K")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("communication rounds K")
    axes.set_ylabel(r"$\frac{1}{K}\sum_k\|G(x^k)\|^2$")
    axes.legend()
    lines += [
        "",
        f"{results['seeds']} seeds; the lines are medians. {measured(results)}",
    ]
    return f"{save(figure, out, 'theorem')}\n\n" + "\n".join(lines)
