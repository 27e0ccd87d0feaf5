"""What the two Frank-Wolfe papers claim and show, and what of ours measures it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduce.claims import (
    NEAR,
    Effect,
    Effects,
    Levels,
    Results,
    paired,
    points,
    ratio,
    read_paper,
)
from reproduce.common import read_csv
from reproduce.drawing import table

from .leakage import ATTACKS
from .tables import BALLS, TABLES, published

__all__ = ["PAPERS", "levels"]

HERE = Path(__file__).parent

Cell = tuple[str, str, dict[str, dict[str, Any]]]


def _tables(number: int) -> str:
    return " ".join(name for name in TABLES if name.startswith(f"table-{number}-"))


def _cells(found: Results, *numbers: int) -> list[Cell]:
    """Cells of equal local work: table, its name, rows by method."""
    cells: list[Cell] = []
    for item in (name for number in numbers for name in _tables(number).split()):
        same: dict[tuple[str, str], dict[str, Any]] = {}
        for row in found.get(item, {}).get("rows", []):
            same.setdefault((row["partition"], row["ball"]), {})[row["method"]] = row
        data = TABLES[item]
        cells += [
            (item, f"{data.title}, {BALLS[ball]}, {data.describe(part)}", rows)
            for (part, ball), rows in same.items()
        ]
    return cells


def _against_feddr(number: int, ours: str) -> Effects:
    """Accuracy of ours minus FedDR's, turned so that positive is the paper's order."""

    def effects(found: Results) -> list[Effect]:
        measured = []
        for item, name, rows in _cells(found, number):
            ball = rows["FedDR"]["ball"]
            theirs = published(item)[rows["FedDR"]["partition"], ball]
            ahead = theirs[ours] > theirs["FedDR"]
            first, second = (ours, "FedDR") if ahead else ("FedDR", ours)
            one, other = rows[first]["accuracy"], rows[second]["accuracy"]
            measured.append(points(f"{name}: {first} ahead", one, other))
        return measured

    return effects


def _measured(found: Results, *numbers: int) -> list[tuple[str, str, float, float]]:
    """Table, ball, measured and published accuracy of every cell and method."""
    return [
        (item, row["ball"], 100.0 * float(np.mean(row["accuracy"])), theirs)
        for item, _, rows in _cells(found, *numbers)
        for method, row in rows.items()
        for theirs in [published(item)[row["partition"], row["ball"]].get(method)]
        if theirs is not None
    ]


def _levels(*numbers: int) -> Levels:
    return lambda found: [(a, b) for _, _, a, b in _measured(found, *numbers)]


def levels(found: Results) -> str:
    """Measured against published accuracies, a table a row, and why they differ."""
    lines = []
    for item, why in (
        (row["table"], row["why"]) for row in read_csv(HERE / "levels.csv")
    ):
        cells = []
        for ball in BALLS:
            off = [
                a - b
                for t, d, a, b in _measured(found, 1, 2, 3)
                if (t, d) == (item, ball)
            ]
            met = sum(abs(value) <= NEAR for value in off)
            cells.append(f"{met} of {len(off)}, {np.mean(off):+.0f}" if off else "–")
        lines.append((TABLES[item].title, *cells, why))
    head = "table | ℓ2: levels within ten points, mean difference | ℓ1"
    return table(f"{head} | why, or what was tried", lines)


#: Problems with their sets, where a result names the problem alone.
SETS = {"LASSO": "LASSO, ℓ1", "digits": "digits, ℓ1", "chr12a": "chr12a, Birkhoff"}


def _sparse(found: Results) -> list[Effect]:
    """Bytes of a dense answer over bytes of an oracle's, as Flower encodes them."""
    return [
        ratio(row["task"], [row["dense"]["up"]], [row["FedFW"]["up"]], exact=True)
        for row in found["bytes"]["rows"]
    ]


def _leaks(found: Results) -> list[Effect]:
    attacks = found["leakage"]["psnr"]
    unit = {"unit": "images", "form": "{:+.1f} dB"}
    return [
        paired(f"{ball} ball, {how}", own["gradient"], own[what], **unit)
        for how, own in ((how, attacks[how]) for how in ATTACKS)
        for what, ball in (("l1", "ℓ1"), ("l2", "ℓ2"))
    ]


def _participation(found: Results, metrics: str = "loss accuracy") -> list[Effect]:
    """All clients against a tenth of them, after the last round."""
    measured = []
    for item, model in (("figure-2", "MCLR"), ("figure-3", "DNN")):
        for panel, swept in found[item]["panels"].items():
            rows = {row["label"]: row for row in swept["rows"]}
            for metric in metrics.split():
                case = f"{model}, {panel}, {metric}"
                few, whole = rows["0.1"][metric], rows["1"][metric]
                falls = metric == "loss"
                measured.append(
                    paired(case, few, whole) if falls else points(case, whole, few)
                )
    return measured


