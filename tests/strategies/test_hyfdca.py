"""HyFDCA against central solvers and plain NumPy loops, and its certificates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from fedtrellis.dual.bundle import DualBundle
from fedtrellis.dual.regularized_loss import central_optimum
from fedtrellis.objectives.losses import LOSSES, make_loss
from strategies import HyFDCA
from tests.harness import in_part, refused
from tests.strategies.hyfdca_runs import APART, CUTS, KINDS, Array, Run, Split, small


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *in_part(("hybrid", loss) for loss in sorted(LOSSES)),
        *((kind, "hinge") for kind in KINDS[1:]),
    ],
)
def test_every_split_and_loss_against_the_central_optimum(kind: str, loss: str) -> None:
    """It stops by its certificate, no earlier and no later."""
    split = small(loss, kind)
    run = Run(split, 300, tolerance=1e-6)
    assert len(run.strategy.history) < 300
    assert abs(split.relative(run.model)) < 1e-6
    w = central_optimum(split.problem).w
    # P is λ-strongly convex
    bound = np.sqrt(2 * 1.1e-6 * split.optimum / split.regularization)
    assert np.linalg.norm(run.model - w) < bound
    assert run.strategy.alignment.horizontal == (kind == "horizontal")
    best = np.minimum.accumulate(run.metric("primal"))
    gap = (best - np.maximum.accumulate(run.metric("dual"))) / best
    assert gap[-1] <= 1e-6 < gap[-2]
    run.strategy._uncertified = 10**9  # the result is what is certified
    assert np.array_equal(run.strategy.found_point(), run.model)


LINE: dict[str, Any] = {"step": "line-search"}
PAPERS = ("practical", "theoretical")
#: Splits, settings, and what share of P* D comes to in 40 iterations.
SAFE: list[tuple[str, dict[str, Any], float]] = [
    ("hybrid", {"participation": 0.5, "local_fraction": 0.1}, 0.25),
    ("hybrid", {"participation": 0.5, "local_fraction": 0.1, **APART}, 0.5),
    ("hybrid", {"participation": 0.5, "local_fraction": 0.01, **LINE}, 0.05),
    ("hybrid", {"participation": 0.5, "local_fraction": 0.01, **LINE, **APART}, 0.2),
    ("hybrid", {"participation": 0.5, "loss": "logistic"}, 0.7),
    ("irregular", {"participation": 0.6}, 0.95),
    ("irregular", {"participation": 0.6, **APART}, 0.99),
    ("with one alone", {"local_fraction": 0.3}, 0.98),
    ("with one alone", {"local_fraction": 0.02, **APART}, 0.6),
    ("vertical", {"parts": 4, **APART}, 0.999),
]


@pytest.mark.parametrize(("kind", "options", "share"), in_part(SAFE))
def test_the_dual_never_falls(kind: str, options: dict[str, Any], share: float) -> None:
    """By the clients' α, whoever is away; and w = w(α) at every moment.

    Who waits for a group's other holder keeps what it proposed, or all its share.
    """
    options = dict(options)
    split = small(options.pop("loss", "hinge"), kind)
    run = Run(split, 40, each=lambda run, _: run.note_dual(), **options)
    duals, history = np.array(run.duals), run.strategy.history
    assert (np.diff(duals) >= -1e-12).all()
    assert share * split.optimum < duals[-1] <= split.optimum * (1 + 1e-9)
    assert not run.rejected  # nobody lost anything
    # what the server thinks D to be after each round is a lower bound of it
    for record, dual in zip(history, duals, strict=True):
        if "dual-bound" in record.train:
            assert record.train["dual-bound"] <= dual + 1e-12


@pytest.mark.parametrize(
    ("step", "secure"),
    [
        *product(("bundle", "line-search"), (True, False)),
        ("practical", False),
        ("theoretical", False),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_primal_and_dual_are_one_computer_s(kind: str, step: str, secure: bool) -> None:
    """Of the point that a round starts from; and the result is the best of them."""
    split = small(parts=kind)
    models, duals = [np.zeros(split.p)], [0.0]

    def look(run: Run, _: int) -> None:
        alpha = split.problem.loss.feasible(run.check(), split.y)
        duals.append(split.problem.dual_value(alpha))
        models.append(run.steps.w.copy())

    fraction = 1.0 if step in ("bundle", "line-search") else 0.05
    options: Any = {"step": step, "secure_sum": secure, "local_fraction": fraction}
    run = Run(split, 12, each=look, **options)
    primal, dual = run.metric("primal"), run.metric("dual")
    values = [split.problem.value(w) for w in models]
    assert np.abs(primal - values[:-1]).max() < 1e-9
    assert np.abs(dual - duals[:-1]).max() < 1e-9
    lowest, highest = np.minimum.accumulate(primal), np.maximum.accumulate(dual)
    assert np.abs(run.metric("duality-gap") - (lowest - highest)).max() < 1e-15
    assert np.array_equal(run.model, models[int(np.argmin(primal))])


class Paper:
    """Algorithms 1 to 5 in one place, with stale values of those who are away."""

    def __init__(self, split: Split, step: str) -> None:
        self.split, self.step, self.before = split, step, set(range(len(split.parts)))
        self.scale, self.w = split.regularization * split.n, np.zeros(split.p)
        self.alpha, count = np.zeros(split.n), np.zeros(split.n)
        for rows, _ in split.parts:
            count[rows] += 1.0
        self.holders, self.horizontal = count, count.max() == 1.0
        self.products = [np.zeros(split.n) for _ in split.parts]
        self.hat = [np.zeros(split.p) for _ in split.parts]

    def primal(self, clients: set[int]) -> None:
        for k in clients:
            rows, columns = self.split.parts[k]
            X = self.split.X[np.ix_(rows, columns)]
            self.hat[k][columns] = X.T @ self.alpha[rows] / self.scale
        self.w = np.sum(self.hat, axis=0)

    def iterate(self, here: set[int], gamma: float) -> Array:
        self.primal(here - self.before)
        for k in here:
            rows, columns = self.split.parts[k]
            X = self.split.X[np.ix_(rows, columns)]
            self.products[k][rows] = X @ self.w[columns]
        z, loss = np.sum(self.products, axis=0), make_loss(self.split.loss)
        change = np.zeros(self.split.n)
        for k in here:
            rows = self.split.parts[k][0]
            given, y = (self.alpha[rows], z[rows]), self.split.y[rows]
            if self.step == "practical":
                delta = loss.coordinate_step(*given, 1.0, y, self.scale)
            else:
                c = 1.0 if self.horizontal else len(rows) / self.split.n
                λ = self.split.regularization
                delta = loss.theoretical_step(*given, y, c, gamma, λ)
            change[rows] += gamma * delta / self.holders[rows]
        self.alpha, self.before = self.alpha + change, here
        self.primal(here)
        return self.w


def mixtures(split: Split, groups: list[Any], step: str) -> Iterator[Array]:
    """The hinge loss's bundle, or line search, in one place; every group is a unit."""
    X, y, scale = split.X, split.y, split.regularization * split.n
    memory, loss, q = 40 if step == "bundle" else 2, make_loss("hinge"), (X**2).sum(1)
    search = DualBundle(split.p, len(groups), split.regularization, memory)
    points, alpha = [{0: np.zeros(len(rows))} for rows in groups], np.zeros(split.n)
    while True:
        z, told = X @ search.w, {}
        a = alpha + loss.coordinate_step(alpha, z, q, y, scale)
        a = loss.dual_point(z, y) if step == "bundle" else a
        for u, rows in enumerate(groups):
            points[u][search.new_ids(u, 1)[0]] = a[rows]
            V = (a[rows] @ X[rows] / scale)[None]
            told[u] = V, np.array([a[rows] @ y[rows] / split.n])
        for u, mixture in search.search(list(told), told).items():
            mixed = mixture.weights @ [points[u][i] for i in mixture.ids.tolist()]
            points[u] = {i: points[u][i] for i in mixture.keep.tolist()}
            points[u][mixture.alpha_id] = alpha[groups[u]] = mixed
        yield search.w


