"""What the HyFDCA paper claims and shows, and what of ours measures it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.claims import Effect, Results, points, ratio, read_paper

from .comparisons import OURS, at_equal_time, at_the_end
from .figures import BUNDLE, FEDAVG, HYFEM, PRACTICAL
from .problems import PROBLEMS
from .tables import TWO

__all__ = ["PAPERS"]

#: A relative loss, in percent, that is substantially worse: ours.
WORSE = 10.0
#: The paper's data sets; digits are ours.
DATA = ("mnist", "news20", "covtype")


def _title(row: dict[str, Any]) -> str:
    share = f"{100 * row['available']:.0f} % there"
    name = PROBLEMS[row["problem"]].title
    if "samples" in row:
        name += f" {row['samples']:,}"
    if "digits" in row:
        name += ", a digit against the rest"
    return f"{name}, {row['split']}, {share}"


def _against_baselines(
    title: str, ends: dict[str, Any], ours: str, unit: str = "seeds"
) -> list[Effect]:
    """Loss and accuracy of one of ours against both baselines."""
    measured = []
    for other in (FEDAVG, HYFEM):
        loss, accuracy = (
            [ends[method][what] for method in (other, ours)]
            for what in ("loss", "accuracy")
        )
        measured += [
            # ratios: losses are of several magnitudes
            ratio(f"{title}: loss, {other}", *loss, unit=unit),
            points(f"{title}: accuracy, {other}", *reversed(accuracy), unit=unit),
        ]
    return measured


def _at_equal_time(ours: str) -> Callable[[Results], list[Effect]]:
    """Differences by setting and baseline, as the paper counts its comparisons."""

    def effects(found: Results) -> list[Effect]:
        names = ("problem", "split", "available")
        seconds = {
            tuple(row[q] for q in names): {m: row[m]["encryption"] for m in OURS}
            for row in found["tables-6-8"]["rows"]
        }
        measured = []
        for row in found["figure-3-seeds"]["rows"]:
            encryption = seconds[tuple(row[q] for q in names)]
            ends = at_equal_time(row, encryption, ours)
            measured += _against_baselines(_title(row), ends, ours)
        return measured

    return effects


def _iterations(ours: str) -> Callable[[Results], list[Effect]]:
    """The paper's 36, those with all samples, and each digit against the rest."""

    def effects(found: Results) -> list[Effect]:
        measured = []
        for row in found["figure-3-seeds"]["rows"]:
            measured += _against_baselines(_title(row), at_the_end(row), ours)
        if ours == BUNDLE:
            for row in found["full-data"]["rows"]:
                measured += _against_baselines(_title(row), row["ends"], ours)
        row = found["one-against-rest"]
        return measured + _against_baselines(_title(row), row["ends"], ours, "digits")

    return effects


def _times(found: Results) -> dict[str, list[dict[str, Any]]]:
    """Settings by data set."""
    return {
        name: [r for r in found["tables-6-8"]["rows"] if r["problem"] == name]
        for name in DATA
    }


def _slower_iterations(found: Results) -> list[Effect]:
    """Seconds of an iteration, encryption included, over the baselines'."""
    return [
        ratio(
            f"{PROBLEMS[name].title}, {other}",
            [sum(row[PRACTICAL][k] for k in TWO) for row in rows],
            [row[other]["computation"] for row in rows],
            unit="settings",
        )
        for name, rows in _times(found).items()
        for other in (FEDAVG, HYFEM)
    ]


def _encryption(found: Results) -> list[Effect]:
    return [
        ratio(
            PROBLEMS[name].title,
            [row[PRACTICAL]["encryption"] for row in rows],
            [row[PRACTICAL]["computation"] for row in rows],
            unit="settings",
        )
        for name, rows in _times(found).items()
    ]


def _harder(found: Results) -> list[Effect]:
    """Few clients most of whom are there against many few of whom are."""
    measured = []
    for name in DATA:
        of = {
            # what P* is certified to
            row["available"]: np.maximum(at_the_end(row)[PRACTICAL]["loss"], 1e-9)
            for row in found["figure-3-seeds"]["rows"]
            if row["problem"] == name
        }
        measured.append(ratio(PROBLEMS[name].title, of[0.1], of[0.9]))
    return measured


def _worse_than_central(found: Results) -> list[Effect]:
    """HyFEM's relative loss."""
    return [
        Effect(
            _title(row),
            [100 * loss - WORSE for loss in ends[HYFEM]["loss"]],
            form="{:,.0f} %",
            bound=WORSE,
        )
        for row, ends in (
            *((r, at_the_end(r)) for r in found["figure-3-seeds"]["rows"]),
            *((r, r["ends"]) for r in found["full-data"]["rows"]),
        )
    ]


def _below_the_bound(*theorems: str) -> Callable[[Results], list[Effect]]:
    """The theorem's bound on D* − D(α) over what it bounds, in the worst iteration."""
    return lambda found: [
        Effect(
            row["setting"], np.log(row["headroom"]).tolist(), form="×{:.3g}", ratio=True
        )
        for row in found["central"]["rows"]
        if row["theorem"] in theorems
    ]


HERE = Path(__file__).parent
PAPERS = (
    read_paper(
        HERE,
        "H",
        "A Primal-Dual Algorithm for Hybrid Federated Learning (HyFDCA)",
        "https://arxiv.org/abs/2210.08106",
        {
            "iterations": ("figure-3-seeds one-against-rest", _iterations(PRACTICAL)),
            "time": ("figure-3-seeds tables-6-8", _at_equal_time(PRACTICAL)),
            "iteration-cost": ("tables-6-8", _slower_iterations),
            "encryption": ("tables-6-8", _encryption),
            "harder": ("figure-3-seeds", _harder),
            "hyfem": ("figure-3-seeds full-data", _worse_than_central),
            "all-there": ("central", _below_the_bound("4.5")),
            "some-there": ("central", _below_the_bound("4.8", "4.11")),
            "our-step": (
                "figure-3-seeds full-data one-against-rest",
                _iterations(BUNDLE),
            ),
            "our-time": ("figure-3-seeds tables-6-8", _at_equal_time(BUNDLE)),
        },
    ),
)
