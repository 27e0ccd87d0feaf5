"""What the FedGiA paper claims and shows, and what of ours measures it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.claims import Effect, Results, paired, ratio, read_paper

from .tuned import BASELINES as TUNED
from .tuned import CONDITIONS, STEPS

__all__ = ["PAPERS"]

VARIANTS = ("FedGiA_G", "FedGiA_D")
BASELINES = ("FedAvg", "LocalSGD")
# The bounds are ours: a relative excess that is none, and rounds that are few.
SAME, FEW = 1e-6, 3.0


def _by(found: Results, item: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["method"], row["k0"]): row for row in found[item]["rows"]}


def _tuned(found: Results) -> Iterator[tuple[str, int, dict[str, Any], dict[str, Any]]]:
    """Condition, k_0, the best tuned baseline and a variant; none chosen by its end."""
    rows = found["v1-tuned"]["rows"]
    for condition, name in CONDITIONS.items():
        for k0 in STEPS:
            mine = {
                row["method"]: row
                for row in rows
                if (row["condition"], row["k0"]) == (condition, k0)
            }
            best = max((mine[b] for b in TUNED), key=lambda row: float(row["score"]))
            for variant in VARIANTS:
                yield name, k0, best, mine[variant]


PROBLEMS = {"table-3-v1": "V.1, linear", "table-3-qot": "V.2, logistic, qot"}


def _pairs(found: Results, what: str, *others: str) -> list[Effect]:
    """Ratios of table III's lists, the others' over FedGiA_D's, by problem and k_0."""
    tables = {problem: _by(found, item) for item, problem in PROBLEMS.items()}
    return [
        ratio(
            f"{problem}, {name}, k_0 = {k0}",
            rows[name, k0][what],
            rows["FedGiA_D", k0][what],
        )
        for problem, rows in tables.items()
        for name in others
        for k0 in (1, 5, 10)
    ]


def _against_tuned(found: Results) -> list[Effect]:
    """Rounds, and what is left in the end, of the best tuned baseline over FedGiA's."""
    return [
        ratio(
            f"condition {name}, k_0 = {k0}, {ours['method']}: {title}",
            theirs[what],
            ours[what],
        )
        for what, title in (("broadcasts", "rounds"), ("left", "excess"))
        for name, k0, theirs, ours in _tuned(found)
    ]


def _better(found: Results) -> list[Effect]:
    """Excess over each seed's own optimum where FedGiA stops, baselines' over ours."""
    optimum = np.array(found["table-3-v1"]["optimum"])
    rows = _by(found, "table-3-v1")

    def excess(name: str, k0: int) -> Any:
        loss = np.array(rows[name, k0]["loss"])
        return np.maximum(loss / optimum[: len(loss)] - 1.0, 1e-16)

    pairs = [("FedAvg", "LocalSGD"), *((g, "FedAvg") for g in VARIANTS)]
    return [
        ratio(f"{a} below {b}, k_0 = {k0}", excess(b, k0), excess(a, k0))
        for a, b in pairs
        for k0 in (1, 10)
    ]


def _same_value(found: Results) -> list[Effect]:
    optimum = np.array(found["table-3-v1"]["optimum"])
    measured = []
    for (name, k0), row in _by(found, "table-3-v1").items():
        if name in VARIANTS:
            excess = np.array(row["loss"]) / optimum[: len(row["loss"])] - 1.0
            values = (SAME - excess).tolist()
            case = f"{name}, k_0 = {k0}"
            measured.append(Effect(case, values, form="{:.1e}", bound=SAME, below=True))
    return measured


def _more_iterations(found: Results) -> list[Effect]:
    """Iterations k_0 · CR with more local steps over those with fewer."""
    rows = _by(found, "table-3-v1")
    return [
        ratio(
            f"{name}, k_0 = {more} over {fewer}",
            more * np.array(rows[name, more]["broadcasts"]),
            fewer * np.array(rows[name, fewer]["broadcasts"]),
        )
        for name in VARIANTS
        for more, fewer in ((5, 1), (10, 5))
    ]


