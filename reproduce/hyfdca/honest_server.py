"""What an honest server of HyFDCA finds out, alone and with one client's help."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.objectives.losses import make_loss
from reproduce.common import Options, workers
from reproduce.drawing import measured

from .attacks import (
    found_in,
    lonely_entries,
    rows_at_kinks,
    rows_by_independence,
    rows_from_scores,
    rows_in_differences,
    rows_in_lattice,
    rows_in_spans,
)
from .recorded import (
    CANCER,
    DIGITS,
    HORIZONTAL,
    HYBRID,
    LOSSES,
    ONE_HOT,
    Array,
    Case,
    record,
    split,
)
from .simulated import DUAL_POINT, MIXED, proposal, simulate

__all__ = [
    "compute_collusion",
    "compute_honest_server",
    "render_collusion",
    "render_honest_server",
]

ROUNDS, PATIENCE = 400, 3000
# Sums of which combinations of three and four are tried; of two all are.
FIRST, LAST = 50, 100
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
    components, chance = _components(steps, rows, (60, 100, 200, T))
    return {
        "differences": len(hit),
        "parts": parts,
        "lattice": len(found_in(lattice, rows)),
        "claims": len(lattice),
        "kinks": len(found_in(kinks, rows, 1e-4)),
        "spans": len(found_in(spans, rows, 1e-4)),
        "independence": components,
        "chance": chance,
        "iterations": T,
    }


def _components(steps: Array, rows: Array, lengths: tuple[int, ...]) -> tuple[int, int]:
    """What independent components find in the last uploads, and what chance does."""
    mixtures = [
        rows_by_independence(steps[-n:], noise)
        for n in lengths
        for noise in (1e-8, 1e-3)
        if n <= len(steps)
    ]
    rng = np.random.default_rng(0)
    rotated = [
        np.linalg.qr(rng.standard_normal((len(m), len(m))))[0] @ m for m in mixtures
    ]
    found, chance = (
        len(found_in(np.vstack(claims), rows, 1e-2)) for claims in (mixtures, rotated)
    )
    return found, chance


def _in_combinations(sums: Array, weights: Array, rows: Array) -> list[int]:
    """Among up to four sums, and up to two of sums, w and what was added to w."""
    every = np.vstack([sums, weights, sums - weights])
    # combinations of four are many: the first and the last sums
    some = np.vstack([sums[:-LAST][:FIRST], sums[-LAST:]])
    found = {*rows_in_differences(some, rows, 4, 1e-11).tolist()}
    found |= {*rows_in_differences(every, rows, 2, 1e-11).tolist()}
    return sorted(found)


def _lengths(loss: str, quick: bool) -> tuple[int, ...]:
    if loss != "hinge":
        return LENGTHS[:1]  # there are no integers to find
    return LENGTHS[:2] if quick else LENGTHS


def _patient(case: Case, sums: Array, weights: Array) -> dict[str, Any]:
    """Attacks that gain from a run that goes on and on after it has converged."""
    steps = sums - weights
    components, chance = _components(steps, case.X, (400, 1000, len(steps)))
    return {
        "iterations": len(sums),
        "differences": len(rows_in_differences(sums[:ROUNDS], case.X, 2, 1e-11)),
        "independence": components,
        "chance": chance,
    }


def _honest_row(job: tuple[str, str, str, float, bool]) -> dict[str, Any]:
    name, loss, source, regularization, quick = job
    whole = split(name)
    case = whole.as_sent()
    if regularization:
        case = replace(case, regularization=regularization)
    rounds, lengths = 120 if quick else ROUNDS, _lengths(loss, quick)
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
    kind = MIXED if source == "beyond" else DUAL_POINT
    run = simulate(
        case,
        made,
        proposal(made, case.y, case.scale, *kind),
        rounds=PATIENCE if source == "beyond" else rounds,
        apart=source == "v_k",
        tolerance=0.0 if source == "beyond" else 1e-6,
    )
    if source == "dual points":
        return row | attacked(case, run.sums[:, 0], run.weights, case.X, lengths)
    if source == "beyond":
        return row | _patient(case, run.sums[:, 0], run.weights)
    # what each client sends is read by itself: pairs of uploads are enough
    rows = [np.array(r) for r in dict.fromkeys(tuple(r) for r, _ in case.parts)]
    found = sum(
        len(
            rows_in_differences(
                run.sums[:, u, columns], case.X[np.ix_(own, columns)], 2
            )
        )
        for u, own in enumerate(rows)
        for mine, columns in case.parts
        if np.array_equal(mine, own)
    )
    total = sum(len(own) for own, _ in case.parts)
    return row | {"parts": found, "of": total, "iterations": len(run.weights)}


def compute_honest_server(options: Options) -> dict[str, Any]:
    """Every attack on recorded runs, and on what was sent in earlier versions."""
    quick = options.quick
    names = (
        (HYBRID, HORIZONTAL) if quick else (CANCER, HYBRID, HORIZONTAL, DIGITS, ONE_HOT)
    )
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
            lines.append(
                f"| {row['data']} | {row['loss']} | {row['samples']:,} × "
                f"{row['features']} | {row['iterations']} | {found} | {row['parts']} "
                f"| {row['claims']} |"
            )
        text.append("\n".join(lines))
    rows = [row for row in results["rows"] if row["source"] == "v_k"]
    lines = [
        "Each client's v_k of plain dual points in the clear, as version 0.2 sent it "
        "by default (simulated), differences of two:",
        "",
        "| data | loss | parts found | of |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['data']} | {row['loss']} | {row['parts']:,} | {row['of']:,} |"
        for row in rows
    ]
    text.append("\n".join(lines))
    rows = [row for row in results["rows"] if row["source"] == "beyond"]
    lines = [
        f"Not claimed: what {PATIENCE:,} iterations without a tolerance would give "
        "away (simulated, hinge loss), long after the run has converged:",
        "",
        "| data | λ | differences of two | independent components | by chance |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['data']} | {row['regularization']:g} | {row['differences']} "
        f"| {row['independence']} | {row['chance']} |"
        for row in rows
    ]
    if rows:
        text.append("\n".join(lines))
    chance = max(row["chance"] for row in results["rows"] if "lattice" in row)
    text.append(
        "A row counts as found at any sign and scale, if the cosine is above 1 − 10⁻⁶ "
        "(kinks and spans 1 − 10⁻⁴, independent components 0.99, where a random "
        f"rotation of the claims finds {chance} at most). The lattice attack is tried "
        f"on windows of {', '.join(map(str, LENGTHS))} uploads that end after a third, "
        f"two thirds and all of a run, combinations of three and four uploads of the "
        f"first {FIRST} and the last {LAST}. {measured(results)}"
    )
    return "\n\n".join(text)


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
    rank = np.linalg.matrix_rank(case.X)  # some columns are 0 everywhere
    needed = next(
        (
            t
            for t in range(1, T + 1)
            if np.linalg.matrix_rank(run.weights[:t], 1e-9) == rank
        ),
        -1,
    )
    # ... and knows their proposals, so what is left is the sum over the others
    rest = run.sums[:, 0] - run.proposals[:, own] @ case.X[own] / case.scale
    weights = run.weights - run.alphas[:, own] @ case.X[own] / case.scale
    lengths = _lengths(loss_name, quick)
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
        (HYBRID, HORIZONTAL) if options.quick else (CANCER, HYBRID, HORIZONTAL, DIGITS)
    )
    losses = LOSSES[:1] if options.quick else LOSSES
    jobs = list(itertools.product(names, losses, [options.quick]))
    with workers(options.jobs) as pool:
        return {"rows": list(pool.map(_collusion_row, jobs))}


def render_collusion(results: dict[str, Any], out: Path) -> str:
    """One table."""
    lines = [
        "| data | loss | samples that the client holds | of these solved on all "
        "features | from iteration | other samples | rows of these, "
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
