"""What the zeroth-order Riemannian paper claims and shows, and what measures it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.claims import Effect, Results, points, ratio, read_paper

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


HERE = Path(__file__).parent
PAPERS = (
    read_paper(
        HERE,
        "Z",
        "Federated Learning on Riemannian Manifolds: A Gradient-Free Projection-Based "
        "Approach",
        "https://arxiv.org/abs/2507.22855",
        {
            "estimator": ("figure-2", _cheaper),
            "local-updates": ("figure-4", _local_steps),
            "speedup": ("figure-5", _speedup),
            "directions": ("figure-6", _directions),
            "more-clients": (
                "figure-7",
                lambda found: _ends(
                    found, "figure-7", "accuracy", ("30 instead of 10", "30", "10")
                ),
            ),
            "batch": (
                "figure-8",
                lambda found: _ends(
                    found, "figure-8", "accuracy", ("50 instead of 5", "50", "5")
                ),
            ),
            "rank": ("figure-9", _rank),
            "theorem": ("theorem", _theorem),
        },
    ),
)