def _same_influence(found: Results) -> list[Effect]:
    """Whether p moves the loss at least half as much with either λ_0."""
    one, other = (
        np.array(effect.values)
        for effect in _participation(found, "loss")
        if effect.case.startswith("MCLR")
    )
    return [
        paired("λ_0 = 0.001 against half of 0.01", other, one / 2.0),
        paired("λ_0 = 0.01 against half of 0.001", one, other / 2.0),
    ]


def _early_gap(found: Results) -> list[Effect]:
    panels = found["early-gap"]["panels"].items()
    return [ratio(panel, gaps["0.1"], gaps["1e-05"]) for panel, gaps in panels]


def _rate(item: str, power: float) -> Effects:
    """What was fitted, below a power."""
    return lambda found: [
        Effect(
            f"{SETS.get(row['problem'], row['problem'])}, {row['method']}",
            [power - value for value in row["exponents"]],
            form="{:.2f}",
            bound=power,
            below=True,
        )
        for row in found[item]["rows"]
    ]


def _faster(found: Results) -> list[Effect]:
    """FedFW's remaining error over FedFW+'s after as many rounds."""
    rows = {(row["problem"], row["method"]): row for row in found["rates"]["rows"]}
    measured = [
        ratio(
            f"{SETS.get(problem, problem)}, F − F*",
            row["last"],
            rows[problem, "FedFW+"]["last"],
        )
        for (problem, method), row in rows.items()
        if method == "FedFW"
    ]
    return measured + [
        ratio(f"{name}, F", own["FedFW"]["loss"], own["FedFW+"]["loss"])
        for _, name, own in _cells(found, 1, 2)
    ]


def _cheaper_assignments(found: Results) -> list[Effect]:
    """FedFW's costs over FedFW+'s from the same starts, with the paper's λ_0."""
    short = found["workshop-chr12a"]["short"]
    costs = (short[name]["cost"] for name in ("FedFW, λ_0 = 65", "FedFW+, λ_0 = 10"))
    return [ratio("chr12a", *costs, unit="starts")]


def _noise(found: Results) -> list[Effect]:
    """The error with noise over the error without, below twice."""
    rows = found["oracle-noise"]["rows"]
    (plain,) = (row["last"] for row in rows if row["sigma"] == 0.0)
    twice: dict[str, Any] = {"bound": float(np.log(2.0)), "below": True}
    return [
        ratio(f"σ = {row['sigma']:g} √η_t", 2.0 * np.array(plain), row["last"], **twice)
        for row in rows
        if row["decay"] and row["sigma"] > 0.0
    ]


def _quicker(found: Results) -> list[Effect]:
    """Seconds of a projection over those of a linear minimisation."""
    return [
        ratio(row["set"], row["projection"], row["minimisation"], unit="points")
        for row in found["oracle"]["rows"]
    ]


def _naive(found: Results) -> list[Effect]:
    """How far from x* = 1 plain averaging and FedFW end."""
    naive, federated = (found["appendix-a"][name] for name in ("naive", "FedFW"))
    how: dict[str, Any] = {"form": "{:.3g}", "exact": True}
    near = how | {"bound": 0.05, "below": True}
    return [
        Effect("averaged steps", [naive - 1e-3], bound=1e-3, **how),
        Effect("FedFW", [0.05 - federated], **near),
    ]


PAPERS = (
    read_paper(
        HERE,
        "F",
        "Federated Frank-Wolfe Algorithm",
        "https://arxiv.org/abs/2408.10090",
        {
            "sparse": ("bytes", _sparse),
            "leakage": ("leakage", _leaks),
            "noise": ("oracle-noise", _noise),
            "theorem-1": ("rates", _rate("rates", -0.5)),
            "theorem-2": ("rates-nonconvex", _rate("rates-nonconvex", -1.0 / 3.0)),
            "theorem-3": ("rates-stochastic", _rate("rates-stochastic", -1.0 / 3.0)),
            "table-1": (_tables(1), _against_feddr(1, "FedFW"), _levels(1)),
            "table-2": (_tables(2), _against_feddr(2, "FedFW"), _levels(2)),
            "table-3": (_tables(3), _against_feddr(3, "FedFW-sto"), _levels(3)),
            "participation": ("figure-2 figure-3", _participation),
            "same-influence": ("figure-2 figure-3", _same_influence),
            "early-gap": ("early-gap", _early_gap),
            "plus": (f"rates {_tables(1)} {_tables(2)}", _faster),
            "appendix-a": ("appendix-a", _naive),
            "some-clients": (
                "rates-participation rates-nonconvex-half",
                lambda found: [
                    *_rate("rates-participation", -0.5)(found),
                    *_rate("rates-nonconvex-half", -1.0 / 3.0)(found),
                ],
            ),
            "split": ("split", _rate("split", -0.5)),
            "oracle": ("oracle", _quicker),
        },
    ),
    read_paper(
        HERE,
        "W",
        "Federated Frank-Wolfe Algorithm, 2022 workshop paper",
        "",
        {"assignment": ("workshop-chr12a", _cheaper_assignments)},
    ),
)
