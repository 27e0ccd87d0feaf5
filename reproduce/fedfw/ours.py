"""What we added: noise in the oracle, lost answers and corrective steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sim
from fedtrellis.app import Experiment
from fedtrellis.wire.local_grid import LocalGrid
from reproduce.common import Item, Options, Run, app_config, execute, repeat
from reproduce.drawing import new_figure, panel, save, spread, table
from reproduce.rates import optimum

__all__ = ["ITEMS"]

Settings = dict[str, Any]

# ---------------------------------------------- LASSO: noise, and answers that get lost

#: How well F* is known, relative to it or to 1: errors below say nothing.
CERTAIN = 1e-6
NODES = 7
LASSO: Settings = {
    "task": "lasso",
    "rounds": 2000,
    "max-failed-rounds": 10**6,
    "lasso.rows": 140,
    "lasso.columns": 100,
    "lasso.nonzeros": 10,
    "lasso.noise": 0.1,
    "penalty": 10.0,
}


def _lossy(experiment: Experiment) -> LocalGrid:
    return experiment.grid(request_loss=0.9)


class Case(NamedTuple):
    """A line: its panel and label, what identifies its row, its settings and grid."""

    panel: str
    label: str
    row: dict[str, Any]
    settings: Settings
    grid: Callable[[Experiment], LocalGrid] = Experiment.grid


NOISE = [
    Case(
        "noise σ√η_t" if decay else "noise σ",
        f"σ = {sigma:g}",
        {"sigma": sigma, "decay": decay},
        {"variant": "plain", "lmo-noise": sigma, "lmo-noise-decay": decay},
    )
    for decay in (True, False)
    for sigma in (0.0, 1.0, 3.0, 10.0)
    # without noise there is nothing that could shrink
    if decay or sigma
]
LOST = [
    Case(pattern, method, {"pattern": pattern, "method": method}, settings, grid)
    for pattern, grid in (
        ("nothing is lost", Experiment.grid),
        ("90 % of the requests are lost", _lossy),
    )
    for method, settings in (
        ("FedFW, rounds counted", {"variant": "plain", "step-count": "round"}),
        ("FedFW, own steps counted", {"variant": "plain", "step-count": "own"}),
        (
            "corrective, 5 steps",
            {"variant": "corrective", "penalty": "auto", "fedfw.local-steps": 5},
        ),
    )
]


def compute_lasso(options: Options, cases: list[Case]) -> dict[str, Any]:
    """All lines, three seeds; relative errors, at least :data:`CERTAIN` / 10."""
    seeds = options.numbers(3)
    base = LASSO | ({"rounds": 60} if options.quick else {})
    best = [optimum(base | {"seed": s}, NODES, CERTAIN)[0] for s in seeds]
    runs = [
        Run(
            (k, seed),
            base | case.settings | {"seed": seed},
            NODES,
            curve=True,
            every=0,
            grid=case.grid,
        )
        for k, case in enumerate(cases)
        for seed in seeds
    ]
    results = execute(runs, options.jobs)
    rows = []
    for k, case in enumerate(cases):
        curves = [results[k, seed]["curve"] for seed in seeds]
        errors = [np.array(c["loss"]) - b for c, b in zip(curves, best, strict=True)]
        shares = np.maximum([own / own[0] for own in errors], CERTAIN / 10)
        row = {"round": curves[0]["round"], "curve": shares.mean(axis=0).tolist()}
        ends = {"seeds": shares.tolist(), "last": shares[:, -1].tolist()}
        rows.append(case.row | row | ends)
    return {"rows": rows, "rounds": base["rounds"]}


def render_lasso(
    results: dict[str, Any], out: Path, name: str, cases: list[Case]
) -> str:
    """Draw the error over rounds, a panel for each pattern; and a table."""
    panels = list(dict.fromkeys(case.panel for case in cases))
    figure, (axes,) = new_figure(len(panels))
    rows = {
        (case.panel, case.label): row
        for case in cases
        for row in results["rows"]
        if case.row.items() <= row.items()
    }
    for one, title in zip(axes, panels, strict=True):
        curves = {
            label: (row["round"][1:], row["curve"][1:])
            for (own, label), row in rows.items()
            if own == title
        }
        up = "(F(x̄) − F*) / (F(x¹) − F*)"
        panel(one, curves, "communication round", up, title=title)
    labels = list(dict.fromkeys(case.label for case in cases))
    lines = [
        (
            label,
            *(
                spread(rows[title, label]["last"]) if (title, label) in rows else ""
                for title in panels
            ),
        )
        for label in labels
    ]
    head = " | ".join(["case", *panels])
    return (
        f"{save(figure, out, name)}\n\n{table(head, lines)}\n\n"
        f"(F(x̄) − F*) / (F(x¹) − F*) after {results['rounds']:,} rounds, LASSO, "
        f"140 × 100, {NODES} nodes, mean and extremes of seeds; F* is to {CERTAIN:g}."
    )


# --------------------------------------------------------------------- corrective steps

#: Local steps of the corrective variant, and of what it is compared with.
STEPS = 20
#: F − F* on README's LASSO that counts as solved.
LEVEL = 1e-6
CORRECTIVE: dict[str, Settings] = {
    f"corrective, k = {STEPS}": {"variant": "corrective", "rounds": 400},
    f"corrective, k = {STEPS}, half of the clients": {
        "variant": "corrective",
        "rounds": 1000,
        "participation": 0.5,
    },
}
FEDDR = f"FedDR, α = 1, {STEPS} gradient steps"
#: What is tuned: settings, the name of the one that is chosen, and its grid: steps of
#: 4, with smaller and larger neighbours of the best.
TUNED: dict[str, tuple[Settings, str, list[float]]] = {
    **{
        f"{name}, k = {k}, λ_0 tuned": (
            {"variant": variant, "fedfw.local-steps": k},
            "penalty",
            [middle * 4.0**e for e in range(-2, 3)],
        )
        for name, variant, middle in (
            ("FedFW", "plain", 5.0),
            ("FedFW+", "augmented", 0.5),
        )
        for k in (1, STEPS)
    },
    FEDDR: (
        {"method": "feddr", "relaxation": 1.0, "local-steps": STEPS},
        "proximal-step",
        [1e-3 * 4.0**e for e in range(-2, 3)],
    ),
}


def compute_corrective(options: Options) -> dict[str, Any]:
    """Corrective steps on their defaults; everything else tuned."""
    rounds = 10 if options.quick else 400
    base = {"task": "lasso", "rounds": rounds}
    task = sim.app.experiment(app_config(base), 10).task
    bound = max(task.client_objective(i).lipschitz() for i in range(10))
    wanted: dict[tuple[str, float], Settings] = {}
    for name, own in CORRECTIVE.items():
        wanted[name, 0.0] = own | ({"rounds": rounds} if options.quick else {})
    for name, (own, key, grid) in TUNED.items():
        for value in grid[::3] if options.quick else grid:
            wanted[name, value] = own | {key: value}
            if name == FEDDR:  # γ = 1 / (L + 1/η)
                wanted[name, value] |= {"local-step-size": 1.0 / (bound + 1.0 / value)}
    cases = {key: base | own for key, own in wanted.items()}
    found = repeat(options, cases, [0], 10, curve=True)
    results = {key: run for key, (run,) in found.items()}

    def last(key: tuple[str, float]) -> float:
        loss = results[key].get("loss", math.inf)
        return loss if math.isfinite(loss) else math.inf

    rows = []
    for name in (*CORRECTIVE, *TUNED):
        tried = {key[1]: last(key) for key in results if key[0] == name}
        best = min(tried, key=tried.__getitem__)
        curve = results[name, best]["curve"]
        end, share = curve["round"][-1], 0.5 if "half" in name else 1.0
        up, both = curve["bytes-up"][-1], curve["bytes"][-1]
        # enough points for a line
        kept = [t for t in curve["round"] if t < 20 or t == end or not t % 5]
        first = (t for t, v in enumerate(curve["loss"]) if v <= LEVEL)
        row = {
            "method": name,
            "round": kept,
            "loss": [curve["loss"][t] for t in kept],
            "to-level": next(first, None),
            "up": [curve["bytes-up"][t] / 10 for t in kept],
            "an-answer": up / 10 / share / end,
            "down": (both - up) / 10 / end,
            "steps": share * (1 if "k = 1," in name else STEPS),
        }
        rows.append(row | ({"chosen": best, "tried": tried} if len(tried) > 1 else {}))
    return {"rows": rows}


def render_corrective(results: dict[str, Any], out: Path) -> str:
    """Draw F − F* over rounds, gradients and bytes."""
    figure, (axes,) = new_figure(3)
    # the run with half of the clients stands in the table alone
    rows = [row for row in results["rows"] if "half" not in row["method"]]
    for one, text, across in (
        (axes[0], "communication round", lambda row: row["round"]),
        (axes[1], "gradients", lambda row: np.array(row["round"]) * row["steps"]),
        (axes[2], "kB up a client", lambda row: 1e-3 * np.array(row["up"])),
    ):
        curves = {row["method"]: (across(row)[1:], row["loss"][1:]) for row in rows}
        panel(one, curves, text, r"$F(\bar x) - F^*$", legend=None, lowest=1e-20)
        one.set_ylim(1e-10, 1e5)
    axes[0].legend(fontsize="x-small", loc="lower left")
    lines = []
    for row in results["rows"]:
        tuned = f"{row['chosen']:.3g}, {len(row['tried'])}" if "chosen" in row else ""
        early = row["loss"][row["round"].index(100)] if 100 in row["round"] else 0.0
        lines.append(
            (
                *(row["method"], tuned, f"{early:.2g}"),
                f"{row['loss'][-1]:.2g} ({row['round'][-1]:,})",
                "–" if row["to-level"] is None else row["to-level"],
                *(f"{row['an-answer']:,.0f}", f"{row['down']:,.0f}"),
            )
        )
    head = "method | chosen, of | F − F* after 100 rounds | after all"
    head += " | rounds to 10⁻⁶ | bytes up an answer | bytes down a node and round"
    return (
        f"{save(figure, out, 'corrective-lasso')}\n\n{table(head, lines)}\n\n"
        "10 nodes, one seed, F* = 0. Chosen: λ_0, or η of FedDR, for the "
        "smallest F after all rounds, of so many values, steps of 4 apart, that the "
        "best has smaller and larger neighbours; corrective steps stand on their "
        "defaults. A corrective step also takes a product with the Hessian, half the "
        "work of a gradient."
    )


ITEMS = {
    "oracle-noise": Item(
        "noise in the oracle, shrinking and not",
        partial(compute_lasso, cases=NOISE),
        partial(render_lasso, name="oracle-noise", cases=NOISE),
    ),
    "lost-answers": Item(
        "answers that get lost: rounds counted, or each client's own steps; ours",
        partial(compute_lasso, cases=LOST),
        partial(render_lasso, name="lost-answers", cases=LOST),
    ),
    "corrective-lasso": Item(
        "ours: corrective steps on LASSO, beside the papers' variants and FedDR",
        compute_corrective,
        render_corrective,
    ),
}
