"""Ours: ρ that the corrective variant finds, beside the best fixed one of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduce.common import Item, Options, workers
from reproduce.drawing import measured, new_figure, save, style_of

from .problems import HELD_OUT, LEVELS, made, reached, solve

__all__ = ["ITEMS", "in_time", "ratio", "rounds_of"]

#: The rule was made on problems of these kinds, among others.
MADE_ON = (
    "LASSO, ℓ1",
    "digits, softmax, ℓ1",
    "least squares, ℓ1",
    "logistic, simplex",
)
#: Errors are compared after so many rounds, from this on.
ROUNDS = (50, 100)
FLOOR = LEVELS[-1]
#: Fixed ρ are where the rule begins times 10 to these, and further on where the best is
#: the first or the last.
EXPONENTS = (-1.5, -1.0, -0.5, 0.0, 0.5)
STEP, FURTHEST = 0.5, 4.0


def ratio(mine: float, best: float) -> float:
    """Return one error over another, both of which end at the floor."""
    return max(mine, FLOOR) / max(best, FLOOR)


def rounds_of(row: dict[str, Any]) -> tuple[int | None, int | None]:
    """Rounds to 10⁻⁶: the rule's, and those of the best fixed ρ.

    Every fixed ρ had at least the rounds that the rule took. None: not seen.
    """
    firsts = [first for first in row["first"] if first is not None]
    return reached(row["own"])[1], min(firsts, default=None)


def in_time(row: dict[str, Any]) -> bool:
    """Whether the rule needs at most twice the rounds of the best fixed ρ."""
    ours, best = rounds_of(row)
    # where no fixed ρ gets there in as many rounds, the rule is first
    return ours is not None and (best is None or ours <= 2 * best)


def _after(error: Sequence[float], rounds: int) -> float:
    """The error after some rounds; of a run that ended at the floor, the last."""
    return error[min(rounds, len(error) - 1)]


def _search(arguments: tuple[str, int, float]) -> dict[str, Any]:
    name, most, furthest = arguments
    problem = made(name)
    own = solve(problem, 3 * most, FLOOR, variant="corrective")
    # ρ of the second round is what the first answers say
    unit = own.penalty[1]
    to_level = reached(own.error)[1]
    # whoever is slower than this is not the best
    rounds = max(most, to_level or 3 * most)
    errors: dict[float, list[float]] = {}

    def rank(exponent: float) -> tuple[float, float]:
        error = errors[exponent]
        first = reached(error)[1]
        return (math.inf if first is None else first, _after(error, most))

    todo = list(EXPONENTS)
    while todo:
        for exponent in todo:
            fixed = unit * 10.0**exponent
            errors[exponent] = solve(
                problem, rounds, FLOOR, variant="corrective", penalty=fixed
            ).error
        best = min(errors, key=rank)
        ahead = [
            min((_after(error, t), exponent) for exponent, error in errors.items())[1]
            for t in ROUNDS
        ]
        todo = sorted(
            {
                beside
                for at in (best, *ahead)
                for beside in (at - STEP, at + STEP)
                if beside not in errors and abs(beside) <= furthest
            }
        )
    return {
        "problem": name,
        "begin": unit,
        "end": own.penalty[-1],
        "range": [min(own.penalty[1:]), max(own.penalty[1:])],
        "own": own.error,
        "exponents": sorted(errors),
        "errors": [
            [_after(errors[exponent], t) for t in ROUNDS] for exponent in sorted(errors)
        ],
        "first": [reached(errors[exponent])[1] for exponent in sorted(errors)],
        "rounds": rounds,
        "ratios": [
            ratio(
                _after(own.error, t),
                min(_after(error, t) for error in errors.values()),
            )
            for t in ROUNDS
        ],
    }


def compute(options: Options) -> dict[str, Any]:
    """All problems; every ρ on the same data, clients and participation."""
    names, most, furthest = [*MADE_ON, *HELD_OUT], ROUNDS[-1], FURTHEST
    if options.quick:
        # nobody is near the minimum, and the best may be at the edge
        names, most, furthest = ["logistic, simplex", "portfolio, simplex"], 4, 1.5
    with workers(options.jobs) as pool:
        rows = list(pool.map(_search, [(name, most, furthest) for name in names]))
    return {"rows": rows}


def render(results: dict[str, Any], out: Path) -> str:
    """Draw the error over ρ, a panel for each number of rounds; and a table."""
    rows = results["rows"]
    figure, axes = new_figure(len(ROUNDS), 2)
    half = -(-len(rows) // 2)
    lines = [
        "| problem | the rule was | ρ begins, ends | in between "
        "| best fixed ρ / that at the end | "
        + " | ".join(f"error after {t} rounds / that of the best ρ" for t in ROUNDS)
        + " | rounds to 10⁻⁶ | with the best ρ |",
        "| --- |" + " --- |" * (6 + len(ROUNDS)),
    ]
    for k, row in enumerate(rows):
        kind = "tried on" if row["problem"] in HELD_OUT else "made on"
        style = style_of(k % half)
        for panel, one in enumerate(axes[k // half]):
            values = [max(errors[panel], FLOOR) for errors in row["errors"]]
            one.plot(
                [row["begin"] * 10.0**e / row["end"] for e in row["exponents"]],
                values,
                label=f"{row['problem']} ({kind})",
                **style,
            )
            own = max(_after(row["own"], ROUNDS[panel]), FLOOR)
            one.plot([1.0], [own], "o", color=style["color"], markersize=4)
        own_first, best = rounds_of(row)
        at = "–"
        if best is not None:
            exponent = row["exponents"][row["first"].index(best)]
            at = f"{row['begin'] * 10.0**exponent / row['end']:.2g}"
        rounds = row["rounds"]
        low, high = row["range"]
        shown = [f"{value:.2g}" for value in row["ratios"]]
        lines.append(
            f"| {row['problem']} | {kind} | {row['begin']:.2g}, {row['end']:.2g} "
            f"| {low:.2g} to {high:.2g} | {at} | {' | '.join(shown)} "
            f"| {'–' if own_first is None else own_first} "
            f"| {f'not in {rounds}' if best is None else best} |"
        )
    for one, rounds in zip(axes.flat, 2 * list(ROUNDS), strict=True):
        one.set_title(f"after {rounds} rounds")
        one.set_xlabel("fixed ρ / the rule's in the end")
        one.set_ylabel("(F(x̄) − F*) / F*")
        one.set_xscale("log")
        one.set_yscale("log")
        one.axvline(1.0, color="black", linewidth=0.8)
    for line in axes:
        line[0].legend(fontsize="x-small")
    within = [
        sum(row["ratios"][panel] <= 3.0 for row in rows) for panel in range(len(ROUNDS))
    ]
    counts = " and ".join(
        f"{count} of {len(rows)} after {t} rounds"
        for count, t in zip(within, ROUNDS, strict=True)
    )
    lines += [
        "",
        "To 10⁻⁶ in at most twice the rounds of the best fixed ρ: "
        f"{sum(map(in_time, rows))} of {len(rows)}. Error within a factor of 3 of that "
        f"of the best fixed ρ: {counts}. The best ρ is that of a grid with steps of "
        "√10, none at its edge, and for every column anew. Relative "
        f"errors, from {FLOOR:g} on; dots are the rule's. {measured(results)}",
    ]
    return f"{save(figure, out, 'corrective-penalty')}\n\n" + "\n".join(lines)


ITEMS = {
    "corrective-penalty": Item(
        "ours: ρ that corrective steps find, beside the best of a grid", compute, render
    )
}
