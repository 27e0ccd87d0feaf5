"""What an honest server of HyFDCA finds out from one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, Context

from clients import HyFDCAClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.dual.bundle import DualBundle
from fedtrellis.objectives.losses import DualLoss, make_loss
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


# ----------------------------------------------------------------------------- the data


@dataclass(frozen=True)
class Case:
    """Data, λ, and who holds which rows and columns of it."""

    X: Array
    y: Array
    regularization: float
    parts: tuple[tuple[Any, Any], ...]
    exposed: Any = "refuse"

    def as_sent(self, least: int = 3) -> Case:
        """The case as clients take part in it: without rare entries, if so asked.

        With ``exposed = "leave-out"`` a client takes its entries of a feature for
        zeros where they are fewer than ``least``.
        """
        if self.exposed != "leave-out":
            return self
        X = self.X.copy()
        for rows, columns in self.parts:
            counts = np.count_nonzero(self.X[np.ix_(rows, columns)], axis=0)
            X[np.ix_(rows, columns[counts < least])] = 0.0
        return replace(self, X=X, exposed="refuse")

    @property
    def scale(self) -> float:
        """λN."""
        return self.regularization * len(self.y)

    @property
    def blocks(self) -> list[Any]:
        """The different feature sets of clients."""
        return [np.array(b) for b in dict.fromkeys(tuple(c) for _, c in self.parts)]


def _dealt(X: Array, y: Any, λ: float, rows: int, columns: int, exposed: str) -> Case:
    groups = [np.arange(g, len(X), rows) for g in range(rows)]
    blocks = np.array_split(np.arange(X.shape[1]), columns)
    parts = tuple((group, block) for group in groups for block in blocks)
    return Case(X, np.where(y, 1.0, -1.0), λ, parts, exposed)


def _breast_cancer() -> Case:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    X = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    X = np.hstack([X, np.ones((len(X), 1))])
    return _dealt(X, data.target == 1, 1e-3, 3, 3, "refuse")


def _noisy(rows: int, columns: int) -> Case:
    """96 samples of 12 features, two noisy classes."""
    rng = generator(0, "hyfdca attacks", "noisy")
    X = rng.standard_normal((96, 12)) / np.sqrt(12)
    z = X @ rng.standard_normal(12) + 0.3 * rng.standard_normal(96)
    return _dealt(X, z > 0.0, 1e-2, rows, columns, "refuse")


def _digits() -> Case:
    from sklearn.datasets import load_digits

    data = load_digits()
    X = np.hstack([data.data / 16.0, np.ones((len(data.data), 1))])
    # two pixels at the edge are black in all but one of a client's images
    return _dealt(X, data.target >= 5, 1e-3, 4, 4, "leave-out")


CANCER = "breast cancer, 3 × 3"
SPLITS: dict[str, Callable[[], Case]] = {
    CANCER: _breast_cancer,
    "96 samples, hybrid 3 × 2": lambda: _noisy(3, 2),
    "96 samples, horizontal, 6 clients": lambda: _noisy(6, 1),
    "digits, 4 × 4": _digits,
}


@cache
def split(name: str) -> Case:
    """A split of :data:`SPLITS`."""
    return SPLITS[name]()


# ------------------------------------------------------------------- what a server sees


class View(NamedTuple):
    """w_t, shape (T, p), and the sums at them, a unit each, shape (T, u, p)."""

    weights: Array
    sums: Array


def record(case: Case, loss: str, rounds: int) -> View:
    """Run HyFDCA on its defaults, and keep what the server's searches are given."""
    names = [f"feature {m}" for m in range(case.X.shape[1])]
    weights, sums, search = [], [], DualBundle.search

    def heard(self: DualBundle, units: list[int], proposals: Any) -> Any:
        weights.append(self.w)
        sums.append([V[0, 0].copy() for V, _ in proposals.values()])
        return search(self, units, proposals)

    def client(context: Context) -> HyFDCAClient:
        rows, columns = case.parts[int(str(context.node_config["partition-id"]))]
        features = [names[m] for m in columns]
        samples = [f"sample {i}" for i in rows]
        X = case.X[np.ix_(rows, columns)]
        return HyFDCAClient(context, X, features, samples, case.y[rows])

    strategy = HyFDCA(
        loss,
        case.regularization,
        encryption="none",
        feature_names=names,
        exposed=case.exposed,
    )
    grid = LocalGrid(client_app(client), len(case.parts))
    with mock.patch.object(DualBundle, "search", heard):
        start = ArrayRecord([np.zeros(len(names))])
        strategy.start(grid, start, num_rounds=rounds)
    return View(np.array(weights), np.array(sums))


