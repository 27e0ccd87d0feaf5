"""HyFDCA against central solvers and plain NumPy loops, and its certificates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from clients.hyfdca import proposals
from fedtrellis import LocalGrid
from fedtrellis.dual.regularized_loss import central_optimum
from fedtrellis.objectives.losses import LOSSES, make_loss
from fedtrellis.settings import SettingsError
from strategies import HyFDCA
from tests.strategies.hyfdca_runs import (
    Array,
    Run,
    Split,
    grid_parts,
    irregular,
    small,
)

KINDS = ("hybrid", "horizontal", "vertical")
# METHODS: scikit-learn's digits, 5 or more against the rest, λ = 10⁻³
DIGITS, DIGITS_UNIT = 0.2687529, 0.4076158
# ------------------------------------------------------- it gets to the central optimum


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *(("hybrid", loss) for loss in sorted(LOSSES)),
        *((kind, "hinge") for kind in KINDS[1:]),
    ],
)
def test_every_split_and_loss_against_the_central_optimum(kind: Any, loss: str) -> None:
    split = small(loss, kind)
    run = Run(split, 300, tolerance=1e-6)
    assert len(run.strategy.history) < 300
    assert abs(split.relative(run.model)) < 1e-6
    w = central_optimum(split.problem).w
    # P is λ-strongly convex
    bound = np.sqrt(2 * 1.1e-6 * split.optimum / split.regularization)
    assert np.linalg.norm(run.model - w) < bound
    assert run.strategy.alignment.horizontal == (kind == "horizontal")


# -------------------------------------------------------------------- D never falls


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(
    ("loss", "step", "fraction"),
    [
        ("hinge", "bundle", 1.0),
        ("hinge", "bundle", 0.1),
        ("hinge", "line-search", 0.01),
        ("logistic", "bundle", 0.5),
    ],
)
def test_the_dual_never_falls(
    loss: str, step: str, fraction: float, participation: float, secure: bool
) -> None:
    """By the clients' α, whoever is away; and w = w(α) at every moment."""
    run = Run(
        small(loss),
        40,
        step=step,
        local_fraction=fraction,
        participation=participation,
        secure_sum=secure,
        # with a fraction of 0.01 one sample of a group moves at a time
        exposed="accept",
        each=lambda run, _: run.note_dual(),
    )
    duals = np.array(run.duals)
    assert (np.diff(duals) >= -1e-12).all()
    assert duals[-1] > duals[0]
    # what the server thinks D to be after each round is a lower bound of it
    for record, dual in zip(run.strategy.history, duals, strict=True):
        if "dual-bound" in record.train:
            assert record.train["dual-bound"] <= dual + 1e-12


@pytest.mark.parametrize(("secure", "near"), [(False, 1e-6), (True, 1e-3)])
def test_holders_of_several_groups_that_move_at_different_times(
    secure: bool, near: float
) -> None:
    """Who waits for a group's other holder keeps what it proposed, or all its share."""
    run = Run(
        irregular(),
        200,
        participation=0.6,
        secure_sum=secure,
        each=lambda run, _: run.note_dual(),
    )
    assert (np.diff(run.duals) >= -1e-12).all()
    assert abs(run.split.relative(run.model)) < near
    assert not run.rejected  # nobody lost anything


# -------------------------------------------------------------------- certificates


