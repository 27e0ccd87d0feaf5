"""Ours: how fast corrective steps converge, on README's LASSO and on ten problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sim
from reproduce.common import Item, Options, Run, app_config, execute, workers
from reproduce.drawing import measured, new_figure, save, style_of

from .problems import LEVELS, PROBLEMS, Federated, made, reached, solve

__all__ = ["ITEMS", "douglas_rachford", "rate"]

NODES = 10
LASSO = "LASSO, ℓ1"
#: Local steps of the corrective variant, and of what it is compared with.
STEPS = 20
#: F − F* on LASSO that counts as solved.
LEVEL = 1e-6

# -------------------------------------------------------------------------- the LASSO

#: What is tuned: settings, the name of the one that is chosen, the middle of its grid.
#: The grids have steps of 4, and go on where the best is the first or the last.
TUNED: dict[str, tuple[dict[str, Any], str, float]] = {
    f"{name}, k = {k}": (
        {"variant": variant, "fedfw.local-steps": k},
        "penalty",
        middle,
    )
    for name, variant, middle in (
        ("FedFW", "plain", 5.0),
        ("FedFW+", "augmented", 0.5),
    )
    for k in (1, STEPS)
}
FEDDR = f"FedDR, α = 1, {STEPS} gradient steps"
SPLITTING = f"FedDR, α = 1, {STEPS} accelerated projected steps"
CORRECTIVE = {
    f"corrective, k = {STEPS}": {"variant": "corrective", "rounds": 400},
    f"corrective, k = {STEPS}, half of the clients": {
        "variant": "corrective",
        "rounds": 1000,
        "participation": 0.5,
    },
}
_FACTOR, _WIDTH, _FURTHEST = 4.0, 2, 8
Trial = Callable[[Sequence[float]], list[dict[str, Any]]]


def tuned(trial: Trial, middle: float) -> tuple[float, dict[float, float], Any]:
    """Return the value with the smallest last error, all errors, and its result.

    Five values are tried, and more until the best of them has tried neighbours.
    """
    results: dict[int, dict[str, Any]] = {}
    todo = list(range(-_WIDTH, _WIDTH + 1))
    while todo:
        tried = trial([middle * _FACTOR**e for e in todo])
        results |= dict(zip(todo, tried, strict=True))
        best = min(results, key=lambda e: results[e]["last"])
        todo = [
            e
            for e in (best - 1, best + 1)
            if e not in results and abs(best) < _FURTHEST
        ]
    errors = {middle * _FACTOR**e: results[e]["last"] for e in sorted(results)}
    return middle * _FACTOR**best, errors, results[best]


def douglas_rachford(
    problem: Federated, eta: float, rounds: int, steps: int
) -> list[float]:
    """FedDR with α = 1, D in the clients' proximal steps; errors of the mean x_i.

    ::

        y_i ← y_i + x̄ − x_i;  x_i ≈ argmin over D of f_i(x) + ‖x − y_i‖² / (2η)
        x̄ ← (1/n) Σ (2 x_i − y_i)

    A loop without messages: the package's FedDR has D on the server, and steps that are
    neither projected nor accelerated. These are Nesterov's, started again where the
    momentum points uphill, from the x_i of before.
    """
    domain, objectives = problem.domain, problem.objectives
    x = [problem.start.copy() for _ in objectives]
    y, x_bar = list(x), problem.start.copy()
    bounds = [objective.lipschitz() + 1.0 / eta for objective in objectives]
    errors = [problem.error(x_bar)]
    for _ in range(rounds):
        for i, objective in enumerate(objectives):
            y[i] = y[i] + x_bar - x[i]
            point = ahead = x[i]
            momentum = 1.0
            for _ in range(steps):
                g = objective.gradient(ahead) + (ahead - y[i]) / eta
                moved = domain.project(ahead - g / bounds[i])
                if float(np.vdot(ahead - moved, moved - point)) > 0.0:
                    momentum = 1.0
                following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
                ahead = moved + (momentum - 1.0) / following * (moved - point)
                point, momentum = moved, following
            x[i] = point
        x_bar = np.mean([2.0 * a - b for a, b in zip(x, y, strict=True)], axis=0)
        errors.append(problem.error(np.mean(x, axis=0)))
    return errors


def _split(arguments: tuple[float, int]) -> dict[str, Any]:
    eta, rounds = arguments
    loss = douglas_rachford(made(LASSO), eta, rounds, STEPS)
    return {"last": loss[-1], "curve": {"round": list(range(rounds + 1)), "loss": loss}}


def compute_lasso(options: Options) -> dict[str, Any]:
    """Corrective steps on their defaults; everything else tuned."""
    rounds = 10 if options.quick else 400
    base = {"task": "lasso", "rounds": rounds}

    def perform(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        runs = [
            Run((i,), base | own, NODES, curve=True) for i, own in enumerate(settings)
        ]
        results = list(execute(runs, options.jobs).values())
        for result in results:
            lost = "failed" in result or not math.isfinite(result["loss"])
            result["last"] = math.inf if lost else result["loss"]
        return results

    rows: list[dict[str, Any]] = []

    def note(name: str, result: dict[str, Any], steps: int, **more: Any) -> None:
        curve = result["curve"]
        share = 0.5 if "half" in name else 1.0
        last = curve["round"][-1]
        # enough points for a line; what the table tells is found on all of them
        kept = [t for t in curve["round"] if t < 20 or t == last or not t % 5]
        rows.append(
            {
                "method": name,
                "round": kept,
                "loss": [curve["loss"][t] for t in kept],
                "to-level": reached(curve["loss"], (LEVEL,))[0],
                "up": [curve["bytes-up"][t] / NODES for t in kept],
                "an-answer": curve["bytes-up"][-1] / NODES / share / last,
                "down": (curve["bytes"][-1] - curve["bytes-up"][-1]) / NODES / last,
                "steps": steps * share,
                **more,
            }
        )

    own = [
        settings | ({"rounds": rounds} if options.quick else {})
        for settings in CORRECTIVE.values()
    ]
    for name, result in zip(CORRECTIVE, perform(own), strict=True):
        note(name, result, STEPS)
    found = perform([settings for settings, _, _ in TUNED.values()])
    for (name, (settings, key, middle)), auto in zip(TUNED.items(), found, strict=True):
        steps = settings["fedfw.local-steps"]
        note(f"{name}, λ_0 by itself", auto, steps)

        def trial(values: Sequence[float], s: Any = settings, k: str = key) -> Any:
            return perform([s | {k: value} for value in values])

        value, errors, result = tuned(trial, middle)
        note(f"{name}, λ_0 tuned", result, steps, chosen=value, tried=errors)
    experiment = sim.app.experiment(app_config(base), NODES)
    objectives = [experiment.task.client_objective(i) for i in range(NODES)]
    bound = max(objective.lipschitz() for objective in objectives)

    def feddr(etas: Sequence[float]) -> list[dict[str, Any]]:
        return perform(
            [
                {
                    "method": "feddr",
                    "relaxation": 1.0,
                    "proximal-step": eta,
                    "local-steps": STEPS,
                    # γ = 1 / (L + 1/η)
                    "local-step-size": 1.0 / (bound + 1.0 / eta),
                }
                for eta in etas
            ]
        )

    eta, errors, result = tuned(feddr, 1e-3)
    note(FEDDR, result, STEPS, chosen=eta, tried=errors)
    with workers(options.jobs) as pool:

        def split(etas: Sequence[float]) -> list[dict[str, Any]]:
            return list(pool.map(_split, [(eta, rounds) for eta in etas]))

        eta, errors, loop = tuned(split, 1e-3)
    # the same dense messages
    loop["curve"] |= {key: result["curve"][key] for key in ("bytes", "bytes-up")}
    note(SPLITTING, loop, STEPS, chosen=eta, tried=errors)
    return {"rows": rows}


def render_lasso(results: dict[str, Any], out: Path) -> str:
    """Draw F − F* over rounds, gradients and bytes."""
    figure, axes = new_figure(3, 2)
    lines = [
        "| method | chosen, of | F − F* after 100 rounds | after all | rounds to 10⁻⁶ "
        "| bytes up an answer | bytes down a node and round |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    ours = [row for row in results["rows"] if row["method"] in CORRECTIVE]
    others = [row for row in results["rows"] if row["method"] not in CORRECTIVE]
    for row in results["rows"]:
        rounds, loss = np.array(row["round"]), np.array(row["loss"])
        # everybody above, half of the clients below; one style for each method
        mine = row in ours
        line = (ours if mine else others).index(row) % 2
        style = style_of(0 if mine else 1 + others.index(row) // 2)
        for one, across, text in (
            (axes[line][0], rounds, "communication round"),
            (axes[line][1], rounds * row["steps"], "gradients a client"),
            (axes[line][2], 1e-3 * np.array(row["up"]), "kB up a client"),
        ):
            one.plot(across[1:], loss[1:], label=row["method"], **style)
            one.set_xlabel(text)
            one.set_ylabel(r"$F(\bar x) - F^*$")
            one.set_xscale("log")
            one.set_yscale("log")
            one.set_ylim(1e-10, 1e5)
        chosen = f"{row['chosen']:.3g}, {len(row['tried'])}" if "chosen" in row else ""
        early = f"{loss[rounds == 100][0]:.2g}" if 100 in rounds else "–"
        first = row["to-level"]
        lines.append(
            f"| {row['method']} | {chosen} | {early} "
            f"| {loss[-1]:.2g} ({rounds[-1]:,}) | {'–' if first is None else first} "
            f"| {row['an-answer']:,.0f} | {row['down']:,.0f} |"
        )
    for line in axes:
        line[0].legend(fontsize="x-small", loc="lower left")
    lines += [
        "",
        f"{NODES} nodes, one seed, F* = 0. Chosen: λ_0, or η of FedDR, for the "
        "smallest F after all rounds, of so many values, steps of 4 apart, that the "
        "best has smaller and larger neighbours; corrective steps stand on their "
        "defaults. A corrective step also takes a product with the Hessian, half the "
        "work of a gradient. The last row is a loop without messages, with the bytes "
        "of the row above it. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'corrective-lasso')}\n\n" + "\n".join(lines)


# --------------------------------------------------------------------------- the rates

#: LASSO has the item above; the first is the main job.
RATED = tuple(name for name in PROBLEMS if name != LASSO)
SETTINGS: dict[str, dict[str, Any]] = {
    "k = 20": {},
    "k = 5": {"local_steps": 5},
    "k = 20, half of the clients": {"participation": 0.5},
}
_LOWEST = LEVELS[-1]


def rate(error: Sequence[float]) -> float:
    """Return the factor per round of an error, fitted from 10⁻³ on down to 10⁻⁹."""
    values = np.array(error)
    (begin,) = reached(error, LEVELS[:1])
    if begin is None:
        return math.nan
    kept = values[begin:]
    kept = kept[kept >= _LOWEST]
    if len(kept) < 2:
        return math.nan
    return float(np.exp(np.polyfit(np.arange(len(kept)), np.log(kept), 1)[0]))


def _study(arguments: tuple[str, int]) -> dict[str, Any]:
    name, rounds = arguments
    problem = made(name)
    best = problem.minimum
    found: dict[str, Any] = {}
    for setting, own in SETTINGS.items():
        curve = solve(problem, rounds, _LOWEST, variant="corrective", **own)
        found[setting] = {"error": curve.error, "up": curve.up}
    return {
        "problem": name,
        "settings": found,
        "optimum": best.value,
        "certified": best.gap / (abs(best.value) or 1.0),
    }


def compute_rates(options: Options) -> dict[str, Any]:
    """All problems with all settings."""
    rounds, names = 400, RATED
    if options.quick:
        rounds, names = 15, ("least squares, simplex", "logistic, ℓ2")
    with workers(options.jobs) as pool:
        rows = list(pool.map(_study, [(name, rounds) for name in names]))
    return {"rows": rows, "rounds": rounds}


def _rounds(error: Sequence[float]) -> str:
    return " / ".join("–" if t is None else str(t) for t in reached(error))


def linear(error: Sequence[float]) -> bool | None:
    """Say whether the last three decades took at most three times the three before.

    Where an error falls as a power t^−q, they take 10^(3/q) times as long.
    None: it has not come that far.
    """
    first, second, third = reached(error)
    if first is None or second is None or third is None:
        return None
    return third - second <= 3 * max(second - first, 1)


def render_rates(results: dict[str, Any], out: Path) -> str:
    """Draw the errors over rounds, a panel for every setting."""
    rows = results["rows"]
    figure, axes = new_figure(len(SETTINGS), 2)
    half = -(-len(rows) // 2)
    lines = [
        "| problem | " + " | ".join(SETTINGS) + " | factor a round | linear "
        "| bytes up an answer | F* | gap / F* |",
        "| --- |" + " --- |" * (len(SETTINGS) + 5),
    ]
    for k, row in enumerate(rows):
        cells = []
        for one, setting in zip(axes[k // half], SETTINGS, strict=True):
            error = row["settings"][setting]["error"]
            one.plot(error, label=row["problem"], **style_of(k % half))
            one.set_title(setting, fontsize="medium")
            one.set_xlabel("communication round")
            one.set_ylabel("(F(x̄) − F*) / F*")
            one.set_yscale("log")
            one.set_ylim(1e-10, 1e2)
            cells.append(_rounds(error))
        errors = [row["settings"][setting]["error"] for setting in SETTINGS]
        factors = " / ".join(
            "–" if math.isnan(rate(error)) else f"{rate(error):.2f}" for error in errors
        )
        words = {True: "yes", False: "no", None: "–"}
        straight = [words[linear(error)] for error in errors]
        said = straight[0] if len(set(straight)) == 1 else " / ".join(straight)
        lines.append(
            f"| {row['problem']} | {' | '.join(cells)} | {factors} | {said} "
            f"| {row['settings']['k = 20']['up']:,.0f} | {row['optimum']:.6g} "
            f"| {row['certified']:.0e} |"
        )
    for line in axes:
        line[0].legend(fontsize="x-small")
    lines += [
        "",
        "Rounds to a relative error of 10⁻³ / 10⁻⁶ / 10⁻⁹; the factor that the error "
        "falls by in a round, fitted between 10⁻³ and 10⁻⁹, by settings; linear: the "
        "last three decades took at most three times as long as those before. F* from "
        "accelerated projected steps on all data, certified by the Frank-Wolfe gap. "
        f"Everything else on its default, one seed. {measured(results)}",
    ]
    return f"{save(figure, out, 'corrective-rates')}\n\n" + "\n".join(lines)


ITEMS = {
    "corrective-lasso": Item(
        "ours: corrective steps on LASSO, beside the papers' variants and FedDR",
        compute_lasso,
        render_lasso,
    ),
    "corrective-rates": Item(
        "ours: how fast corrective steps converge on ten problems",
        compute_rates,
        render_rates,
    ),
}