def simulate(
    case: Case,
    loss: DualLoss,
    rounds: int,
    *,
    mixed: bool,
    apart: bool = False,
    tolerance: float = 1e-6,
) -> View:
    """The bundle in one place, for proposals that clients no longer make.

    Parameters
    ----------
    case : Case
    loss : DualLoss
    rounds : int
        At most.
    mixed : bool
        Whether clients propose as today, a proximal point mixed with α at random, or
        plain dual points, as in version 0.2.
    apart : bool
        Every group of samples is a unit, of which the server reads the sum; otherwise
        everybody together.
    tolerance : float
        The run ends where (P − D)/P is less.
    """
    X, y, N = case.X, case.y, len(case.y)
    rng = generator(0, "hyfdca proposals")

    def propose(alpha: Array, z: Array) -> Array:
        if not mixed:
            return loss.feasible(loss.dual_point(z, y), y)
        q = np.full(N, 0.1 * case.scale)
        step = loss.coordinate_step(alpha, z, q, y, case.scale)
        return loss.feasible(alpha + rng.uniform(0.5, 1.0, N) * step, y)

    rows = [np.array(r) for r in dict.fromkeys(tuple(r) for r, _ in case.parts)]
    units = rows if apart else [np.arange(N)]
    bundle = DualBundle(X.shape[1], len(units), case.regularization, 40)
    kept = [{bundle.alpha_id(u): np.zeros(len(r))} for u, r in enumerate(units)]
    alpha, weights, sums = np.zeros(N), [], []
    for _ in range(rounds):
        w = bundle.w
        z = X @ w
        square = 0.5 * case.regularization * float(w @ w)
        primal = square + float(loss.value(z, y).mean())
        dual = -square - float(loss.conjugate(alpha, y).mean())
        new, found = propose(alpha, z), {}
        for u, own in enumerate(units):
            # to the resolution of what travels
            V = np.rint(np.ldexp(new[own] @ X[own] / case.scale, 40)) / 2.0**40
            before, b = (
                -float(loss.conjugate(point[own], y[own]).sum()) / N
                for point in (alpha, new)
            )
            bundle.set_alpha_value(u, before)
            found[u] = (V[None], np.array([b]))
            kept[u][bundle.new_ids(u, 1)[0]] = new[own]
        weights.append(w)
        sums.append([V[0] for V, _ in found.values()])
        if primal - dual <= tolerance * primal:
            break
        for u, mixture in bundle.search(list(found), found).items():
            mix = mixture.weights @ np.stack([kept[u][int(i)] for i in mixture.ids])
            kept[u] = {int(i): kept[u][int(i)] for i in mixture.keep}
            kept[u][mixture.alpha_id] = mix
            alpha[units[u]] = mix
    return View(np.array(weights), np.array(sums))


# -------------------------------------------------------------------------- the attacks


