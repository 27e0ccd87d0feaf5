"""Whether the comparison on digits changes where methods' own settings are tuned too.

    python -m benchmarks.networks.own_settings

Momentum, or the server's step of Adam, beside the step size: three values of each, nine
pairs for every method, around what :mod:`.comparison` chose and with its schedule. They
are chosen by the rounds to the goal on the seed and the held-out examples of
:mod:`.comparison`; the grid does not go on. Three other seeds measure what was chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from ..report import Comparison
from .comparison import BATCH, CONTENDERS, DIGITS, GOAL, Contender, Curve, row_of, run

__all__ = ["rows"]

_ROUNDS, _SEEDS = 60, (1, 2, 3)
#: Step sizes, the schedule, and the method's own setting with its values; what
#: :mod:`.comparison` has stands in the middle of both.
_WAYS: dict[str, tuple[tuple[float, ...], str, str, tuple[float, ...]]] = {
    "FedAvg, server momentum 0.9": (
        *((0.08, 0.16, 0.32), "constant"),
        *("momentum", (0.8, 0.9, 0.95)),
    ),
    "FedAdam, server step 0.03": (
        *((0.2, 0.4, 0.8), "constant"),
        *("server-step-size", (0.015, 0.03, 0.06)),
    ),
    "fedlmo, corrected": (
        *((0.04, 0.08, 0.16), "linear"),
        *("momentum", (0.8, 0.9, 0.95)),
    ),
}


def rows() -> Iterable[dict[str, Any]]:
    """A method's row: what was chosen, and rounds to the goal on other seeds."""
    for name, (steps, schedule, key, values) in _WAYS.items():
        contender, fewest = CONTENDERS[name], _ROUNDS
        best: tuple[tuple[float, ...], float, float] | None = None
        # the pair of the comparison first, so that the others may end at its rounds
        pairs = sorted(
            product(steps, values), key=lambda pair: pair != (steps[1], values[1])
        )
        for step, value in pairs:
            own = replace(contender, settings={**contender.settings, key: value})
            curve = _run(own, step, schedule, 0, fewest)
            if curve is None:
                continue
            rounds = curve.first(GOAL)
            fewest = min(fewest, rounds or _ROUNDS)
            accuracy = max(row[0] for row in curve.rounds[-5:])
            score = (float(_ROUNDS + 1 if rounds is None else rounds), -accuracy)
            if best is None or (score, step, value) < best:
                best = score, step, value
        assert best is not None
        _, step, value = best
        own = replace(contender, settings={**contender.settings, key: value})
        curves = [_run(own, step, schedule, seed, _ROUNDS) for seed in _SEEDS]
        yield {"own setting": f"{key} {value:g}"} | row_of(
            name.partition(" 0")[0], (step, schedule), curves, GOAL
        )


def _run(
    contender: Contender, step: float, schedule: str, seed: int, limit: int
) -> Curve | None:
    held_out = {"classification.validation-fraction": 0.2 if seed == 0 else 0.0}
    own = contender.config(step, schedule, _ROUNDS, BATCH)
    return run({**DIGITS, **own, **held_out, "seed": seed}, GOAL, limit, loss=False)


def main() -> None:
    """Print the table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(Comparison("", "", "", list(rows())).markdown())


if __name__ == "__main__":
    main()
