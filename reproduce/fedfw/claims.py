"""Which of the papers' claims hold, judged by the other items' results."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.common import Item, Options, SkippedError, load_results
from reproduce.drawing import new_figure, save

from . import corrective, corrective_penalty
from .convergence import slope
from .movielens import METHODS

__all__ = ["CLAIMS", "ITEMS"]

Results = dict[str, dict[str, Any]]
Verdict = tuple[bool | None, str]  # None: in part


def _mean(row: dict[str, Any]) -> float:
    return 100 * float(np.mean(row["accuracy"]))


def _pick(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(r for r in rows if all(r[key] == v for key, v in wanted.items()))


def _judge(count: int, of: int) -> bool | None:
    return True if count == of else False if count == 0 else None


def _against_feddr(found: Results, ours: tuple[str, ...]) -> Verdict:
    """Count the cases where the best of our methods is above FedDR."""
    ahead: list[str] = []
    behind: list[str] = []
    for item, results in found.items():
        rows = results["rows"]
        for row in rows:
            if row["method"] != "FedDR":
                continue
            case = {key: row[key] for key in ("partition", "ball")}
            best = max(_mean(_pick(rows, method=m, **case)) for m in ours)
            ball = "ℓ2" if row["ball"] == "l2-ball" else "ℓ1"
            text = f"{item.partition('-')[2]} {row['partition']} {ball}"
            margin = best - _mean(row)
            (ahead if margin > 0 else behind).append(f"{text} ({margin:+.1f})")
    words = []
    if ahead:
        words.append(f"ahead by points of accuracy: {', '.join(ahead)}")
    if behind:
        words.append(f"behind: {', '.join(behind)}")
    return _judge(len(ahead), len(ahead) + len(behind)), "; ".join(words)


def _plus(found: Results) -> Verdict:
    margins = []
    for results in found.values():
        for row in results["rows"]:
            if row["method"] == "FedFW+":
                case = {key: row[key] for key in ("partition", "ball")}
                plain = _pick(results["rows"], method="FedFW", **case)
                margins.append(_mean(row) - _mean(plain))
    near = sum(abs(margin) < 1.0 for margin in margins)
    text = (
        f"FedFW+ − FedFW: {min(margins):+.1f} to {max(margins):+.1f} points, "
        f"within one point in {near} of {len(margins)} cases"
    )
    return _judge(near, len(margins)), text


def _leakage(found: Results) -> Verdict:
    rows = found["figure-1"]["images"]
    last = {
        what: [row[what]["psnr"][-1] for row in rows]
        for what in ("gradient", "l2", "l1")
    }
    text = ", ".join(
        f"{name} {' and '.join(f'{v:.1f}' for v in last[what])} dB"
        for what, name in (("gradient", "gradient"), ("l2", "ℓ2"), ("l1", "ℓ1"))
    )
    return all(
        a > b + 3.0 for a, b in zip(last["gradient"], last["l1"], strict=True)
    ), text


def _leakage_l2(found: Results) -> Verdict:
    rows = found["figure-1"]["images"]
    # hidden is what is no more than 3 dB nearer to the image than plain grey
    margins = [row["l2"]["psnr"][-1] - row["grey"] for row in rows]
    count = sum(margin < 3.0 for margin in margins)
    text = "ℓ2 − plain grey: " + ", ".join(f"{margin:+.1f} dB" for margin in margins)
    return _judge(count, len(margins)), text


def _participation(found: Results, item: str) -> Verdict:
    good, words = 0, []
    panels = found[item]["panels"]
    for name, swept in panels.items():
        gaps = [float(np.mean(row["gap"])) for row in swept["rows"]]
        # a larger share is nowhere much worse
        falls = all(b <= 1.1 * a for a, b in pairwise(gaps))
        good += falls
        shown = " / ".join(f"{gap:.3g}" for gap in gaps)
        words.append(f"{name}: gap {shown} with p = 0.1 / 0.25 / 0.5 / 1")
    return _judge(good, len(panels)), "; ".join(words)


def _penalty(found: Results) -> Verdict:
    words, spreads = [], []
    for item, results in found.items():
        for name, swept in results["panels"].items():
            values = {row["label"]: _mean(row) for row in swept["rows"]}
            best = max(values, key=lambda label: values[label])
            worst = min(values, key=lambda label: values[label])
            spreads.append(values[best] - values[worst])
            words.append(
                f"{name or item}: best {values[best]:.1f} % with {best}, worst "
                f"{values[worst]:.1f} % with {worst}"
            )
    return _judge(sum(s > 2.0 for s in spreads), len(spreads)), "; ".join(words)


def _rate(found: Results) -> Verdict:
    words, good, count = [], 0, 0
    for item, results in found.items():
        for name, run in results["runs"].items():
            residuals = [value - results["optimum"] for value in run["curve"]["loss"]]
            power = slope(run["curve"]["round"], residuals)
            good += power <= -0.5
            count += 1
            words.append(f"{item.partition('-')[2]}, {name}: t^{power:.2f}")
    return _judge(good, count), "; ".join(words)


def _faster(found: Results) -> Verdict:
    words, good = [], 0
    for item, results in found.items():
        last = [
            run["curve"]["loss"][-1] - results["optimum"]
            for run in results["runs"].values()
        ]
        good += last[1] < last[0]
        words.append(
            f"{item.partition('-')[2]}: F − F* {last[0]:.3g} with FedFW, {last[1]:.3g} "
            "with FedFW+"
        )
    return _judge(good, len(found)), "; ".join(words)


def _movielens(found: Results) -> Verdict:
    runs = found["workshop-movielens"]["runs"]
    last = {name: run["curve"]["rmse"][-1] for name, run in runs.items()}
    text = ", ".join(f"{name} {value:.3f}" for name, value in last.items())
    # the paper's settings are not chosen for F as it is here
    judged = [value for name, value in last.items() if name in METHODS]
    return _judge(sum(v < 1.0 for v in judged), len(judged)), f"test RMSE: {text}"


def _assignment(found: Results) -> Verdict:
    results = found["workshop-chr12a"]
    best = {name: min(run["cost"]) for name, run in results["short"].items()}
    faq = min(results["faq"])
    text = (
        "best rounded cost: "
        + ", ".join(f"{name} {value:,.0f}" for name, value in best.items())
        + f"; FAQ {faq:,.0f}; optimum {results['optimum']:,.0f}"
    )
    return _judge(sum(value <= faq for value in best.values()), len(best)), text


def _bytes(found: Results) -> Verdict:
    rows = [row for row in found["bytes"]["rows"] if "dense" in row]
    ratios = {row["task"]: row["dense"]["up"] / row["FedFW"]["up"] for row in rows}
    small = [name for name, ratio in ratios.items() if ratio > 1.5]
    most = max(ratios, key=lambda name: ratios[name])
    text = (
        f"dense / FedFW up from {min(ratios.values()):.1f} to {ratios[most]:.0f} "
        f"({most}); no saving: "
        + (", ".join(name for name in ratios if name not in small) or "nowhere")
    )
    return _judge(len(small), len(ratios)), text


def _server(found: Results) -> Verdict:
    rows = found["server-step"]["rows"]
    good, words, count = 0, [], 0
    for row in rows:
        if row["step"] != "exact":
            continue
        other = _pick(rows, p=row["p"], method=row["method"], step="averaged atoms")
        ours, theirs = float(np.mean(row["last"])), float(np.mean(other["last"]))
        good, count = good + (ours < theirs), count + 1
        words.append(
            f"p = {row['p']:g}, {row['method']}: {ours:.3g} against {theirs:.3g}"
        )
    return _judge(good, count), "F − F*, exact against averaged: " + "; ".join(words)


def _local(found: Results) -> Verdict:
    rows = found["local-steps"]["rows"]
    names = list(dict.fromkeys(row["task"] for row in rows))
    good, words = 0, []
    for name in names:
        losses = [row["curve"]["loss"][-1] for row in rows if row["task"] == name]
        steps = [row["steps"] for row in rows if row["task"] == name]
        good += min(losses) < losses[0]
        shown = ", ".join(
            f"{loss:.4g} (k = {k})" for k, loss in zip(steps, losses, strict=True)
        )
        words.append(f"{name}: F {shown}")
    return _judge(good, len(names)), "; ".join(words)


def _corrective_lasso(found: Results) -> Verdict:
    rows = {row["method"]: row for row in found["corrective-lasso"]["rows"]}
    good, words = 0, []
    # within as many rounds as the run had, at no more than 2 kB an answer
    for name in corrective.CORRECTIVE:
        row = rows[name]
        first, sent = row["to-level"], row["an-answer"]
        good += first is not None and sent <= 2000.0
        words.append(f"{name}: {first or 'not in all'} rounds, {sent:,.0f} bytes")
    others = [row["to-level"] for name, row in rows.items() if name.startswith("FedDR")]
    shown = " and ".join(str(first or "not in all") for first in others)
    return _judge(good, 2), f"{'; '.join(words)} an answer; FedDR, tuned: {shown}"


def _corrective_rates(found: Results) -> Verdict:
    errors = [
        setting["error"]
        for row in found["corrective-rates"]["rows"]
        for setting in row["settings"].values()
    ]
    straight = sum(corrective.linear(error) is True for error in errors)
    text = f"{straight} of {len(errors)} curves down to 10⁻⁹"
    factors = [f for f in map(corrective.rate, errors) if np.isfinite(f)]
    if factors:
        text += f"; factor a round {min(factors):.2f} to {max(factors):.2f}"
    return _judge(straight, len(errors)), text


def _corrective_penalty_rounds(found: Results) -> Verdict:
    rows = found["corrective-penalty"]["rows"]
    good = sum(map(corrective_penalty.in_time, rows))
    rounds = [corrective_penalty.rounds_of(row) for row in rows]
    alone = sum(ours is not None and best is None for ours, best in rounds)
    text = f"{good} of {len(rows)}; no fixed ρ got there in as many rounds: {alone}"
    return _judge(good, len(rows)), text


def _corrective_penalty(found: Results) -> Verdict:
    rows = found["corrective-penalty"]["rows"]
    ratios = [value for row in rows for value in row["ratios"]]
    good = sum(value <= 3.0 for value in ratios)
    text = f"error over that of the best fixed ρ {min(ratios):.2g} to {max(ratios):.2g}"
    return _judge(good, len(ratios)), f"{good} of {len(ratios)}; {text}"


def _tables(number: int) -> tuple[str, ...]:
    names = {
        1: ("synthetic", "mnist", "cifar10"),
        2: ("synthetic", "mnist"),
        3: ("synthetic", "emnist10", "emnist62", "cifar10"),
    }
    return tuple(f"table-{number}-{name}" for name in names[number])


#: Claim, the items it needs (those that are there count), and what judges it.
CLAIMS: list[tuple[str, tuple[str, ...], Callable[[Results], Verdict]]] = [
    (
        "Table 1: FedFW is as good as FedDR or better on convex tasks",
        _tables(1),
        lambda found: _against_feddr(found, ("FedFW", "FedFW+")),
    ),
    (
        "Table 2: FedFW is better than FedDR on non-convex tasks",
        _tables(2),
        lambda found: _against_feddr(found, ("FedFW", "FedFW+")),
    ),
    (
        "Table 3: FedFW-sto is better than FedDR with mini-batches",
        _tables(3),
        lambda found: _against_feddr(found, ("FedFW-sto",)),
    ),
    (
        "Tables 1, 2: FedFW+ is about as accurate as FedFW",
        _tables(1) + _tables(2),
        _plus,
    ),
    (
        "Figure 1: gradients leak an image, the ℓ1 oracle hides it",
        ("figure-1",),
        _leakage,
    ),
    ("Figure 1: the ℓ2 oracle hides it too", ("figure-1",), _leakage_l2),
    (
        "Figure 2: more participation is better, convex",
        ("figure-2",),
        lambda found: _participation(found, "figure-2"),
    ),
    (
        "Figure 3: more participation is better, non-convex",
        ("figure-3",),
        lambda found: _participation(found, "figure-3"),
    ),
    (
        "Figure 4: λ_0 has to be chosen (more than 2 points of accuracy)",
        ("figure-4-convex", "figure-4-nonconvex"),
        _penalty,
    ),
    (
        "Theorem 1, 2022 figures 1a, b: F − F* falls as t^−1/2 or faster",
        ("workshop-lasso", "workshop-digits"),
        _rate,
    ),
    (
        "2022 figures 1a, b: FedFW+ is faster than FedFW",
        ("workshop-lasso", "workshop-digits"),
        _faster,
    ),
    ("MovieLens: test RMSE below 1.0", ("workshop-movielens",), _movielens),
    ("chr12a: as good as FAQ from the same starts", ("workshop-chr12a",), _assignment),
    ("Oracles' answers are smaller than models", ("bytes",), _bytes),
    (
        "§4.2: the exact server step is what partial participation needs",
        ("server-step",),
        _server,
    ),
    ("Future work: several local steps save rounds", ("local-steps",), _local),
    (
        "Ours: corrective steps solve LASSO to 10⁻⁶ in 400 rounds, with half of the "
        "clients in 1,000",
        ("corrective-lasso",),
        _corrective_lasso,
    ),
    (
        "Ours: the error of corrective steps falls linearly",
        ("corrective-rates",),
        _corrective_rates,
    ),
    (
        "Ours: with the ρ they find 10⁻⁶ takes at most twice the rounds of the best "
        "fixed one",
        ("corrective-penalty",),
        _corrective_penalty_rounds,
    ),
    (
        "Ours: the error with that ρ is within a factor of 3 of the best fixed one's, "
        "after 50 and after 100 rounds",
        ("corrective-penalty",),
        _corrective_penalty,
    ),
]


def judge(found: Results) -> list[dict[str, Any]]:
    """Judge every claim some of whose items are there."""
    rows = []
    for claim, items, verdict in CLAIMS:
        there = {name: found[name] for name in items if name in found}
        if not there:
            continue
        holds, evidence = verdict(there)
        rows.append(
            {
                "claim": claim,
                "holds": {True: "holds", False: "does not hold", None: "in part"}[
                    holds
                ],
                "evidence": evidence,
                "missing": [name for name in items if name not in found],
            }
        )
    return rows


def compute(options: Options) -> dict[str, Any]:
    """Read the other items' results where this run's go."""
    folder = options.out / "results"
    paths = [p for p in sorted(folder.glob("*.json")) if p.stem != "claims"]
    if not paths:
        raise SkippedError("needs the results of other items")
    found = {path.stem: load_results(path) for path in paths}
    return {
        "rows": judge(found),
        "items": len(found),
        # where processor time was not noted down: no more than this
        "total-processor-minutes": sum(
            item.get("processor-minutes", item["minutes"] * item["jobs"])
            for item in found.values()
        ),
    }


def render(results: dict[str, Any], out: Path) -> str:
    """Write the table, and how many of the claims hold."""
    rows = results["rows"]
    lines = ["| claim | verdict | measured |", "| --- | --- | --- |"]
    colors = {"holds": "C2", "in part": "C1", "does not hold": "C3"}
    figure, ((axes,),) = new_figure(1)
    figure.set_size_inches(8.5, 0.3 * len(rows) + 0.9)
    for k, row in enumerate(rows):
        missing = f" (without {', '.join(row['missing'])})" if row["missing"] else ""
        lines.append(
            f"| {row['claim']} | **{row['holds']}** | {row['evidence']}{missing} |"
        )
        axes.barh(k, 1.0, color=colors[row["holds"]], alpha=0.75)
        axes.text(0.5, k, row["holds"], ha="center", va="center", fontsize="small")
    axes.set_yticks(range(len(rows)), [row["claim"] for row in rows], fontsize="small")
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_xticks([])
    axes.set_xlim(0, 1)
    hours = results["total-processor-minutes"] / 60.0
    lines += [
        "",
        f"The {results['items']} items that these are from took {hours:.1f} hours of "
        f"processor time, {hours / 2:.1f} hours on two cores.",
    ]
    return f"{save(figure, out, 'claims')}\n\n" + "\n".join(lines)


ITEMS = {
    "claims": Item("which claims hold, by the results of the others", compute, render)
}
