"""What the two Frank-Wolfe papers claim and show, and what of ours measures it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reproduce.claims import (
    Claim,
    Effect,
    Exhibit,
    Paper,
    Results,
    paired,
    points,
    ratio,
)

from .leakage import ATTACKS
from .tables import BALLS, TABLES, published

__all__ = ["PAPERS"]

Effects = Callable[[Results], list[Effect]]
Cell = tuple[str, str, dict[str, dict[str, Any]]]


def _tables(number: int) -> tuple[str, ...]:
    return tuple(name for name in TABLES if name.startswith(f"table-{number}-"))


def _cells(found: Results, *numbers: int) -> list[Cell]:
    """Cells of equal local work: table, its name, rows by method."""
    cells: list[Cell] = []
    for item in (name for number in numbers for name in _tables(number)):
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


def _sparse(found: Results) -> list[Effect]:
    """Bytes of a dense answer over bytes of an oracle's, as Flower encodes them."""
    return [
        ratio(row["task"], [row["dense"]["up"]], [row["FedFW"]["up"]], exact=True)
        for row in found["bytes"]["rows"]
        if "dense" in row
    ]


def _leaks(found: Results) -> list[Effect]:
    attacks = found["leakage"]["psnr"]
    unit = {"unit": "images", "form": "{:+.1f} dB"}
    return [
        paired(f"{ball} ball, {how}", own["gradient"], own[what], **unit)
        for how, own in ((how, attacks[how]) for how in ATTACKS)
        for what, ball in (("l1", "ℓ1"), ("l2", "ℓ2"))
    ]


def _participation(found: Results, *metrics: str) -> list[Effect]:
    """All clients against a tenth of them, after the last round."""
    measured = []
    for item, model in (("figure-2", "MCLR"), ("figure-3", "DNN")):
        for panel, swept in found[item]["panels"].items():
            rows = {row["label"]: row for row in swept["rows"]}
            for metric in metrics:
                case = f"{model}, {panel}, {metric}"
                few, whole = rows["0.1"][metric], rows["1"][metric]
                falls = metric == "loss"
                measured.append(
                    paired(case, few, whole) if falls else points(case, whole, few)
                )
    return measured


def _same_influence(found: Results) -> list[Effect]:
    measured = _participation(found, "loss")
    return [effect for effect in measured if effect.case.startswith("MCLR")]


def _early_gap(found: Results) -> list[Effect]:
    panels = found["early-gap"]["panels"].items()
    return [ratio(panel, gaps["0.1"], gaps["1e-05"]) for panel, gaps in panels]


def _rate(item: str, power: float) -> Effects:
    """What was fitted, below a power."""
    return lambda found: [
        Effect(
            f"{row['problem']}, {row['method']}",
            [power - value for value in row["exponents"]],
            form="{:.2f}",
            bound=power,
            below=True,
        )
        for row in found[item]["rows"]
    ]


def _both_rates(found: Results) -> list[Effect]:
    """Of convex functions, and of others."""
    return _rate("rates", -0.5)(found) + _rate("rates-nonconvex", -1 / 3)(found)


def _faster(found: Results) -> list[Effect]:
    """FedFW's remaining error over FedFW+'s after as many rounds."""
    rows = {(row["problem"], row["method"]): row for row in found["rates"]["rows"]}
    measured = [
        ratio(f"{problem}, F − F*", row["last"], rows[problem, "FedFW+"]["last"])
        for (problem, method), row in rows.items()
        if method == "FedFW"
    ]
    return measured + [
        ratio(f"{name}, F", own["FedFW"]["loss"], own["FedFW+"]["loss"])
        for _, name, own in _cells(found, 1, 2)
    ]


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


def _naive(found: Results) -> list[Effect]:
    """How far from x* = 1 plain averaging and FedFW end."""
    naive, federated = (found["appendix-a"][name] for name in ("naive", "FedFW"))
    how: dict[str, Any] = {"form": "{:.3g}", "exact": True}
    near = how | {"bound": 0.05, "below": True}
    return [
        Effect("averaged steps", [naive - 1e-3], bound=1e-3, **how),
        Effect("FedFW", [0.05 - federated], **near),
    ]


