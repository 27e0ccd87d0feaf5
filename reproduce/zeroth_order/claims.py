"""What the zeroth-order Riemannian paper claims and shows, and what measures it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from reproduce.claims import Claim, Effect, Exhibit, Paper, Results, points, ratio

from .low_rank import ROUNDS
from .pca import slopes

__all__ = ["PAPERS"]

# The bounds are ours: four times the clients, three times as fast at least;
PROPORTION = 3.0
# accuracy that a bound on the rank may cost, in points;
KEPT = 2.0
# the power of K that is nearly that of 1/K, and how near gradients values stay.
POWER, TWICE = -0.9, 2.0


def _cheaper(found: Results) -> list[Effect]:
    """Time of an iteration with (6) over that with (7)."""
    return [
        ratio(
            f"{data}, {name}",
            row["milliseconds"],
            rows["(7), projection"]["milliseconds"],
        )
        for data, rows in found["figure-2"]["data"].items()
        for name, row in rows.items()
        if name != "(7), projection"
    ]


def _rows(found: Results, item: str) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in found[item]["rows"]}


def _reached(row: dict[str, Any], what: str) -> list[float]:
    """What a goal took, by seed; a KeyError where a seed has not met it."""
    if min(row[what]) < 0:
        raise KeyError(f"{row['label']} has not met its goal with every seed")
    return list(row[what])


def _rounds(found: Results, item: str, few: str, many: str) -> list[Effect]:
    rows = _rows(found, item)
    ends = (_reached(rows[label], "reached") for label in (few, many))
    return [ratio(f"{many} instead of {few}", *ends)]


def _local_steps(found: Results) -> list[Effect]:
    return _rounds(found, "figure-4", "2", "5") + _rounds(found, "figure-4", "5", "10")


def _speedup(found: Results) -> list[Effect]:
    """Rounds saved by four times the clients, and whether nearly in proportion."""
    (faster,) = _rounds(found, "figure-5", "5", "20")
    bound = float(np.log(PROPORTION))
    values = (np.asarray(faster.values) - bound).tolist()
    case = f"{faster.case}, in proportion"
    return [faster, replace(faster, case=case, values=values, bound=bound)]


def _ends(found: Results, item: str, what: str, *cases: tuple[str, str, str]) -> Any:
    """Shares at the end, of one label minus another's, by case."""
    rows = _rows(found, item)
    return [points(case, rows[one][what], rows[two][what]) for case, one, two in cases]


def _directions(found: Results) -> list[Effect]:
    """Misclassified with 10 directions minus with 2."""
    steps = (f"η = {step}" for step in ("0.02", "0.005"))
    cases = [(step, f"10, {step}", f"2, {step}") for step in steps]
    return list(_ends(found, "figure-6", "misclassified", *cases))


def _rank(found: Results) -> list[Effect]:
    """What a bound on the rank loses of the accuracy, and saves of the bytes."""
    rows = _rows(found, "figure-9")
    full = rows["values, full rank"]
    measured = []
    for rank in ("R = 8", "R = 16"):
        low = rows[f"values, {rank}"]
        lost = points(f"{rank}, accuracy lost", full["accuracy"], low["accuracy"])
        kept = [KEPT - value for value in lost.values]
        saved = (_reached(row, "reached-bytes") for row in (full, low))
        measured += [
            replace(lost, values=kept, bound=KEPT, below=True),
            ratio(f"{rank}, bytes saved", *saved),
        ]
    return measured


def _theorem(found: Results) -> list[Effect]:
    """The power of K by which the mean falls, and the mean over the gradients'."""
    results = found["theorem"]
    means = {name: np.array(runs)[:, -1] for name, runs in results["means"].items()}
    return [
        Effect(
            "power of K",
            [POWER - slope for slope in slopes(results, "values")],
            form="{:.2f}",
            bound=POWER,
            below=True,
        ),
        ratio(
            "values over gradients",
            TWICE * means["gradients"],
            means["values"],
            bound=float(np.log(TWICE)),
            below=True,
        ),
    ]


# sizes; what is smaller than in the paper, and why
_IMAGES = (
    "CIFAR-10, its class and batch: 1 461 × 3 072 instead of 4 992 images, {}; "
    "a CNN of 71.7 % instead of 82 %, to save hours"
)
_MNIST = (
    "MNIST, 60 000 × 784, {}; 32 hidden units (the paper gives none), "
    f"{ROUNDS} rounds"
)

