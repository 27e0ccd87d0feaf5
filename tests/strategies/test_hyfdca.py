"""HyFDCA against central solvers and plain NumPy loops, and its certificates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from clients.hyfdca import proposals
from fedtrellis.dual.penalty import maximise_over_simplices
from fedtrellis.dual.regularized_loss import central_optimum
from fedtrellis.objectives.losses import LOSSES, make_loss
from strategies import HyFDCA
from tests.harness import refused
from tests.strategies.hyfdca_runs import APART, KINDS, Array, Run, Split, small


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *(("hybrid", loss) for loss in sorted(LOSSES)),
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


LINE: dict[str, Any] = {"step": "line-search"}
CHOSEN: dict[str, Any] = {"slots": "chosen"}
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
    ("with one alone", {"local_fraction": 0.3, **CHOSEN}, 0.98),
    ("with one alone", {"local_fraction": 0.02, **CHOSEN, **APART}, 0.6),
    ("horizontal", {"local_passes": 1, **LINE, **APART}, 0.98),
    ("vertical", {"parts": 4, **APART}, 0.999),
]


@pytest.mark.parametrize(("kind", "options", "share"), SAFE)
def test_the_dual_never_falls(kind: str, options: dict[str, Any], share: float) -> None:
    """By the clients' α, whoever is away; and w = w(α) at every moment.

    Who waits for a group's other holder keeps what it proposed, or all its share.
    """
    options = dict(options)
    split = small(options.pop("loss", "hinge"), kind)
    # as few as one sample of a group move at a time
    each: Any = {"each": lambda run, _: run.note_dual(), "exposed": "accept"}
    run = Run(split, 40, **each, **options)
    duals, history = np.array(run.duals), run.strategy.history
    assert (np.diff(duals) >= -1e-12).all()
    assert share * split.optimum < duals[-1] <= split.optimum * (1 + 1e-9)
    assert not run.rejected  # nobody lost anything
    # what the server thinks D to be after each round is a lower bound of it
    for record, dual in zip(history, duals, strict=True):
        if "dual-bound" in record.train:
            assert record.train["dual-bound"] <= dual + 1e-12
    if "slots" in options:
        assert np.abs(duals[:-1] - run.metric("dual")[1:]).max() < 1e-9
        # P is not known of all samples, so that the last w is the model
        assert not any("primal" in r.train for r in history)
        assert np.array_equal(run.model, run.steps.w)


@pytest.mark.parametrize(
    ("step", "secure"),
    [
        *product(("bundle", "line-search"), (True, False)),
        ("practical", False),
        ("theoretical", False),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_primal_and_dual_are_those_of_one_computer(
    kind: str, step: str, secure: bool
) -> None:
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


def _coefficients(ids: Sequence[str], version: int) -> Array:
    """Numbers in [1/2, 1] in the place of r, which nobody but holders can draw."""
    x = np.sin([12.9898 * (1 + int(name[-6:])) + 78.233 * version for name in ids])
    fraction: Array = (43758.5453 * x) % 1.0
    return 0.5 + 0.5 * fraction


@pytest.fixture
def known_mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixing(run: Any, g: int, number: int, version: int, z: Array) -> Array:
        assert number == 0
        ids = [run.part.sample_ids[i] for i in run.held[g].rows]
        return _coefficients(ids, version)[None]

    monkeypatch.setattr(proposals, "_mixing", mixing)


def _plain_bundle(
    split: Split, groups: list[Any], rounds: int, mixed: bool
) -> list[float]:
    """D by iteration: all proposals kept, every group a simplex, no clients.

    ``mixed``: not the dual point, but r_i of the way to y_i clip(y_i α_i +
    (1 − y_i z_i)/g, 0, 1), g = 0.1, the proximal point of the hinge loss.
    """
    problem, λ, y, N = split.problem, split.regularization, split.y, split.n
    points = [[np.zeros(len(rows))] for rows in groups]
    alpha, duals = np.zeros(N), []
    for t in range(rounds):
        z = problem.scores(problem.primal_of(alpha))
        u = problem.loss.dual_point(z, y)
        if mixed:
            proximal = y * np.clip(y * alpha + (1 - y * z) / 0.1, 0.0, 1.0)
            u = alpha + _coefficients(split.ids, t) * (proximal - alpha)
        V, b, blocks = np.zeros((0, split.p)), np.zeros(0), []
        for rows, known in zip(groups, points, strict=True):
            known += [u[rows], alpha[rows]]
            blocks.append(slice(len(b), len(b) + len(known)))
            V = np.vstack([V, np.array(known) @ split.X[rows] / (λ * N)])
            losses = [problem.loss.conjugate(a, y[rows]).sum() for a in known]
            b = np.append(b, -np.array(losses) / N)
        # tests of it compare that with CVXPY
        theta = np.zeros(len(b))
        theta[[block.start for block in blocks]] = 1.0
        theta = maximise_over_simplices(λ * V @ V.T, b, theta, blocks)
        for rows, known, block in zip(groups, points, blocks, strict=True):
            alpha[rows] = theta[block] @ np.array(known)
        duals.append(problem.dual_value(problem.loss.feasible(alpha, y)))
    return duals


@pytest.mark.usefixtures("known_mixing")
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_that_forgets_nothing(kind: str, secure: bool) -> None:
    """With secure sums all groups are one unit, else each is one."""
    # two dual points of a group that differ in one sample put it right at its kink,
    # where rounding decides: larger groups have none
    split = small(parts=kind, n=180 if kind == "horizontal" else 48)
    run = Run(split, 10, secure_sum=secure, each=lambda run, _: run.note_dual())
    count = {"hybrid": 3, "horizontal": 6, "vertical": 1}[kind]
    groups = [np.arange(i, split.n, count) for i in range(count)]
    plain = _plain_bundle(split, [np.arange(split.n)] if secure else groups, 10, secure)
    assert np.abs(np.array(run.duals) - plain).max() < 1e-8
    assert run.duals[-1] > run.duals[2] > 0.0


def test_the_line_search_is_that_of_one_computer() -> None:
    """METHODS' exact line search, one γ for all samples, hinge loss."""
    split = small(parts="vertical")
    run = Run(split, 60, step="line-search", **APART)
    X, y, λ, N = split.X, split.y, split.regularization, split.n
    scale, q = λ * N, (X**2).sum(axis=1)
    alpha, w = np.zeros(N), np.zeros(split.p)
    for dual in run.metric("dual"):
        z, half = X @ w, λ / 2 * float(w @ w)
        assert abs(dual - float(y @ alpha) / N + half) < 1e-8
        step = y * np.clip(scale * (1 - y * z) / q + y * alpha, 0, 1) - alpha
        dw = X.T @ step / scale
        gamma = (float(y @ step) / N - λ * float(w @ dw)) / (λ * float(dw @ dw))
        gamma = min(max(gamma, 0.0), 1.0)
        alpha, w = alpha + gamma * step, w + gamma * dw