@pytest.mark.parametrize(
    ("step", "secure"),
    [
        *itertools.product(["bundle", "line-search"], [True, False]),
        ("practical", False),
        ("theoretical", False),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_primal_and_dual_are_those_of_one_computer(
    kind: Any, step: str, secure: bool
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
    run = Run(split, 25, each=look, **options)
    primal, dual = run.metric("primal"), run.metric("dual")
    values = [split.problem.value(w) for w in models]
    assert np.abs(primal - values[:-1]).max() < 1e-9
    assert np.abs(dual - duals[:-1]).max() < 1e-9
    lowest, highest = np.minimum.accumulate(primal), np.maximum.accumulate(dual)
    assert np.abs(run.metric("duality-gap") - (lowest - highest)).max() < 1e-15
    assert (primal >= split.optimum * (1 - 1e-9)).all()
    assert (dual <= split.optimum * (1 + 1e-9)).all()
    best = int(np.argmin(primal))
    assert np.array_equal(run.model, models[best])


def test_it_stops_by_its_certificate() -> None:
    split = small()
    run = Run(split, 500, tolerance=1e-4)
    rounds = len(run.strategy.history)
    assert rounds < 90
    assert split.relative(run.model) <= 1e-4
    best = np.minimum.accumulate(run.metric("primal"))
    gap = (best - np.maximum.accumulate(run.metric("dual"))) / best
    assert gap[-1] <= 1e-4
    assert gap[-2] > 1e-4
    assert len(Run(split, rounds + 5, tolerance=0.0).strategy.history) == rounds + 5


# ------------------------------------------------------------ against plain NumPy loops


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


def _mix(V: list[Array], b: list[Array], λ: float) -> list[Array]:
    """θ that maximises Σ bᵀθ − (λ/2)‖Σ Vᵀθ‖² over one simplex each, by CVXPY."""
    cp = pytest.importorskip("cvxpy")
    thetas = [cp.Variable(len(x), nonneg=True) for x in b]
    w = sum(v.T @ t for v, t in zip(V, thetas, strict=True))
    linear = sum(x @ t for x, t in zip(b, thetas, strict=True))
    problem = cp.Problem(
        cp.Maximize(linear - λ / 2 * cp.sum_squares(w)),
        [cp.sum(t) == 1 for t in thetas],
    )
    tight = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    problem.solve(solver="CLARABEL", **tight)
    found = [np.maximum(np.asarray(t.value), 0.0) for t in thetas]
    return [t / t.sum() for t in found]


def _plain_bundle(
    split: Split, groups: list[Any], rounds: int, mixed: bool
) -> list[float]:
    """D by iteration: all proposals kept, every group a simplex, no clients.

    ``mixed``: not the dual point, but r_i of the way to y_i clip(y_i α_i +
    (1 − y_i z_i)/g, 0, 1), g = 0.1, the proximal point of the hinge loss.
    """
    problem, λ, y = split.problem, split.regularization, split.y
    points = [[np.zeros(len(rows))] for rows in groups]
    alpha, duals = np.zeros(split.n), []
    for t in range(rounds):
        w = problem.primal_of(alpha)
        z = problem.scores(w)
        u = problem.loss.dual_point(z, y)
        if mixed:
            proximal = y * np.clip(y * alpha + (1 - y * z) / 0.1, 0.0, 1.0)
            u = alpha + _coefficients(split.ids, t) * (proximal - alpha)
        V, b = [], []
        for rows, known in zip(groups, points, strict=True):
            known.append(u[rows])
            known.append(alpha[rows])
            V.append(np.array(known) @ split.X[rows] / (λ * split.n))
            b.append(
                np.array(
                    [-problem.loss.conjugate(a, y[rows]).sum() / split.n for a in known]
                )
            )
        for rows, known, theta in zip(groups, points, _mix(V, b, λ), strict=True):
            alpha[rows] = theta @ np.array(known)
        duals.append(problem.dual_value(problem.loss.feasible(alpha, y)))
    return duals


@pytest.mark.usefixtures("known_mixing")
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_that_forgets_nothing(kind: Any, secure: bool) -> None:
    """With secure sums all groups are one unit, else each is one."""
    # two dual points of a group that differ in one sample put it right at its kink,
    # where rounding decides: larger groups have none
    split = small(parts=kind, n=180 if kind == "horizontal" else 48)
    rounds = 10
    run = Run(split, rounds, secure_sum=secure, each=lambda run, _: run.note_dual())
    groups = [
        np.arange(i, split.n, 3 if kind == "hybrid" else 6)
        for i in range(3 if kind == "hybrid" else 6)
    ]
    if kind == "vertical" or secure:
        groups = [np.arange(split.n)]
    plain = _plain_bundle(split, groups, rounds, mixed=secure)
    assert np.abs(np.array(run.duals) - plain).max() < 1e-8
    assert run.duals[-1] > run.duals[2] > 0.0


def _line_search(
    split: Split, rounds: int, mixed: bool
) -> tuple[list[float], list[float]]:
    """METHODS' exact line search, one γ for all samples, hinge loss."""
    X, y, λ, N = split.X, split.y, split.regularization, split.n
    scale, q = λ * N, (X**2).sum(axis=1)
    alpha, w = np.zeros(N), np.zeros(split.p)
    primal, dual = [], []
    for t in range(rounds):
        z = X @ w
        half = λ / 2 * float(w @ w)
        primal.append(half + float(np.maximum(0, 1 - y * z).mean()))
        dual.append(float(y @ alpha) / N - half)
        step = y * np.clip(scale * (1 - y * z) / q + y * alpha, 0, 1) - alpha
        step *= _coefficients(split.ids, t) if mixed else 1.0
        dw = X.T @ step / scale
        gamma = (float(y @ step) / N - λ * float(w @ dw)) / (λ * float(dw @ dw))
        gamma = min(max(gamma, 0.0), 1.0)
        alpha, w = alpha + gamma * step, w + gamma * dw
    return primal, dual


@pytest.mark.usefixtures("known_mixing")
@pytest.mark.parametrize(("secure", "rounds"), [(False, 60), (True, 30)])
def test_the_line_search_is_that_of_one_computer(secure: bool, rounds: int) -> None:
    """Rounding grows in this step: that to 2^-40 of hidden sums is seen sooner."""
    split = small(parts="vertical")
    run = Run(split, rounds, step="line-search", secure_sum=secure)
    primal, dual = _line_search(split, rounds, mixed=secure)
    assert np.abs(run.metric("primal") - primal).max() < 1e-8
    assert np.abs(run.metric("dual") - dual).max() < 1e-8


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
            c = 1.0 if self.horizontal else len(rows) / self.split.n
            if self.step == "practical":
                delta = self.loss.coordinate_step(
                    self.known[k][rows], z[rows], 1.0, y[rows], self.scale
                )
            else:
                delta = self.loss.theoretical_step(
                    self.known[k][rows],
                    z[rows],
                    y[rows],
                    c,
                    1.0,
                    self.split.regularization,
                )
            change[rows] += delta / self.holders[rows]
        self.alpha = self.alpha + change
        self.primal(here)
        self.before = here


@pytest.mark.parametrize(("participation", "loss"), [(1.0, "logistic"), (0.6, "hinge")])
@pytest.mark.parametrize("step", ["practical", "theoretical"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_papers_steps_are_its_algorithms(
    kind: Any, step: str, loss: str, participation: float
) -> None:
    split = small(loss, kind, n=36)
    split.X = split.X / np.linalg.norm(split.X, axis=1, keepdims=True)
    plain = Paper(split, step)

    def look(run: Run, t: int) -> None:
        plain.iterate({int(name) for name in run.strategy.sample(t)})
        far = np.abs(run.steps.w - plain.w).max()
        assert far < 1e-9 * (1 + np.abs(plain.w).max())
        run.check_reported()

    options: Any = {"step": step, "secure_sum": False, "participation": participation}
    Run(split, 15, each=look, **options)
    assert np.abs(plain.w).max() > 1e-4


def test_cyclic_groups() -> None:
    """Client i in iterations t with t ≡ i modulo C, γ_t = 1/t, stale values else."""
    split = small(parts="vertical", n=36)
    asked: list[list[int]] = []

    def look(run: Run, t: int) -> None:
        asked.append([int(name) for name in run.strategy.used])
        run.check_reported()

    run = Run(
        split, 12, step="theoretical", secure_sum=False, cyclic_groups=3, each=look
    )
    assert asked == [[t % 3] for t in range(1, 13)]
    value = split.problem.value(run.steps.w)
    assert value < split.problem.value(np.zeros(split.p))


# ----------------------------------------------------------------------- the settings


@pytest.mark.parametrize(
    ("kind", "options", "least"),
    [
        # one gets about as far without
        ("horizontal", {"local_passes": 2}, 0.8),
        ("horizontal", {"local_passes": 1, "step": "line-search"}, 0.8),
        ("vertical", {"parts": 4}, 1.0),
    ],
)
def test_local_passes_and_parts_get_further(
    kind: Any, options: dict[str, Any], least: float
) -> None:
    split, duals = small(parts=kind), []
    for more in ({"step": options.get("step", "bundle")}, options):
        run = Run(
            split,
            15,
            secure_sum=False,
            each=lambda run, _: run.note_dual(),
            **more,
        )
        assert (np.diff(run.duals) >= -1e-12).all()
        duals.append(run.duals[-1])
    assert len(run.strategy.alignment.groups) == {"horizontal": 6, "vertical": 4}[kind]
    assert least * duals[0] < duals[1] <= split.optimum * (1 + 1e-9)


@pytest.mark.parametrize(("fraction", "secure"), [(0.3, True), (0.02, False)])
def test_only_the_chosen_slots_give_the_same_steps(
    fraction: float, secure: bool
) -> None:
    """Also with samples that nobody shares."""
    split = small()
    split.parts.append((np.arange(90, 96), np.arange(12)))
    split.parts[:6] = grid_parts(90, 12, 3, 2)
    run = Run(
        split,
        40,
        local_fraction=fraction,
        slots="chosen",
        secure_sum=secure,
        exposed="accept",  # two samples of the smallest group move at a time
        each=lambda run, _: run.note_dual(),
    )
    assert (np.diff(run.duals) >= -1e-12).all()
    assert np.abs(np.array(run.duals)[:-1] - run.metric("dual")[1:]).max() < 1e-9
    assert run.duals[-1] > 0.2 * split.optimum
    # P is not known of all samples, so that the last w is the model
    assert not any("primal" in r.train for r in run.strategy.history)
    assert np.array_equal(run.model, run.steps.w)


@pytest.mark.parametrize(
    ("kind", "options", "waves"),
    [
        ("hybrid", {}, 2),
        ("vertical", {}, 2),
        ("horizontal", {}, 1),
        ("hybrid", {"step": "line-search"}, 2),
        ("hybrid", {"secure_sum": False}, 2),
        ("hybrid", {"secure_sum": False, "parts": 3}, 2),
        ("horizontal", {"secure_sum": False, "local_passes": 1}, 1),
        ("hybrid", {"secure_sum": False, "step": "practical"}, 3),
        ("vertical", {"secure_sum": False, "step": "theoretical"}, 3),
        ("horizontal", {"secure_sum": False, "step": "practical"}, 2),
    ],
)
def test_round_trips_of_an_iteration(
    kind: Any, options: dict[str, Any], waves: int
) -> None:
    run = Run(small(parts=kind), 4, **options)
    trips = [record.round_trips for record in run.strategy.history]
    assert trips[0] == 4 + waves  # align, agree, labels, ready
    assert set(trips[1:]) == {waves}  # backups travel along
    assert not run.rejected


@pytest.mark.usefixtures("known_mixing")
@pytest.mark.parametrize(
    ("kind", "options", "encryption"),
    [
        ("hybrid", {}, "stream"),
        ("hybrid", {"secure_sum": False}, "tenseal-bfv"),
        ("hybrid", {"secure_sum": False, "step": "practical"}, "stream"),
        ("vertical", {}, "tenseal-bfv"),
        ("horizontal", {}, "stream"),
    ],
)
def test_an_encrypted_run_is_the_unencrypted_one(
    kind: Any, options: dict[str, Any], encryption: str
) -> None:
    if encryption == "tenseal-bfv":
        pytest.importorskip("tenseal")
    split = small(parts=kind, n=48)
    names = (encryption, "none")
    one, other = (Run(split, 10, encryption=name, **options) for name in names)
    assert np.abs(one.steps.w - other.steps.w).max() < 1e-9
    assert np.abs(one.model - other.model).max() < 1e-9
    assert np.abs(one.metric("dual") - other.metric("dual")).max() < 1e-9


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cyclic_groups": 3}, "cyclic_groups"),
        ({"cyclic_groups": 1, "step": "theoretical"}, "cyclic_groups"),
        ({"step": "practical"}, "secure_sum"),
        ({"parts": 2}, "secure_sum"),
        ({"local_passes": 1}, "secure_sum"),
        ({"context": b"", "encryption": "stream"}, "context"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as error:
        HyFDCA(**options)
    assert "\n" not in str(error.value)


def test_the_model_has_to_fit() -> None:
    split = small()
    grid = LocalGrid(split.app(), split.num_clients)
    strategy = HyFDCA(encryption="none")
    for arrays in ([np.zeros((3, 4))], [np.zeros(6), np.zeros(6)]):
        with pytest.raises(SettingsError, match="one vector of weights"):
            strategy.start(grid, ArrayRecord(arrays), num_rounds=1)
    with pytest.raises(SettingsError, match="11 weights, but the clients hold 12"):
        strategy.start(grid, ArrayRecord([np.zeros(11)]), num_rounds=1)
    named = HyFDCA(encryption="none", feature_names=split.names)
    with pytest.raises(SettingsError, match="11 weights, but feature_names has 12"):
        named.start(grid, ArrayRecord([np.zeros(11)]), num_rounds=1)
