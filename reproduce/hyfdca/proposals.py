"""What clients propose, compared: iterations of the bundle with sums over all."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.objectives.losses import make_loss
from reproduce.common import Options, workers
from reproduce.drawing import measured

from .recorded import CANCER, DIGITS, HYBRID, LOSSES, split
from .simulated import DUAL_POINT, MIXED, proposal, simulate

__all__ = ["compute_proposals", "render_proposals"]

KINDS: dict[str, tuple[float | None, float | None]] = {
    "dual point": DUAL_POINT,
    "dual point, r ≥ 0.5": (None, 0.5),
    "proximal, g = 0.05, r ≥ 0.5": (0.05, 0.5),
    "proximal, g = 0.1": (0.1, None),
    "proximal, g = 0.1, r ≥ 0.5 (default)": MIXED,
    "proximal, g = 0.1, r ≥ 0": (0.1, 0.0),
    "proximal, g = 0.2, r ≥ 0.5": (0.2, 0.5),
    "proximal, g = 0.3, r ≥ 0.5": (0.3, 0.5),
}
GOALS = (1e-2, 1e-3, 1e-6)


def _proposal_row(job: tuple[str, str, str, int, int]) -> dict[str, Any]:
    name, loss_name, kind, memory, rounds = job
    case, loss = split(name), make_loss(loss_name)
    run = simulate(
        case,
        loss,
        proposal(loss, case.y, case.scale, *KINDS[kind]),
        rounds=rounds,
        memory=memory,
    )
    problem = RegularizedLoss(case.X, case.y, loss, case.regularization)
    optimum = central_optimum(problem).value
    left = (optimum - run.dual) / optimum
    gap = (np.minimum.accumulate(run.primal) - run.dual) / run.primal
    first = [np.flatnonzero(left <= goal) for goal in GOALS]
    first.append(np.flatnonzero(gap <= 1e-6))
    return {
        "data": name,
        "loss": loss_name,
        "kind": kind,
        "memory": memory,
        "reached": [int(at[0]) + 1 if len(at) else -1 for at in first],
    }


def compute_proposals(options: Options) -> dict[str, Any]:
    """Iterations that sums over all clients take, by what clients propose."""
    names = (HYBRID,) if options.quick else (DIGITS, CANCER)
    losses = LOSSES[:1] if options.quick else LOSSES
    rounds = 200 if options.quick else 1000
    memories = (20, 40)
    jobs = list(itertools.product(names, losses, KINDS, memories, (rounds,)))
    with workers(options.jobs) as pool:
        return {"rows": list(pool.map(_proposal_row, jobs))}


def render_proposals(results: dict[str, Any], out: Path) -> str:
    """One table, memories side by side."""
    rows = results["rows"]
    memories = list(dict.fromkeys(row["memory"] for row in rows))
    lines = [
        "| data | loss | proposal | "
        + " | ".join(f"memory {memory}" for memory in memories)
        + " |",
        "| --- " * (3 + len(memories)) + "|",
    ]
    keys = dict.fromkeys((row["data"], row["loss"], row["kind"]) for row in rows)
    for key in keys:
        cells = []
        for memory in memories:
            (row,) = (
                r
                for r in rows
                if (r["data"], r["loss"], r["kind"], r["memory"]) == (*key, memory)
            )
            cells.append(" / ".join("–" if n < 0 else str(n) for n in row["reached"]))
        lines.append(f"| {' | '.join(key)} | {' | '.join(cells)} |")
    lines += [
        "",
        "Iterations until D is within 10⁻² / 10⁻³ / 10⁻⁶ of the optimum, and until the "
        f"certificate (P − D)/P is below 10⁻⁶. {measured(results)}",
    ]
    return "\n".join(lines)