def attacked(case: Case, view: View) -> dict[str, Any]:
    """Try the attacks of an honest server on one sequence of sums over everybody.

    Returns
    -------
    dict
        By attack how many whole rows were found; ``parts``: parts of rows at the
        features of one client, among combinations of uploads; ``chance``: what
        independent component analysis finds after a random rotation of its claims.
    """
    sums, weights, rows = view.sums[:, 0], view.weights, case.X
    parts = 0
    for block in case.blocks if len(case.blocks) > 1 else []:
        own = (one[:, block] for one in (sums, weights, rows))
        parts += len(_in_combinations(*own))
    found, chance = _components(sums - weights, rows, (60, 100, 200, len(sums)))
    return {
        "differences": len(_in_combinations(sums, weights, rows)),
        "parts": parts,
        "independence": found,
        "chance": chance,
        "iterations": len(sums),
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


def _in_combinations(sums: Array, weights: Array, rows: Array) -> set[int]:
    """Among up to four sums, and up to two of sums, w and what was added to w."""
    every = np.vstack([sums, weights, sums - weights])
    # combinations of four are many: the first and the last sums
    some = np.vstack([sums[:-LAST][:FIRST], sums[-LAST:]])
    found = {*rows_in_differences(some, rows, 4, 1e-11).tolist()}
    return found | {*rows_in_differences(every, rows, 2, 1e-11).tolist()}


def _row(job: tuple[str, str, str, float, bool]) -> dict[str, Any]:
    name, loss, source, λ, quick = job
    whole, made = split(name), make_loss(loss)
    case = whole.as_sent()
    case = replace(case, regularization=λ or case.regularization)
    rounds = 120 if quick else ROUNDS
    row = {"data": name, "loss": loss, "source": source, "samples": len(case.y)}
    row |= {"features": case.X.shape[1], "regularization": case.regularization}
    if source == "run":
        return row | attacked(case, record(whole, loss, rounds))
    if source == "dual points":
        return row | attacked(case, simulate(case, made, rounds, mixed=False))
    if source == "beyond":
        # attacks that gain from a run that goes on after it has converged
        view = simulate(case, made, PATIENCE, mixed=True, tolerance=0.0)
        sums = view.sums[:, 0]
        few = rows_in_differences(sums[:ROUNDS], case.X, 2, 1e-11)
        lengths = (400, 1000, PATIENCE)
        found, chance = _components(sums - view.weights, case.X, lengths)
        ends = {"independence": found, "chance": chance, "iterations": len(sums)}
        return row | {"differences": len(few)} | ends
    # what each client sends is read by itself: pairs of uploads are enough
    view = simulate(case, made, rounds, mixed=False, apart=True)
    groups = list(dict.fromkeys(tuple(r) for r, _ in case.parts))
    parts = sum(
        len(
            rows_in_differences(
                view.sums[:, groups.index(tuple(own)), columns],
                case.X[np.ix_(own, columns)],
                2,
            )
        )
        for own, columns in case.parts
    )
    total = sum(len(own) for own, _ in case.parts)
    return row | {"parts": parts, "of": total, "iterations": len(view.weights)}


def compute(options: Options) -> dict[str, Any]:
    """Every attack on recorded runs, and on what was sent in earlier versions."""
    quick = options.quick
    names = list(SPLITS)[1:3] if quick else list(SPLITS)
    jobs = [
        (name, loss, source, 0.0, quick)
        for source in ("run", "dual points", "v_k")
        for name in names
        for loss in (LOSSES[:1] if quick else LOSSES)
    ]
    if not quick:
        jobs += [(CANCER, "hinge", "beyond", λ, quick) for λ in (1e-3, 1.0)]
    with workers(options.jobs) as pool:
        return {"rows": list(pool.map(_row, jobs))}


SOURCES = {
    "run": "recorded run, default settings",
    "dual points": "sums of plain dual points, simulated",
    "v_k": "each client's v_k of plain dual points, simulated",
    "beyond": "3,000 iterations without a tolerance, simulated",
}


def render(results: dict[str, Any], out: Path) -> str:
    """What every attack finds, by what the server sees."""
    lines = []
    for row in results["rows"]:
        size = f"{row['samples']:,} × {row['features']}, λ = {row['regularization']:g}"
        parts = (
            f"{row['parts']} of {row['of']}" if "of" in row else row.get("parts", "–")
        )
        found = (row.get(attack, "–") for attack in ATTACKS)
        start = (SOURCES[row["source"]], row["data"], row["loss"], size)
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