def _stabilises(found: Results) -> list[Effect]:
    rows = _by(found, "table-3-v1")
    form, measured = "{:+.3g} rounds", []
    for name in VARIANTS:
        one, five, ten = (np.array(rows[name, k]["broadcasts"]) for k in (1, 5, 10))
        saved = paired(f"{name}: saved by 5 instead of 1", one, five, form=form)
        left = (0.5 - np.abs(five - ten) / (one - five)).tolist()
        case = f"{name}: changed by 10 instead of 5, of that"
        changed = Effect(case, left, form="{:.2g} of it", bound=0.5, below=True)
        measured += [saved, changed]
    return measured


def _share(found: Results) -> list[Effect]:
    """The range of CR over s, with the ends of the intervals."""
    rows = [row for row in found["figure-3"]["rows"] if row["k0"] == 10]
    seeds = found["figure-3"]["seeds"]
    measured = []
    for name in VARIANTS:
        ends = []
        for mean, deviation in (r["broadcasts"] for r in rows if r["method"] == name):
            # the half length of a 95 % interval of a mean of 20, t_{0.975, 19} = 2.093
            half = 2.093 * deviation / float(np.sqrt(seeds - 1))
            ends += [mean - half, mean + half]
        spread = max(ends) - min(ends)
        measured.append(
            Effect(
                f"{name}, k_0 = 10",
                [FEW - spread],
                form="{:.3g} rounds",
                bound=FEW,
                below=True,
                exact=True,
            )
        )
    return measured


def _longer(found: Results) -> list[Effect]:
    """Seconds of the rounds with all clients selected over those with a tenth."""
    n, of = found["figure-3"]["seeds"], {}
    for row in found["figure-3"]["rows"]:
        of[row["method"], row["k0"], row["s"]] = row["seconds"]
    measured = []
    for name in VARIANTS:
        for k0 in (1, 5, 10):
            (few, a), (every, b) = (of[name, k0, s] for s in (0.1, 1.0))
            # values with the mean and the deviation of the difference, if unpaired
            spread = float(np.hypot(a, b)) * np.sqrt((n - 1) / n)
            signs = np.resize([1.0, -1.0], n)
            values = (every - few + spread * signs).tolist()
            measured.append(Effect(f"{name}, k_0 = {k0}", values, form="{:+.3g} s"))
    return measured


def _stationary(found: Results) -> list[Effect]:
    """The bound over what it bounds, and the exponent in k."""
    measured = []
    for row in found["rate"]["rows"]:
        name = f"{row['problem']}, {row['method']}, k_0 = {row['k0']}"
        logs = np.log(row["headroom"]).tolist()
        powers = [-1.0 - value for value in row["exponents"]]
        measured += [
            Effect(f"{name}: the bound", logs, form="×{:.3g}", ratio=True),
            Effect(
                f"{name}: the exponent", powers, form="{:.2f}", bound=-1.0, below=True
            ),
        ]
    return measured


HERE = Path(__file__).parent
TABLE_3 = " ".join(PROBLEMS)
PAPERS = (
    read_paper(
        HERE,
        "G",
        "Efficient and Convergent Federated Learning (FedGiA)",
        "https://arxiv.org/abs/2205.01438",
        {
            "fewest-rounds": (
                TABLE_3,
                lambda found: _pairs(found, "broadcasts", *BASELINES),
            ),
            "fastest": (TABLE_3, lambda found: _pairs(found, "seconds", *BASELINES)),
            "better": ("table-3-v1", _better),
            "same-value": ("table-3-v1", _same_value),
            "more-iterations": ("table-3-v1", _more_iterations),
            "stabilises": ("table-3-v1", _stabilises),
            "diagonal-faster": (
                TABLE_3,
                lambda found: _pairs(found, "seconds", "FedGiA_G"),
            ),
            "share": ("figure-3", _share),
            "stationary": ("rate", _stationary),
            "share-time": ("figure-3", _longer),
            "tuned": ("v1-tuned", _against_tuned),
        },
    ),
)