class Paper:
    """Algorithms 1 to 5 on one computer, with stale values of those who are away."""

    def __init__(self, split: Split, step: str) -> None:
        self.split, self.step = split, step
        self.loss = make_loss(split.loss)
        self.scale = split.regularization * split.n
        self.alpha, self.w = np.zeros(split.n), np.zeros(split.p)
        held = [np.bincount(rows, minlength=split.n) for rows, _ in split.parts]
        self.holders = np.sum(held, axis=0)
        self.horizontal = int(self.holders.max()) == 1
        self.products = [np.zeros(split.n) for _ in split.parts]
        self.hat = [np.zeros(split.p) for _ in split.parts]
        self.known = [np.zeros(split.n) for _ in split.parts]
        self.before = set(range(len(split.parts)))

    def primal(self, clients: set[int]) -> None:
        for k in clients:
            rows, columns = self.split.parts[k]
            self.known[k] = self.alpha.copy()
            X = self.split.X[np.ix_(rows, columns)]
            self.hat[k] = np.zeros(self.split.p)
            self.hat[k][columns] = X.T @ self.alpha[rows]
        self.w = np.sum(self.hat, axis=0) / self.scale

    def iterate(self, here: set[int]) -> None:
        self.primal(here - self.before)
        for k in here:
            rows, columns = self.split.parts[k]
            X = self.split.X[np.ix_(rows, columns)]
            self.products[k][rows] = X @ self.w[columns]
        z, y = np.sum(self.products, axis=0), self.split.y
        change = np.zeros(self.split.n)
        for k in here:
            rows = self.split.parts[k][0]
            alpha = self.known[k][rows]
            if self.step == "practical":
                step = self.loss.coordinate_step
                delta = step(alpha, z[rows], 1.0, y[rows], self.scale)
            else:
                c = 1.0 if self.horizontal else len(rows) / self.split.n
                λ = self.split.regularization
                delta = self.loss.theoretical_step(alpha, z[rows], y[rows], c, 1.0, λ)
            change[rows] += delta / self.holders[rows]
        self.alpha = self.alpha + change
        self.primal(here)
        self.before = here


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("step", PAPERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_papers_steps_are_its_algorithms(kind: str, step: str, loss: str) -> None:
    split = small(loss, kind, n=36)
    split.X = split.X / np.linalg.norm(split.X, axis=1, keepdims=True)
    plain = Paper(split, step)

    def look(run: Run, t: int) -> None:
        plain.iterate({int(name) for name in run.strategy.sample(t)})
        far = np.abs(run.steps.w - plain.w).max()
        assert far < 1e-9 * (1 + np.abs(plain.w).max())
        run.check_reported()

    there = 0.6 if loss == "hinge" else 1.0
    Run(split, 12, each=look, step=step, participation=there, **APART)
    assert np.abs(plain.w).max() > 1e-4


def test_cyclic_groups() -> None:
    """Client i in iterations t with t ≡ i modulo C, γ_t = 1/t, stale values else."""

    def look(run: Run, t: int) -> None:
        assert list(run.strategy.used) == [str(t % 3)]
        run.check_reported()

    split, options = small(parts="vertical", n=36), {"step": "theoretical", **APART}
    run = Run(split, 12, cyclic_groups=3, each=look, **options)
    assert split.problem.value(run.steps.w) < split.problem.value(np.zeros(split.p))


BALANCED = {"class_weight": "balanced"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cyclic_groups": 3}, "cyclic_groups"),
        ({"cyclic_groups": 1, "step": "theoretical"}, "cyclic_groups"),
        ({"step": "practical"}, "secure_sum"),
        ({"parts": 2}, "secure_sum"),
        ({"local_passes": 1}, "secure_sum"),
        ({"context": b"", "encryption": "stream"}, "context"),
        ({"classes": 2}, "classes = 2 is one problem"),
        ({"classes": 3, "step": "practical", **APART}, "'practical'; allowed"),
        ({"classes": 3, "loss": "squared"}, "which is none of two classes"),
        ({"class_weight": "balance"}, "class_weight = 'balance' is no rule"),
        ({"class_weight": {0: 2.0}}, "names class 0, which there is not; allowed: -1"),
        ({"class_weight": {1: -2.0}}, "must be a finite number from 0 on"),
        ({"class_weight": {1: 0.0, -1: 0}}, "0 of every class"),
        ({**BALANCED, "loss": "squared"}, "none of two classes"),
        ({**BALANCED, "step": "line-search"}, "step = 'line-search'; allowed: 'bundle"),
        ({**BALANCED, "local_passes": 1, **APART}, "local_passes = 1; allowed: 0"),
    ],
)
def test_settings_that_do_not_fit(options: dict[str, Any], match: str) -> None:
    refused(match, lambda: HyFDCA(**options))
