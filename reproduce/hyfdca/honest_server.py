"""What an honest server of HyFDCA finds out from one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, Context

from clients import HyFDCAClient
from clients.hyfdca import proposals
from fedtrellis import LocalGrid, client_app
from fedtrellis.dual.bundle import DualBundle
from fedtrellis.random import generator
from reproduce.common import Item, Options, workers
from reproduce.drawing import table
from strategies import HyFDCA

from .attacks import Array, found_in, rows_by_independence, rows_in_differences

__all__ = ["ATTACKS", "ITEMS"]

ROUNDS, PATIENCE = 400, 3000
# Sums of which combinations of three and four are tried; of two all are.
FIRST, LAST = 50, 100
ATTACKS = ("differences", "independence")
#: The losses of labels −1 and +1.
LOSSES = ("hinge", "smoothed-hinge", "logistic")


@dataclass(frozen=True)
class Case:
    """Data, λ, and who holds which rows and columns of it."""

    X: Array
    y: Array
    regularization: float
    parts: tuple[tuple[Any, Any], ...]


def _dealt(X: Array, y: Any, λ: float, rows: int, columns: int) -> Case:
    groups = [np.arange(g, len(X), rows) for g in range(rows)]
    blocks = np.array_split(np.arange(X.shape[1]), columns)
    parts = tuple((group, block) for group in groups for block in blocks)
    return Case(X, np.where(y, 1.0, -1.0), λ, parts)


def _breast_cancer() -> Case:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    X = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    X = np.hstack([X, np.ones((len(X), 1))])
    return _dealt(X, data.target == 1, 1e-3, 3, 3)


def _noisy(rows: int, columns: int) -> Case:
    """96 samples of 12 features, two noisy classes."""
    rng = generator(0, "hyfdca attacks", "noisy")
    X = rng.standard_normal((96, 12)) / np.sqrt(12)
    z = X @ rng.standard_normal(12) + 0.3 * rng.standard_normal(96)
    return _dealt(X, z > 0.0, 1e-2, rows, columns)


def _digits() -> Case:
    from sklearn.datasets import load_digits

    data = load_digits()
    # clients keep what fewer than three of their images have to themselves
    kept = [(data.data[g::4] != 0).sum(axis=0) >= 3 for g in range(4)]
    X = data.data[:, np.all(kept, axis=0)] / 16.0
    X = np.hstack([X, np.ones((len(X), 1))])
    return _dealt(X, data.target >= 5, 1e-3, 4, 4)


CANCER = "breast cancer, 3 × 3"
SPLITS: dict[str, Callable[[], Case]] = {
    CANCER: _breast_cancer,
    "96 samples, hybrid 3 × 2": lambda: _noisy(3, 2),
    "96 samples, horizontal, 6 clients": lambda: _noisy(6, 1),
    "digits, 4 × 4": _digits,
}


_MOVED = proposals._moved


def _dual_points(run: Any, held: Any, moves: Any, alpha: Any, z: Any) -> Any:
    return run.loss.dual_point(z[:, moves], run.targets(held)[:, moves])


#: What the server sees, by settings and by what stands in the place of the defence.
SOURCES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "run": ("default settings", {}, {}),
    "dual points": (
        "plain dual points, not mixed at random: the defence taken out",
        {},
        {
            "_moved": _dual_points,
            "_mixing": lambda run, g, version, z: np.ones_like(z),
        },
    ),
    "v_k": (
        "each client's v_k: secure-sum = false",
        {"secure_sum": False, "exposed": "accept"},
        {},
    ),
    "beyond": ("default settings, 3,000 iterations", {"tolerance": 0.0}, {}),
}


def record(case: Case, loss: str, rounds: int, source: str) -> tuple[Array, Array]:
    """Run HyFDCA and keep what the server's searches are given.

    Returns
    -------
    tuple of ndarray
        w_t, shape (T, p), and the sums at them, a unit each, shape (T, u, p).
    """
    names = [f"feature {m}" for m in range(case.X.shape[1])]
    weights, sums, search = [], [], DualBundle.search
    _, settings, instead = SOURCES[source]
    settings = {"encryption": "none"} | settings

    def heard(self: DualBundle, units: list[int], found: Any) -> Any:
        weights.append(self.w)
        sums.append([V[0, 0].copy() for V, _ in found.values()])
        return search(self, units, found)

    def client(context: Context) -> HyFDCAClient:
        rows, columns = case.parts[int(str(context.node_config["partition-id"]))]
        features = [names[m] for m in columns]
        samples = [f"sample {i}" for i in rows]
        X = case.X[np.ix_(rows, columns)]
        return HyFDCAClient(context, X, features, samples, case.y[rows])

    strategy = HyFDCA(loss, case.regularization, feature_names=names, **settings)
    grid = LocalGrid(client_app(client), len(case.parts))
    with (
        mock.patch.object(DualBundle, "search", heard),
        mock.patch.multiple(proposals, **{"_moved": _MOVED} | instead),
    ):
        start = ArrayRecord([np.zeros(len(names))])
        strategy.start(grid, start, num_rounds=rounds)
    return np.array(weights), np.array(sums)


def attacked(
    case: Case, weights: Array, sums: Array, lengths: tuple[int, ...]
) -> dict[str, Any]:
    """Try the attacks of an honest server on one sequence of sums over everybody.

    Returns
    -------
    dict
        By attack how many whole rows were found; ``parts``: parts of rows at the
        features of one client, among combinations of uploads; ``chance``: what
        independent component analysis finds after a random rotation of its claims.
    """
    rows, parts = case.X, 0
    few, at = sums[:ROUNDS], weights[:ROUNDS]
    blocks = [list(b) for b in dict.fromkeys(tuple(c) for _, c in case.parts)]
    for block in blocks if len(blocks) > 1 else []:
        parts += len(_in_combinations(few[:, block], at[:, block], rows[:, block]))
    mixtures = [
        rows_by_independence((sums - weights)[-n:], noise)
        for n in (*lengths, len(sums))
        for noise in (1e-8, 1e-3)
        if n <= len(sums)
    ]
    rng = np.random.default_rng(0)
    rotated = [
        np.linalg.qr(rng.standard_normal((len(m), len(m))))[0] @ m for m in mixtures
    ]
    found, chance = (
        len(found_in(np.vstack(claims), rows, 1e-2)) for claims in (mixtures, rotated)
    )
    return {
        "differences": len(_in_combinations(few, at, rows)),
        "parts": parts,
        "independence": found,
        "chance": chance,
    }


def _in_combinations(sums: Array, weights: Array, rows: Array) -> set[int]:
    """Among up to four sums, and up to two of sums, w and what was added to w."""
    every = np.vstack([sums, weights, sums - weights])
    # combinations of four are many: the first and the last sums
    some = np.vstack([sums[:-LAST][:FIRST], sums[-LAST:]])
    found = {*rows_in_differences(some, rows, 4, 1e-11).tolist()}
    return found | {*rows_in_differences(every, rows, 2, 1e-11).tolist()}


def _row(job: tuple[str, str, str, float, int]) -> dict[str, Any]:
    name, loss, source, λ, rounds = job
    case = SPLITS[name]()
    case = replace(case, regularization=λ or case.regularization)
    weights, sums = record(case, loss, rounds, source)
    row = {"data": name, "loss": loss, "source": source, "samples": len(case.y)}
    row |= {"features": case.X.shape[1], "regularization": case.regularization}
    row["iterations"] = len(weights)
    if source != "v_k":
        lengths = (60, 100, 200) if source != "beyond" else (400, 1000)
        return row | attacked(case, weights, sums[:, 0], lengths)
    # what each client sends is read by itself: pairs of uploads are enough
    groups = list(dict.fromkeys(tuple(r) for r, _ in case.parts))
    parts = sum(
        len(
            rows_in_differences(
                sums[:, groups.index(tuple(own)), columns],
                case.X[np.ix_(own, columns)],
                2,
            )
        )
        for own, columns in case.parts
    )
    return row | {"parts": parts, "of": sum(len(own) for own, _ in case.parts)}


def compute(options: Options) -> dict[str, Any]:
    """Every attack on runs of today, and on what the defence hides."""
    quick = options.quick
    jobs = [
        (name, loss, source, 0.0, 120 if quick else ROUNDS)
        for source in ("run", "dual points", "v_k")
        for name in (list(SPLITS)[1:3] if quick else SPLITS)
        for loss in (LOSSES[:1] if quick else LOSSES)
    ]
    if not quick:
        jobs += [(CANCER, "hinge", "beyond", λ, PATIENCE) for λ in (1e-3, 1.0)]
    with workers(options.jobs) as pool:
        return {"rows": list(pool.map(_row, jobs))}


def render(results: dict[str, Any], out: Path) -> str:
    """What every attack finds, by what the server sees."""
    lines = []
    for row in results["rows"]:
        size = f"{row['samples']:,} × {row['features']}, λ = {row['regularization']:g}"
        parts = (
            f"{row['parts']} of {row['of']}" if "of" in row else row.get("parts", "–")
        )
        found = (row.get(attack, "–") for attack in ATTACKS)
        start = (SOURCES[row["source"]][0], row["data"], row["loss"], size)
        lines.append((*start, row["iterations"], *found, parts))
    head = (
        "the server sees | data | loss | samples × features | iterations | whole rows: "
    )
    head += "up to 4 uploads | independent components | parts of rows"
    chance = max(row.get("chance", 0) for row in results["rows"])
    return (
        f"{table(head, lines)}\n\n"
        "A row counts as found at any sign and scale, if the cosine is above 1 − 10⁻⁶ "
        "(independent components 0.99, where a random rotation of the claims finds "
        f"{chance} at most); combinations of three and four uploads of the first "
        f"{FIRST} and the last {LAST}, of v_k and of 3,000 iterations pairs."
    )


ITEMS = {
    "honest-server": Item(
        "rows that a server finds in what it is sent", compute, render
    )
}