CLAIMS = (
    Claim(
        "estimator",
        "leveraging the projection operator eliminates the need for sampling tangent "
        "random vectors, significantly reducing computation time",
        "section 5.1, figure 2",
        ("figure-2",),
        _cheaper,
        "a picture",
        "as the paper's: Iris, 150 × 4; digits, 200 × 64; one client",
        "time of an iteration with (6) over that with (7)",
    ),
    Claim(
        "local-updates",
        "demonstrating consistent performance across varying local update steps, "
        "client "
        "numbers, and batch sizes of the gradient estimator",
        "section 5.2, figure 4",
        ("figure-4",),
        _local_steps,
        "pictures",
        _IMAGES.format("10 clients"),
        "rounds until 40 % are misclassified, with fewer local steps over with more",
    ),
    Claim(
        "speedup",
        "our algorithm achieves the linear speedup property, with the convergence rate "
        "improving proportionally to the number of participating clients",
        "section 1.2, figure 5",
        ("figure-5",),
        _speedup,
        "in proportion",
        _IMAGES.format("5 to 20 clients"),
        "rounds until 40 % of the attacked images are misclassified, with 5 clients "
        "over with 20; in proportion were ×4 (×3 is ours)",
    ),
    Claim(
        "directions",
        "Impact of the batch size in zeroth-order Riemannian gradient estimator.",
        "section 5.2, figure 6",
        ("figure-6",),
        _directions,
        "pictures",
        _IMAGES.format("10 clients"),
        "share misclassified after 4 rounds, with 10 directions (the paper's batch "
        "size) minus with 2",
    ),
    Claim(
        "more-clients",
        "increasing the number of participating clients from 10 to 30 improves test "
        "accuracy",
        "section 5.3, figure 7",
        ("figure-7",),
        lambda found: _ends(
            found, "figure-7", "accuracy", ("30 instead of 10", "30", "10")
        ),
        "pictures",
        _MNIST.format("10 to 30 clients"),
        "test accuracy with 30 clients minus with 10",
    ),
    Claim(
        "batch",
        "increasing the batch size from 5 to 100 reduces gradient bias",
        "section 5.3, figure 8",
        ("figure-8",),
        lambda found: _ends(
            found, "figure-8", "accuracy", ("50 instead of 5", "50", "5")
        ),
        "pictures",
        _MNIST.format("10 clients"),
        "test accuracy, not bias, with 50 directions (the paper's batch size; not 100, "
        "for time) minus with 5",
    ),
    Claim(
        "rank",
        "optimal rank selection strikes a near-optimal balance, reducing communication "
        "costs compared to full-rank models while maintaining accuracy",
        "section 5.3, figure 9",
        ("figure-9",),
        _rank,
        "pictures",
        _MNIST.format("10 clients"),
        "test accuracy that rank R loses against no bound on the rank (2 points are "
        "ours); bytes without the bound over those of rank R, to one accuracy",
    ),
    Claim(
        "theorem",
        "we establish sublinear convergence to an approximate first-order optimal "
        "solution under heterogeneous client data, matching the rate of its "
        "first-order "
        "counterpart",
        "section 1.2, theorem 4.1",
        ("theorem",),
        _theorem,
        "a theorem",
        "PCA of 1 797 × 64 digits, sorted by label over 10 clients; 300 rounds",
        "squared gradient map, mean over K rounds: its power of K, from K = 100 to "
        "300, in theory −1; that from function values over that from gradients (both "
        "bounds are ours)",
    ),
)

PAPERS = (
    Paper(
        "Federated Learning on Riemannian Manifolds: A Gradient-Free Projection-Based "
        "Approach",
        "https://arxiv.org/abs/2507.22855",
        "Z",
        9,
        1,
        CLAIMS,
        (
            Exhibit("Figure 1", "Euclidean perturbation", note="a drawing"),
            Exhibit("Figure 2", "cost of the estimators", ("figure-2",)),
            Exhibit("Figure 3", "attacked images", ("figure-3",)),
            Exhibit("Figure 4", "attack: local updates", ("figure-4",)),
            Exhibit("Figure 5", "attack: clients", ("figure-5",)),
            Exhibit("Figure 6", "attack: directions", ("figure-6",)),
            Exhibit("Figure 7", "low rank: clients", ("figure-7",)),
            Exhibit("Figure 8", "low rank: directions", ("figure-8",)),
            Exhibit("Figure 9", "low rank: rank", ("figure-9",)),
            Exhibit("Table 1", "notations", note="symbols of a proof"),
        ),
    ),
)