# sizes; the numbers of synthetic examples differ from seed to seed
_CONVEX = "LASSO, 200 × 400, and digits, 1 437 × 64, 10 clients, as in 2022; {} rounds"
_SYNTHETIC = "synthetic data, 5 200 to 10 500 × 60, 10 clients"

CLAIMS_2024 = (
    Claim(
        "sparse",
        "FedFW offers low communication overhead since the communicated signals are "
        "the extreme points of D, which typically have low dimensional representation.",
        "section 3.2",
        ("bytes",),
        _sparse,
        "1-sparse, rank-one",
        "17 tasks of 144 to 1 586 126 unknowns, 10 to 100 clients, all in every round",
        "bytes of a dense answer over those of an oracle's",
    ),
    Claim(
        "leakage",
        "reconstruction via linear minimization oracles, particularly under the ℓ1 "
        "ball constraint, is significantly more challenging than raw gradients",
        "section 3.2, figure 1",
        ("leakage",),
        _leaks,
        "two images",
        "CIFAR-10 instead of CIFAR-100: 50 images with 600 steps of a second attack, "
        "16 with 2 000 of the paper's instead of 10⁵, one start",
        "PSNR of what an attack makes of the gradient minus of the oracle's answer",
    ),
    Claim(
        "noise",
        "we can introduce noise to augment data privacy without compromising the "
        "convergence guarantees",
        "section 3.2",
        ("oracle-noise",),
        _noise,
        "no number",
        "LASSO 140 × 100, 7 clients, 2 000 rounds",
        "F − F* with noise over that without (×2 is ours)",
    ),
    Claim(
        "theorem-1",
        "FedFW guarantees O(t^(−1/2)) convergence rates when the objective function "
        "smooth and convex.",
        "section 6, theorem 1",
        ("rates",),
        _rate("rates", -0.5),
        "−1/2",
        _CONVEX.format("2 000") + " instead of 10⁵",
        "exponent of t in F − F*, last decade",
    ),
    Claim(
        "theorem-2",
        "If we remove the convexity assumption, the rate reduces to O(t^(−1/3)).",
        "section 6, theorem 2",
        ("rates-nonconvex",),
        _rate("rates-nonconvex", -1.0 / 3.0),
        "−1/3",
        "breast cancer, 569 × 30; synthetic data, 2 000 × 60; 10 clients; chr12a, "
        "12 × 12, 12 clients; runs of 100 to 3 000 rounds, chr12a's to 10 000",
        "exponent of T in the smallest gap of runs of T rounds, last decade of T",
    ),
    Claim(
        "theorem-3",
        "With access to only stochastic gradients, FedFW achieves an O(t^(−1/3)) "
        "convergence rate in the convex setting.",
        "section 6, theorem 3",
        ("rates-stochastic",),
        _rate("rates-stochastic", -1.0 / 3.0),
        "−1/3",
        _CONVEX.format(300) + " with mini-batches of 4 and 16",
        "exponent of t in F − F*, last decade",
    ),
    Claim(
        "table-1",
        "Table 1 presents the test accuracy results for the algorithms with IID and "
        "non-IID data distributions",
        "section 5.1, table 1",
        _tables(1),
        _against_feddr(1, "FedFW"),
        "+0.3 to +6.3 points",
        "synthetic data, 4 400 to 14 100 × 60; MNIST, 20 000 × 784; CIFAR-10, "
        "10 000 × 3 072, for time; 10 clients",
        "accuracy of the method that the paper's table has ahead minus the other's",
    ),
    Claim(
        "table-2",
        "ran the methods for 100 communication rounds with a single local training "
        "step. Table 2 summarizes the resulting test accuracies.",
        "section 5.2, table 2",
        _tables(2),
        _against_feddr(2, "FedFW"),
        "+1.0 to +20.9 points",
        "DNN on synthetic data, 4 400 to 14 100 × 60, 10 clients, one ball and a ball "
        "a tensor; for time a smaller CNN on MNIST, 10 000 × 784, 50 rounds",
        "accuracy of the method that the paper's table has ahead minus the other's",
    ),
    Claim(
        "table-3",
        "FedFW-sto outperformed FedDR in our experiments in the stochastic setting.",
        "section 5.3, table 3",
        _tables(3),
        _against_feddr(3, "FedFW-sto"),
        "+1.6 to +19.4 points",
        "synthetic data, 20 000 × 60, 100 clients, 300 rounds; EMNIST-10, 17 368 × "
        "784, EMNIST-62, 40 000 × 784, CIFAR-10, 20 000 × 3 072, with 20 clients and "
        "100 rounds, for time",
        "accuracy of FedFW-sto minus FedDR's",
    ),
    Claim(
        "participation",
        "Both convex and non-convex experiments show faster convergence for higher "
        "participation probability.",
        "section 5.4, figures 2, 3",
        ("figure-2", "figure-3"),
        lambda found: _participation(found, "loss", "accuracy"),
        "pictures",
        f"as the paper's: {_SYNTHETIC}; 500 rounds, the network 300",
        "after the last round: loss with a tenth of the clients minus with all; "
        "accuracy with all minus with a tenth",
    ),
    Claim(
        "same-influence",
        "variations in λ_0 do not alter the influence of p",
        "section 5.4, figure 2",
        ("figure-2", "figure-3"),
        _same_influence,
        "pictures",
        f"as the paper's: {_SYNTHETIC}, λ_0 = 0.01 and 0.001; 500 rounds",
        "loss after the last round with a tenth of the clients minus with all",
    ),
    Claim(
        "early-gap",
        "A higher λ_0 leads to a larger gap in the initial iterations of the algorithm "
        "due to its regularization effect.",
        "section 5.4, figure 4",
        ("early-gap",),
        _early_gap,
        "pictures",
        "MCLR on MNIST, 5 000 × 784, 10 clients, for time; not the network",
        "mean gap of rounds 1 to 10 with λ_0 = 10⁻¹ over that with 10⁻⁵",
    ),
    Claim(
        "plus",
        "we proposed an empirically faster version of FedFW by incorporating an "
        "augmented Lagrangian dual update",
        "section 6; 2022, section 6",
        ("rates", *_tables(1), *_tables(2)),
        _faster,
        "pictures",
        "F4's problems, 2 000 rounds; those of F7 and F8; 10 clients",
        "FedFW's loss above F* (the tables: its loss) over FedFW+'s",
    ),
    Claim(
        "appendix-a",
        "However, this algorithm fails to solve the following 1-dimensional problem",
        "appendix A",
        ("appendix-a",),
        _naive,
        "x = 0 instead of 1",
        "the paper's problem: 1 unknown, 2 clients; 2 000 rounds",
        "distance to x* (both bounds are ours)",
    ),
)