@pytest.mark.parametrize(
    ("kind", "step", "options"),
    [
        *product(KINDS, ("bundle", "line-search", *PAPERS), [{}]),
        *product(KINDS, PAPERS, [{"participation": 0.6}]),
        # client i in iterations t with t ≡ i modulo C, γ_t = 1/t
        ("vertical", "theoretical", {"cyclic_groups": 3}),
    ],
)
def test_a_step_is_that_of_one_place(kind: str, step: str, options: Any) -> None:
    # two dual points of a group that differ in one sample put it right at its kink,
    # where rounding decides: larger groups have none
    loss = "logistic" if step in PAPERS and not options else "hinge"
    split = small(loss, kind, n=180 if kind == "horizontal" else 48)
    split.X = split.X / np.linalg.norm(split.X, axis=1, keepdims=True)
    G = CUTS[kind][0]
    own = mixtures(split, [np.arange(g, split.n, G) for g in range(G)], step)
    plain = Paper(split, step)

    def look(run: Run, t: int) -> None:
        if step in PAPERS:
            here = {int(name) for name in run.strategy.sample(t)}
            w = plain.iterate(here, 1.0 / t if "cyclic_groups" in options else 1.0)
            run.check_reported()
        else:
            w = next(own)
        assert np.abs(run.steps.w - w).max() < 1e-8 * (1 + np.abs(w).max())

    run = Run(split, 12, step=step, each=look, **APART, **options)
    assert np.abs(run.steps.w).max() > 1e-4


BALANCED = {"class_weight": "balanced"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"context": b"", "encryption": "stream"}, "context"),
        ({"classes": 2}, "classes = 2 is one problem"),
        ({"classes": 3, "step": "practical", **APART}, "'practical'; allowed"),
        ({"class_weight": "balance"}, "class_weight = 'balance' is no rule"),
        ({"class_weight": {0: 2.0}}, "names class 0, which there is not; allowed: -1"),
        ({"class_weight": {1: -2.0}}, "must be a finite number from 0 on"),
        ({**BALANCED, "loss": "squared"}, "none of two classes"),
        ({**BALANCED, "step": "line-search"}, "step = 'line-search'; allowed: 'bundle"),
    ],
)
def test_settings_that_do_not_fit(options: dict[str, Any], match: str) -> None:
    refused(match, lambda: HyFDCA(**options))
