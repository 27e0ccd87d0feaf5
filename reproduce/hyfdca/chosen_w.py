"""What a server of HyFDCA finds out that chooses w: rows against answers, and noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.objectives.losses import DualLoss, make_loss
from reproduce.common import Options, workers
from reproduce.drawing import measured

from .attacks import (
    Isolated,
    Query,
    ask,
    found_in,
    rows_at_bends,
    rows_at_jumps,
    rows_at_thresholds,
)
from .recorded import CANCER, DIGITS, HYBRID, LOSSES, Array, Case, split
from .simulated import DUAL_POINT, MIXED, Clients, proposal, simulate

__all__ = ["compute_chosen_w", "render_chosen_w", "weight_bound"]

ANSWERS = (300, 3000)
NOISES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
REPEATS = (1, 2, 4, 16, 64)


def weight_bound(loss: DualLoss, regularization: float) -> float:
    """The largest ‖w‖ that clients answer at: 2 √(2 l(0)/λ)."""
    at_zero = float(loss.value(np.zeros(1), np.ones(1))[0])
    return 2.0 * float(np.sqrt(2.0 * at_zero / regularization))


def _queries(
    found: Isolated, case: Case, loss: DualLoss, clients: Clients
) -> dict[str, tuple[Query, Callable[[Array, bool], Array]]]:
    """The attacks, and what of the clients' answers each reads."""
    N, p = case.X.shape
    norm = weight_bound(loss, case.regularization)
    return {
        "thresholds": (rows_at_thresholds(found, p, N, norm), clients.sums),
        "bends": (rows_at_bends(found, p, N, norm), clients.sums),
        "jumps": (rows_at_jumps(found, p, N, norm), clients.losses),
    }


def _chosen_row(job: tuple[str, str, str, tuple[int, ...]]) -> dict[str, Any]:
    name, loss_name, kind, answers = job
    case, loss = split(name), make_loss(loss_name)
    row: dict[str, Any] = {"data": name, "loss": loss_name, "kind": kind}
    row |= {"samples": len(case.y), "found": {}}
    proposals = DUAL_POINT if kind == "dual point" else MIXED
    for attack in ("thresholds", "bends", "jumps"):
        found = Isolated()
        propose = proposal(loss, case.y, case.scale, *proposals)
        clients = Clients(case, loss, propose)
        query, answer = _queries(found, case, loss, clients)[attack]
        ask(query, answer, max(answers))
        counts = np.array(found.answers)
        claims = found.rows(case.X.shape[1])
        row["found"][attack] = [
            len(found_in(claims[counts <= n], case.X, 1e-4)) for n in answers
        ]
    return row


def _noise_row(job: tuple[str, float, tuple[int, ...]]) -> dict[str, Any]:
    name, noise, answers = job
    case, loss = split(name), make_loss("hinge")
    N, p = case.X.shape
    norm = weight_bound(loss, case.regularization)
    size = float(np.abs(case.X).max()) / case.scale
    found_by: dict[str, list[int]] = {}
    for repeat in REPEATS:
        propose = proposal(loss, case.y, case.scale, *MIXED)
        clients = Clients(case, loss, propose, noise)
        found = Isolated()
        least = max(1e-9, 5.0 * noise * size * np.sqrt(p))
        query = rows_at_thresholds(found, p, N, norm, repeat=repeat, noise=least)
        ask(query, clients.sums, max(answers))
        counts, claims = np.array(found.answers), found.rows(p)
        found_by[str(repeat)] = [
            len(found_in(claims[counts <= n], case.X, 1e-2)) for n in answers
        ]
    # the price: the best certified w of a run with as many iterations as answers
    run = simulate(
        case,
        loss,
        proposal(loss, case.y, case.scale, *MIXED),
        rounds=answers[0],
        noise=noise,
    )
    problem = RegularizedLoss(case.X, case.y, loss, case.regularization)
    best = run.weights[int(np.argmin(run.primal))]
    optimum = central_optimum(problem)
    return {
        "data": name,
        "noise": noise,
        "found": found_by,
        "loss": problem.value(best) / optimum.value - 1.0,
        "accuracy": problem.metrics(best)["accuracy"],
        "best-accuracy": problem.metrics(optimum.w)["accuracy"],
    }


def compute_chosen_w(options: Options) -> dict[str, Any]:
    """Rows against answers, without and with noise, and what the noise costs."""
    names = (HYBRID,) if options.quick else (CANCER, HYBRID, DIGITS)
    answers = (100, 300) if options.quick else ANSWERS
    losses = LOSSES[:2] if options.quick else LOSSES
    kinds = ("proximal, mixed", "dual point")
    jobs = [
        (n, loss, kind, answers) for kind in kinds for n in names for loss in losses
    ]
    noisy = [
        (name, noise, answers)
        for name in (names[:1] if options.quick else (CANCER, DIGITS))
        for noise in (NOISES[::3] if options.quick else NOISES)
    ]
    with workers(options.jobs) as pool:
        rows = list(pool.map(_chosen_row, jobs))
        noise = list(pool.map(_noise_row, noisy))
    return {"rows": rows, "noise": noise, "answers": list(answers)}


def render_chosen_w(results: dict[str, Any], out: Path) -> str:
    """Two tables: rows against answers, and the same with noise."""
    few, many = results["answers"]
    lines = [
        "| data | loss | proposal | rows | found with "
        f"{few:,} / {many:,} answers: thresholds | bends | jumps of Σ l |",
        "| --- " * 7 + "|",
    ]
    for row in results["rows"]:
        found = " | ".join(f"{a:,} / {b:,}" for a, b in row["found"].values())
        lines.append(
            f"| {row['data']} | {row['loss']} | {row['kind']} | {row['samples']:,} "
            f"| {found} |"
        )
    lines += [
        "",
        "Cosine above 1 − 10⁻⁴; ‖w‖ up to the clients' bound 2√(2 l(0)/λ). With noise, "
        "hinge loss, clients' own proposals, cosine above 0.99, the best of "
        f"{', '.join(map(str, REPEATS))} answers at an angle; (P − P*)/P* and accuracy "
        f"on the training samples after {few:,} iterations:",
        "",
        f"| data | noise | found with {few:,} answers | with {many:,} | (P − P*)/P* "
        "| accuracy | without noise, optimum |",
        "| --- " * 7 + "|",
    ]
    for row in results["noise"]:
        best = np.max(list(row["found"].values()), axis=0)
        lines.append(
            f"| {row['data']} | {row['noise']:g} | {best[0]} | {best[1]} "
            f"| {row['loss']:.2g} | {row['accuracy']:.4f} "
            f"| {row['best-accuracy']:.4f} |"
        )
    lines += [
        "",
        "Noise: the standard deviation of what a client adds to each number of v_k, in "
        f"units of the most that one sample adds to one. {measured(results)}",
    ]
    return "\n".join(lines)