PAPERS = (
    Paper(
        "Federated Frank-Wolfe Algorithm",
        "https://arxiv.org/abs/2408.10090",
        "F",
        4,
        3,
        CLAIMS_2024,
        (
            Exhibit("Figure 1", "deep leakage", ("figure-1", "leakage")),
            Exhibit("Figure 2", "participation, convex", ("figure-2",)),
            Exhibit("Figure 3", "participation, network", ("figure-3",)),
            Exhibit(
                "Figure 4",
                "initial penalty λ_0",
                ("figure-4-convex", "figure-4-nonconvex", "early-gap"),
            ),
            Exhibit("Table 1", "accuracy, convex", _tables(1)),
            Exhibit("Table 2", "accuracy, networks", _tables(2)),
            Exhibit("Table 3", "accuracy, mini-batches", _tables(3)),
        ),
    ),
    Paper(
        "Federated Frank-Wolfe Algorithm, 2022 workshop paper",
        "",
        "W",
        1,
        0,
        (
            Claim(
                "workshop-rates",
                "FEDFW guarantees O(t^(−1/2)) and O(t^(−1/3)) convergence rates for "
                "the convex and non-convex objective functions, respectively.",
                "section 6",
                ("rates", "rates-nonconvex"),
                _both_rates,
                "−1/2, −1/3",
                _CONVEX.format("2 000") + " instead of 10⁵; F5's problems, "
                "10 and 12 clients",
                "exponents of F4, convex, and F5, non-convex",
            ),
        ),
        (
            Exhibit(
                "Figure 1",
                "LASSO, digits, MovieLens, chr12a",
                (
                    "workshop-lasso",
                    "workshop-digits",
                    "workshop-movielens",
                    "workshop-chr12a",
                    "rates",
                ),
            ),
        ),
    ),
)
