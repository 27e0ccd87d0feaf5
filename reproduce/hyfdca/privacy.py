"""What a server of HyFDCA finds out: honest, choosing w, and with one client's help."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.objectives.losses import Loss, make_loss
from reproduce.common import Options, workers
from reproduce.drawing import measured

from .attacks import (
    Isolated,
    Query,
    ask,
    found_in,
    lonely_entries,
    rows_at_bends,
    rows_at_jumps,
    rows_at_kinks,
    rows_at_thresholds,
    rows_by_independence,
    rows_from_scores,
    rows_in_differences,
    rows_in_lattice,
    rows_in_spans,
)
from .recorded import Array, Case, record, split
from .simulated import Clients, proposal, simulate

__all__ = [
    "compute_chosen_w",
    "compute_collusion",
    "compute_honest_server",
    "compute_proposals",
    "render_chosen_w",
    "render_collusion",
    "render_honest_server",
    "render_proposals",
]

LOSSES = ("hinge", "smoothed-hinge", "logistic")
CANCER, HYBRID, HORIZONTAL, DIGITS, ONE_HOT = (
    "breast cancer, 3 × 3",
    "96 samples, hybrid 3 × 2",
    "96 samples, horizontal, 6 clients",
    "digits, 4 × 4",
    "one-hot columns, 3 × 2",
)
# g and the least r of the clients' proposals: ``clients/hyfdca/proposals.py``.
PROXIMAL, LEAST = 0.1, 0.5
DUAL_POINT, MIXED = (None, None), (PROXIMAL, LEAST)
ROUNDS = 400

# ------------------------------------------------------------------------ honest server

ATTACKS = {
    "differences": "up to 4 uploads",
    "lattice": "lattice",
    "kinks": "kinks",
    "spans": "spans",
    "independence": "independent components",
}
#: Lengths of the windows that the lattice attack is tried on, ending at three places.
LENGTHS = (24, 40, 60, 80)


def attacked(
    case: Case, sums: Array, weights: Array, rows: Array, lengths: tuple[int, ...]
) -> dict[str, Any]:
    """Try every attack of an honest server on one sequence of sums.

    Parameters
    ----------
    case : Case
    sums, weights : ndarray of shape (T, p)
    rows : ndarray of shape (n, p)
        The truth, of the samples that the sums are over.
    lengths : tuple of int
        Of the lattice attack's windows.

    Returns
    -------
    dict
        By attack how many whole rows were found; ``parts``: parts of rows at the
        features of one client, among combinations of uploads; ``claims``: what the
        lattice attack claimed; ``chance``: what independent component analysis finds
        after a random rotation of what it claims.
    """
    T, steps = len(sums), sums - weights
    hit = set(_in_combinations(sums, weights, rows))
    parts = 0
    for block in case.blocks:
        if len(case.blocks) > 1:
            own = _in_combinations(sums[:, block], weights[:, block], rows[:, block])
            parts += len(own)
    windows = [
        (stop - length, stop)
        for length in lengths
        for stop in sorted({T, (2 * T) // 3, T // 3})
        if stop >= length
    ]
    lattice = rows_in_lattice(sums, weights, case.scale, windows)
    kinks = rows_at_kinks(sums, weights)
    spans = rows_in_spans(
        steps,
        [(s, s + n) for n in (8, 16, *lengths) for s in range(0, T - n + 1, 4)],
    )
    mixtures = [rows_by_independence(steps[-n:]) for n in (60, 100, 200, T) if n <= T]
    components = np.vstack(mixtures)
    rotated = [
        np.linalg.qr(np.random.default_rng(0).standard_normal((len(m), len(m))))[0] @ m
        for m in mixtures
    ]
    return {
        "differences": len(hit),
        "parts": parts,
        "lattice": len(found_in(lattice, rows)),
        "claims": len(lattice),
        "kinks": len(found_in(kinks, rows, 1e-4)),
        "spans": len(found_in(spans, rows, 1e-4)),
        "independence": len(found_in(components, rows, 1e-2)),
        "chance": len(found_in(np.vstack(rotated), rows, 1e-2)),
        "iterations": T,
    }


def _in_combinations(sums: Array, weights: Array, rows: Array) -> list[int]:
    """Among up to four sums, and up to two of sums, w and what was added to w."""
    every = np.vstack([sums, weights, sums - weights])
    found = {*rows_in_differences(sums, rows, 4, 1e-11).tolist()}
    found |= {*rows_in_differences(every, rows, 2, 1e-11).tolist()}
    return sorted(found)


def _honest_row(job: tuple[str, str, str, float, bool]) -> dict[str, Any]:
    name, loss, source, regularization, quick = job
    whole = split(name)
    case = whole.as_sent()
    if regularization:
        case = replace(case, regularization=regularization)
    rounds, lengths = (120, LENGTHS[:2]) if quick else (ROUNDS, LENGTHS)
    if loss != "hinge":
        lengths = LENGTHS[:1]  # there are no integers to find
    row = {
        "data": name,
        "loss": loss,
        "source": source,
        "samples": len(case.y),
        "features": case.X.shape[1],
        "blocks": len(case.blocks),
        "regularization": case.regularization,
        "lonely": len(lonely_entries(whole.X)),
    }
    if source == "run":
        traffic = record(whole, loss, rounds)
        V = traffic.of_unit(0)
        return row | attacked(case, V, traffic.weights, case.X, lengths)
    made = make_loss(loss)
    kind = DUAL_POINT if source in ("dual points", "v_k") else MIXED
    run = simulate(
        case,
        made,
        proposal(made, case.y, case.scale, *kind),
        rounds=rounds,
        apart=source == "v_k",
        tolerance=0.0 if source == "beyond" else 1e-6,
    )
    if source != "v_k":
        return row | attacked(case, run.sums[:, 0], run.weights, case.X, lengths)
    # what each client sends is read by itself: pairs of uploads are enough
    rows = [np.array(r) for r in dict.fromkeys(tuple(r) for r, _ in case.parts)]
    found = sum(
        len(rows_in_differences(run.sums[:, u, columns], case.X[np.ix_(own, columns)], 2))
        for u, own in enumerate(rows)
        for mine, columns in case.parts
        if np.array_equal(mine, own)
    )
    total = sum(len(own) for own, _ in case.parts)
    return row | {"parts": found, "of": total, "iterations": len(run.weights)}


def compute_honest_server(options: Options) -> dict[str, Any]:
    """Every attack on recorded runs, and on what was sent in earlier versions."""
    quick = options.quick
    names = (HYBRID, HORIZONTAL) if quick else (CANCER, HYBRID, HORIZONTAL, DIGITS, ONE_HOT)
    losses = LOSSES[:1] if quick else LOSSES
    jobs = [
        (name, loss, source, 0.0, quick)
        for source in ("run", "dual points", "v_k")
        for name in names
        for loss in losses
    ]
    if not quick:
        jobs += [(CANCER, "hinge", "beyond", λ, quick) for λ in (1e-3, 1.0)]
    with workers(options.jobs) as pool:
        return {"rows": list(pool.map(_honest_row, jobs))}


HONEST = {
    "run": "Recorded runs with the default settings",
    "dual points": "The same attacks on sums of plain dual points, as version 0.2 sent "
    "them with secure sums (simulated)",
    "beyond": "Not claimed: 400 iterations without a tolerance, where at λ = 1 three "
    "samples are at the margin (simulated)",
}


def render_honest_server(results: dict[str, Any], out: Path) -> str:
    """A table for recorded runs, and one for what was sent before."""
    text = []
    for source, title in HONEST.items():
        rows = [row for row in results["rows"] if row["source"] == source]
        if not rows:
            continue
        lines = [
            f"{title}:",
            "",
            "| data | loss | samples × features | iterations | whole rows, "
            + ", ".join(ATTACKS.values())
            + " | parts, up to 4 uploads | lattice's claims |",
            "| --- " * 7 + "|",
        ]
        for row in rows:
            found = ", ".join(str(row[attack]) for attack in ATTACKS)
            extra = f", λ = {row['regularization']:g}" if source == "beyond" else ""
            lines.append(
                f"| {row['data']}{extra} | {row['loss']} | {row['samples']:,} × "
                f"{row['features']} | {row['iterations']} | {found} | {row['parts']} "
                f"| {row['claims']} |"
            )
        text.append("\n".join(lines))
    rows = [row for row in results["rows"] if row["source"] == "v_k"]
    lines = [
        "Each client's v_k of plain dual points in the clear, as version 0.2 sent it by "
        "default (simulated), differences of two:",
        "",
        "| data | loss | parts found | of |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['data']} | {row['loss']} | {row['parts']:,} | {row['of']:,} |"
        for row in rows
    ]
    text.append("\n".join(lines))
    chance = max(row.get("chance", 0) for row in results["rows"])
    text.append(
        "A row counts as found at any sign and scale, if the cosine is above 1 − 10⁻⁶ "
        "(kinks and spans 1 − 10⁻⁴, independent components 0.99, where a random rotation "
        f"of the claims finds {chance} at most). The lattice attack is tried on windows "
        f"of {', '.join(map(str, LENGTHS))} uploads that end after a third, two thirds "
        f"and all of a run. {measured(results)}"
    )
    return "\n\n".join(text)


# ---------------------------------------------------------------------------- chosen w

ANSWERS = (300, 3000)
NOISES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
REPEATS = (1, 2, 4, 16, 64)


def weight_bound(loss: Loss, regularization: float) -> float:
    """The largest ‖w‖ that clients answer at: 2 √(2 l(0)/λ)."""
    at_zero = float(loss.value(np.zeros(1), np.ones(1))[0])
    return 2.0 * float(np.sqrt(2.0 * at_zero / regularization))


def _queries(
    found: Isolated, case: Case, loss: Loss, clients: Clients
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
    jobs = [(n, loss, kind, answers) for kind in kinds for n in names for loss in losses]
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
            f"| {row['loss']:.2g} | {row['accuracy']:.4f} | {row['best-accuracy']:.4f} |"
        )
    lines += [
        "",
        "Noise: the standard deviation of what a client adds to each number of v_k, in "
        f"units of the most that one sample adds to one. {measured(results)}",
    ]
    return "\n".join(lines)


# --------------------------------------------------------------------------- collusion


def _collusion_row(job: tuple[str, str, bool]) -> dict[str, Any]:
    name, loss_name, quick = job
    case, loss = split(name), make_loss(loss_name)
    run = simulate(
        case,
        loss,
        proposal(loss, case.y, case.scale, *MIXED),
        rounds=120 if quick else ROUNDS,
    )
    own = np.array(case.parts[0][0])
    others = np.setdiff1d(np.arange(len(case.y)), own)
    # it is told z_i of its samples, the server knows w: x_i of its samples, everywhere
    solved = rows_from_scores(run.weights, run.scores[:, own])
    exact = np.linalg.norm(solved - case.X[own], axis=1)
    exact = exact <= 1e-6 * np.linalg.norm(case.X[own], axis=1)
    T = len(run.weights)
    needed = next(
        (
            t
            for t in range(1, T + 1)
            if np.linalg.matrix_rank(run.weights[:t], 1e-9) == case.X.shape[1]
        ),
        -1,
    )
    # ... and knows their proposals, so what is left is the sum over the others
    rest = run.sums[:, 0] - run.proposals[:, own] @ case.X[own] / case.scale
    weights = run.weights - run.alphas[:, own] @ case.X[own] / case.scale
    lengths = LENGTHS[: 2 if quick else 4] if loss_name == "hinge" else LENGTHS[:1]
    found = attacked(case, rest, weights, case.X[others], lengths)
    return {
        "data": name,
        "loss": loss_name,
        "own": len(own),
        "solved": int(exact.sum()),
        "needed": needed,
        "others": len(others),
        **found,
    }


def compute_collusion(options: Options) -> dict[str, Any]:
    """A server that one client helps: that client's samples, and everybody else's."""
    names = (
        (HYBRID, HORIZONTAL)
        if options.quick
        else (CANCER, HYBRID, HORIZONTAL, DIGITS)
    )
    losses = LOSSES[:1] if options.quick else LOSSES
    jobs = list(itertools.product(names, losses, [options.quick]))
    with workers(options.jobs) as pool:
        return {"rows": list(pool.map(_collusion_row, jobs))}


def render_collusion(results: dict[str, Any], out: Path) -> str:
    """One table."""
    lines = [
        "| data | loss | samples that the client holds | of these solved on all features "
        "| from iteration | other samples | rows of these, "
        + ", ".join(ATTACKS.values())
        + " | parts |",
        "| --- " * 8 + "|",
    ]
    for row in results["rows"]:
        found = ", ".join(str(row[attack]) for attack in ATTACKS)
        needed = row["needed"] if row["needed"] > 0 else "not in this run"
        lines.append(
            f"| {row['data']} | {row['loss']} | {row['own']} | {row['solved']} "
            f"| {needed} | {row['others']:,} | {found} | {row['parts']} |"
        )
    lines += [
        "",
        "The client is the first one. It is told x_iᵀw of its samples and the server "
        "knows w, so both together solve for x_i as soon as w has spanned all features "
        "that data have; then they know what these samples add to every sum, and the "
        f"attacks of an honest server look at the rest. {measured(results)}",
    ]
    return "\n".join(lines)


# --------------------------------------------------------------------------- proposals

KINDS: dict[str, tuple[float | None, float | None]] = {
    "dual point": (None, None),
    "dual point, r ≥ 0.5": (None, 0.5),
    "proximal, g = 0.05, r ≥ 0.5": (0.05, 0.5),
    "proximal, g = 0.1": (0.1, None),
    "proximal, g = 0.1, r ≥ 0.5 (default)": (PROXIMAL, LEAST),
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
